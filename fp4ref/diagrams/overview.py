"""The project in one picture: a block, its bytes by the rules, your kernel's bytes beside them, and their places."""

from __future__ import annotations

import numpy as np

from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import Geometry
from fp4ref.diagrams.request import Request
from fp4ref.formats import CUDA_E2M1, Codec, F, Rounding, grid
from fp4ref.layout import TILED_128X4
from fp4ref.model.quantize import quantize
from fp4ref.packing import unpack
from fp4ref.specs import NVFP4

MISTAKE = next(mistake for mistake in MISTAKES if mistake.name == "element-away")
SHOWN = 8  # elements
BLOCK = np.array([0.75, 1.75, 3.5, -0.0, 6.0, -2.5, 5.0, 0.25], F)  # ties, and a negative zero
AWAY = NVFP4.replace(name="ties-away", element=Codec(format=CUDA_E2M1.format, rounding=Rounding.AWAY, nan=(7, 7)))


def overview(request: Request) -> str:
    """Draw the project's purpose. Rules: E2M1-3, BLK-1, PACK-1, LAY-3."""
    x = np.zeros((1, 16), F)
    x[0, :SHOWN] = BLOCK
    ours, theirs = quantize(x, NVFP4), quantize(x, AWAY)
    title = "fp4ref: every bit of NVFP4, MXFP4, MXFP6 and MXFP8 as a rule that runs"
    page = Canvas(title, _words(), request.theme)
    y = page.heading(title) + 16
    left, cell = MARGIN + 168.0, 72.0
    page.text(left - 12, y + 20, "a block of x", size=13, anchor="end", bold=True)
    _row(page, left, y, cell, [f"{value:g}".replace("-", "−") for value in BLOCK], "b")
    page.text(
        left,
        y + 50,
        "↓  numbered rules · a golden model in NumPy · torch, C++ and CUDA agree bit for bit",
        size=12,
        kind="muted",
    )
    y += 66
    codes = unpack(ours.data, 16, NVFP4.element.format)[0, :SHOWN]
    page.text(left - 12, y + 20, "codes by the rules", size=13, anchor="end", bold=True)
    _row(page, left, y, cell, [f"{c:x} = {_value(int(c))}" for c in codes], "c")
    y += 46
    wrong = unpack(theirs.data, 16, NVFP4.element.format)[0, :SHOWN]
    page.text(left - 12, y + 20, "your kernel's codes", size=13, anchor="end", bold=True)
    _row(page, left, y, cell, [f"{c:x} = {_value(int(c))}" for c in wrong], "a")
    for number in np.flatnonzero(codes != wrong):
        page.mark(left + number * cell, y, cell, 30)
    y += 52
    page.text(left, y, "fp4ref verify", size=13, mono=True, bold=True)
    count = int((codes != wrong).sum())
    page.text(
        left + 122,
        y,
        f"wrong: {MISTAKE.text}; {count} codes differ",
        size=12,
        kind="mark",
    )
    y += 30
    _memory(page, y, left)
    return page.svg()


def _value(code: int) -> str:
    sign = "−" if code & NVFP4.element.format.sign_bit else ""
    return f"{sign}{grid(NVFP4.element.format)[code & 7]:g}"


def _row(page: Canvas, x: float, y: float, cell: float, labels: list[str], kind: str) -> None:
    for number, label in enumerate(labels):
        page.cell(x + number * cell, y, cell, 30, label, kind, size=12)


def _memory(page: Canvas, y: float, left: float) -> None:
    """Draw the scale of one element in memory order."""
    geometry = Geometry(NVFP4, (128, 256))
    place = geometry.place(37, 130)
    offset = place.scale_byte(TILED_128X4)
    page.text(left - 12, y + 20, "place of scale (m, k)", size=13, anchor="end", bold=True)
    first, cell = offset // 8 * 8, 72.0
    for number in range(8):
        m, k = TILED_128X4.index(first + number, geometry.scales[1])
        page.cell(
            left + number * cell, y, cell, 30, f"({m}, {k})", "ad"[m // 32 % 2], size=11, title=f"byte {first + number}"
        )
        page.text(
            left + (number + 0.5) * cell, y + 44, str(first + number), size=10, anchor="middle", mono=True, kind="muted"
        )
    page.mark(left + (offset - first) * cell, y, cell, 30)
    page.lines(MARGIN, y + 72, [place.sentence()], size=12)


def _words() -> str:
    return (
        "A block of values, the codes that the rules give, a kernel's codes with the differing ones framed, "
        "the diagnosis of fp4ref verify, and the bytes of a tiled scale buffer with the scale of one element framed."
    )
