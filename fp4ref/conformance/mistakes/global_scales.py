"""Mistakes in the global scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref import arithmetic_peers as ap
from fp4ref.arithmetic import FLT_MAX, SIXTH, Constants
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import (
    NARROW,
    GlobalForm,
    Mistake,
    Slot,
    cut_bfloat16,
    has_global,
    known,
    nv,
    of,
    to_bfloat16,
    to_float16,
)
from fp4ref.conformance.mistakes.scales import DECODED_ELEMENTS, DECODED_SCALES
from fp4ref.formats import F, Floats
from fp4ref.reciprocal import reciprocal_approx

# The global scale, in the convention that it encodes

PRODUCTS = (
    (448.0, "448"),
    (6.0, "6"),
    (1792.0, "1792 = 448 * 4"),
    (1536.0, "1536 = 256 * 6"),
    (1024.0, "1024 = 256 * 4"),
    (3072.0, "3072 = 512 * 6"),
    (2784.0, "2784 = 464 * 6"),
    (2880.0, "2880 = 480 * 6"),
    (1440.0, "1440 = 240 * 6"),
    (960.0, "960 = 240 * 4"),
    (1344.0, "1344 = 448 * 3"),
    (2240.0, "2240 = 448 * 5"),
    (3584.0, "3584 = 448 * 8"),
    (5376.0, "5376 = 448 * 12"),
    (344064.0, "344064 = 57344 * 6"),
    (57344.0, "57344"),
    (2560.0, "2560"),
    (2048.0, "2048"),
    (1.0, "1"),
)


def _top(k: Constants) -> np.float32:
    return F(k.scale_max * k.element_max)


def guarded(form: GlobalForm) -> GlobalForm:
    """At most FLT_MAX; 1 where amax or the result is 0. Rules: GLB-2, GLB-3."""

    def global_scale(amax: Floats, k: Constants) -> Floats:
        g = np.fmin(np.asarray(form(amax, k), F), FLT_MAX)
        return np.where((amax == 0) | (g == 0), F(1), g)

    return global_scale


def power_near(rounding: Callable[[Floats], Floats]) -> GlobalForm:
    """S_enc rounded to a power of two."""
    return lambda a, k: np.exp2(rounding(np.log2(_top(k) / a)))


GLOBALS: tuple[tuple[str, str, GlobalForm], ...] = (
    ("reciprocal", "S_enc is (1 / amax) * 2688 instead of 2688 / amax", lambda a, k: (F(1) / a) * _top(k)),
    ("448-6", "S_enc is (448 / amax) * 6", lambda a, k: k.scale_max / a * k.element_max),
    ("6-448", "S_enc is (6 / amax) * 448", lambda a, k: k.element_max / a * k.scale_max),
    ("448-over", "S_enc is 448 / (amax / 6)", lambda a, k: k.scale_max / (a / k.element_max)),
    ("448-over-product", "S_enc is 448 / (amax * fp32(1/6))", lambda a, k: k.scale_max / (a * SIXTH)),
    ("6-over", "S_enc is 6 / (amax / 448)", lambda a, k: k.element_max / (a / k.scale_max)),
    ("inverse", "S_enc is 1 / (amax / 2688)", lambda a, k: F(1) / (a / _top(k))),
    ("inverse-product", "S_enc is 1 / (amax * fp32(1/2688))", lambda a, k: F(1) / (a * (F(1) / _top(k)))),
    ("approx", "S_enc is made with an approximate reciprocal", lambda a, k: _top(k) * reciprocal_approx(a)),
    ("bf16", "S_enc is rounded to bfloat16", lambda a, k: to_bfloat16(_top(k) / a)),
    ("bf16-cut", "S_enc is truncated to bfloat16", lambda a, k: cut_bfloat16(_top(k) / a)),
    ("fp16", "S_enc is rounded to float16", lambda a, k: to_float16(_top(k) / a)),
    ("narrow", "S_enc is computed in the input's type", lambda a, k: k.narrow(k.narrow(F(1) / a) * _top(k))),
    ("upside-down", "the global scale is amax / 2688 where 2688 / amax is needed", lambda a, k: a / _top(k)),
    ("amax", "the global scale is amax itself", lambda a, k: a),
    ("one", "the global scale is not applied (S_enc = 1)", lambda a, k: np.ones_like(a)),
    ("floor2", "S_enc is rounded down to a power of two", power_near(np.floor)),
    ("ceil2", "S_enc is rounded up to a power of two", power_near(np.ceil)),
    ("round2", "S_enc is rounded to the nearest power of two", power_near(np.rint)),
)


UNGUARDED: tuple[tuple[str, str, GlobalForm], ...] = (
    ("plain", "S_enc is 2688 / amax without a limit", lambda a, k: _top(k) / a),
    (
        "or-one",
        "S_enc has no upper limit, and is 0 where amax is infinite",
        lambda a, k: np.where(a == 0, F(1), _top(k) / a),
    ),
    ("unlimited", "S_enc has no upper limit", lambda a, k: np.where(_vanishes(a, k), F(1), _top(k) / a)),
    ("inf-one", "S_enc is 1 where it is not finite", lambda a, k: _finite_or_one(_top(k) / a)),
)


ZERO, INFINITE = "a zero tensor", "an infinite amax"
# S_enc of one special amax, all others as they are: name, value, which amax
OF_SPECIAL: tuple[tuple[str, str, str], ...] = (
    ("finite", "FLT_MAX", ZERO),
    ("zero", "0", ZERO),
    ("top", "2688", ZERO),
    ("inf-zero", "0", INFINITE),
    ("inf-finite", "FLT_MAX", INFINITE),
)


def of_special(value: str, which: str, kernel: Kernel) -> GlobalForm:
    """Return the kernel's own S_enc, but `value` for one special amax: so two such mistakes can be told together."""

    def global_scale(a: Floats, k: Constants) -> Floats:
        chosen = {"FLT_MAX": FLT_MAX, "0": F(0), "2688": _top(k)}[value]
        return np.where(a == 0 if which is ZERO else np.isinf(a), chosen, np.asarray(kernel.global_scale(a, k), F))

    return global_scale


def _vanishes(a: Floats, k: Constants) -> Any:
    """Return where S_enc is 1 for want of another number: amax is 0, or so large that 2688 / amax is 0."""
    return (a == 0) | (_top(k) / a == 0)


def _finite_or_one(g: Floats) -> Floats:
    return np.where(np.isfinite(g) & (g != 0), g, F(1))


made = partial(known, Slot.GLOBAL)


def global_scale() -> Iterator[Mistake]:
    """Mistakes in S_enc."""
    for value, text in PRODUCTS:
        yield made(
            f"global-{value:g}",
            f"S_enc is made of {text} instead of 2688 = 448 * 6",
            nv,
            global_scale=guarded(partial(lambda top, a, k: top / a, F(value))),
        )
    yield made(
        "global-2688",
        "S_enc is made of 2688 = 448 * 6 instead of the specification's own constant",
        nv,
        global_scale=guarded(lambda a, k: F(2688) / a),
    )
    for name, text, form in GLOBALS:
        yield made(f"global-{name}", text, nv, global_scale=guarded(form))
    for name, text, narrow in NARROW:
        yield made(
            f"global-{name}-last",
            f"S_enc is {text}, with no limit after that",
            has_global,
            global_scale=of(partial(_narrowed, narrow)),
        )
    for name, text, form in UNGUARDED:
        yield made(f"global-{name}", text, nv, special=True, global_scale=form)
    for name, told, which in OF_SPECIAL:
        changed = of(partial(of_special, told, which))
        yield made(f"global-{name}", f"S_enc is {told} for {which}", nv, special=True, global_scale=changed)
    yield known(
        Slot.ENCODE,
        "encode-decode-amax-product",
        "elements are x * (1 / (s * (amax * fp32(1/2688)))), not made of the S_enc that the scales are made with",
        nv,
        element_global=lambda g, amax, k: np.where(amax == 0, F(1), amax * (F(1) / _top(k))),
        scaled=lambda x, s, g, k: x * np.fmin(F(1) / (s * g), FLT_MAX),
    )
    yield made(
        "global-inf-zero-nan",
        "S_enc is 0 for an infinite amax, and products of 0 and infinity stay NaN",
        nv,
        special=True,
        global_scale=ap.global_scale_te_rht,
        block_scale=lambda a, g, k: np.minimum(a * (g * SIXTH), FLT_MAX),
        scaled=lambda x, s, g, k: x * np.minimum(F(1) / (s * (F(1) / g)), FLT_MAX),
    )
    yield made(
        "global-or-one-scale",
        "neither S_enc nor the block scale has an upper limit",
        nv,
        special=True,
        global_scale=lambda a, k: np.where(a == 0, F(1), _top(k) / a),
        block_scale=lambda a, g, k: a * (g * SIXTH),
    )
    for name, text, scale in DECODED_SCALES:
        for way, words, scaled in DECODED_ELEMENTS:
            yield made(
                f"decode-{name}-{way}",
                f"the global scale is kept as g = amax / 2688: scale {text}, elements {words}",
                nv,
                global_scale=ap.decoding,
                block_scale=scale,
                scaled=scaled,
            )


def _narrowed(narrow: Callable[[Floats], Floats], kernel: Kernel) -> GlobalForm:
    return lambda amax, k: narrow(np.asarray(kernel.global_scale(amax, k), F))
