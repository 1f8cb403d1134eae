"""The content of layout figures, read off a layout object: tiles, the scale at every byte, padding, digits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fp4ref.diagrams.place import ElementPlace, Geometry, spoken
from fp4ref.errors import DomainError, LayoutError
from fp4ref.layout import Layout
from fp4ref.layout.worked import cute, formula

LINE = 16  # bytes in a line of memory


@dataclass(frozen=True)
class Byte:
    """A byte of a scale buffer. fill: the value of padding, None for a scale. gap: no index has this byte."""

    offset: int
    row: int
    column: int
    fill: int | None = None
    gap: bool = False

    @property
    def padding(self) -> bool:
        """True if no scale is stored here."""
        return self.gap or self.fill is not None

    @property
    def label(self) -> str:
        """The scale that is stored here."""
        return f"{self.row},{self.column}"

    @property
    def title(self) -> str:
        """The same in words."""
        if self.gap:
            return f"byte {self.offset}: a gap"
        what = "scale" if self.fill is None else f"padding, 0x{self.fill:02x}, of"
        return f"byte {self.offset}: {what} ({self.row}, {self.column})"


@dataclass(frozen=True)
class ScaleMap:
    """A layout applied to the scales of a tensor."""

    geometry: Geometry
    layout: Layout

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns with their padding. Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-45."""
        return self.layout.padded(*self.geometry.scales)

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return math.prod(self.layout.padded_shape(*self.geometry.scales))

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across."""
        high, wide = self.layout.tile
        return self.padded[0] // high, self.padded[1] // wide

    @property
    def tiled(self) -> bool:
        """True if the buffer is tiles that fill whole lines of memory."""
        high, wide = self.layout.tile
        return self.layout.has_tiles and high * wide >= LINE

    @property
    def band(self) -> int:
        """Consecutive rows that share a place in the lines of memory: 32 of a 128 x 4 tile."""
        return self.layout.digits(*self.layout.multiples)[0][0].radix if len(self.layout.axes[0].radices) > 2 else 1

    def offset(self, row: int, column: int) -> int:
        """Byte of a scale, or of the padding at its place. Rules: LAY-1, LAY-2, LAY-3, LAY-4."""
        return self.layout.offset(row, column, *reversed(self.geometry.scales))

    def byte(self, offset: int) -> Byte:
        """Return the content of a byte. Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5."""
        rows, columns = self.geometry.scales
        try:
            row, column = self.layout.index(offset, columns, rows)
        except DomainError:
            return Byte(offset, 0, 0, gap=True)
        if row < rows and column < columns:
            return Byte(offset, row, column)
        return Byte(offset, row, column, self.layout.axes[0 if row >= rows else 1].fill or 0)

    def lines(self, first: int, count: int) -> list[list[Byte]]:
        """Lines of memory from byte `first`, as far as the buffer reaches."""
        stop = min(first + count * LINE, self.size)
        return [
            [self.byte(offset) for offset in range(start, min(start + LINE, stop))]
            for start in range(first, stop, LINE)
        ]

    def sampled_rows(self, place: ElementPlace | None, most: int = 10) -> list[int]:
        """Rows that show how a layout jumps: the first ones, one of every band and of every tile, an element's own."""
        rows = self.geometry.scales[0]
        high = max(self.layout.tile[0], self.band)
        wanted = [place.scale[0]] if place else []
        wanted += [0, 1, 2, *range(32, 128, 32), 33, 127, 128, high - 1, high, 3, 31, 4, 5, 6, 7, 8]
        return sorted(dict.fromkeys(row for row in wanted if row < rows), key=wanted.index)[:most]

    def digits(self) -> list[str]:
        """Return the map in words: one line per digit of the row and the column."""
        parts: list[str] = []
        for axis, digits in zip(("row m", "column k"), self.layout.digits(*self.geometry.scales), strict=True):
            place = 1
            for number, digit in enumerate(digits):
                last = number == len(digits) - 1
                over = axis[-1] if place == 1 else f"{axis[-1]} / {place}"
                value = over if last else f"{over} % {digit.radix}"
                parts.append(
                    f"{value} (0 to {max(digit.radix, 1) - 1}): {digit.stride} byte{'s' * (digit.stride != 1)} apart"
                )
                place *= digit.radix
        return parts

    def expressions(self) -> list[str]:
        """Return the map as a sum over digits, and in the notation of CuTe if that has one. Rules: LAY-13, LAY-21."""
        scales, block = self.geometry.scales, self.geometry.spec.block.columns
        run = len(self.layout.strides(*scales).table)
        found = cute(self.layout, scales, (1, block))
        in_cute = f"CuTe, of element (m, k): {found}" if found else ""
        moved = f"; then the table moves it within its run of {run} bytes (LAY-21)" if run else ""
        return [line for line in (formula(self.layout, scales, ("m", "k")) + moved, in_cute) if line]

    def caption(self) -> str:
        """Sizes of what is drawn."""
        (rows, columns), (high, wide) = self.geometry.scales, self.layout.padded_shape(*self.geometry.scales)
        m, k = self.geometry.shape
        (tall, across), block = self.layout.tile, self.geometry.spec.block.columns
        covers = f"{tall} x {across * block} elements of {spoken(self.geometry.spec)}"
        tile = f", tiles of {tall} x {across}; a tile covers {covers}" if self.tiled else ""
        of = "x^T of a" if self.geometry.direction == "column" else "a"
        size = f"{rows} x {columns} scales of {of} {m} x {k} tensor"
        return f"{size} in a buffer of {high} x {wide} = {high * wide} bytes{tile}"


def unused(lines: Iterable[Iterable[Byte]]) -> list[str]:
    """Return the words for bytes that hold no scale: padding, whose value a layout may state, and gaps."""
    found = {byte.gap for line in lines for byte in line if byte.padding}
    return [word for word, gap in (("padding", False), ("gap", True)) if gap in found]


def require_tiles(layout: Layout, operation: str) -> None:
    """Require a layout of scales with tiles, which a linear layout does not have. Rules: LAY-1, LAY-3, RES-6."""
    if reason := layout.unfit_for_scales():
        raise LayoutError(operation, f"layout {layout.name}, which has {reason}", "bytes in rows and columns", "RES-6")
    if not layout.has_tiles:
        raise LayoutError(
            operation, f"layout {layout.name}, which has no tiles", "tiled_128x4 or tiled_8x4", layout.rule
        )
