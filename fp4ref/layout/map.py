"""The map of a layout: one line of text, from which digits, padding, offsets and indices are derived."""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError, LayoutError, ShapeError
from fp4ref.layout.arguments import Index, checked, counted, plain
from fp4ref.layout.strides import Digit, Ints, Strides, is_unbounded, strides
from fp4ref.layout.text import Axis, Form, Product, Term, parse


@dataclass(frozen=True)
class LayoutMap:
    """A map from the index of a unit to its offset, without buffers. See Layout.

    Rules: LAY-13, LAY-14.
    """

    name: str
    text: str
    rule: str = "LAY-13"

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", str(self.form))

    @cached_property
    def form(self) -> Form:
        """The parts of the text."""
        return parse(self.name, self.text)

    @cached_property
    def map(self) -> Form:
        """The same parts without the names of axes: equal for layouts that store and pad alike. Rules: LAY-18."""
        return dataclasses.replace(self.form, axes=tuple(axis._replace(name="") for axis in self.axes))

    @property
    def unit(self) -> int:
        """Bits of a stored unit."""
        return self.form.unit

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the array, in row-major order."""
        return self.form.axes

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a tile: what the digits other than the rest count."""
        return self.axes[0].tile, self.axes[1].tile

    @property
    def multiples(self) -> tuple[int, ...]:
        """Rows and columns are padded to multiples of these."""
        return tuple(axis.multiple for axis in self.axes)

    @property
    def pads_compared(self) -> bool:
        """False where some bytes between or after the values are unspecified. Rules: LAY-37, RES-5."""
        return not self.has_gaps and all(axis.fill is not None for axis in self.axes)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that decide the bytes of a buffer: of the map, and of its padding if that is compared."""
        padding = () if set(self.multiples) == {1} or not self.pads_compared else ("LAY-5",)
        return (self.rule, *padding)

    @property
    def has_gaps(self) -> bool:
        """True if units of the buffer belong to no index: a base, or an alignment. Rules: LAY-16, LAY-39."""
        return bool(self.form.base.number) or any(isinstance(item, Product) for item in self.form.order)

    @property
    def takes_rows(self) -> bool:
        """True if offsets depend on the number of rows, as where tiles follow each other down first."""
        return not is_unbounded(self.form)

    @property
    def has_tiles(self) -> bool:
        """True if whole tiles are stored one after the other: the two slowest digits count them, and nothing gaps."""
        last = {(item.axis, item.digit) for item in self.form.order[-2:] if isinstance(item, Term)}
        rests = {(axis, found.radices.index(None)) for axis, found in enumerate(self.axes)}
        whole = all(found.radices[-1] is None for found in self.axes)
        return self.tile != (1, 1) and whole and last == rests and not self.has_gaps

    def unfit_for_scales(self) -> str:
        """Return why this cannot be the layout of a scale array; empty if it can. Rules: RES-6."""
        if len(self.axes) != 2:
            return f"{len(self.axes)} axes, not rows and columns"
        return "" if self.unit == 8 else f"units of {self.unit} bits, not 8"

    @overload
    def padded(self, rows: int, columns: int, /) -> tuple[int, int]: ...
    @overload
    def padded(self, *sizes: int) -> tuple[int, ...]: ...
    def padded(self, *sizes: int) -> tuple[int, ...]:
        """Return the padded size of each axis: rows and columns; an axis of 0 stays 0.

        Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-32, LAY-45.
        """
        sizes, axes = tuple(map(operator.index, sizes)), self.axes
        if len(sizes) != len(axes):
            raise self._unfit(sizes, counted(len(axes)), "LAY-32")
        if min(sizes) < 0:
            raise self._unfit(sizes, "counts >= 0", "LAY-32")
        if axis := self.refuses(*sizes):
            raise self._unfit(sizes, f"a multiple of {axis.multiple} along {axis.name}", "LAY-43")
        return tuple(-(-size // axis.multiple) * axis.multiple for size, axis in zip(sizes, axes, strict=True))

    def _unfit(self, sizes: Sequence[int], needed: str, rule: str) -> ShapeError:
        got = f"{' x '.join(map(str, sizes))} {'units' if self.unfit_for_scales() else 'scales'}"
        return ShapeError(f"{self.name}.padded_shape", got, needed, rule)

    def refuses(self, *sizes: int) -> Axis | None:
        """Return the first axis that refuses its size instead of padding it, or None. Rules: LAY-43."""
        each = zip(sizes, self.axes, strict=True)
        return next((axis for size, axis in each if axis.refused and size % axis.multiple), None)

    def strides(self, *sizes: int) -> Strides:
        """Return the digits of all axes with their strides, for an array of these sizes. Rules: LAY-13, LAY-30."""
        return strides(self.form, self.padded(*sizes))

    def digits(self, rows: int, columns: int) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
        """Digits of rows and of columns of a whole padded buffer, fastest first. Rules: LAY-13, LAY-30."""
        down, across = self.strides(rows, columns).axes
        return down, across

    @overload
    def offset(self, row: int, column: int, columns: int, rows: int | None = None) -> int: ...
    @overload
    def offset(self, row: NDArray[np.integer[Any]], column: Index, columns: int, rows: int | None = None) -> Ints: ...
    @overload
    def offset(self, row: int, column: NDArray[np.integer[Any]], columns: int, rows: int | None = None) -> Ints: ...
    def offset(self, row: Index, column: Index, columns: int, rows: int | None = None) -> int | Ints:
        """Offset of scale (row, column) in a buffer for `columns` (unpadded) scale columns.

        row, column: integers or arrays that broadcast; the padding of the grid has offsets too. rows: their (unpadded)
        number, needed only if `takes_rows`; without it rows have no upper bound, except that offsets fit in 63 bits.

        >>> from fp4ref import swizzle_offset
        >>> swizzle_offset(200, 6, columns=8)
        1674

        Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-13.
        """
        found, bounds, _ = self._space("offset", columns, rows)
        across = checked(self, "offset", "column", column, bounds[1])
        return plain(found.offsets([checked(self, "offset", "row", row, bounds[0]), across]))

    def offsets(self, indices: Sequence[Index], sizes: Sequence[int]) -> Ints:
        """Offsets of units of an array of any number of axes: one index, or array of indices, per axis.

        Rules: LAY-13, LAY-19, LAY-20, LAY-21.
        """
        padded = self.padded(*sizes)
        found = strides(self.form, padded)
        each = zip(self.axes, indices, padded, strict=True)
        return found.offsets([checked(self, "offset", axis.name, index, stop) for axis, index, stop in each])

    @overload
    def index(self, offset: int, columns: int, rows: int | None = None) -> tuple[int, int]: ...
    @overload
    def index(self, offset: NDArray[np.integer[Any]], columns: int, rows: int | None = None) -> tuple[Ints, Ints]: ...
    def index(self, offset: Index, columns: int, rows: int | None = None) -> tuple[int | Ints, int | Ints]:
        """Row and column whose scale is stored at an offset, the inverse of `offset`.

        The result can be in the padding: column >= columns, or a row past the last one. Gaps have no index.

        >>> from fp4ref import swizzle_index
        >>> swizzle_index(1674, columns=8)
        (200, 6)

        Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-13, LAY-41, LAY-47.
        """
        found, _, stop = self._space("index", columns, rows)
        offsets = checked(self, "index", "offset", offset, stop)
        (row, column), known = found.gather(offsets, endless=rows is None and not self.takes_rows)
        if not known.all():
            got = f"offset {offsets[~known].flat[0]}, which is in a gap"
            raise DomainError(f"{self.name}.index", got, "the offset of a scale or of padding", "LAY-41")
        return plain(row), plain(column)

    def _space(self, operation: str, columns: int, rows: int | None) -> tuple[Strides, tuple[int, int], int]:
        """Strides for some columns, the bounds of row and column, and that of offsets.

        Without a number of rows these are the most, in whole multiples, whose offsets fit in 63 bits.
        """
        if len(self.axes) != 2:
            raise LayoutError(f"{self.name}.{operation}", counted(len(self.axes)), "two axes; see offsets", "LAY-32")
        high, _ = self.multiples
        if rows is not None:
            padded = self.padded(rows, columns)
            return strides(self.form, padded), padded, strides(self.form, padded).size
        if self.takes_rows:
            raise ShapeError(
                f"{self.name}.{operation}", "no number of rows", "rows=, on which offsets depend", "LAY-32"
            )
        padded = self.padded(high, columns)
        found = strides(self.form, padded)
        tile, stride = self.tile[0], found.axes[0][-1].stride
        most = sys.maxsize // max(stride, 1) * tile // high * high
        return found, (most, padded[1]), most // tile * stride if padded[1] else 0
