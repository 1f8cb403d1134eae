"""The quantization of one element: every intermediate, in the model's own stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api, arrays
from fp4ref.arithmetic import Constants
from fp4ref.catalogue import resolve
from fp4ref.errors import DomainError, ShapeError
from fp4ref.formats import Codes, F, Floats, ignoring_float_warnings
from fp4ref.model import quantize as model
from fp4ref.model.dequantize import dequantize
from fp4ref.model.tiles import Matrix, split
from fp4ref.packing import unpack
from fp4ref.quantized import Direction, DirectionData, matrix_shape
from fp4ref.spec import Amax, Block, Granularity, Metric, Spec

Tile = tuple[slice, slice]


@dataclass(frozen=True)
class Candidate:
    """A scale that a block tried: what it was before its codec, its byte, and what became of the block.

    before, scale, working: [1, 1, 1, 1]. factor: what an element 1.0 would become; it, y and codes: whole blocks
    [1, 1, rows, columns]. error: of the block, in 4over6 only.
    """

    before: Floats
    scale: Codes
    working: Floats
    factor: Floats
    y: Floats
    codes: Codes
    error: np.float32 | None


@dataclass(frozen=True)
class Stages:
    """Everything that happened to the element [row, column] of a tensor's [M, K] matrix.

    at: the element's place in the matrix of the direction, and inside: in its block. tile: the block's rows and
    columns. made, first: the quantizer's own result for the tile that starts at column `first`. value: dequantized.
    """

    spec: Spec
    k: Constants
    dtype: np.dtype[Any]
    direction: Direction
    element: tuple[int, int]
    at: tuple[int, int]
    matrix: tuple[int, int]
    tile: Tile
    inside: tuple[int, int, int, int]
    x: Any
    blocks: Floats
    block_amax: Floats
    amax: Floats | None
    amax_given: bool
    g: Floats
    random_bits: Codes | None
    candidates: tuple[Candidate, ...]
    chosen: int
    made: DirectionData
    first: int
    value: np.float32

    @property
    def kept(self) -> Candidate:
        """The candidate whose bytes are the result."""
        return self.candidates[self.chosen]

    @property
    def code(self) -> int:
        """The element's code."""
        return int(self.kept.codes[self.inside])

    @property
    def scale(self) -> int:
        """The block's scale byte."""
        return int(self.kept.scale.flat[0])


@ignoring_float_warnings
def explain(
    x: NDArray[Any],
    spec: Spec | str,
    row: int,
    column: int,
    direction: Direction = "row",
    amax: float | None = None,
    random_bits: Codes | None = None,
) -> Stages:
    """Quantize the block of one element stage by stage, and check the outcome against the quantizer's.

    x: [..., K]; row, column: of its [M, K] matrix, in either direction. amax: the caller's global amax, for a row
    scale that of the element's row. random_bits: uint8 [rows, columns] of the direction.

    Rules: BLK-1, BLK-8, GLB-4, NUM-4, SR-1.
    """
    spec = resolve(spec)
    _require(x, spec, (row, column), direction, amax, random_bits)
    matrix = Matrix(x, direction)
    at = (row, column) if direction == "row" else (column, row)
    tile = _tile(at, matrix.shape, spec.block)
    k = model.constants(spec, x.dtype)
    blocks = split(model.inputs(matrix, tile, spec, direction), spec.block)
    own_amax = _global_amax(x, spec, direction, at[0], amax)
    per_block = None if own_amax is None else own_amax[:, None, None, None]
    g = model.global_scale(per_block, spec, k)
    block_amax = model.largest(blocks, (2, 3), spec.amax is not Amax.IGNORE_NAN)
    before = model.block_scale(block_amax, g, spec, k)
    bits = None if random_bits is None else split(random_bits[tile], spec.block)
    tried = (before,) if spec.four_over_six is None else (before, before * F(1.5))
    candidates = tuple(_candidate(blocks, t, g, per_block, bits, spec, k) for t in tried)
    made, first = _quantized(matrix, at, spec, direction, own_amax, random_bits)
    shape = (tile[0].stop - tile[0].start, made.data.shape[1] * 8 // spec.element.format.bits)
    values = dequantize(made, (shape[0], min(shape[1], matrix.shape[1] - first)), spec, np.dtype(F), x.dtype)
    stages = Stages(
        spec=spec,
        k=k,
        dtype=x.dtype,
        direction=direction,
        element=(row, column),
        at=at,
        matrix=matrix.shape,
        tile=tile,
        inside=(0, 0, at[0] - tile[0].start, at[1] - tile[1].start),
        x=matrix[slice(at[0], at[0] + 1), slice(at[1], at[1] + 1)][0, 0],
        blocks=blocks,
        block_amax=block_amax,
        amax=own_amax,
        amax_given=amax is not None,
        g=g,
        random_bits=bits,
        candidates=candidates,
        chosen=_chosen(candidates),
        made=made,
        first=first,
        value=values[at[0] - tile[0].start, at[1] - first],
    )
    _require_agreement(stages)
    return stages


def _candidate(
    blocks: Floats, t: Floats, g: Floats, amax: Floats | None, bits: Codes | None, spec: Spec, k: Constants
) -> Candidate:
    """Encode a block with the scale t, and compute its error for 4over6. Rules: BLK-4, BLK-5, FOS-3, FOS-5."""
    scale = spec.scale.encode(t)
    s = spec.scale.decode(scale)
    y = model.scaled(blocks, t, scale, g, spec, k)
    factor = model.scaled(np.ones_like(blocks), t, scale, g, spec, k)
    error = None
    if search := spec.four_over_six:
        each = search.difference(spec.element.nearest(y), s, g, amax, blocks, k)
        each = each * each if search.metric is Metric.SQUARED else np.abs(each)
        error = (each.max(axis=(2, 3)) if search.metric is Metric.LARGEST else search.total(each))[0, 0]
    working = spec.arithmetic.working_scale(t, s)
    return Candidate(t, scale, working, factor, y, spec.element.encode(y, bits), error)


def _chosen(candidates: tuple[Candidate, ...]) -> int:
    """Return the second only if its error is strictly smaller. Rules: FOS-6."""
    first, second = candidates[0].error, candidates[-1].error
    return int(first is not None and second is not None and second < first)


def _tile(at: tuple[int, int], shape: tuple[int, int], block: Block) -> Tile:
    """Rows and columns of the block that holds an element, as far as the matrix reaches."""
    starts = [index // size * size for index, size in zip(at, block, strict=True)]
    rows, columns = (slice(s, min(s + size, end)) for s, size, end in zip(starts, block, shape, strict=True))
    return rows, columns


def _global_amax(x: NDArray[Any], spec: Spec, direction: Direction, row: int, given: float | None) -> Floats | None:
    """Return the amax that the element's block sees, [1]. Rules: GLB-1, GLB-4, GLB-5, GLB-6."""
    if spec.global_scale is Granularity.NONE:
        return None
    if given is not None:
        return np.abs(np.full(1, given, F))
    amax: Floats = model.global_amax(x, spec, direction)
    return amax[row : row + 1] if spec.global_scale is Granularity.ROW else amax


def _quantized(
    matrix: Matrix, at: tuple[int, int], spec: Spec, direction: Direction, amax: Floats | None, bits: Codes | None
) -> tuple[DirectionData, int]:
    """Return the quantizer's result for the element's block (two blocks of odd width), and its first column."""
    unit = Block(spec.block.rows, spec.block.columns * (1 + spec.block.columns % 2))
    tile = _tile(at, matrix.shape, unit)
    part = matrix[tile]
    result = model.quantize(
        part if direction == "row" else part.T, spec, direction, amax, None if bits is None else bits[tile]
    )
    return result, tile[1].start


def _require_agreement(stages: Stages) -> None:
    """Require that the stages end at the bytes that the quantizer wrote for the same block."""
    row, column = stages.inside[2], stages.at[1] - stages.first
    form = stages.spec.element.format
    code = int(unpack(stages.made.data[row], stages.made.data.shape[1] * 8 // form.bits, form)[column])
    scale = int(stages.made.scales[row, column // stages.spec.block.columns])
    assert (code, scale) == (stages.code, stages.scale), (code, scale, stages)


def _require(
    x: NDArray[Any],
    spec: Spec,
    element: tuple[int, int],
    direction: Direction,
    amax: float | None,
    random_bits: Codes | None,
) -> None:
    """Make the checks of `fp4ref.quantize` on a tensor of the same rows and no columns."""
    arrays.require_input("explain", x)
    if x.ndim == 0:
        raise ShapeError("explain", "a tensor without dimensions", "at least one", "NUM-12")
    rows, columns = matrix_shape(x.shape)
    if not (0 <= element[0] < rows and 0 <= element[1] < columns):
        got = f"element [{element[0]}, {element[1]}]"
        raise DomainError("explain", got, f"0 <= row < {rows} and 0 <= column < {columns}", "NUM-4")
    if amax is not None and not amax >= 0:
        raise DomainError("explain", f"amax {amax}", ">= 0 and not NaN", "GLB-4")
    nothing = np.empty((rows, 0), x.dtype)
    shape = (rows, 0) if direction == "row" else (0, rows)
    given = None if amax is None else np.full(shape[0] if spec.global_scale is Granularity.ROW else 1, amax, F)
    bits = None if random_bits is None else np.empty(shape, np.uint8)
    api.quantize(nothing, spec, direction, amax=given, random_bits=bits, backend="numpy")
