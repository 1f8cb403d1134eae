"""Variants: a specification with one operation done in another way, each a way that kernels are written.

Where a variant gives no finite number it gives the specification's own, so that it differs for its reason only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.arithmetic import ARITHMETIC, FLT_MAX, Constants
from fp4ref.catalogue import PROFILES
from fp4ref.formats import E8M0, F, Floats
from fp4ref.reciprocal import reciprocal_approx
from fp4ref.spec import Granularity, Metric, Spec, Subnormals


class Topic(StrEnum):
    """The topic of a variant; the families of witnesses have these names."""

    RECIPROCAL = "reciprocal"
    ORDER = "operation-order"
    ROUNDING = "double-rounding"
    FLUSH = "flush"
    PROFILE = "profiles"


@dataclass(frozen=True)
class Variant:
    """A changed specification, and what is done to its input before it."""

    name: str
    topic: Topic
    spec: Spec
    prepare: Callable[[NDArray[Any]], NDArray[Any]] | None = None


Scaling = Callable[[Floats, Floats, Floats], Any]  # (x, s, g) -> values before the element codec
BlockScaling = Callable[[Floats, Floats, np.float32], Any]  # (amax, g, element_max) -> scale before its codec
GlobalScaling = Callable[[Floats, np.float32, np.float32], Any]  # (amax, element_max, scale_max) -> g
ONE = F(1)

# g encodes: x is multiplied by it
SCALED: dict[str, Scaling] = {
    "x / (s / g)": lambda x, s, g: x / (s / g),
    "x / (s * (1 / g))": lambda x, s, g: x / (s * (ONE / g)),
    "x * (g / s)": lambda x, s, g: x * (g / s),
    "x * (1 / (s / g))": lambda x, s, g: x * (ONE / (s / g)),
    "x * (1 / (s * (1 / g)))": lambda x, s, g: x * (ONE / (s * (ONE / g))),
    "(x * g) / s": lambda x, s, g: x * g / s,
    "(x * g) * (1 / s)": lambda x, s, g: x * g * (ONE / s),
    "x * (g * (1 / s))": lambda x, s, g: x * (g * (ONE / s)),
    "x * rcp(s * rcp(g))": lambda x, s, g: x * reciprocal_approx(s * reciprocal_approx(g)),
    "x * (g * rcp(s))": lambda x, s, g: x * (g * reciprocal_approx(s)),
}
BLOCK_SCALE: dict[str, BlockScaling] = {
    "(amax / 6) * g": lambda a, g, m: a / m * g,
    "(amax * g) / 6": lambda a, g, m: a * g / m,
    "amax * (g / 6)": lambda a, g, m: a * (g / m),
    "amax / (6 / g)": lambda a, g, m: a / (m / g),
    "(amax * (1 / 6)) * g": lambda a, g, m: a * (ONE / m) * g,
    "(amax * g) * (1 / 6)": lambda a, g, m: a * g * (ONE / m),
    "amax * (g * (1 / 6))": lambda a, g, m: a * (g * (ONE / m)),
    "amax / (6 * (1 / g))": lambda a, g, m: a / (m * (ONE / g)),
}
GLOBAL_SCALE: dict[str, GlobalScaling] = {
    "2688 / amax": lambda a, m, top: top * m / a,
    "448 * (6 / amax)": lambda a, m, top: top * (m / a),
    "(448 / amax) * 6": lambda a, m, top: top / a * m,
    "448 / (amax / 6)": lambda a, m, top: top / (a / m),
    "2688 * (1 / amax)": lambda a, m, top: top * m * (ONE / a),
    "1 / (amax / 2688)": lambda a, m, top: ONE / (a / (top * m)),
    "1 / (amax * (1 / 2688))": lambda a, m, top: ONE / (a * (ONE / (top * m))),
}

NARROW: dict[str, np.dtype[Any]] = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


def variants(spec: Spec, dtype: np.dtype[Any]) -> Iterator[Variant]:
    """Yield the variants of a specification; some may be the specification itself."""
    if spec.global_scale is Granularity.NONE:
        yield from _without_global_scale(spec)
    else:
        yield from _with_global_scale(spec)
    yield from _rounded_twice(spec, dtype)
    yield from _flushed(spec, dtype)
    if spec.four_over_six is not None:
        yield from _searched(spec)
    for name, other in PROFILES.items():
        if same_form(spec, other):
            yield Variant(name, Topic.PROFILE, other)


def same_numbers(spec: Spec, **functions: Any) -> Spec:
    """Return a specification with other functions in its arithmetic, where these are finite."""
    record = spec.arithmetic
    changed = {slot: _where_finite(function, getattr(record, slot)) for slot, function in functions.items()}
    return spec.replace(name="variant", arithmetic=dataclasses.replace(record, name="variant", **changed))


def encodes(spec: Spec) -> bool:
    """Return True if the global scale of a specification multiplies the input, and not the result."""
    k = Constants(spec.element.format, spec.scale, F(1), F(2), lambda v: v)
    return bool(spec.arithmetic.global_scale(np.ones((1, 1, 1, 1), F), k).item() > 1)


def _where_finite(function: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*arguments: Any) -> Any:
        found, needed = np.asarray(function(*arguments), F), own(*arguments)
        return np.where(np.isfinite(found), found, needed)

    return changed


def _with_global_scale(spec: Spec) -> Iterator[Variant]:
    forward = encodes(spec)

    def encoding(g: Floats) -> Floats:
        return g if forward else ONE / g

    for name, scaling in SCALED.items():
        changed = same_numbers(spec, scaled=lambda x, s, g, k, f=scaling: f(x, s, encoding(g)))
        yield Variant(name, Topic.RECIPROCAL, changed)
    for name, block in BLOCK_SCALE.items():
        changed = same_numbers(spec, block_scale=lambda a, g, k, f=block: f(a, encoding(g), k.element_max))
        yield Variant(name, Topic.ORDER, changed)
    for name, whole in GLOBAL_SCALE.items():
        changed = same_numbers(spec, global_scale=lambda a, k, f=whole: encoding(f(a, k.element_max, k.scale_max)))
        yield Variant(name, Topic.ORDER, changed)


def _without_global_scale(spec: Spec) -> Iterator[Variant]:
    def quotient(a: Floats, g: Floats, k: Constants) -> Floats:
        return a / k.element_max

    def product(a: Floats, g: Floats, k: Constants) -> Floats:
        return a * (ONE / k.element_max)

    if spec.scale.format is E8M0:
        for name in ("rceil", "ocp-rceil", "ocp-floor", "ocp-ceil", "ocp-even"):
            yield Variant(name, Topic.ORDER, same_numbers(spec, block_scale=ARITHMETIC[name].block_scale))
    yield Variant("amax / 6", Topic.RECIPROCAL, same_numbers(spec, block_scale=quotient))
    yield Variant("amax * (1 / 6)", Topic.RECIPROCAL, same_numbers(spec, block_scale=product))
    for name, scaling in SCALED.items():
        yield Variant(
            name, Topic.RECIPROCAL, same_numbers(spec, scaled=lambda x, s, g, k, f=scaling: f(x, s, np.ones_like(s)))
        )


def _rounded_twice(spec: Spec, dtype: np.dtype[Any]) -> Iterator[Variant]:
    """Every intermediate result through a narrower type."""
    record = spec.arithmetic
    for name, narrow in NARROW.items():

        def through(function: Callable[..., Any], narrow: np.dtype[Any] = narrow) -> Callable[..., Any]:
            return lambda *arguments: np.asarray(function(*arguments), F).astype(narrow).astype(F)

        for slot in ("global_scale", "block_scale", "scaled"):
            if slot == "global_scale" and spec.global_scale is Granularity.NONE:
                continue
            changed = same_numbers(spec, **{slot: through(getattr(record, slot))})
            yield Variant(f"{slot} through {name}", Topic.ROUNDING, changed)
        if dtype == np.float32:
            yield Variant(f"x through {name}", Topic.ROUNDING, spec, partial(_narrowed, narrow=narrow))


def _narrowed(x: NDArray[Any], narrow: np.dtype[Any]) -> NDArray[Any]:
    rounded = x.astype(narrow).astype(x.dtype)
    return np.where(np.isfinite(rounded), rounded, x)


def _flushed(spec: Spec, dtype: np.dtype[Any]) -> Iterator[Variant]:
    """Subnormals of the input, and of every intermediate result, become zero."""
    record, tiny = spec.arithmetic, np.finfo(F).tiny

    def flushed(function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any) -> Floats:
            found = np.asarray(function(*arguments), F)
            return np.where(np.abs(found) < tiny, np.copysign(F(0), found), found)

        return changed

    yield Variant("subnormal inputs are 0", Topic.FLUSH, spec.replace(name="variant", subnormals=Subnormals.FLUSH))
    if dtype == np.float16:
        smallest = F(2.0**-14)
        yield Variant(
            "subnormal float16 inputs are 0",
            Topic.FLUSH,
            spec,
            lambda x: np.where(np.abs(x.astype(F)) < smallest, x * 0, x),
        )
    for slot in ("global_scale", "block_scale", "scaled"):
        if slot != "global_scale" or spec.global_scale is not Granularity.NONE:
            yield Variant(
                f"subnormal {slot} is 0", Topic.FLUSH, same_numbers(spec, **{slot: flushed(getattr(record, slot))})
            )

    if spec.global_scale is not Granularity.NONE and encodes(spec):
        whole = flushed(lambda x, s, g, k: ONE / g)
        part = flushed(lambda x, s, g, k: s * whole(x, s, g, k))
        held = same_numbers(spec, scaled=lambda x, s, g, k: x * np.fmin(ONE / part(x, s, g, k), FLT_MAX))
        yield Variant("subnormal 1 / g is 0", Topic.FLUSH, held)


def _searched(spec: Spec) -> Iterator[Variant]:
    """Other ways to compare the two candidates of 4over6."""
    search = spec.four_over_six
    assert search is not None
    for metric in Metric:
        changed = dataclasses.replace(search, metric=metric)
        yield Variant(f"4over6 {metric}", Topic.ORDER, spec.replace(name="variant", four_over_six=changed))
    yield Variant("no 4over6", Topic.ORDER, spec.replace(name="variant", four_over_six=None))


def same_form(a: Spec, b: Spec) -> bool:
    """Return True if bytes mean the same in both, and the settings are others."""
    return (
        a != b
        and all(getattr(a, name) == getattr(b, name) for name in ("block", "global_scale", "hadamard", "stochastic"))
        and (a.element.format, a.scale.format) == (b.element.format, b.scale.format)
    )
