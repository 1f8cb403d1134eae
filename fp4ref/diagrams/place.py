"""The place of an element: its block, its data byte, and its scale in every layout; and the owner of a byte."""

from __future__ import annotations

from dataclasses import dataclass

from fp4ref import packings
from fp4ref.diagrams.request import require_element
from fp4ref.errors import DomainError, ShapeError
from fp4ref.hadamard import POINTS
from fp4ref.layout import LAYOUTS, LINEAR, TILED_128X4, Layout
from fp4ref.layout.worked import worked
from fp4ref.packing import bits_in_words, width
from fp4ref.packings import CANONICAL, bit_of, codes_of
from fp4ref.quantized import Direction
from fp4ref.spec import Spec

NAMED = (LINEAR.name, TILED_128X4.name)  # layouts that a sentence names unless it is asked for others


@dataclass(frozen=True)
class Geometry:
    """A tensor [M, K] under a specification, in one direction.

    matrix: the shape that is quantized, that of x^T in the column direction. scales: shape of its scale array.
    row_bytes: bytes of data in a row of the matrix.

    Rules: BLK-1, BLK-8, PACK-1, PACK-2, PACK-3.
    """

    spec: Spec
    shape: tuple[int, int]
    direction: Direction = "row"

    def __post_init__(self) -> None:
        if self.spec.hadamard and self.direction == "column" and self.shape[0] % POINTS:
            got = f"{self.shape[0]} rows in the column direction of {self.spec.name}"
            raise ShapeError("where", got, f"a multiple of {POINTS}", "HAD-5")

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns in the direction."""
        return self.shape if self.direction == "row" else (self.shape[1], self.shape[0])

    @property
    def scales(self) -> tuple[int, int]:
        """Rows and columns of scale bytes."""
        return self.matrix[0], -(-self.matrix[1] // self.spec.block.columns)

    @property
    def row_bytes(self) -> int:
        """Bytes of data that a row takes."""
        return width(self.matrix[1], self.spec.element.format)

    def place(self, row: int, column: int, operation: str = "diagram") -> ElementPlace:
        """Return the place of element (row, column) of the tensor; operation: named by an error. Rules: NUM-4."""
        require_element((row, column), self.shape, operation)
        return self._at(*((row, column) if self.direction == "row" else (column, row)))

    def of_data_byte(self, offset: int, packing: str = CANONICAL) -> list[ElementPlace]:
        """Return the elements of a data byte, in the order of their bits. packing: of the data, by its name.

        Rules: PACK-1, PACK-2, PACK-3, PACK-4, PACK-7.
        """
        form = packings.packing(packing, self.spec.element.format.bits)
        return [self._at(*at) for at in codes_of(form, self.matrix, offset)]

    def of_scale_byte(self, offset: int, layout: Layout) -> tuple[int, int] | None:
        """Return the scale at a byte of a buffer, or None for padding. Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5."""
        rows, columns = layout.padded_shape(*self.scales)
        if not 0 <= offset < rows * columns:
            raise DomainError("where", f"scale byte {offset}", f"0 <= byte < {rows * columns}", layout.rule)
        row, column = layout.index(offset, self.scales[1], self.scales[0])
        return (row, column) if row < self.scales[0] and column < self.scales[1] else None

    def _at(self, row: int, column: int) -> ElementPlace:
        bits = self.spec.element.format.bits
        byte, place = divmod(column * bits, 8)
        nibble = ("high" if place else "low") if bits == 4 else None
        element = (row, column) if self.direction == "row" else (column, row)
        scale = row, column // self.spec.block.columns
        return ElementPlace(self, element, (row, column), row * self.row_bytes + byte, nibble, scale)


@dataclass(frozen=True)
class ElementPlace:
    """The place of an element.

    element: (row, column) of the tensor; at: of the matrix of the direction. data_byte: offset in the data; nibble:
    "low", "high", or None for elements that are not 4 bits wide. scale: (row, column) of the scale array.
    """

    geometry: Geometry
    element: tuple[int, int]
    at: tuple[int, int]
    data_byte: int
    nibble: str | None
    scale: tuple[int, int]

    def scale_byte(self, layout: Layout) -> int:
        """Offset of the element's scale in a buffer of the layout. Rules: LAY-1, LAY-2, LAY-3, LAY-4."""
        return layout.offset(*self.scale, *reversed(self.geometry.scales))

    def sums(self, layouts: tuple[str, ...] = NAMED) -> list[str]:
        """Return the worked sum of the scale's byte in each layout. Rules: LAY-13.

        >>> from fp4ref.specs import NVFP4
        >>> print(*Geometry(NVFP4, (300, 288)).place(37, 130).sums(("tiled_128x4",)))
        tiled byte = (37 // 128)*2560 + (8 // 4)*512 + (37 % 32)*16 + (37 // 32 % 4)*4 + 8 % 4 = 1108

        """
        scales = self.geometry.scales
        return [f"{short(name)} byte = {worked(LAYOUTS[name], scales, self.scale)}" for name in layouts]

    def sentence(self, layouts: tuple[str, ...] = NAMED, packing: str = CANONICAL) -> str:
        """Return the answer in words; packing: of the data, by its name.

        >>> from fp4ref.specs import NVFP4
        >>> print(Geometry(NVFP4, (128, 256)).place(37, 130).sentence(('tiled_128x4',)))
        element (37, 130) of a K = 256 NVFP4 tensor: data byte 4801 low nibble, scale (37, 8), tiled byte 1108

        """
        geometry = self.geometry
        bits = geometry.spec.element.format.bits
        byte, first = bit_of(packings.packing(packing, bits), geometry.matrix, *self.at)
        part = bits_in_words(bits, first)
        order = "" if packing == CANONICAL else f" in {packing}"
        axis = f"K = {geometry.shape[1]}" if geometry.direction == "row" else f"M = {geometry.shape[0]}"
        through = (
            "" if geometry.direction == "row" else f" in the column direction, ({self.at[0]}, {self.at[1]}) of x^T"
        )
        spec = spoken(geometry.spec)
        bytes_of = ", ".join(f"{short(name)} byte {self.scale_byte(LAYOUTS[name])}" for name in layouts)
        return (
            f"element ({self.element[0]}, {self.element[1]}) of {article(axis)} {axis} {spec} tensor{through}: "
            f"data byte {byte}{part and f' {part}'}{order}, scale ({self.scale[0]}, {self.scale[1]}), {bytes_of}"
        )


def named(layout: Layout | None) -> tuple[str, ...]:
    """Layouts that a sentence names beside a drawn one: linear and that one, or the usual pair."""
    return NAMED if layout is None or layout == LINEAR else (LINEAR.name, layout.name)


def spoken(spec: Spec) -> str:
    """Return a specification's name as prose has it: ours in capitals, others as they are registered."""
    return spec.name if "." in spec.name or "[" in spec.name else spec.name.upper()


def short(layout: str) -> str:
    """Return a layout's name in a sentence; the GEMM's layout is the tiled one."""
    return "tiled" if layout == TILED_128X4.name else layout


def article(word: str) -> str:
    """Return the indefinite article of an axis, or of a name that is spelled out."""
    return "an" if word.startswith(("M", "N")) else "a"
