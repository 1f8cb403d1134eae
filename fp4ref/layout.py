"""Layouts: where the scale of row m and scale column k lies in a buffer of bytes.

A layout splits a row and a column into mixed-radix digits; the offset is the sum of digit * stride over both. The
inverse, the padding, the conversions, group offsets and row ranges are computed from those digits, nowhere else.
"""

from __future__ import annotations

import itertools
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError, DTypeError, LayoutError, ShapeError

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Index = int | NDArray[np.integer[Any]]
PIECE = 1 << 22  # bytes that a conversion moves at a time
Scalar = TypeVar("Scalar", bound=np.generic)


class Digit(NamedTuple):
    """One digit of an index: how many values it takes, and how many bytes apart they lie."""

    radix: int
    stride: int


@dataclass(frozen=True)
class Layout:
    """A map from (row, column) of a scale array to a byte offset, as a value.

    row_digits, column_digits: inside a tile, fastest first; none means a tile of one byte. Tiles follow each other
    along a row, then down. pad_to: rows and columns are padded to multiples of these; None means to whole tiles.
    pads_compared: False where the bytes of the padding are unspecified. rule: the rule that defines the map.
    """

    name: str
    rule: str
    row_digits: tuple[Digit, ...] = ()
    column_digits: tuple[Digit, ...] = ()
    pad_to: tuple[int, int] | None = None
    pads_compared: bool = True

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a tile."""
        return math.prod(d.radix for d in self.row_digits), math.prod(d.radix for d in self.column_digits)

    def padded_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Shape [R, C] of the buffer that holds `rows` x `columns` scales, one byte each; an axis of 0 stays 0.

        Rules: LAY-1, LAY-2, LAY-3, LAY-4.
        """
        rows, columns = operator.index(rows), operator.index(columns)
        if rows < 0 or columns < 0:
            raise ShapeError(f"{self.name}.padded_shape", f"{rows} x {columns} scales", "counts >= 0", self.rule)
        high, wide = self.pad_to or self.tile
        return -(-rows // high) * high, -(-columns // wide) * wide

    def digits(self, rows: int, columns: int) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
        """Row and column digits of a whole padded buffer, fastest first; the last of each counts tiles.

        Rules: LAY-1, LAY-2, LAY-3, LAY-4.
        """
        high, wide = self.tile
        padded_rows, padded_columns = self.padded_shape(rows, columns)
        down, across = padded_rows // high, padded_columns // wide
        tile_row = Digit(down, high * wide * across)
        return (*self.row_digits, tile_row), (*self.column_digits, Digit(across, high * wide))

    @overload
    def offset(self, row: int, column: int, columns: int) -> int: ...
    @overload
    def offset(self, row: NDArray[np.integer[Any]], column: Index, columns: int) -> Ints: ...
    @overload
    def offset(self, row: int, column: NDArray[np.integer[Any]], columns: int) -> Ints: ...
    def offset(self, row: Index, column: Index, columns: int) -> int | Ints:
        """Byte offset of scale (row, column) in a buffer for `columns` (unpadded) scale columns.

        row, column: integers or arrays that broadcast; the padding of the grid has offsets too. No upper bound for
        rows, except that offsets fit in 63 bits.

        >>> swizzle_offset(200, 6, columns=8)
        1674

        Rules: LAY-1, LAY-2, LAY-3, LAY-4.
        """
        rows, padded_columns = self._address_space(columns)
        row_digits, column_digits = self.digits(rows, columns)
        across = _spread(self._checked("offset", "column", column, padded_columns), column_digits)
        return _plain(_spread(self._checked("offset", "row", row, rows), row_digits) + across)

    @overload
    def index(self, offset: int, columns: int) -> tuple[int, int]: ...
    @overload
    def index(self, offset: NDArray[np.integer[Any]], columns: int) -> tuple[Ints, Ints]: ...
    def index(self, offset: Index, columns: int) -> tuple[int | Ints, int | Ints]:
        """Row and column whose scale lies at a byte offset, the inverse of `offset`.

        The result can lie in the padding: column >= columns, or a row past the last one.

        >>> swizzle_index(1674, columns=8)
        (200, 6)

        Rules: LAY-1, LAY-2, LAY-3, LAY-4.
        """
        rows, padded_columns = self._address_space(columns)
        offsets = self._checked("index", "offset", offset, rows * padded_columns)
        row_digits, column_digits = self.digits(rows, columns)
        return _plain(_gather(offsets, row_digits)), _plain(_gather(offsets, column_digits))

    def valid(self, rows: int, columns: int) -> NDArray[np.bool_]:
        """Which bytes of a buffer are scales and not padding: bool [R, C], in buffer order. Rules: LAY-5, LAY-6."""
        grid = np.zeros(self.padded_shape(rows, columns), np.bool_)
        grid[:rows, :columns] = True
        return self._stored(grid)

    def from_linear(self, scales: Bytes) -> Bytes:
        """Lay out scale bytes [M, Kb]; result: new bytes [R, C] in the order of the layout, padding 0x00.

        Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5.
        """
        self._require_bytes("from_linear", scales)
        rows, columns = scales.shape
        buffer = np.zeros(self.padded_shape(rows, columns), np.uint8)
        for piece, part in self._pieces(buffer, rows, columns):
            grid = np.zeros(
                (math.prod(piece.shape[: self._row_axes]), math.prod(piece.shape[self._row_axes :])), np.uint8
            )
            values = scales[part]
            grid[: values.shape[0], : values.shape[1]] = values
            piece[...] = grid.reshape(piece.shape)
        return buffer

    def to_linear(self, buffer: Bytes, rows: int, columns: int) -> Bytes:
        """Scale bytes [M, Kb] of a buffer [R, C]; result: a new array, on which padding has no influence.

        Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-6, LAY-7.
        """
        self._require_bytes("to_linear", buffer)
        padded = self.padded_shape(rows, columns)
        if buffer.shape != padded:
            needed = f"{list(padded)} for {rows} x {columns} scales"
            raise ShapeError(f"{self.name}.to_linear", f"shape {list(buffer.shape)}", needed, self.rule)
        scales = np.empty((rows, columns), np.uint8)
        for piece, part in self._pieces(np.ascontiguousarray(buffer), rows, columns):
            values = scales[part]
            grid = piece.reshape(math.prod(piece.shape[: self._row_axes]), -1)
            values[...] = grid[: values.shape[0], : values.shape[1]]
        return scales

    def group_offsets(self, shapes: Iterable[tuple[int, int]]) -> list[int]:
        """Byte offset at which each member of a group starts, then the size of the whole buffer.

        shapes: (rows, columns) of each member's scales.

        Rules: LAY-8.
        """
        sizes = (math.prod(self.padded_shape(rows, columns)) for rows, columns in shapes)
        return list(itertools.accumulate(sizes, initial=0))

    def row_range(self, start: int, stop: int, rows: int, columns: int) -> slice:
        """The bytes of rows [start, stop) in the flat buffer, if they are one piece; else LayoutError.

        A row owns its padding columns, the last row the padding rows as well. No rows or no columns: slice(0, 0).

        Rules: LAY-9.
        """
        operation, asked = f"{self.name}.row_range", f"rows {start}:{stop} of {rows}"
        if not 0 <= start <= stop <= rows:
            raise DomainError(operation, asked, "0 <= start <= stop <= rows", "LAY-9")
        padded_rows, padded_columns = self.padded_shape(rows, columns)
        owned = np.arange(start, padded_rows if start < stop == rows else stop)
        if owned.size * padded_columns == 0:
            return slice(0, 0)
        row_digits, column_digits = self.digits(rows, columns)
        down, across = _spread(owned, row_digits), _spread(np.arange(padded_columns), column_digits)
        first, last = int(down.min() + across.min()), int(down.max() + across.max())
        if last + 1 - first != owned.size * padded_columns:  # distinct offsets: equal means no gap
            raise LayoutError(operation, f"{asked} lie apart", f"whole tiles of {self.tile[0]} rows", "LAY-9")
        return slice(first, last + 1)

    @property
    def _row_axes(self) -> int:
        """How many axes the digits of a row take in a piece."""
        return len(self.row_digits) + 1

    def _pieces(self, buffer: Bytes, rows: int, columns: int) -> Iterator[tuple[Bytes, tuple[slice, slice]]]:
        """Whole tiles of a buffer, viewed digit by digit (rows, then columns, slowest first), and their scales.

        A piece is small, so that a conversion needs little memory beyond its result.
        """
        shape, axes = self._storage_order(rows, columns)
        view = buffer.reshape([shape[axis] for axis in axes]).transpose(np.argsort(axes))
        high, wide = self.tile
        down, across = -(-rows // high), -(-columns // wide)  # tiles with scales in them; the others are padding
        width = max(min(across, PIECE // (high * wide)), 1)
        height = max(PIECE // (high * wide * width), 1)
        middle = (slice(None),) * (self._row_axes - 1)
        for top, left in itertools.product(range(0, down, height), range(0, across, width)):
            part = slice(top * high, (top + height) * high), slice(left * wide, (left + width) * wide)
            yield view[slice(top, top + height), *middle, slice(left, left + width)], part

    def _storage_order(self, rows: int, columns: int) -> tuple[list[int], list[int]]:
        """Radices of all digits, rows then columns, slowest first; and the order in which a buffer holds them."""
        row_digits, column_digits = self.digits(rows, columns)
        digits = (*reversed(row_digits), *reversed(column_digits))
        return [d.radix for d in digits], sorted(range(len(digits)), key=lambda axis: -digits[axis].stride)

    def _stored(self, grid: NDArray[Scalar]) -> NDArray[Scalar]:
        """A padded grid [R, C] in buffer order."""
        shape, axes = self._storage_order(*grid.shape)
        return grid.reshape(shape).transpose(axes).reshape(grid.shape)

    def _address_space(self, columns: int) -> tuple[int, int]:
        """The most rows, in whole tiles, whose offsets fit in 63 bits, and the padded columns."""
        high, padded_columns = self.padded_shape(1, columns)
        return sys.maxsize // max(padded_columns, 1) // high * high, padded_columns

    def _checked(self, operation: str, what: str, values: Index, stop: int) -> Ints:
        """Values as 64-bit integers, all in [0, stop)."""
        array = np.asarray(values)
        if array.size and array.dtype.kind not in "iu":
            raise DTypeError(f"{self.name}.{operation}", f"{what} of type {array.dtype}", "integers", self.rule)
        outside = (array < 0) | (array >= stop)
        if outside.any():
            got = f"{what} {array[outside].flat[0]}"
            raise DomainError(f"{self.name}.{operation}", got, f"0 <= {what} < {stop}", self.rule)
        return array.astype(np.int64)

    def _require_bytes(self, operation: str, array: Bytes) -> None:
        if array.dtype != np.uint8:
            raise DTypeError(f"{self.name}.{operation}", f"scales of type {array.dtype}", "uint8", self.rule)
        if array.ndim != 2:
            raise ShapeError(f"{self.name}.{operation}", f"shape {list(array.shape)}", "two axes", self.rule)


def _spread(index: Ints, digits: Sequence[Digit]) -> Ints:
    """The part of the offset that an index contributes: the sum of digit * stride."""
    offset = np.zeros_like(index)
    for radix, stride in digits:
        index, digit = np.divmod(index, radix)
        offset = offset + digit * stride
    return offset


def _gather(offset: Ints, digits: Sequence[Digit]) -> Ints:
    """The index whose digits stand in an offset."""
    index, place = np.zeros_like(offset), 1
    for radix, stride in digits:
        index = index + offset // stride % radix * place
        place *= radix
    return index


def _plain(values: Ints) -> int | Ints:
    """A Python integer for a single value."""
    return values if values.ndim else int(values)


LINEAR = Layout("linear", "LAY-1")
LINEAR_PADDED = Layout("linear_padded", "LAY-2", pad_to=(128, 4), pads_compared=False)
TILED_128X4 = Layout("tiled_128x4", "LAY-3", (Digit(32, 16), Digit(4, 4)), (Digit(4, 1),))
TILED_8X4 = Layout("tiled_8x4", "LAY-4", (Digit(8, 4),), (Digit(4, 1),))
LAYOUTS = {value.name: value for value in (LINEAR, LINEAR_PADDED, TILED_128X4, TILED_8X4)}

swizzle_offset = TILED_128X4.offset
swizzle_index = TILED_128X4.index


def layout(name: str) -> Layout:
    """The layout of a name; a layout is always named, never guessed. Rules: LAY-7."""
    if not isinstance(name, str) or name not in LAYOUTS:
        raise LayoutError("scale_layout", repr(name), f"one of {', '.join(LAYOUTS)}", "LAY-7")
    return LAYOUTS[name]
