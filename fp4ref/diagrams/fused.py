"""The figure of the fused and the unfused path: the passes over memory of quantizing both directions."""

from __future__ import annotations

from typing import NamedTuple

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import spoken
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import wrap
from fp4ref.errors import DomainError
from fp4ref.spec import Granularity, Spec

INPUT = 2.0  # bytes of an element of x, bfloat16
TALL, GAP, NAME, BAR = 40.0, 8.0, 330.0, 26.0  # pixels; BAR: of a byte per element


class Pass(NamedTuple):
    """A kernel: its work, and the bytes per element of x that it reads and writes."""

    name: str
    what: str
    read: float
    write: float


def fused(request: Request) -> str:
    """Draw passes over memory for both directions with tiled scales, as one kernel per step and fused.

    Rules: HAD-4, GLB-1, LAY-3.
    """
    spec = request.spec
    if spec.global_scale is not Granularity.TENSOR or spec.block.rows > 1:
        got = f"{spec.name}, with {spec.global_scale} global scale and blocks of {spec.block.rows} rows"
        raise DomainError("diagram fused", got, "one global scale and blocks of one row, like nvfp4-rht", "GLB-1")
    title = f"{spoken(spec)}: both directions of a bfloat16 tensor, pass by pass"
    apart, together = unfused_passes(spec), fused_passes(spec)
    words = (
        f"One kernel per step moves {_total(apart):.6g} bytes per element of x, the fused path {_total(together):.6g}."
    )
    page = Canvas(title, words, request.theme)
    y = page.heading(title)
    y = page.lines(MARGIN, y + 2, wrap(words, page.width - 2 * MARGIN, 12), kind="muted") + 16
    for name, passes in (("one kernel per step", apart), ("fused", together)):
        page.text(MARGIN, y + 8, f"{name}: {len(passes)} passes", size=13, bold=True)
        y += 18
        for number, one in enumerate(passes):
            _pass(page, y, number + 1, one)
            y += TALL + GAP
        y += 16
    page.text(
        MARGIN, y, "Bars: bytes per element of x; the scales are the GEMM's tiles in the end.", size=11, kind="muted"
    )
    return page.svg()


def written(spec: Spec) -> float:
    """Bytes of codes and scales per element, in one direction. Rules: PACK-1, BLK-1."""
    return spec.element.format.bits / 8 + scale_bytes(spec)


def scale_bytes(spec: Spec) -> float:
    """Bytes of scales per element."""
    return 1 / spec.block.columns


def unfused_passes(spec: Spec) -> list[Pass]:
    """Return one kernel for each step."""
    step = "transform" if spec.hadamard else "transpose"
    out, scales = written(spec), scale_bytes(spec)
    return [
        Pass("amax of x", "largest magnitude", INPUT, 0),
        Pass(f"{step} columns", f"x^T{', Hadamard' if spec.hadamard else ''}, written as bfloat16", INPUT, INPUT),
        *([Pass("amax of the transform", "largest magnitude", INPUT, 0)] if spec.hadamard else []),
        Pass("quantize rows", "codes and linear scales", INPUT, out),
        Pass("quantize columns", "codes and linear scales of x^T", INPUT, out),
        Pass("tile row scales", "linear to tiled_128x4", scales, scales),
        Pass("tile column scales", "linear to tiled_128x4", scales, scales),
    ]


def fused_passes(spec: Spec) -> list[Pass]:
    """Both maxima from one read of x, all bytes from a second one."""
    maxima = "maxima of rows and of transformed columns" if spec.hadamard else "the largest magnitude"
    return [
        Pass("maxima", maxima, INPUT, 0),
        Pass("quantize", "codes and tiled scales of rows and columns", INPUT, 2 * written(spec)),
    ]


def _total(passes: list[Pass]) -> float:
    return sum(one.read + one.write for one in passes)


def _pass(page: Canvas, y: float, number: int, one: Pass) -> None:
    page.box(MARGIN, y, NAME, TALL, "paper", radius=4)
    page.text(MARGIN + 8, y + 16, f"{number}. {one.name}", size=12, bold=True)
    page.text(MARGIN + 8, y + 32, one.what, size=11, kind="muted")
    x = MARGIN + NAME + 16
    for name, size, kind in (("read", one.read, "a"), ("write", one.write, "b")):
        if not size:
            continue
        width = size * BAR
        page.box(x, y + 8, width, 24, kind, title=f"{name} {size:g} bytes per element")
        page.text(x + width + 6, y + 24, f"{name} {size:.6g}", size=11, mono=True)
        x += max(width + 90, 160)
