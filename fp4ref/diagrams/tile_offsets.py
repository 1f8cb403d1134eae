"""The figure of a whole tile: the byte of each of its scales, groups of rows side by side."""

from __future__ import annotations

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import Geometry
from fp4ref.diagrams.request import Request, clipped
from fp4ref.diagrams.scale_map import ScaleMap, require_tiles
from fp4ref.diagrams.text_width import fitting, text_width, wrap
from fp4ref.layout import TILED_128X4

GROUP = 32  # rows above each other
COLUMNS = 16  # of cells in a line, over all groups
GROUPS = 4
LABEL = 34.0
HIGH = 15.0


def tile_offsets(request: Request) -> str:
    """Draw a tile as a table of bytes, none left out: of a large tile, the window's. Rules: LAY-3, LAY-4, LAY-13."""
    layout = request.layout or TILED_128X4
    require_tiles(layout, "diagram tile-offsets")
    high, wide = layout.tile
    groups = min(-(-high // GROUP), GROUPS)
    (top, bottom), (left, right) = clipped(
        "diagram tile-offsets", request.window, layout.tile, (groups * GROUP, COLUMNS // groups)
    )
    found = ScaleMap(Geometry(request.spec, (high, wide * request.spec.block.columns)), layout)
    title = f"A whole tile of {layout.name}: the byte of each scale (m, k)"
    said = f"Rows m {top} to {bottom - 1} and columns k {left} to {right - 1} of a tile of {high} x {wide} scales."
    page = Canvas(title, f"{said} {found.expressions()[0]}", request.theme)
    y, room = page.heading(title) + 4, page.width - 2 * MARGIN
    for line in found.expressions():
        y = page.lines(MARGIN, y, wrap(line, room, 11, mono=True), size=11, mono=True)
    drawn = -(-(bottom - top) // GROUP)
    cell = min((room / drawn - LABEL - 8) / (right - left), 44.0)
    for group in range(drawn):
        x = MARGIN + LABEL + group * room / drawn
        rows = range(top + group * GROUP, min(top + (group + 1) * GROUP, bottom))
        for at, column in enumerate(range(left, right)):
            label = f"k {column}" if text_width(f"k {column}", 10) <= cell - 3 else str(column)
            page.text(x + (at + 0.5) * cell, y + 12, label, size=10, anchor="middle", kind="muted")
            for down, row in enumerate(rows):
                offset = found.offset(row, column)
                above = y + 18 + down * HIGH
                words, told = str(offset), f"scale ({row}, {column}): byte {offset}"
                points = fitting(words, cell - 3, 10)
                page.cell(x + at * cell, above, cell, HIGH, words, "abcd"[row // GROUP % 4], size=points, title=told)
        for down, row in enumerate(rows):
            page.text(x - 4, y + 29 + down * HIGH, f"m {row}", size=9, anchor="end", kind="muted")
    return page.svg()
