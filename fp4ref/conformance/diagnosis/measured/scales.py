"""Mistakes in the scale bytes that are measured in them: a constant, and the boundaries of a rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.arithmetic import FLT_MAX, Constants
from fp4ref.conformance.diagnosis.evidence import Part
from fp4ref.conformance.mistakes.global_scales import PRODUCTS, guarded
from fp4ref.conformance.mistakes.kernel import Kernel, Map
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.conformance.mistakes.record import Mistake, Slot, known, nv
from fp4ref.conformance.mistakes.scales import SCALES
from fp4ref.formats import Codes, F, Floats, grid

CLOSE = 5e-7  # of several roundings of float32 on the way to a scale, as a share of it
SEEN = 64  # blocks that the boundaries of a rounding must be seen between, in all
SHOWN = 3  # boundaries that are said
LISTED = tuple(float(value) for value, _ in PRODUCTS)  # constants that the library knows by name
OVER = tuple(float(name) for name, *_ in SCALES if name.replace(".", "").isdigit())


class ScaleSteps(NamedTuple):
    """The scales, before their codec, that become each byte: from `low` up to `high`, and whether any does."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    reached: NDArray[np.bool_]


@np.errstate(all="ignore")
def steps(kernel: Kernel) -> ScaleSteps:
    """Return the scales at which a kernel's byte changes, for any rounding, if larger scales have larger bytes."""
    count = kernel.scale_codec.format.codes
    low, high = np.zeros(count, np.uint32), np.full(count, np.array(np.inf, F).view(np.uint32))
    while (high - low > 1).any():  # bisection over the bits of the float32 before the codec
        middle = low + (high - low) // 2
        below = _bytes(kernel, middle.view(F)) < np.arange(count)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    first = high.view(F).astype(np.float64)
    following = np.append(first[1:], np.inf)
    return ScaleSteps(first, following, _bytes(kernel, high.view(F)) == np.arange(count))


def _bytes(kernel: Kernel, t: Floats) -> NDArray[np.int64]:
    return kernel.scale_byte(kernel.scale_codec.encode(kernel.scale_value(t))).astype(np.int64)


def constants_of_scales(kernel: Kernel, parts: Sequence[Part], *, simple: bool = False) -> Iterator[Mistake]:
    """Numbers in the place of 2688, and factors of the block scale, that the scale bytes allow.

    simple: only numbers that an author would write; others fit what is slightly different altogether.
    """
    if kernel.search is not None:
        return
    low, high, borders = 0.0, math.inf, steps(kernel)
    for part in parts:
        found = _range(kernel, borders, part)
        if found is not None:
            low, high = max(low, found[0]), min(high, found[1])
        if low >= high:
            return
    if low == 0 or high == math.inf or low <= 1 <= high:
        return
    element_max = float(kernel.spec.element_max or kernel.spec.element.format.max)
    if nv(kernel):
        top = float(kernel.spec.scale_max) * element_max
        number, listed = _number(low * top, high * top, LISTED)
        if listed or not simple or _simple(number):
            yield known(
                Slot.GLOBAL,
                f"global-{'' if listed else 'inferred-'}{number:g}",
                f"S_enc is made of {number:g} instead of {top:g}",
                measured=not listed,
                global_scale=guarded(partial(lambda value, a, k: value / a, F(number))),
            )
    if not simple:
        yield from _of_factor(nicest(low / element_max, high / element_max), element_max)
    number, listed = _number(element_max / high, element_max / low, OVER)
    if simple and not listed and not _simple(number):
        return
    named = listed and nv(kernel)
    yield known(
        Slot.SCALE,
        f"scale-{'' if named else 'inferred-'}{number:g}",
        f"the block scale is made with amax / {number:g} instead of amax / {element_max:g}",
        measured=not named,
        scale_value=partial(lambda factor, before, t: before(t * factor), F(element_max / number), kernel.scale_value),
    )


FORMS: tuple[tuple[str, str, Callable[[Floats, Floats, Any], Any]], ...] = (
    ("global", "amax * (S_enc * {})", lambda a, g, c: a * (g * c)),
    ("amax", "(amax * {}) * S_enc", lambda a, g, c: a * c * g),
    ("last", "(amax * S_enc) * {}", lambda a, g, c: a * g * c),
)


def _of_factor(factor: float, element_max: float) -> Iterator[Mistake]:
    """Yield the block scale made with another number than 1 / element_max, as an author would write it."""
    for name, form, made in FORMS:
        yield known(
            Slot.SCALE,
            f"scale-factor-inferred-{name}",
            f"the block scale is {form.format(f'{factor:g}')}, with {factor:g} instead of 1 / {element_max:g}",
            measured=True,
            block_scale=partial(_with_factor, made, F(factor)),
        )


def _with_factor(made: Any, factor: np.float32, a: Floats, g: Floats, k: Constants) -> Floats:
    return np.fmin(np.asarray(made(a, g, factor), F), FLT_MAX)


def _simple(number: float) -> bool:
    """Return True if three digits write it."""
    return float(f"{number:.3g}") == number


def _number(low: float, high: float, listed: Sequence[float]) -> tuple[float, bool]:
    """Return a number between two others, one with a name if there is one."""
    inside = [value for value in listed if low < value < high]
    return (inside[0], True) if inside else (nicest(low, high), False)


def nicest(low: float, high: float) -> float:
    """Return the number with the fewest digits strictly between two others."""
    for digits in range(-6, 12):
        unit = 10.0**-digits
        number = round((math.floor(low / unit) + 1) * unit, max(digits, 0))
        if low < number < high:
            return number
    return (low + high) / 2


@np.errstate(all="ignore")
def _range(kernel: Kernel, borders: ScaleSteps, part: Part) -> tuple[float, float] | None:
    """Return the factors of the block scale that the candidate's bytes allow."""
    found = _before(kernel, part)
    if found is None:
        return None
    exact, byte = found
    codec = kernel.scale_codec
    least = 8 if codec.format.mantissa_bits else 1
    use = (byte > least) & (byte < codec.format.codes - 1)
    use[use] = borders.reached[byte[use]]
    if not use.any():
        return None
    lows, highs = borders.low[byte[use]] / exact[use], borders.high[byte[use]] / exact[use]
    return float(lows.max()) * (1 - CLOSE), float(highs.min()) * (1 + CLOSE)


def _before(kernel: Kernel, part: Part) -> tuple[NDArray[np.float64], Codes] | None:
    """Return the scales of a kernel before their codec, positive ones, and the candidate's bytes of the same blocks."""
    side, got = part.side(kernel.but(scale_value=lambda t: t)), part.item.scales(DECLARED)
    if side is None or got is None or kernel.block.rows != 1 or part.blocks is None or side.t.ndim != 4:
        return None
    byte, t = got[part.rows, part.across], np.broadcast_to(side.t[:, :, 0, 0], part.blocks.shape)
    use = part.blocks & np.isfinite(t) & (t > 0)
    return (t[use].astype(np.float64), byte[use]) if use.any() else None


@np.errstate(all="ignore")
def scale_boundaries(kernel: Kernel, parts: Sequence[Part]) -> Mistake | None:
    """Other boundaries between the scale bytes, if the candidate's bytes follow from the block scale at all."""
    if kernel.search is not None:
        return None
    pairs = [found for part in parts if (found := _before(kernel, part)) is not None]
    if sum(t.size for t, _ in pairs) < SEEN:
        return None
    t, byte = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    order = np.lexsort((byte, t))
    t, byte = t[order].astype(F), byte[order]
    if (np.diff(byte.astype(np.int64)) < 0).any() or byte.max() >= kernel.scale_codec.format.codes:
        return None
    codes, first = np.unique(byte, return_index=True)
    last = np.append(first[1:], t.size) - 1
    if (t[last[:-1]] == t[first[1:]]).any():
        return None
    made = _bytes(kernel, t)
    if (made == byte).all():
        return None
    wrong = np.flatnonzero((made[first] != codes) | (made[last] != codes))
    values = grid(kernel.scale_codec.format)
    said = [f"{float(t[first[i]]):.7g} to {float(t[last[i]]):.7g} becomes {values[codes[i]]:g}" for i in wrong[:SHOWN]]
    more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    return known(
        Slot.SCALE_CODEC,
        "scale-codec-inferred",
        f"block scales are rounded at other boundaries: {', '.join(said)}{more}",
        measured=True,
        scale_value=partial(_rounded, t[first], t[last], values[codes].astype(F), kernel.scale_value),
    )


def _rounded(first: Floats, last: Floats, values: Floats, before: Map, t: Floats) -> Floats:
    """Return the values that were seen, and the codec's as far as they are between two of these.

    first, last: the least and the largest scale that became each value.
    """
    place = np.searchsorted(first, t, side="right") - 1
    at, right = np.maximum(place, 0), before(t)
    between = np.clip(right, values[at], np.append(values[1:], F(np.inf))[at])
    return np.where((t > 0) & (place >= 0), np.where(t <= last[at], values[at], between), right)
