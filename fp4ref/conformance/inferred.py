"""Mistakes that are measured in the candidate's bytes instead of being known: a constant, boundaries of a rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.evidence import Part
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide, before_codec
from fp4ref.conformance.mistakes.readers import DECLARED, LOW_FIRST
from fp4ref.conformance.mistakes.record import Mistake, Stage, known, nv
from fp4ref.conformance.mistakes.scales import guarded
from fp4ref.formats import Codec, Codes, F, Floats, Rounding, grid
from fp4ref.model.tiles import join

ENOUGH = 64  # elements that a boundary must be seen between, in all


def global_constants(kernel: Kernel, parts: Sequence[Part]) -> Iterator[Mistake]:
    """Numbers in the place of 2688 that the scale bytes allow; none if no number does, or too many."""
    if not nv(kernel) or kernel.search is not None:
        return
    low, high = 0.0, math.inf
    for part in parts:
        found = _range(kernel, part)
        if found is not None:
            low, high = max(low, found[0]), min(high, found[1])
        if low >= high:
            return
    if low == 0 or high == math.inf:
        return
    top = float(kernel.spec.scale_max * (kernel.spec.element_max or kernel.spec.element.format.max))
    for step in (64.0, 16.0, 4.0, 1.0, 0.5, 0.25, 0.125):
        numbers = np.arange(math.ceil(low * top / step), math.floor(high * top / step) + 1) * step
        if numbers.size:
            for number in numbers[:8]:
                yield known(
                    Stage.GLOBAL,
                    f"global-inferred-{number:g}",
                    f"S_enc is made of {number:g} instead of {top:g}",
                    global_scale=guarded(partial(lambda value, a, k: value / a, F(number))),
                )
            return


def _range(kernel: Kernel, part: Part) -> tuple[float, float] | None:
    """The factors of the block scale that the candidate's bytes allow."""
    side, got = part.side(kernel), part.item.scales(DECLARED)
    if side is None or got is None or kernel.block.rows != 1 or part.blocks is None:
        return None
    byte, t = got[part.rows, part.across], np.broadcast_to(side.t[:, :, 0, 0], part.blocks.shape)
    values = grid(kernel.spec.scale.format)
    use = part.blocks & (byte > 8) & (byte < kernel.spec.scale.format.codes - 1) & np.isfinite(t) & (t > 0)
    if not use.any():
        return None
    code, exact = byte[use].astype(int), t[use].astype(np.float64)
    lows, highs = (values[code - 1] + values[code]) / 2 / exact, (values[code] + values[code + 1]) / 2 / exact
    return float(lows.max()) * (1 - 1e-6), float(highs.min()) * (1 + 1e-6)


def element_boundaries(kernel: Kernel, parts: Sequence[tuple[Part, ScaleSide]]) -> Mistake | None:
    """Other boundaries between the element codes, if the candidate's codes follow from the scaled elements at all."""
    if kernel.codec.rounding is Rounding.STOCHASTIC or kernel.codec.format.bits != 4:
        return None
    pairs = [_rounding(kernel, part, side) for part, side in parts]
    found = [pair for pair in pairs if pair is not None]
    if not found or len(found) < len(pairs):
        return None
    boundaries = _boundaries(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))
    said = [] if boundaries is None else _said(kernel, boundaries)
    if boundaries is None or not said:
        return None
    return known(
        Stage.CODE,
        "element-inferred",
        f"elements are rounded at other boundaries: {', '.join(said)}",
        round=partial(_rounded, boundaries),
    )


def _rounding(kernel: Kernel, part: Part, side: ScaleSide) -> tuple[Floats, Codes] | None:
    """Magnitudes before the codec and the candidate's codes without signs; None where a sign is wrong."""
    got = part.item.codes(LOW_FIRST)
    if got is None or part.elements is None:
        return None
    y, own = join(before_codec(kernel, side), side.shape), got[part.rows, part.columns]
    use = part.elements & np.isfinite(y)
    wrong = (np.signbit(y[use]) != (own[use] >= 8)).any()
    return None if wrong else (np.asarray(np.abs(y[use]), F), np.asarray(own[use] & 7, np.uint8))


def _boundaries(magnitude: Floats, code: Codes) -> Floats | None:
    """The largest magnitude of each code but the last, [7]; None if the codes are not in order."""
    if magnitude.size < ENOUGH:
        return None
    largest = np.array([magnitude[code <= c].max(initial=0) for c in range(7)], F)
    smallest = np.array([magnitude[code > c].min(initial=np.inf) for c in range(7)], F)
    return largest if (largest < smallest).all() and np.isfinite(smallest).all() else None


def _said(kernel: Kernel, boundaries: Floats) -> list[str]:
    """Those boundaries at which the standard's rounding would have another code."""
    wanted = kernel.codec.encode(boundaries) & 7
    above = kernel.codec.encode(np.nextafter(boundaries, F(np.inf))) & 7
    middles: NDArray[Any] = (grid(kernel.codec.format)[:7] + grid(kernel.codec.format)[1:8]) / 2
    return [
        f"code {c} reaches up to {boundaries[c]:.7g} instead of {middles[c]:g}"
        for c in range(7)
        if wanted[c] > c or (above[c] <= c and boundaries[c] < middles[c] * (1 - 2**-10))
    ]


def _rounded(boundaries: Floats, y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    code = np.searchsorted(boundaries, np.abs(y), side="left")
    return np.where(np.isnan(y), codec.nan[0], code | np.signbit(y) << 3).astype(np.uint8)
