"""The figure of packing: which element's code is in which nibble of which byte."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import Geometry
from fp4ref.diagrams.request import Request, clipped
from fp4ref.diagrams.text_width import fitting, wrap
from fp4ref.formats import Codes
from fp4ref.packing import pack

MOST = 8  # elements in a figure
CELL = 94
TITLES = {4: "element 0 in the low nibble", 6: "four codes in three bytes", 8: "one code per byte"}


@dataclass(frozen=True)
class Slots:
    """The places of a window's elements from left to right.

    per_byte: elements of a byte, which is drawn whole even if the window begins with the second of them. Codes of 6
    bits share bytes; each of them is a place of its own, 1, and `_bit_stream` places the bytes.
    """

    first: int
    stop: int
    per_byte: int

    @property
    def bytes(self) -> range:
        """The bytes that hold elements of the window."""
        return range(self.first // self.per_byte, -(-self.stop // self.per_byte))

    @property
    def width(self) -> float:
        """The width of an element."""
        return CELL * min(1, MOST / (len(self.bytes) * self.per_byte))

    def x(self, column: float) -> float:
        """Return the left edge of an element."""
        return MARGIN + (column - self.bytes.start * self.per_byte) * self.width


def point(request: Request) -> str:
    """Return the sentence on how codes share bytes. Rules: PACK-1, PACK-3, PACK-4."""
    form = request.spec.element.format
    return f"Codes of {form.name.upper()} have {form.bits} bits: {TITLES[form.bits]}."


def packing(request: Request) -> str:
    """Codes of one row and the bytes they are packed into. Rules: PACK-1, PACK-2, PACK-3, PACK-4, PACK-5."""
    form = request.spec.element.format
    shape = request.shape or (1, {4: 7, 6: 7, 8: 4}[form.bits])
    place = Geometry(request.spec, shape).place(*request.element) if request.element else None
    size = shape if place or request.window else (1, shape[1])
    (row, _), (first, stop) = clipped("diagram packing", request.window, size, (1, MOST), place.at if place else None)
    columns = shape[1]
    codes = (np.arange(columns)[None] * {4: 3, 6: 13, 8: 37}[form.bits] % (1 << form.bits)).astype(np.uint8)
    data = pack(codes, form)[0]
    title = f"Packing {form.name.upper()}: {TITLES[form.bits]}"
    page = Canvas(title, _words(form.bits, first, stop, columns), request.theme)
    y = page.heading(title) + 10
    row_bytes = len(data)
    start = f"row {row}, whose data begin at byte {row * row_bytes}" if shape[0] > 1 else "a row"
    page.text(MARGIN, y, f"elements of {start}, and their codes", size=11, kind="muted")
    y += 8
    chosen = place.at[1] if place and place.at[0] == row else None
    slots = Slots(first, stop, 8 // form.bits)
    cell = slots.width
    for column in range(first, stop):
        x = slots.x(column)
        code = f"{codes[0, column]:0{form.digits}x}"
        label = f"x[{column}]: {code}"
        page.cell(x + 4, y, cell - 8, 40, label, _kind(column), size=fitting(label, cell - 8, 12))
        if column == chosen:
            page.mark(x + 4, y, cell - 8, 40)
    y += 40
    what = "bytes of the row in memory" if shape[0] > 1 else "bytes in memory"
    page.text(MARGIN, y + 96, f"{what}, address grows to the right", size=11, kind="muted")
    if form.bits == 6:
        _bit_stream(page, y, slots, codes[0], data, chosen)
    else:
        for byte in slots.bytes:
            _byte(page, y, byte, slots, columns, int(data[byte]), chosen)
    note = _words(form.bits, first, stop, columns).split(". ")[-1]
    page.text(MARGIN, y + 186, note, size=11, kind="muted")
    if place:
        said = wrap(place.sentence(), page.width - 2 * MARGIN, 12, bold=True)
        page.lines(MARGIN, y + 210, said, kind="mark", bold=True)
    return page.svg()


def _byte(page: Canvas, y: float, byte: int, slots: Slots, columns: int, value: int, chosen: int | None) -> None:
    """Draw a byte, its high bits at the left, with arrows from its elements."""
    per_byte, cell = slots.per_byte, slots.width
    bits = 8 // per_byte
    left = slots.x(byte * per_byte)
    for part in range(per_byte):
        column = byte * per_byte + per_byte - 1 - part  # the high nibble is drawn first
        x = left + part * cell
        code = value >> bits * (per_byte - 1 - part) & (1 << bits) - 1
        text, spare = f"{code:0{bits}b}", column >= columns
        title = f"byte {byte}, {'spare nibble' if spare else f'element {column}'}"
        kind = "pad" if spare else _kind(column)
        page.cell(x, y + 104, cell, 34, "" if spare else text, kind, size=13, title=title)
        if spare:
            page.box(x + cell / 2 - 22, y + 112, 44, 18, "paper", stroke="none")
            page.text(x + cell / 2, y + 126, text, size=13, anchor="middle", mono=True)
        if per_byte == 2:
            span = "bits 7–4" if part == 0 else "bits 3–0"
            page.text(x + cell / 2, y + 152, span, size=10, anchor="middle", kind="muted")
        if not slots.first <= column < slots.stop:
            continue
        start, middle = slots.x(column + 0.5), x + cell / 2
        page.line(
            [(start, y + 2), (start, y + 16), (middle, y + 62), (middle, y + 80)], stroke="AB"[column % 2], head=True
        )
        if column == chosen:
            page.mark(x, y + 104, cell, 34)
    label = f"byte {byte} = {value:#04x}"
    size, middle = fitting(label, per_byte * cell - 4, 11), left + per_byte * cell / 2
    page.text(middle, y + 168, label, size=size, anchor="middle", mono=True, bold=True)


def _bit_stream(page: Canvas, y: float, slots: Slots, codes: Codes, data: Codes, chosen: int | None) -> None:
    """Draw the bytes that codes of 6 bits share, each with its high bits at the left, with arrows from its elements."""
    first, stop, bits = slots.first, slots.stop, 6
    begin, end = first * bits // 8, -(-stop * bits // 8)
    wide = min(CELL / bits, MOST * CELL / (8 * (end - begin)))  # of a bit
    for byte in range(begin, end):
        left = MARGIN + (byte - begin) * 8 * wide
        for column in range(byte * 8 // bits, -(-(byte + 1) * 8 // bits)):
            low, high = max(column * bits, byte * 8), min((column + 1) * bits, byte * 8 + 8)  # bits of the stream
            x, width, spare = left + (byte * 8 + 8 - high) * wide, (high - low) * wide, column >= len(codes)
            part = int(data[byte]) >> low - byte * 8 & (1 << high - low) - 1
            what = (
                "spare bits"
                if spare
                else f"element {column}, its bits {low - column * bits} to {high - column * bits - 1}"
            )
            kind = "pad" if spare else _kind(column)
            text = "" if spare else f"{part:0{high - low}b}"
            page.cell(x, y + 104, width, 34, text, kind, size=12, title=f"byte {byte}, {what}")
            span = f"{high - byte * 8 - 1}–{low - byte * 8}"
            page.text(x + width / 2, y + 152, span, size=10, anchor="middle", kind="muted")
            if spare or not first <= column < stop:
                continue
            start, middle = slots.x(column + 0.5), x + width / 2
            page.line(
                [(start, y + 2), (start, y + 16), (middle, y + 62), (middle, y + 80)],
                stroke="AB"[column % 2],
                head=True,
            )
            if column == chosen:
                page.mark(x, y + 104, width, 34)
        label = f"byte {byte} = {int(data[byte]):#04x}"
        size = fitting(label, 8 * wide - 4, 11)
        page.text(left + 4 * wide, y + 168, label, size=size, anchor="middle", mono=True, bold=True)


def _kind(column: int) -> str:
    return "ab"[column % 2]


def _words(bits: int, first: int, stop: int, columns: int) -> str:
    spare = " (hatched)" if stop == columns and columns * bits % 8 else ""
    if bits == 8:
        return f"Elements {first} to {stop - 1} of a row. An 8-bit code is its own byte."
    if bits == 6:
        return (
            f"Elements {first} to {stop - 1} of a row: bits 6i to 6i + 5 of the row are element i, the lowest bit of "
            f"byte 0 first.{f' The bits past the last element are 0{spare}.' if columns * bits % 8 else ''}"
        )
    return (
        f"Elements {first} to {stop - 1} of a row: element 2i is in the low nibble of byte i, "
        "element 2i + 1 in the high one."
        f"{f' The spare nibble of an odd row is 0{spare}.' if columns * bits % 8 else ''}"
    )
