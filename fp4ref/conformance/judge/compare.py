"""Bytes against bytes: where a candidate differs from the golden model.

Only bytes are compared, never values with a tolerance. A differing code or scale belongs to a block, and a block may
have an excuse; differences outside blocks are maxima, spare nibbles and padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing

# Whether bytes are right by a bound: (tile of one block, its scale byte, its codes) -> bool.
from fp4ref.conformance.judge.comparison import Comparison, Difference, StrayByte
from fp4ref.conformance.judge.excuses import EXCUSES, NOT_FINITE, Bools, Excuse, Influence, Tile, excuses, per_block
from fp4ref.formats import Codec, Codes, F, ignoring_float_warnings
from fp4ref.layout import Layout, layout
from fp4ref.model.quantize import inputs
from fp4ref.model.tiles import Matrix, split, tiles
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Spec
from fp4ref.specs import OWN

Tolerance = Callable[[Tile, int, Codes], bool]


REFUSALS = 16  # blocks that a tolerance refuses, after which it is not asked again: the verdict stands


def compare(
    x: NDArray[Any],
    spec: Spec,
    direction: Direction,
    scale_layout: str,
    got: DirectionData,
    expected: DirectionData,
    keep: int = 16,
    tolerates: Tolerance | None = None,
) -> Comparison:
    """Compare a candidate's bytes of one direction with the golden model's.

    x: the input, [..., K]. got: scales in `scale_layout`. expected: scales linear. keep: how many differing blocks are
    described. tolerates: whether a block that differs is right all the same.

    Rules: CNF-1, CNF-3, HAD-7, LAY-5, LAY-6, LAY-37, PACK-2, PACK-5, PRO-1.
    Certificates: bytes-compared, padding-compared-*.
    """
    matrix = Matrix(x, direction)
    rows, columns = matrix.shape
    result = Comparison(direction, matrix.shape, spec.element.format.bits)
    order, blocks = layout(scale_layout), -(-columns // spec.block.columns)
    stored = np.asarray(got.scales)
    got = got._replace(scales=order.to_linear(stored, rows, blocks))
    _compare_padding(result, order, stored, blocks)
    _compare_spare(result, spec, got)
    _compare_amax(result, spec, got, expected)
    changed = expected.amax is not None and (result.amax > 0 or not np.isfinite(np.asarray(expected.amax, F)).all())
    influence = Influence(matrix, spec, changed)
    for tile in tiles(matrix.shape, spec.block):
        pair = _Pair(matrix, tile, spec, got, expected)
        if tolerates is not None and pair.bad.any():
            _tolerate(result, pair, tolerates)
        _compare_tile(result, pair, influence, keep)
    excuse = influence.anywhere() if result.amax else None
    if excuse is not None:
        result.excused[excuse] += result.amax
    result.unexcused += result.spare + result.padding + (result.amax if excuse is None else 0)
    return result


def unequal(codec: Codec, got: Codes, expected: Codes, spec: Spec) -> Bools:
    """Return True where two arrays of codes differ; for a profile of another implementation all NaN are equal.

    Rules: CNF-1, PRO-1, CNF-83.
    """
    differs: Bools = got != expected
    if spec not in OWN and differs.any():
        differs = differs & ~(np.isnan(codec.decode(got)) & np.isnan(codec.decode(expected)))
    return differs


def codes_of(data: NDArray[Any], tile: Tile, spec: Spec) -> Codes:
    """Return the element codes [rows, columns] of a tile of whole blocks."""
    row, column = tile
    count = column.stop - column.start
    start = packing.width(column.start, spec.element.format)
    packed = np.asarray(data[row, start : start + packing.width(count, spec.element.format)])
    return packing.unpack(packed, count, spec.element.format)


def scales_of(scales: NDArray[Any], tile: Tile, spec: Spec) -> Codes:
    """Return the linear scale bytes [rows, blocks] of a tile of whole blocks."""
    row, column = tile
    width = spec.block.columns
    return np.asarray(scales[row, column.start // width : -(-column.stop // width)])


@ignoring_float_warnings
def shown_inputs(matrix: Matrix, tile: Tile, spec: Spec, direction: Direction) -> NDArray[Any]:
    """Return a tile as the quantizer sees it, in the type of the tensor."""
    return inputs(matrix, tile, spec, direction).astype(matrix[slice(0, 0), slice(0, 0)].dtype)


def hexadecimal(value: np.generic) -> str:
    """Return the bits of a float, as 0x and as many digits as it has.

    >>> hexadecimal(np.float32(1))
    '0x3f800000'
    """
    return f"0x{int(np.asarray(value).view(f'uint{value.itemsize * 8}')):0{value.itemsize * 2}x}"


def _compare_padding(result: Comparison, order: Layout, scales: Codes, blocks: int) -> None:
    """Count padding bytes other than the fill, where the layout specifies one. Rules: LAY-5, LAY-15, LAY-37, CNF-3."""
    rows = result.shape[0]
    if scales.shape == (rows, blocks):
        return
    wanted = order.from_linear(np.zeros((rows, blocks), np.uint8))
    bad = (scales != wanted) & order.compared(rows, blocks) & ~order.valid(rows, blocks)
    result.padding = int(np.count_nonzero(bad))
    if result.padding:
        first = int(np.argmax(bad))
        result.first_padding = StrayByte(first, *(f"0x{int(part.flat[first]):02x}" for part in (scales, wanted)))


def _compare_spare(result: Comparison, spec: Spec, got: DirectionData) -> None:
    """Count last bytes of rows whose spare bits are not zero. Rules: PACK-2, PACK-5."""
    used = result.shape[1] * spec.element.format.bits % 8
    if not used:
        return
    spare = np.asarray(got.data[:, -1]) >> used
    result.spare = int(np.count_nonzero(spare))
    if result.spare:
        first = int(np.argmax(spare != 0))
        result.first_spare = StrayByte(first, f"0x{int(spare[first]):x}", "0x0")


def _compare_amax(result: Comparison, spec: Spec, got: DirectionData, expected: DirectionData) -> None:
    """Compare maxima by their bits; every NaN is one. Rules: CNF-1, GLB-1, GLB-5, GLB-9."""
    if expected.amax is None:
        return
    found, needed = (np.array(part.amax, F).reshape(-1) for part in (got, expected))
    bad = (found.view(np.uint32) != needed.view(np.uint32)) & ~(np.isnan(found) & np.isnan(needed))
    result.amax = int(np.count_nonzero(bad))
    if result.amax:
        first = int(np.argmax(bad))
        result.first_amax = StrayByte(first, *(f"{hexadecimal(v[first])} ({v[first]})" for v in (found, needed)))


class _Pair:
    """A tile of the candidate and of the golden model: codes, scale bytes, and their differences."""

    def __init__(self, matrix: Matrix, tile: Tile, spec: Spec, got: DirectionData, expected: DirectionData) -> None:
        self.matrix, self.tile, self.spec = matrix, tile, spec
        self.codes, self.wanted = (codes_of(part.data, tile, spec) for part in (got, expected))
        self.scales, self.wanted_scales = (scales_of(part.scales, tile, spec) for part in (got, expected))
        self.bad_codes = unequal(spec.element, self.codes, self.wanted, spec)
        self.bad_scales = unequal(spec.scale, self.scales, self.wanted_scales, spec)
        by_code = split(self.bad_codes, spec.block).any(axis=(2, 3))
        self.bad = np.asarray(by_code | per_block(self.bad_scales, spec).any(axis=2))

    def area(self, down: int, across: int) -> Tile:
        """Return the rows and columns of a block in the tile."""
        rows, columns = self.spec.block
        return (
            slice(down * rows, min((down + 1) * rows, self.codes.shape[0])),
            slice(across * columns, min((across + 1) * columns, self.codes.shape[1])),
        )

    def whole(self, area: Tile) -> Tile:
        """Return the rows and columns of a part of the tile in the matrix."""
        (rows, columns), (top, left) = area, (part.start for part in self.tile)
        return slice(top + rows.start, top + rows.stop), slice(left + columns.start, left + columns.stop)


def _tolerate(result: Comparison, pair: _Pair, tolerates: Tolerance) -> None:
    """Clear the differences of blocks that are right by a bound. Rules: HAD-7."""
    for down, across in np.argwhere(pair.bad):
        if result.refused >= REFUSALS:
            return
        area = pair.area(int(down), int(across))
        rows, blocks = area[0], slice(int(across), int(across) + 1)
        if tolerates(pair.whole(area), int(pair.scales[rows.start, across]), pair.codes[area]):
            pair.bad[down, across], pair.bad_codes[area], pair.bad_scales[rows, blocks] = False, False, False
            result.tolerated += 1
            whole = pair.whole(area)
            spot = tuple(part.start // size for part, size in zip(whole, pair.spec.block, strict=True))
            result.right_by_bound.add((spot[0], spot[1]))
        else:
            result.refused += 1


def _compare_tile(result: Comparison, pair: _Pair, influence: Influence, keep: int) -> None:
    """Add one tile's differences to the result. Rules: CNF-1."""
    if result.judged and not pair.bad.any():
        return
    bad = pair.bad_codes, pair.bad_scales
    found = excuses(pair.matrix, pair.tile, pair.spec, result.direction, influence, pair.wanted_scales, bad)
    result.judged = result.judged or not np.isin(found, NOT_FINITE).all()
    result.codes += int(np.count_nonzero(pair.bad_codes))
    result.scales += int(np.count_nonzero(pair.bad_scales))
    for excuse, count in zip(EXCUSES, np.bincount(found[pair.bad], minlength=len(EXCUSES)), strict=True):
        if excuse is None:
            result.unexcused += int(count)
        elif count:
            result.excused[excuse] += int(count)
    for down, across in np.argwhere(pair.bad)[: max(keep - len(result.differences), 0)]:
        excuse = EXCUSES[found[down, across]]
        result.differences.append(_difference(pair, int(down), int(across), result.direction, excuse))


def _difference(pair: _Pair, down: int, across: int, direction: Direction, excuse: Excuse | None) -> Difference:
    """Describe the first difference of one block of a tile."""
    area = pair.area(down, across)
    bad_codes, bad_scales = pair.bad_codes[area], pair.bad_scales[area[0], across]
    row = int(np.argmax(bad_codes.any(axis=1) if bad_codes.any() else bad_scales))
    column = int(np.argmax(bad_codes[row]))
    at = area[0].start + row, area[1].start + column
    whole = pair.whole(area)
    value = shown_inputs(pair.matrix, whole, pair.spec, direction)[row, column]
    differs = bool(bad_codes.any())
    return Difference(
        row=whole[0].start + row,
        column=whole[1].start + column,
        block=whole[1].start // pair.spec.block.columns,
        bits=hexadecimal(value),
        value=float(value),
        got_scale=int(pair.scales[at[0], across]),
        expected_scale=int(pair.wanted_scales[at[0], across]),
        got=int(pair.codes[at]) if differs else None,
        expected=int(pair.wanted[at]) if differs else None,
        codes=int(np.count_nonzero(bad_codes)),
        excuse=excuse,
    )
