"""The figure of packing: which element's code is in which nibble of which byte."""

from __future__ import annotations

import numpy as np

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import Geometry
from fp4ref.diagrams.request import Request, clipped
from fp4ref.diagrams.text_width import fitting, wrap
from fp4ref.errors import DomainError
from fp4ref.packing import pack

MOST = 8  # elements in a figure
CELL = 94


def packing(request: Request) -> str:
    """Codes of one row and the bytes they are packed into. Rules: PACK-1, PACK-2, PACK-3."""
    form = request.spec.element.format
    if form.bits not in {4, 8}:
        raise DomainError("diagram packing", f"{form.name} of {form.bits} bits", "a format of 4 or 8 bits", "PACK-4")
    shape = request.shape or (1, 7 if form.bits == 4 else 4)
    place = Geometry(request.spec, shape).place(*request.element) if request.element else None
    size = shape if place or request.window else (1, shape[1])
    (row, _), (first, stop) = clipped("diagram packing", request.window, size, (1, MOST), place.at if place else None)
    columns = shape[1]
    codes = (np.arange(columns)[None] * (3 if form.bits == 4 else 37) % (1 << form.bits)).astype(np.uint8)
    data = pack(codes, form)[0]
    title = f"Packing {form.name.upper()}: " + (
        "element 0 in the low nibble" if form.bits == 4 else "one code per byte"
    )
    page = Canvas(title, _words(form.bits, first, stop), request.theme)
    y = page.heading(title) + 10
    row_bytes = len(data)
    start = f"row {row}, whose data begin at byte {row * row_bytes}" if shape[0] > 1 else "a row"
    page.text(MARGIN, y, f"elements of {start}, and their codes", size=11, kind="muted")
    y += 8
    chosen = place.at[1] if place and place.at[0] == row else None
    for column in range(first, stop):
        x = MARGIN + (column - first) * CELL
        code = f"{codes[0, column]:0{form.bits // 4}x}"
        label = f"x[{column}]: {code}"
        page.cell(x + 4, y, CELL - 8, 40, label, _kind(column), size=fitting(label, CELL - 8, 12))
        if column == chosen:
            page.mark(x + 4, y, CELL - 8, 40)
    y += 40
    per_byte = 8 // form.bits
    what = "bytes of the row in memory" if shape[0] > 1 else "bytes in memory"
    page.text(MARGIN, y + 96, f"{what}, address grows to the right", size=11, kind="muted")
    for byte in range(first // per_byte, -(-stop // per_byte)):
        _byte(page, y, byte, per_byte, (first, stop), columns, int(data[byte]), chosen)
    note = _words(form.bits, first, stop).split(". ")[-1]
    page.text(MARGIN, y + 186, note, size=11, kind="muted")
    if place:
        said = wrap(place.sentence(), page.width - 2 * MARGIN, 12, bold=True)
        page.lines(MARGIN, y + 210, said, kind="mark", bold=True)
    return page.svg()


def _byte(
    page: Canvas,
    y: float,
    byte: int,
    per_byte: int,
    window: tuple[int, int],
    columns: int,
    value: int,
    chosen: int | None,
) -> None:
    """Draw a byte, its high bits at the left, with arrows from its elements."""
    bits = 8 // per_byte
    left = MARGIN + (byte * per_byte - window[0]) * CELL
    for part in range(per_byte):
        column = byte * per_byte + per_byte - 1 - part  # the high nibble is drawn first
        x = left + part * CELL
        code = value >> bits * (per_byte - 1 - part) & (1 << bits) - 1
        spare = column >= columns
        title = f"byte {byte}, {'spare nibble' if spare else f'element {column}'}"
        page.cell(
            x,
            y + 104,
            CELL,
            34,
            "" if spare else f"{code:0{bits}b}",
            "pad" if spare else _kind(column),
            size=13,
            title=title,
        )
        if spare:
            page.box(x + CELL / 2 - 22, y + 112, 44, 18, "paper", stroke="none")
            page.text(x + CELL / 2, y + 126, f"{code:0{bits}b}", size=13, anchor="middle", mono=True)
        if per_byte == 2:
            page.text(
                x + CELL / 2, y + 152, "bits 7–4" if part == 0 else "bits 3–0", size=10, anchor="middle", kind="muted"
            )
        if spare:
            continue
        start = MARGIN + (column - window[0] + 0.5) * CELL
        page.line(
            [(start, y + 2), (start, y + 16), (x + CELL / 2, y + 62), (x + CELL / 2, y + 80)],
            stroke="AB"[column % 2],
            head=True,
        )
        if column == chosen:
            page.mark(x, y + 104, CELL, 34)
    page.text(
        left + per_byte * CELL / 2,
        y + 168,
        (label := f"byte {byte} = {value:#04x}"),
        size=fitting(label, per_byte * CELL - 4, 11),
        anchor="middle",
        mono=True,
        bold=True,
    )


def _kind(column: int) -> str:
    return "ab"[column % 2]


def _words(bits: int, first: int, stop: int) -> str:
    if bits == 8:
        return f"Elements {first} to {stop - 1} of a row. An 8-bit code is its own byte."
    return (
        f"Elements {first} to {stop - 1} of a row: element 2i is in the low nibble of byte i, "
        "element 2i + 1 in the high one. "
        "The spare nibble of an odd row is 0 (hatched)."
    )
