"""The figure of the registers of mma.m16n8k64: which lane supplies which elements and which scales."""

from __future__ import annotations

import numpy as np

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import wrap
from fp4ref.layout import Layout

M, N, K, SCALES = 16, 8, 64, 4
CELL = (37.0, 15.0)
GROUP = 8  # elements of a 32-bit register

# Lane after lane, each with its own elements or scale bytes in the order of its registers: 32 codes of A, 16 of B, a
# word of four scale bytes, four sums of D. Lanes without scales are gaps.
A = Layout("mma.a", "m(8,*) k(8,4,*): k0 m1 k2 k1 m0; unit 4")
B = Layout("mma.b", "n(*) k(8,4,*): k0 k2 k1 n0; unit 4")
SCALE_A = Layout("mma.scale_a", "m(8,*) s(*): s0 m1 |16 m0")
SCALE_B = Layout("mma.scale_b", "n(*) s(*): s0 |16 n0")
D = Layout("mma.d", "m(8,*) n(2,*): n0 m1 n1 m0; unit 32")

SAID = (
    "T is the lane, a0 to d3 are its registers. A register of A or B holds eight codes of consecutive k, the lowest k "
    "in the lowest bits. A scale register holds the four scales of one row of A or column of B, k 0–15 in the lowest "
    "byte."
)
NOTE = (
    "Scales with scale_vec::4X (NVFP4), thread-id-a = 0 and thread-id-b = 0: the named lanes supply them, and the "
    "registers of the other lanes are ignored. thread-id-a = 1 takes those of A from two lanes further up, thread-id-b "
    "= 1 to 3 those of B from one to three lanes further up. (PTX ISA: fragments of mma.m16n8k64, block scaling of "
    "mma.sync)"
)


def owner(form: Layout, index: tuple[int, int], sizes: tuple[int, int], units: int) -> tuple[int, int]:
    """Return the lane of an index, and its place among the lane's `units`."""
    lane, place = divmod(int(form.offsets(index, sizes)), units)
    return lane, place


def mma_fragments(request: Request) -> str:
    """Draw A, B, D and their scales as a product, each cell with its lane and register. Rules: BLK-1, PACK-1, GEM-1."""
    title = "mma.m16n8k64 with block scales: the lane of each element and scale"
    page = Canvas(title, f"{SAID} {NOTE}", request.theme)
    y = page.lines(MARGIN, page.heading(title), wrap(SAID, page.width - 2 * MARGIN, 11), size=11, kind="muted")
    left = MARGIN + 46.0
    right = left + (K / GROUP + 1) * CELL[0] + 52
    top = y + 32
    _heads(page, left, right, top)
    _scales_of_b(page, right, top)
    _codes(page, "b", B, right, top + CELL[1] + 8, turned=True)
    below = top + (K / GROUP + 1) * CELL[1] + 30
    _codes(page, "a", A, left, below, turned=False)
    _scales_of_a(page, left + K / GROUP * CELL[0] + 8, below)
    _sums(page, right, below)
    for row in range(M):
        page.text(left - 6, below + row * CELL[1] + 11, f"m {row}", size=9, anchor="end", kind="muted")
    page.lines(MARGIN, page.bottom + 20, wrap(NOTE, page.width - 2 * MARGIN, 11), size=11, kind="muted")
    return page.svg()


def _heads(page: Canvas, left: float, right: float, top: float) -> None:
    """Name the matrices and count their columns and rows."""
    below = top + (K / GROUP + 1) * CELL[1] + 30
    page.text(left, below - 20, f"A [{M}, {K}], codes", size=11, bold=True)
    page.text(left + K / GROUP * CELL[0] + 4, below - 20, "scales", size=11, bold=True)
    page.text(right, below - 6, f"D [{M}, {N}], float32", size=11, bold=True)
    page.text(right - 6, top + 11, "scales", size=11, bold=True, anchor="end")
    page.text(right, top - 18, f"B [{K}, {N}], codes", size=11, bold=True)
    for group in range(K // GROUP):
        words = f"k {group * GROUP}"
        page.text(left + (group + 0.5) * CELL[0], below - 5, words, size=9, anchor="middle", kind="muted")
        y = top + (group + 1) * CELL[1] + 8 + 11
        page.text(right - 6, y, f"{words}–{group * GROUP + GROUP - 1}", size=9, anchor="end", kind="muted")
    for column in range(N):
        page.text(right + (column + 0.5) * CELL[0], top - 5, f"n {column}", size=9, anchor="middle", kind="muted")


def _codes(page: Canvas, name: str, form: Layout, x: float, y: float, *, turned: bool) -> None:
    """Draw an operand, a cell for each register of each lane; turned: its rows are drawn across."""
    rows = N if turned else M
    units = rows * K // 32
    for row in range(rows):
        for group in range(K // GROUP):
            lane, first = owner(form, (row, group * GROUP), (rows, K), units)
            register = first // GROUP
            across, down = (row, group) if turned else (group, row)
            span = f"k {group * GROUP} to {group * GROUP + GROUP - 1}"
            told = f"{name} {'n' if turned else 'm'} {row}, {span}: lane {lane}, register {name}{register}"
            at = x + across * CELL[0], y + down * CELL[1]
            page.cell(*at, *CELL, f"T{lane} {name}{register}", "abcd"[register], size=8, title=told)


def _scales_of_a(page: Canvas, x: float, y: float) -> None:
    for row in range(M):
        lane, _ = owner(SCALE_A, (row, 0), (M, SCALES), SCALES)
        told = f"scales of m {row}, k 0 to {K - 1}: lane {lane}"
        page.cell(x, y + row * CELL[1], *CELL, f"T{lane}", "paper", size=9, title=told)


def _scales_of_b(page: Canvas, x: float, y: float) -> None:
    for column in range(N):
        lane, _ = owner(SCALE_B, (column, 0), (N, SCALES), SCALES)
        told = f"scales of n {column}, k 0 to {K - 1}: lane {lane}"
        page.cell(x + column * CELL[0], y, *CELL, f"T{lane}", "paper", size=9, title=told)


def _sums(page: Canvas, x: float, y: float) -> None:
    for row, column in np.ndindex(M, N):
        lane, register = owner(D, (row, column), (M, N), M * N // 32)
        at = x + column * CELL[0], y + row * CELL[1]
        told = f"d m {row}, n {column}: lane {lane}, register d{register}"
        page.cell(*at, *CELL, f"T{lane} d{register}", "abcd"[register], size=8, title=told)
