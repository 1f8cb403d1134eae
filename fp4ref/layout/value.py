"""The value of a layout: its map, and the buffers that are laid out by it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError, LayoutError, ShapeError
from fp4ref.layout import conversion
from fp4ref.layout.arguments import counted, require_units
from fp4ref.layout.map import LayoutMap
from fp4ref.layout.members import Starts, bound_starts, group_starts
from fp4ref.layout.strides import strides
from fp4ref.layout.text import Axis
from fp4ref.remembered import hashed_once

Bytes = NDArray[np.uint8]


@hashed_once
@dataclass(frozen=True)
class Layout(LayoutMap):
    """A map from the index of a unit (row and column of a scale) to its offset in a buffer, as a value.

    text: the axes with their digits and the order in which these are stored, such as "m(8,*) k(4,*): k0 m0 k1 m1"; see
    LAY-14. rule: the rule that messages cite. Rows are the first axis of two, columns the second.

    >>> Layout("mine", "m(16,*) k(4,*): k0 m0 k1 m1").offset(17, 5, columns=8)
    197

    Rules: LAY-13, LAY-14.
    """

    @overload
    def padded_shape(self, rows: int, columns: int, /) -> tuple[int, int]: ...
    @overload
    def padded_shape(self, *sizes: int) -> tuple[int, ...]: ...
    def padded_shape(self, *sizes: int) -> tuple[int, ...]:
        """Shape of the buffer that holds `rows` x `columns` scales: [R, C], or [1, units] if units and places differ.

        Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-33, LAY-40.
        """
        padded = self.padded(*sizes)
        if not (self.has_gaps or self.form.repeated or self.form.irregular):
            return padded
        size = strides(self.form, padded).size
        return (1, size) if self.has_gaps or self.form.repeated or size != math.prod(padded) else padded

    def valid(self, *sizes: int) -> NDArray[np.bool_]:
        """Return which units of a buffer are scales, not padding or gaps: bool. Rules: LAY-5, LAY-6."""
        return self._mask(sizes, [axis._replace(fill=0) for axis in self.axes])

    def compared(self, *sizes: int) -> NDArray[np.bool_]:
        """Return which units of a buffer a rule decides: scales and specified padding. Rules: LAY-5, LAY-37."""
        return self._mask(sizes, [axis._replace(fill=int(axis.fill is not None)) for axis in self.axes])

    def from_linear(self, scales: Bytes) -> Bytes:
        """Lay out scale bytes [M, Kb]; result: new bytes in the order and shape of the layout, padding as it says.

        Unspecified padding and gaps hold 0x00 in new memory.

        Errors: LayoutError for scales that differ where the layout has one place for them.

        Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5, LAY-13, LAY-15, LAY-38, LAY-46. Certificates: layout-*.
        """
        require_units(self, "from_linear", scales, len(self.axes))
        buffer = np.zeros(self.padded_shape(*scales.shape), scales.dtype)
        conversion.stored(buffer.reshape(-1), scales, self.axes, self.strides(*scales.shape))
        if self.form.repeated:
            self.require_agreement(bool((self.to_linear(buffer, *scales.shape) == scales).all()))
        return buffer

    def require_agreement(self, agree: bool) -> None:
        """Refuse units that differ where the layout has one place for them. Rules: LAY-46."""
        if not agree:
            got = f"scales that differ along {self.form.irregularities['LAY-20']}"
            raise LayoutError(f"{self.name}.from_linear", got, "equal ones, which share a place", "LAY-46")

    @overload
    def to_linear(self, buffer: Bytes, rows: int, columns: int, /) -> Bytes: ...
    @overload
    def to_linear(self, buffer: Bytes, *sizes: int) -> Bytes: ...
    def to_linear(self, buffer: Bytes, *sizes: int) -> Bytes:
        """Scale bytes [M, Kb] of a buffer; result: a new array, on which padding has no influence.

        Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-6, LAY-13, LAY-60.
        """
        padded = self.padded_shape(*sizes)
        require_units(self, "to_linear", buffer, len(padded))
        if buffer.shape != padded:
            needed = f"{list(padded)} for {' x '.join(map(str, sizes))} scales"
            raise ShapeError(f"{self.name}.to_linear", f"shape {list(buffer.shape)}", needed, "LAY-60")
        scales = np.empty(sizes, buffer.dtype)
        conversion.loaded(scales, np.ascontiguousarray(buffer).reshape(-1), self.strides(*sizes))
        return scales

    def group_offsets(self, shapes: Iterable[tuple[int, int]], starts: Starts = "packed") -> list[int]:
        """Offset at which each member of a group starts, then the size of the whole buffer.

        shapes: (rows, columns) of each member's scales. starts: "packed", one after the other; "bound", where a member
        starts no matter how the rows before it are divided among members; "fixed", all as far apart as the largest
        member requires.

        >>> from fp4ref import LAYOUTS
        >>> [LAYOUTS["tiled_128x4"].group_offsets([(3, 4), (130, 4)], starts) for starts in ("packed", "bound")]
        [[0, 512, 1536], [0, 1024, 2048]]

        Rules: LAY-8, LAY-22, LAY-50, LAY-54, LAY-55. Certificates: group-*.
        """
        shapes = list(shapes)
        self._require_matrix("group_offsets")
        if starts != "bound":
            return group_starts([math.prod(self.padded_shape(*shape)) for shape in shapes], starts)
        operation, widths = f"{self.name}.group_offsets", {self.padded(0, columns)[1] for _, columns in shapes}
        if self.takes_rows or self.has_gaps or self.form.irregular or len(widths) > 1:
            got = f"{len(widths)} widths of members" if len(widths) > 1 else f"layout {self.text!r}"
            needed = "whole rows of tiles of one width"
            raise LayoutError(operation, f"starts 'bound' for {got}", needed, "LAY-55")
        return bound_starts([rows for rows, _ in shapes], self.multiples[0], max(widths, default=0))

    def row_range(self, start: int, stop: int, rows: int, columns: int) -> slice:
        """Return the units of rows [start, stop) in the flat buffer, if they are one piece; else LayoutError.

        A row owns its padding columns, the last row the padding rows as well. No rows or no columns: slice(0, 0).

        Rules: LAY-9, LAY-51, LAY-52, LAY-53. Certificates: piece-*.
        """
        operation, asked = f"{self.name}.row_range", f"rows {start}:{stop} of {rows}"
        if not 0 <= start <= stop <= rows:
            raise DomainError(operation, asked, "0 <= start <= stop <= rows", "LAY-51")
        self._require_matrix("row_range")
        padded_rows, padded_columns = self.padded(rows, columns)
        owned = np.arange(start, padded_rows if start < stop == rows else stop)
        if owned.size * padded_columns == 0:
            return slice(0, 0)
        if shared := self.form.irregularities.get("LAY-20"):
            raise LayoutError(operation, f"{asked} along {shared}", "rows with places of their own", "LAY-51")
        first, last = self.strides(rows, columns).ends(owned, np.arange(padded_columns))
        if last + 1 - first != owned.size * padded_columns:  # distinct offsets: equal means no gap
            tiles = self.tile[0] > 1 and not self.has_gaps
            needed = f"whole tiles of {self.tile[0]} rows" if tiles else "rows stored one after the other, without gaps"
            raise LayoutError(operation, f"{asked} lie apart", needed, "LAY-51")
        return slice(first, last + 1)

    def unused(self, offset: int, *sizes: int) -> tuple[str, str] | None:
        """Return the words and the rule of a unit of the buffer that stores none of the array; None for one that does.

        >>> from fp4ref import LAYOUTS
        >>> LAYOUTS["tiled_128x4"].unused(9, 3, 3), LAYOUTS["linear_padded"].unused(3, 3, 3)
        (('padding', 'LAY-5'), ('padding', 'LAY-37'))

        Rules: LAY-5, LAY-15, LAY-37, LAY-41, LAY-42.
        """
        indices, known = self.strides(*sizes).gather(np.array([offset]))
        if not known[0]:
            return "a gap", "LAY-41"
        at = zip(self.axes, indices, sizes, strict=True)
        outside = next((axis for axis, part, size in at if part[0] >= size), None)
        if outside is None:
            return None
        stated = "LAY-5" if self.rule in {"LAY-3", "LAY-4"} else "LAY-15"
        return "padding", "LAY-37" if outside.fill is None else stated

    def _require_matrix(self, operation: str) -> None:
        """Refuse what a layout of rows and columns alone has. Rules: LAY-36."""
        if len(self.axes) != 2:
            raise LayoutError(f"{self.name}.{operation}", counted(len(self.axes)), "two axes", "LAY-36")

    def _mask(self, sizes: Sequence[int], axes: Sequence[Axis]) -> NDArray[np.bool_]:
        """Return a buffer of bits: true for an index of the array, `fill` for the padding of an axis, false in gaps."""
        buffer = np.zeros(self.padded_shape(*sizes), np.bool_)
        conversion.stored(buffer.reshape(-1), np.broadcast_to(np.True_, sizes), axes, self.strides(*sizes))
        return buffer
