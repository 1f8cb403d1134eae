"""The figure of scale vectors: which bytes of a tile's word one instruction reads."""

from __future__ import annotations

from typing import NamedTuple

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import wrap
from fp4ref.layout import TILED_128X4
from fp4ref.spec import Spec
from fp4ref.specs import MXFP4, MXFP8_E4M3, NVFP4


class Kind(NamedTuple):
    """A kind of instruction: what it multiplies, and along how many elements of K."""

    name: str
    spec: Spec
    depth: int

    @property
    def bytes(self) -> int:
        """Scales of a row that one instruction reads: the number in scale_vec."""
        return self.depth // self.spec.block.columns


KINDS = (Kind("mxf8f6f4", MXFP8_E4M3, 32), Kind("mxf4", MXFP4, 64), Kind("mxf4nvf4", NVFP4, 64))
COLUMNS = TILED_128X4.tile[1]  # of a tile, side by side in a word
CELL = 122.0
INTRO = (
    "The four scales of a row in a tile of 128 x 4 are one 32-bit word: a column of tensor memory for tcgen05.mma, a "
    "register for mma.sync. One instruction multiplies 32 or 64 elements along K and reads one, two or four of these "
    "bytes. The selector, SFA_ID and SFB_ID of tcgen05.mma or byte-id of mma.sync, is the first of them."
)
NOTE = (
    "A tile therefore covers 128 elements along K for MX and 64 for NVFP4: K loops advance the selector inside a tile, "
    "and a whole tile after its last byte. mxf4nvf4 also takes E8M0 scales, with 2X or 4X. (PTX ISA 9: block scaling "
    "of mma.sync and of tcgen05.mma, valid combinations, selectors and scale factor IDs)"
)
DEEP = 96  # elements along K of the instructions whose scales go on in the next word
WORDS = 3  # after so many words they start at byte 0 again
DEEP_INTRO = (
    "tcgen05.mma with K = 96 reads three scales (block32) or six (block16) of a row. They start at the byte that the "
    "ID names and go on in the word of the next tile along K; after three words a loop is at byte 0 again."
)
LANES = 32  # rows of one column of tensor memory
WIDE_INTRO = (
    "Where the words of B are in tensor memory: one column holds those of 32 values of n. With N up to 128, the next "
    "word along K is four columns on; with a larger N, 192 too, it is eight. (CUTLASS: tmem_sf_frg and the kernels for "
    "SM103)"
)


def scale_vectors(request: Request) -> str:
    """Draw the word of a row, and the instructions that read parts of it, for each kind. Rules: LAY-3, BLK-1."""
    title = "Scale vectors: which bytes of a word one instruction reads"
    page = Canvas(title, f"{INTRO} {NOTE} {DEEP_INTRO} {WIDE_INTRO}", request.theme)
    room = page.width - 2 * MARGIN
    y = page.lines(MARGIN, page.heading(title), wrap(INTRO, room, 11), size=11, kind="muted") + 12
    left = MARGIN + 264.0
    for byte in range(COLUMNS):
        page.text(left + (byte + 0.5) * CELL, y, f"byte {byte}", size=11, anchor="middle", bold=True)
    y += 8
    for kind in KINDS:
        block = kind.spec.block.columns
        words = [f".kind::{kind.name}", f".scale_vec::{kind.bytes}X", f"{kind.spec.name}, K = {kind.depth} at a time"]
        page.text(MARGIN, y + 16, words[0], size=12, bold=True, mono=True)
        page.text(MARGIN, y + 34, words[1], size=12, mono=True)
        page.text(MARGIN, y + 52, words[2], size=11, kind="muted")
        page.text(MARGIN, y + 67, f"scale_A M x {kind.bytes}, scale_B {kind.bytes} x N", size=11, kind="muted")
        for byte in range(COLUMNS):
            label = f"k {byte * block}–{byte * block + block - 1}"
            page.cell(left + byte * CELL, y, CELL, 24, label, "abcd"[byte // kind.bytes], size=11)
        for first in range(0, COLUMNS, kind.bytes):
            label = f"selector {first}: K {first * block}–{first * block + kind.depth - 1}"
            told = f"{kind.name}, selector {first}: bytes {first} to {first + kind.bytes - 1}"
            at = left + first * CELL + 3, y + 30, kind.bytes * CELL - 6, 22
            size = 9.0 if kind.bytes == 1 else 11.0
            page.cell(*at, label if kind.bytes > 1 else f"selector {first}", "paper", size=size, title=told)
        y += 86
    y = page.lines(MARGIN, y, wrap(NOTE, room, 11), size=11, kind="muted") + 16
    y = page.lines(MARGIN, y, wrap(DEEP_INTRO, room, 11), size=11, kind="muted") + 12
    _words(page, left, y)
    for kind in KINDS[1:]:
        _deep(page, kind, left, y + 8)
        y += 78
    y = page.lines(MARGIN, y + 8, wrap(WIDE_INTRO, room, 11), size=11, kind="muted") + 12
    _words(page, left, y)
    y += 8
    for tiles in (1, 2):
        _columns(page, tiles, left, y)
        y += 36 * tiles + 8
    return page.svg()


def _words(page: Canvas, left: float, y: float) -> None:
    """Write the names of the words above their cells."""
    for word in range(WORDS):
        x = left + (word + 0.5) * COLUMNS * CELL / WORDS
        page.text(x, y, f"word {word}", size=11, anchor="middle", bold=True)


def _columns(page: Canvas, tiles: int, left: float, y: float) -> None:
    """Draw the columns of tensor memory that hold the words of B, step by step along K. tiles: those of N."""
    rows, wide, cell = TILED_128X4.tile[0], TILED_128X4.tile[0] // LANES, COLUMNS * CELL / WORDS
    page.text(MARGIN, y + 16, "N up to 128" if tiles == 1 else "N above 128, up to 256", size=12, bold=True)
    for tile in range(tiles):
        n = f"n {tile * rows}–{tile * rows + rows - 1}"
        page.text(left - 12, y + 16 + 36 * tile, n, size=11, anchor="end", mono=True)
        for word in range(WORDS):
            first = (word * tiles + tile) * wide
            told = f"B, N up to {tiles * rows}, {n}, word {word}: columns {first} to {first + wide - 1}"
            label = f"columns {first}–{first + wide - 1}"
            page.cell(left + word * cell, y + 36 * tile, cell, 24, label, "abcd"[tile], size=11, title=told)


def _deep(page: Canvas, kind: Kind, left: float, y: float) -> None:
    """Draw the scales of K = 96, step by step: `DEEP` elements along K from the byte that the selector names."""
    block, cell = kind.spec.block.columns, CELL / WORDS
    page.text(MARGIN, y + 16, f".kind::{kind.name}", size=12, bold=True, mono=True)
    page.text(MARGIN, y + 34, f".block{block}", size=12, mono=True)
    page.text(MARGIN, y + 52, f"{kind.spec.name}, K = {DEEP} at a time", size=11, kind="muted")
    count = DEEP // block
    for byte in range(WORDS * COLUMNS):
        page.cell(left + byte * cell, y, cell, 24, f"byte {byte % COLUMNS}", "abcd"[byte // count], size=8)
    for first in range(0, WORDS * COLUMNS, count):
        selector, k = first % COLUMNS, first * block
        told = f"{kind.name} with K = {DEEP}, word {first // COLUMNS}, selector {selector}: {count} bytes, K from {k}"
        at = left + first * cell + 3, y + 30, count * cell - 6, 22
        page.cell(*at, f"ID {selector}: K {k}–{k + DEEP - 1}", "paper", size=10, title=told)
