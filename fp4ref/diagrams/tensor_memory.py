"""The figure of a tile of scales in tensor memory: one line of the buffer per lane, one group of 32 rows per column."""

from __future__ import annotations

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.scale_map import LINE
from fp4ref.diagrams.text_width import wrap
from fp4ref.layout import TILED_128X4

WORD = 4  # bytes of a column of tensor memory
CELL = (128.0, 15.0)
COPY = (
    "A block-scaled tcgen05.mma reads its scales from tensor memory, where each lane has columns of 32 bits. "
    "The copy tcgen05.cp.32x128b moves line i of the tile, 16 bytes, to lane i: four columns, one for each group of 32 "
    "rows."
)
WHY = (
    "With .warpx4 the four quarters of the 128 lanes get the same copy, so that the lanes of every quarter find all "
    "128 rows. This is why rows that are 32 apart are neighbours in the buffer: the copy needs no shuffle. With "
    "scale_vec::4X one instruction uses all four bytes of a column. (PTX ISA, tcgen05.cp and block scaling; lanes as "
    "in CUTLASS, copy_sm100.hpp)"
)


def tensor_memory(request: Request) -> str:
    """Draw a 128 x 4 tile as tcgen05.cp places it: lanes down, columns across. Rules: LAY-3."""
    title = "A 128 x 4 tile of scales in tensor memory: why rows 32 apart are neighbours"
    page = Canvas(title, f"{COPY} {WHY}", request.theme)
    y = page.heading(title) + 18
    left = MARGIN + 190.0
    columns = LINE // WORD
    for column in range(columns):
        x = left + (column + 0.5) * CELL[0]
        page.text(x, y - 6, f"column {column}", size=11, anchor="middle", bold=True)
    page.text(MARGIN + 96, y - 6, "bytes of the tile", size=10, anchor="end", kind="muted")
    page.text(left - 12, y - 6, "lane", size=10, anchor="end", kind="muted")
    for lane in range(TILED_128X4.tile[0] * TILED_128X4.tile[1] // LINE):
        top = y + lane * CELL[1]
        page.text(MARGIN + 96, top + 11, f"{lane * LINE}–{lane * LINE + LINE - 1}", size=9, anchor="end", mono=True)
        page.line([(MARGIN + 104, top + 7.5), (left - 42, top + 7.5)], head=True)
        page.text(left - 12, top + 11, str(lane), size=10, anchor="end", mono=True)
        for column in range(columns):
            first = lane * LINE + column * WORD
            scales = [TILED_128X4.index(first + byte, columns=TILED_128X4.tile[1]) for byte in range(WORD)]
            (row, low), (_, high) = scales[0], scales[-1]
            label = f"m {row}, k {low}–{high}"
            told = f"lane {lane}, column {column}: scales {', '.join(map(str, scales))}"
            page.cell(left + column * CELL[0], top, *CELL, label, "abcd"[column], size=9, title=told)
    for note in (COPY, WHY):
        lines = wrap(note, page.width - 2 * MARGIN, 11)
        page.lines(MARGIN, page.bottom + 18, lines, size=11, kind="muted")
    return page.svg()
