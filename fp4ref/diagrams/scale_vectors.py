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
    "and a whole tile after its last byte. (PTX ISA: scale_vec_size, and the selectors of block scaling)"
)


def scale_vectors(request: Request) -> str:
    """Draw the word of a row, and the instructions that read parts of it, for each kind. Rules: LAY-3, BLK-1."""
    title = "Scale vectors: which bytes of a word one instruction reads"
    page = Canvas(title, f"{INTRO} {NOTE}", request.theme)
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
        for byte in range(COLUMNS):
            label = f"k {byte * block}–{byte * block + block - 1}"
            page.cell(left + byte * CELL, y, CELL, 24, label, "abcd"[byte // kind.bytes], size=11)
        for first in range(0, COLUMNS, kind.bytes):
            label = f"selector {first}: K {first * block}–{first * block + kind.depth - 1}"
            told = f"{kind.name}, selector {first}: bytes {first} to {first + kind.bytes - 1}"
            at = left + first * CELL + 3, y + 30, kind.bytes * CELL - 6, 22
            size = 9.0 if kind.bytes == 1 else 11.0
            page.cell(*at, label if kind.bytes > 1 else f"selector {first}", "paper", size=size, title=told)
        y += 78
    page.lines(MARGIN, y, wrap(NOTE, room, 11), size=11, kind="muted")
    return page.svg()
