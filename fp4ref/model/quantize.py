"""The quantizer: one pipeline, no branch on a profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import hadamard, packing
from fp4ref.arithmetic import Constants
from fp4ref.formats import Codes, F, Floats, ignoring_float_warnings
from fp4ref.model.tiles import Matrix, join, split, tiles, widen
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Amax, Granularity, Metric, Spec, Subnormals


@ignoring_float_warnings
def quantize(
    x: NDArray[Any],
    spec: Spec,
    direction: Direction = "row",
    amax: Floats | None = None,
    random_bits: Codes | None = None,
) -> DirectionData:
    """Quantize one direction of a tensor; its scales come back linear, [rows, blocks].

    x: [..., K], float32, bfloat16 or float16. amax: float32 [1], or [rows] for a row scale.
    random_bits: [rows, columns] of the direction, for stochastic rounding.
    Rows are those of x^T in the column direction.

    Rules: BLK-1, BLK-2, BLK-7, BLK-8, BLK-9, BLK-12, BLK-13, BLK-14, GLB-1, GLB-5, GLB-6, GLB-7, NUM-1, NUM-4.
    """
    matrix = Matrix(x, direction)
    rows, columns = matrix.shape
    data = np.zeros((rows, packing.width(columns, spec.element.format)), np.uint8)
    scales = np.zeros((rows, -(-columns // spec.block.columns)), np.uint8)
    if spec.global_scale is not Granularity.NONE and amax is None:
        amax = global_amax(x, spec, direction)
    k = constants(spec, x.dtype)
    for tile in tiles(matrix.shape, spec.block):
        row, column = tile
        blocks = split(inputs(matrix, tile, spec, direction), spec.block)
        bits = None if random_bits is None else split(random_bits[tile], spec.block)
        codes, scale = _blocks(blocks, _of_rows(amax, row, spec), bits, spec, k)
        shape = (row.stop - row.start, column.stop - column.start)
        packed = packing.pack(join(codes, shape), spec.element.format)
        start = packing.width(column.start, spec.element.format)
        data[row, start : start + packed.shape[1]] = packed
        first = column.start // spec.block.columns
        scales[row, first : first + scale.shape[1]] = _repeated(scale, spec)[: shape[0]]
    return DirectionData(data, scales, amax)


@ignoring_float_warnings
def global_amax(x: NDArray[Any], spec: Spec, direction: Direction = "row") -> Floats:
    """Return the maximum magnitude of the tensor, float32 [1], or of every row of the direction, [rows]; 0 where empty.

    In the column direction of a spec with a Hadamard transform it is that of the transformed values.

    Rules: GLB-1, GLB-5, BLK-2, HAD-8.
    """
    matrix = Matrix(x, direction)
    by_row = spec.global_scale is Granularity.ROW
    found = np.zeros(matrix.shape[0] if by_row else 1, F)
    for tile in tiles(matrix.shape, spec.block):
        axes, place = ((1,), tile[0]) if by_row else ((0, 1), slice(None))
        part = largest(inputs(matrix, tile, spec, direction), axes, spec.amax is Amax.PROPAGATE_NAN)
        found[place] = np.maximum(found[place], part.ravel())
    return found


def inputs(matrix: Matrix, tile: tuple[slice, slice], spec: Spec, direction: Direction) -> Floats:
    """Return a tile as the quantizer sees it: float32, transformed, subnormals flushed.

    Rules: HAD-4, NUM-1, NUM-5. Certificates: small-inputs.
    """
    values = widen(matrix[tile])
    if spec.hadamard and direction == "column":
        values = hadamard.transform(values, spec.hadamard.signs)
    if spec.subnormals is Subnormals.FLUSH:
        values = np.where(np.abs(values) < np.finfo(F).tiny, np.copysign(F(0), values), values)
    return values


def largest(values: Floats, axes: tuple[int, ...], propagate_nan: bool) -> Floats:
    """Maximum magnitude over axes, which stay with length 1: a running maximum from +0. Rules: BLK-2, BLK-16."""
    magnitude = np.abs(values)
    if not propagate_nan:
        magnitude[np.isnan(magnitude)] = 0
    return np.asarray(magnitude.max(axis=axes, keepdims=True, initial=F(0)))


def constants(spec: Spec, dtype: np.dtype[Any]) -> Constants:
    """Return the constants of an arithmetic: formats, largest values in float32, and rounding to the input's type."""
    narrow: Callable[[Floats], Floats] = lambda v: v if dtype == F else v.astype(dtype).astype(F)  # noqa: E731
    element_max = spec.element_max or spec.element.format.max
    smallest = F(ml_dtypes.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]
    return Constants(spec.element.format, spec.scale, F(element_max), F(spec.scale_max), narrow, smallest, dtype == F)


def global_scale(amax: Floats | None, spec: Spec, k: Constants) -> Floats:
    """g of the arithmetic; 1 without a global scale. Rules: GLB-2, GLB-3, GLB-6."""
    if amax is None:
        return np.ones((1, 1, 1, 1), F)
    return made_nan(spec.arithmetic.global_scale(amax, k), amax)


def block_scale(block_amax: Floats, g: Floats, spec: Spec, k: Constants) -> Floats:
    """Return the scale of every block before its codec. Rules: BLK-3, BLK-10."""
    return made_nan(spec.arithmetic.block_scale(block_amax, g, k), block_amax, g)


def scaled(blocks: Floats, before: Floats, scale: Codes, g: Floats, spec: Spec, k: Constants) -> Floats:
    """Return the elements in units of their scale, before the element codec. Rules: BLK-4, BLK-5, BLK-6."""
    s = spec.arithmetic.working_scale(before, spec.scale.decode(scale))
    return made_nan(spec.arithmetic.scaled(blocks, s, g, k), blocks, s, g)


def _blocks(blocks: Floats, amax: Floats | None, bits: Codes | None, spec: Spec, k: Constants) -> tuple[Codes, Codes]:
    """Codes [down, across, rows, columns] and scale bytes [down, across] of whole blocks. Rules: BLK-2, FOS-1."""
    g = global_scale(amax, spec, k)
    before = block_scale(largest(blocks, (2, 3), spec.amax is not Amax.IGNORE_NAN), g, spec, k)
    if spec.four_over_six:
        codes, scale = _four_over_six(blocks, before, g, amax, spec, k)
    else:
        scale = spec.scale.encode(before)
        codes = spec.element.encode(scaled(blocks, before, scale, g, spec, k), bits)
    return codes, scale[:, :, 0, 0]


def _four_over_six(
    blocks: Floats, before: Floats, g: Floats, amax: Floats | None, spec: Spec, k: Constants
) -> tuple[Codes, Codes]:
    """Return the candidate with the smaller error, the first on a tie or NaN.

    Rules: FOS-1, FOS-3, FOS-5, FOS-6, FOS-8.
    """
    search = spec.four_over_six
    assert search is not None
    errors: list[Floats] = []
    candidates: list[tuple[Codes, Codes]] = []
    for t in (before, before * F(1.5)):
        scale = spec.scale.encode(t)
        y, s = scaled(blocks, t, scale, g, spec, k), spec.scale.decode(scale)
        error = search.difference(spec.element.nearest(y), s, g, amax, blocks, k)
        error = error * error if search.metric is Metric.SQUARED else np.abs(error)
        errors.append(error.max(axis=(2, 3)) if search.metric is Metric.LARGEST else search.total(error))
        candidates.append((spec.element.encode(y), scale))
    second = (errors[1] < errors[0])[:, :, None, None]
    (codes, scale), (other_codes, other_scale) = candidates
    return np.where(second, other_codes, codes), np.where(second, other_scale, scale)


def made_nan(result: Floats, *operands: Floats) -> Floats:
    """Give every NaN the sign of the first operand that is NaN; one that an operation made has its sign bit set.

    Rules: NUM-2, NUM-11.
    """
    nan = np.isnan(result)
    if not nan.any():
        return result
    sign = np.full(result.shape, F(-1))
    for operand in reversed(operands):
        sign = np.where(np.isnan(operand), np.copysign(F(1), operand), sign)
    return np.where(nan, np.copysign(F(np.nan), sign), result)


def _of_rows(amax: Floats | None, rows: slice, spec: Spec) -> Floats | None:
    """Return the amax of a tile's rows, shaped to broadcast over blocks."""
    if amax is None:
        return None
    return (amax[rows] if spec.global_scale is Granularity.ROW else amax)[:, None, None, None]


def _repeated(scale: Codes, spec: Spec) -> Codes:
    """Repeat a block's scale byte for each of its rows. Rules: BLK-7, LAY-10."""
    return np.repeat(scale, spec.block.rows, axis=0) if spec.block.rows > 1 else scale
