"""The figure of four ways to read the wrong scales: too small a buffer, a wrong pitch, a wrong start, a transpose."""

from __future__ import annotations

import math

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import Geometry, spoken
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import wrap
from fp4ref.layout import TILED_128X4
from fp4ref.specs import NVFP4

SHAPE = (300, 288)
MEMBERS = (100, 60)  # rows of the members of a group
BAR = 24.0
SQUARE = 64.0


def pitfalls(request: Request) -> str:
    """Draw each mistake with the numbers of one tensor. Rules: LAY-5, LAY-8, BLK-8, LAY-2."""
    geometry = Geometry(NVFP4, SHAPE)
    title = "Four ways to read the wrong scales"
    said = (
        f"{spoken(NVFP4)}, x [{geometry.shape[0]}, {geometry.shape[1]}], scales in {TILED_128X4.name}: a buffer "
        "without its padding is too small; a row's pitch is the padded one; members of a group start at tiles; the "
        "scales of the transpose are other numbers."
    )
    page = Canvas(title, said, request.theme)
    y = page.lines(MARGIN, page.heading(title), wrap(said, page.width - 2 * MARGIN, 11), size=11, kind="muted") + 12
    y = _too_small(page, y, geometry)
    y = _pitch(page, y + 22, geometry)
    y = _starts(page, y + 22, geometry)
    _transposed(page, y + 22, geometry)
    return page.svg()


def _told(page: Canvas, y: float, head: str, text: str) -> float:
    """Write a mistake's name and what happens, and return the y of its drawing."""
    page.text(MARGIN, y, head, size=13, bold=True)
    return page.lines(MARGIN, y + 18, wrap(text, page.width - 2 * MARGIN, 11), size=11)


def _too_small(page: Canvas, y: float, geometry: Geometry) -> float:
    rows, columns = geometry.scales
    used, size = rows * columns, math.prod(TILED_128X4.padded_shape(rows, columns))
    last = TILED_128X4.offset(rows - 1, columns - 1, columns, rows)
    y = _told(
        page, y, "1. Out of bounds: the buffer has one byte for each block",
        f"{rows} x {columns} scales are {used} bytes, but whole tiles are {size}. The GEMM reads all of them: "
        f"{size - used} bytes past the end. Scale ({rows - 1}, {columns - 1}) alone is at byte {last}. Allocate "
        "padded_shape, and clear the padding (LAY-5).",
    )  # fmt: skip
    room = page.width - 2 * MARGIN
    page.cell(MARGIN, y, room * used / size, BAR, f"bytes 0 to {used - 1}", "a", title="allocated")
    page.box(MARGIN + room * used / size, y, room * (1 - used / size), BAR, "pad", title="past the end")
    label = f"{used} to {size - 1}"
    middle = MARGIN + room * (1 + used / size) / 2
    page.box(middle - 44, y + 4, 88, BAR - 8, "paper", stroke="none")
    page.text(middle, y + 16, label, size=10, anchor="middle", mono=True)
    return y + BAR


def _pitch(page: Canvas, y: float, geometry: Geometry) -> float:
    rows, columns = geometry.scales
    padded = TILED_128X4.padded(rows, columns)[1]
    row, tile = TILED_128X4.tile[0], math.prod(TILED_128X4.tile)
    right, wrong = TILED_128X4.offset(row, 0, columns, rows), row * columns
    y = _told(
        page, y, "2. Alignment: the next row of tiles is found by the columns without padding",
        f"{columns} columns take {padded // TILED_128X4.tile[1]} tiles of {tile} bytes, so row {row} starts at byte "
        f"{right}. A kernel that counts {columns} columns instead of {padded} computes {wrong}. Shapes whose K is a "
        f"multiple of {TILED_128X4.tile[1] * geometry.spec.block.columns} hide this mistake.",
    )  # fmt: skip
    room = page.width - 2 * MARGIN
    count = padded // TILED_128X4.tile[1]
    per = room / ((count + 2) * tile)
    for number in range(count + 2):
        x = MARGIN + number * tile * per
        page.cell(x, y, tile * per, BAR, f"tile {number}", "a" if number < count else "b", title=f"tile {number}")
    for byte, words, anchor in ((right, f"right: {right}", "start"), (wrong, f"wrong: {wrong}", "end")):
        x = MARGIN + byte * per
        page.line([(x, y + BAR + 22), (x, y + BAR + 3)], head=True, stroke="mark" if byte == wrong else "edge")
        page.text(x + (5 if anchor == "start" else -5), y + BAR + 22, words, size=10, anchor=anchor, mono=True)
    return y + BAR + 24


def _starts(page: Canvas, y: float, geometry: Geometry) -> float:
    columns = geometry.scales[1]
    first, second, size = TILED_128X4.group_offsets([(rows, columns) for rows in MEMBERS])
    wrong = MEMBERS[0] * columns
    y = _told(
        page, y, "3. Alignment in a group: a member starts where the rows before it end",
        f"Members of {MEMBERS[0]} and {MEMBERS[1]} rows: the second one starts at a tile, byte {second} (LAY-8), not "
        f"at {MEMBERS[0]} rows of {columns} scales, byte {wrong}.",
    )  # fmt: skip
    room = page.width - 2 * MARGIN
    for number, (start, stop) in enumerate(((first, second), (second, size))):
        x, wide = MARGIN + room * start / size, room * (stop - start) / size
        page.cell(x, y, wide, BAR, f"member {number}: bytes {start} to {stop - 1}", "ab"[number])
    x = MARGIN + room * wrong / size
    page.line([(x, y + BAR + 22), (x, y + BAR + 3)], head=True, stroke="mark")
    page.text(x - 5, y + BAR + 22, f"wrong: {wrong}", size=10, anchor="end", mono=True)
    return y + BAR + 24


def _transposed(page: Canvas, y: float, geometry: Geometry) -> float:
    turned = Geometry(geometry.spec, geometry.shape, "column")
    (rows, columns), (back, across), size = geometry.scales, turned.scales, geometry.spec.block.columns
    y = _told(
        page, y, "4. Transposing: the scales of x are transposed for the gradient",
        f"Row scales [{rows}, {columns}] belong to {size} neighbours of a row, column scales [{back}, {across}] to "
        f"{size} neighbours of a column: other blocks, other maxima. Quantize x^T from the values; neither the "
        "scales nor the codes of x can be turned (BLK-8).",
    )  # fmt: skip
    for number, (name, shape) in enumerate((("row direction", (rows, columns)), ("column direction", (back, across)))):
        x = MARGIN + number * 380.0
        for strip in range(4):
            if number:
                page.box(
                    x + strip * SQUARE / 4, y, SQUARE / 4, SQUARE, "abcd"[strip], title=f"blocks of column {strip}"
                )
            else:
                page.box(x, y + strip * SQUARE / 4, SQUARE, SQUARE / 4, "abcd"[strip], title=f"blocks of row {strip}")
        page.text(x + SQUARE + 12, y + 16, name, size=12, bold=True)
        page.text(x + SQUARE + 12, y + 34, f"a block: {size} x 1" if number else f"a block: 1 x {size}", size=11)
        page.text(x + SQUARE + 12, y + 50, f"scales [{shape[0]}, {shape[1]}]", size=11, mono=True)
    return y + SQUARE
