"""Foreign Hadamard kernels, judged stage by stage: each stage is given the candidate's own result of the one before.

Every function from transformed value to byte is monotone, so an interval of values gives an interval of bytes.
Certificates: theorem-order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import hadamard
from fp4ref.conformance.oracle.hadamard import exact_sums, interval
from fp4ref.formats import Codec, Codes, F, Floats, ignoring_float_warnings
from fp4ref.hadamard import POINTS
from fp4ref.model.quantize import block_scale, constants, global_scale, largest, scaled
from fp4ref.model.tiles import Matrix, tiles, widen
from fp4ref.spec import Spec

SPREAD = 12  # exponents that far apart are added exactly in every order
MARGIN = 1 / 128  # more than any rounding to bfloat16, or of a float64 sum, moves a value
SLACK = 15 * 2.0**-23 / 4  # of the sum of magnitudes, by which orders of additions may differ
WIDE_ERROR = 2.0**-44  # of the sum of magnitudes, which float64 sums and their slack keep by far


def accepts_amax(x: NDArray[Any], spec: Spec, amax: float) -> bool:
    """Return True if some order of additions in each group gives this maximum of the transformed tensor.

    Rules: HAD-4, HAD-7.
    """
    assert spec.hadamard is not None
    if np.array(amax, F).view(np.uint32) & 0xFFFF or not np.isfinite(amax):
        return False  # not a bfloat16, so no maximum of them
    narrow, wide = _groups(Matrix(x, "column"), spec, spec.hadamard.signs)
    lower = max([narrow, *(float(low) for _, low, _ in wide)])
    close = [interval(group.tolist(), spec.hadamard.signs) for group, _, high in wide if high >= lower]
    least = [max(_magnitudes(pair)[0] for pair in group) for group in close]
    most = [max(_magnitudes(pair)[1] for pair in group) for group in close]
    return bool(max([narrow, *least]) <= amax <= max([narrow, *most]))


@ignoring_float_warnings
def accepts_block(
    values: Floats,
    spec: Spec,
    amax: Floats | None,
    scale: int,
    codes: Codes,
    random_bits: Codes | None = None,
) -> bool:
    """Return True if some order of additions gives these bytes of one block.

    values: the inputs before the transform, [rows, columns] of the column direction. amax, scale: the candidate's own.

    Rules: HAD-7.
    """
    assert spec.hadamard is not None
    groups = values.reshape(-1, POINTS)
    if not np.isfinite(values).all() or not spreads(groups).any():
        return False  # every order of additions gives the same bytes, and these are others
    pairs = np.array([interval(group.tolist(), spec.hadamard.signs) for group in groups], F)
    low, high = (pairs[..., i].reshape(1, 1, *values.shape) for i in (0, 1))
    k = constants(spec, np.dtype(F))
    g = global_scale(None if amax is None else np.asarray(amax, F).reshape(1, 1, 1, 1), spec, k)
    nearest = np.where((low <= 0) & (high >= 0), F(0), np.minimum(np.abs(low), np.abs(high)))
    maxima = (largest(part, (2, 3), propagate_nan=False) for part in (nearest, np.maximum(np.abs(low), np.abs(high))))
    before = [block_scale(part, g, spec, k) for part in maxima]
    first, last = (int(spec.scale.encode(part).item()) for part in before)
    if not first <= scale <= last:
        return False
    stored = np.full((1, 1, 1, 1), scale, np.uint8)
    bits = None if random_bits is None else random_bits.reshape(low.shape)
    bounds = [spec.element.encode(scaled(part, before[1], stored, g, spec, k), bits) for part in (low, high)]
    least, most = (_order(spec.element, part.reshape(codes.shape)) for part in bounds)
    return bool(((least <= _order(spec.element, codes)) & (_order(spec.element, codes) <= most)).all())


@ignoring_float_warnings
def within_bound(groups: Floats, signs: int, values: Floats) -> NDArray[np.bool_]:
    """Return True for transformed values of groups [n, 16] that are right for some order of additions only.

    If a group has a single right value, no other is accepted, nor a zero of the other sign. float64 decides, except
    close to a tie of bfloat16, where rationals do.

    Rules: HAD-3, HAD-7.
    """
    accepted = np.zeros(groups.shape, np.bool_)
    apart = np.flatnonzero(np.isfinite(groups).all(axis=1))
    apart = apart[spreads(groups[apart])]
    wide = groups[apart].astype(np.float64)
    sums, size = wide @ _signed(signs), np.abs(wide).sum(axis=1, keepdims=True)
    inner, outer = ((SLACK + error) * size for error in (-WIDE_ERROR, WIDE_ERROR))
    low, high = _bfloat16(sums - outer), _bfloat16(sums + outer)
    close = ((low != _bfloat16(sums - inner)) | (high != _bfloat16(sums + inner))).any(axis=1)
    for i in np.flatnonzero(close):
        low[i], high[i] = np.array(interval(groups[apart[i]].tolist(), signs)).T
    accepted[apart] = (low < high) & (low <= values[apart]) & (values[apart] <= high)
    return accepted


def _bfloat16(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to bfloat16 at once, ties to even; past the largest an infinity."""
    step = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 8, -133))
    found = np.rint(values / step) * step
    return np.asarray(np.where(np.abs(found) < 2.0**128, found, np.copysign(np.inf, found)))


def _signed(signs: int) -> NDArray[np.float64]:
    """Return the transform as a matrix, a quarter of the signs."""
    return np.array([[float(s) for s in exact_sums(row, signs)] for row in np.eye(POINTS).tolist()])


@ignoring_float_warnings
def _groups(matrix: Matrix, spec: Spec, signs: int) -> tuple[float, list[tuple[Floats, float, float]]]:
    """Return the maximum over groups that every order adds alike; and the others, each with bounds of its maximum."""
    signed = _signed(signs)
    narrow, wide = 0.0, []
    for tile in tiles(matrix.shape, spec.block):
        groups = widen(matrix[tile]).reshape(-1, POINTS)
        groups = groups[np.isfinite(groups).all(axis=1)]
        spread = spreads(groups)
        if not spread.all():
            narrow = max(narrow, float(np.abs(hadamard.transform(groups[~spread], signs)).max()))
        apart = groups[spread]
        sums = np.abs(apart.astype(np.float64) @ signed)
        slack = SLACK * np.abs(apart.astype(np.float64)).sum(axis=1, keepdims=True)
        low = ((sums - slack) * (1 - MARGIN)).max(axis=1, initial=0)
        high = ((sums + slack) * (1 + MARGIN)).max(axis=1, initial=0)
        wide += [(group, float(a), float(b)) for group, a, b in zip(apart, low, high, strict=True)]
    return narrow, wide


def spreads(groups: Floats) -> NDArray[np.bool_]:
    """Return True if the sums of groups [n, 16] may depend on the order of additions. Rules: HAD-7."""
    exponents, zero = np.frexp(np.abs(groups))[1], groups == 0
    highest = np.where(zero, np.iinfo(np.int32).min // 2, exponents).max(axis=1)
    lowest = np.where(zero, np.iinfo(np.int32).max // 2, exponents).min(axis=1)
    return np.asarray(np.where(~zero.all(axis=1), highest - lowest, 0) > SPREAD)


def _magnitudes(pair: tuple[float, float]) -> tuple[float, float]:
    """Return the smallest and the largest magnitude in an interval."""
    low, high = pair
    return 0.0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high))


def _order(codec: Codec, codes: Codes) -> NDArray[np.int64]:
    """Return a number per code that grows with its value; -0 is below 0."""
    sign = codec.format.sign_bit
    magnitude = (codes & (sign - 1)).astype(np.int64)
    return np.where(codes & sign, -1 - magnitude, magnitude)
