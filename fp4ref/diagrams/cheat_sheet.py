"""The figure for the wall: formats, NVFP4's operations, packing, tiles and commands on one page."""

from __future__ import annotations

from itertools import pairwise

from fp4ref.conformance.explain.formulas import formula
from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import Geometry
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import wrap
from fp4ref.formats import E2M1, FORMATS, grid
from fp4ref.layout import TILED_128X4
from fp4ref.layout.worked import formula as offset
from fp4ref.specs import MXFP4, MXFP8_E4M3, NVFP4

SHAPE, ELEMENT = (300, 288), (37, 130)
CELL = 84.0
COMMANDS = (
    ("fp4ref where 37 130 --shape 300x288", "the bytes of an element, with the sum"),
    ("fp4ref verify --kernel mine.py:quantize --spec nvfp4", "what is wrong with a kernel"),
    ("fp4ref verify dump.npz --spec nvfp4 --layout tiled_128x4", "the same for bytes on disk"),
    ("fp4ref explain --values '0.75 1.75 6' --spec nvfp4", "one block, step by step"),
    ("fp4ref rules BLK-3", "a rule, and all that cites it"),
    ("fp4ref layouts find FROM.npy TO.npy", "the order of a buffer"),
    ("fp4ref lint MODEL/", "what is wrong with a checkpoint"),
    ("fp4ref explore -o page.html", "every byte under the pointer"),
)


def cheat_sheet(request: Request) -> str:
    """Draw the page. Rules: E2M1-1, BLK-1, BLK-3, GLB-1, PACK-1, LAY-3, DEQ-1."""
    title = "Block-scaled FP4 and FP8 on one page"
    page = Canvas(title, "Formats, operations of NVFP4, packing, tiles of scales, and commands.", request.theme)
    y = _codes(page, page.heading(title) + 8)
    y = _formats(page, y + 26)
    y = _operations(page, y + 26)
    y = _bytes(page, y + 26)
    _commands(page, y + 26)
    return page.svg()


def _head(page: Canvas, y: float, text: str) -> float:
    page.text(MARGIN, y, text, size=14, bold=True)
    page.line([(MARGIN, y + 6), (page.width - MARGIN, y + 6)], stroke="faint")
    return y + 14


def _codes(page: Canvas, y: float) -> float:
    y = _head(page, y, "E2M1: sign, two exponent bits, one mantissa bit")
    values = [float(value) for value in grid(E2M1)[: E2M1.codes]]
    for code, value in enumerate(values):
        x = MARGIN + 64 + code * CELL
        page.cell(x, y, CELL, 22, f"{code:x}  {code:04b}", "paper", size=11)
        page.cell(x, y + 22, CELL, 24, f"{value:g}", "a" if code % 2 == 0 else "b", size=14)
    page.text(MARGIN, y + 15, "code", size=11, kind="muted")
    page.text(MARGIN, y + 38, "value", size=11, kind="muted")
    ties = ", ".join(
        f"{(low + high) / 2:g} to {values[code + code % 2]:g}" for code, (low, high) in enumerate(pairwise(values))
    )
    said = f"Codes 8 to f are the negatives; beyond {values[-1]:g} saturates. Ties go to the even code: {ties}."
    return page.lines(MARGIN, y + 62, wrap(said, page.width - 2 * MARGIN, 11), size=11)


def _formats(page: Canvas, y: float) -> float:
    y = _head(page, y, "Formats")
    heads = ("", "elements", "scale of a block", "block", "global scale", "bits per element")
    rows = [
        (
            spec.name,
            spec.element.format.name.upper(),
            f"{spec.scale.format.name.upper()}, to {_largest(spec.scale.format.name)}",
            f"{spec.block.rows} x {spec.block.columns}",
            "float32, from amax" if spec.global_scale != "none" else "none",
            f"{spec.element.format.bits + 8 / spec.block.columns:g}",
        )
        for spec in (NVFP4, MXFP4, MXFP8_E4M3)
    ]
    for number, row in enumerate((heads, *rows)):
        for column, text in enumerate(row):
            at = MARGIN + (0, 110, 210, 370, 470, 640)[column], y + 14 + number * 18
            page.text(*at, text, size=11, bold=number == 0 or column == 0, kind="muted" if number == 0 else "ink")
    return y + 14 + len(rows) * 18


def _largest(name: str) -> str:
    """Return the largest value of a format, a power of two where it is one."""
    largest = float(FORMATS[name].max)
    return f"{largest:g}" if largest < 2**20 else f"2^{int(largest).bit_length() - 1}"


def _operations(page: Canvas, y: float) -> float:
    y = _head(page, y, "NVFP4, operation by operation, each a float32 rounding")
    arithmetic = NVFP4.arithmetic
    rows = (
        ("global scale S_enc", formula(arithmetic.global_scale), "GLB-1"),
        ("block scale, of its amax, to E4M3", formula(arithmetic.block_scale), "BLK-3"),
        ("scaled element, to E2M1", formula(arithmetic.scaled), "BLK-4"),
        ("back again", formula(arithmetic.dequantized), "DEQ-1"),
    )
    for name, words, rule in rows:
        page.text(MARGIN, y + 14, name, size=11, bold=True)
        page.text(page.width - MARGIN, y + 14, rule, size=11, anchor="end", kind="muted")
        lines = wrap(words, 470, 11, mono=True)
        y = page.lines(MARGIN + 230, y + 14, lines, size=11, mono=True) - 12
    return y


def _bytes(page: Canvas, y: float) -> float:
    y = _head(page, y, "Where it is stored")
    place = Geometry(NVFP4, SHAPE).place(*ELEMENT)
    high, wide = TILED_128X4.tile
    covers = f"{high} x {wide * NVFP4.block.columns} elements of NVFP4, {high} x {wide * MXFP4.block.columns} of MX"
    for text in (
        "Data: element 2i of a row is the low nibble of byte i, element 2i + 1 the high one (PACK-1).",
        f"Scales for tensor cores: tiles of {high} x {wide} bytes, along K first; a tile covers {covers} (LAY-3).",
    ):
        y = page.lines(MARGIN, y + 14, wrap(text, page.width - 2 * MARGIN, 11), size=11) - 14
    words = f"byte of scale (m, k) = {offset(TILED_128X4, Geometry(NVFP4, SHAPE).scales, ('m', 'k'))}"
    y = page.lines(MARGIN, y + 16, wrap(words, page.width - 2 * MARGIN, 11, mono=True), size=11, mono=True)
    page.text(MARGIN, y, f"for a {SHAPE[0]} x {SHAPE[1]} tensor. Element {ELEMENT}:", size=11, kind="muted")
    y += 15
    for text in (place.sentence((TILED_128X4.name,)), *place.sums((TILED_128X4.name,))):
        lines = wrap(text, page.width - 2 * MARGIN, 11, mono=True, bold=True)
        y = page.lines(MARGIN, y, lines, size=11, mono=True, bold=True, kind="mark")
    return y - 8


def _commands(page: Canvas, y: float) -> None:
    y = _head(page, y, "Commands")
    for command, words in COMMANDS:
        page.text(MARGIN, y + 14, command, size=11, mono=True)
        page.text(MARGIN + 450, y + 14, words, size=11, kind="muted")
        y += 17
