"""The figure of the registers of mma.sync with block scales: which lane supplies which elements and which scales."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import spoken
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.scale_vectors import KINDS, Kind
from fp4ref.diagrams.text_width import wrap
from fp4ref.formats import E2M1
from fp4ref.layout import Layout
from fp4ref.spec import Spec

M, N = 16, 8
GROUPS = 8  # registers of a row of A, or of a column of B, over all lanes
WORD = 4  # bytes of a scale register
CELL = (37.0, 15.0)

# Lane after lane, each with its own scale bytes or sums in the order of its registers. Lanes without scales are gaps.
SCALE_A = Layout("mma.scale_a", "m(8,*) s(*): s0 m1 |16 m0")
SCALE_B = Layout("mma.scale_b", "n(*) s(*): s0 |16 n0")
D = Layout("mma.d", "m(8,*) n(2,*): n0 m1 n1 m0; unit 32")


class Fragments(NamedTuple):
    """The registers of one instruction: its kind, elements along k, and bits of an element in a register."""

    kind: Kind
    bits: int

    @property
    def group(self) -> int:
        """Elements of a 32-bit register."""
        return 32 // self.bits

    @property
    def a(self) -> Layout:
        """The elements of A, lane after lane in the order of the registers."""
        return Layout("mma.a", f"m(8,*) k({self.group},4,*): k0 m1 k2 k1 m0; unit {self.bits}")

    @property
    def b(self) -> Layout:
        """The elements of B."""
        return Layout("mma.b", f"n(*) k({self.group},4,*): k0 k2 k1 n0; unit {self.bits}")

    @property
    def said(self) -> str:
        """The meaning of a cell, in words."""
        block, scales = self.kind.spec.block.columns, self.kind.bytes
        held = f"the {scales} scales" if scales > 1 else "the scale"
        count = {8: "eight", 4: "four"}[self.group]
        padded = "" if self.bits == 4 else " Elements of 6 and 4 bits take 8 as well."
        above = " and the others above it" if scales > 1 else ""
        return (
            f"T is the lane, a0 to d3 are its registers. A register of A or B holds {count} codes of consecutive k, "
            f"the lowest k in the lowest bits.{padded} A scale register holds {held} of one row of A or column of B, "
            f"k 0–{block - 1} in the byte that byte-id names{above}."
        )

    @property
    def note(self) -> str:
        """The selectors, in words."""
        return (
            f"Scales with scale_vec::{self.kind.bytes}X ({self.kind.spec.name}), thread-id-a = 0, thread-id-b = 0: the "
            "named lanes supply them, and the registers of the other lanes are ignored. thread-id-a = 1 takes those "
            "of A from two lanes further up, thread-id-b = 1 to 3 those of B from one to three lanes further up. "
            f"(PTX ISA: fragments of mma.m16n8k{self.kind.depth}, block scaling of mma.sync)"
        )


def fragments(spec: Spec) -> Fragments:
    """Return the registers of the instruction that multiplies elements of a specification."""
    narrow = spec.element.format.bits == E2M1.bits
    block = spec.block.columns if narrow else KINDS[0].spec.block.columns
    found = next(kind for kind in KINDS if (kind.depth > KINDS[0].depth) == narrow and kind.spec.block.columns == block)
    return Fragments(found, E2M1.bits if narrow else 8)


def owner(form: Layout, index: tuple[int, int], sizes: tuple[int, int], units: int) -> tuple[int, int]:
    """Return the lane of an index, and its place among the lane's `units`."""
    lane, place = divmod(int(form.offsets(index, sizes)), units)
    return lane, place


def point(request: Request) -> str:
    """Return the sentence on the instruction that multiplies elements of a specification. Rules: GEM-1."""
    depth = fragments(request.spec).kind.depth
    return f"{spoken(request.spec)}: each lane of mma.m16n8k{depth} holds fixed elements, and a few hold scales."


def mma_fragments(request: Request) -> str:
    """Draw A, B, D and their scales as a product, each cell with its lane and register. Rules: BLK-1, PACK-1, GEM-1."""
    made = fragments(request.spec)
    depth = made.kind.depth
    title = f"mma.m16n8k{depth} with block scales: the lane of each element and scale"
    page = Canvas(title, f"{made.said} {made.note}", request.theme)
    y = page.lines(MARGIN, page.heading(title), wrap(made.said, page.width - 2 * MARGIN, 11), size=11, kind="muted")
    left = MARGIN + 46.0
    right = left + (GROUPS + 1) * CELL[0] + 52
    top = y + 32
    _heads(page, made, left, right, top)
    _scales_of_b(page, depth, right, top)
    _codes(page, "b", made, (right, top + CELL[1] + 8), turned=True)
    below = top + (GROUPS + 1) * CELL[1] + 30
    _codes(page, "a", made, (left, below), turned=False)
    _scales_of_a(page, depth, left + GROUPS * CELL[0] + 8, below)
    _sums(page, right, below)
    for row in range(M):
        page.text(left - 6, below + row * CELL[1] + 11, f"m {row}", size=9, anchor="end", kind="muted")
    page.lines(MARGIN, page.bottom + 20, wrap(made.note, page.width - 2 * MARGIN, 11), size=11, kind="muted")
    return page.svg()


def _heads(page: Canvas, made: Fragments, left: float, right: float, top: float) -> None:
    """Name the matrices and count their columns and rows."""
    below = top + (GROUPS + 1) * CELL[1] + 30
    page.text(left, below - 20, f"A [{M}, {made.kind.depth}], codes", size=11, bold=True)
    page.text(left + GROUPS * CELL[0] + 4, below - 20, "scales", size=11, bold=True)
    page.text(right, below - 6, f"D [{M}, {N}], float32", size=11, bold=True)
    page.text(right - 6, top + 11, "scales", size=11, bold=True, anchor="end")
    page.text(right, top - 18, f"B [{made.kind.depth}, {N}], codes", size=11, bold=True)
    for group in range(GROUPS):
        words = f"k {group * made.group}"
        page.text(left + (group + 0.5) * CELL[0], below - 5, words, size=9, anchor="middle", kind="muted")
        y = top + (group + 1) * CELL[1] + 8 + 11
        page.text(right - 6, y, f"{words}–{(group + 1) * made.group - 1}", size=9, anchor="end", kind="muted")
    for column in range(N):
        page.text(right + (column + 0.5) * CELL[0], top - 5, f"n {column}", size=9, anchor="middle", kind="muted")


def _codes(page: Canvas, name: str, made: Fragments, place: tuple[float, float], *, turned: bool) -> None:
    """Draw an operand, a cell for each register of each lane; turned: its rows are drawn across."""
    form, rows, depth = (made.b, N, made.kind.depth) if turned else (made.a, M, made.kind.depth)
    units = rows * depth // 32
    for row, group in np.ndindex(rows, GROUPS):
        lane, first = owner(form, (row, group * made.group), (rows, depth), units)
        register = first // made.group
        across, down = (row, group) if turned else (group, row)
        span = f"k {group * made.group} to {(group + 1) * made.group - 1}"
        told = f"{name} {'n' if turned else 'm'} {row}, {span}: lane {lane}, register {name}{register}"
        at = place[0] + across * CELL[0], place[1] + down * CELL[1]
        page.cell(*at, *CELL, f"T{lane} {name}{register}", "abcd"[register], size=8, title=told)


def _scales_of_a(page: Canvas, depth: int, x: float, y: float) -> None:
    for row in range(M):
        lane, _ = owner(SCALE_A, (row, 0), (M, WORD), WORD)
        told = f"scales of m {row}, k 0 to {depth - 1}: lane {lane}"
        page.cell(x, y + row * CELL[1], *CELL, f"T{lane}", "paper", size=9, title=told)


def _scales_of_b(page: Canvas, depth: int, x: float, y: float) -> None:
    for column in range(N):
        lane, _ = owner(SCALE_B, (column, 0), (N, WORD), WORD)
        told = f"scales of n {column}, k 0 to {depth - 1}: lane {lane}"
        page.cell(x + column * CELL[0], y, *CELL, f"T{lane}", "paper", size=9, title=told)


def _sums(page: Canvas, x: float, y: float) -> None:
    for row, column in np.ndindex(M, N):
        lane, register = owner(D, (row, column), (M, N), M * N // 32)
        at = x + column * CELL[0], y + row * CELL[1]
        told = f"d m {row}, n {column}: lane {lane}, register d{register}"
        page.cell(*at, *CELL, f"T{lane} d{register}", "abcd"[register], size=8, title=told)
