"""The figure of the weight cache: what happens to a weight's bytes and scales over the microbatches of a step."""

from __future__ import annotations

from typing import NamedTuple

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import wrap

NAME, CELL, TALL = 150.0, 146.0, 74.0
MOMENTS = ("microbatch 1", "microbatches 2 to N", "optimizer step", "next microbatch 1")


class Life(NamedTuple):
    """A kind of weight: what is done at each moment, and the counts of a step in fprop and dgrad."""

    name: str
    note: str
    done: tuple[str, str, str, str]
    moved: str
    written: str


LIVES = (
    Life(
        "cached, eligible",
        "scales are made in the GEMM layout",
        ("quantize: codes, tiled scales", "read the cache", "update the weight", "quantize into the same buffers"),
        "0",
        "2",
    ),
    Life(
        "not cached, eligible",
        "quantized each time",
        ("quantize: codes, tiled scales", "quantize again", "update the weight", "quantize again"),
        "0",
        "2 N",
    ),
    Life(
        "NVFP4, not eligible",
        "scales stay compact",
        (
            "quantize: compact scales; move them for each GEMM",
            "move them for each GEMM",
            "update the weight",
            "quantize into the same buffers; move",
        ),
        "2 N",
        "0",
    ),
    Life(
        "per-tensor FP8",
        "no block scales",
        ("quantize: codes, one scale", "read the cache", "update the weight", "quantize into the same buffers"),
        "0",
        "0",
    ),
)


def weight_cache(request: Request) -> str:
    """Return the life of a quantized weight, and how often its scales are moved. Rules: TEL-4, TEL-5, TEL-7."""
    title = "The weight cache: when a weight is quantized, and where its scales are stored"
    words = "; ".join(f"{life.name}: moved alone {life.moved}, written by quantizing {life.written}" for life in LIVES)
    page = Canvas(title, f"{words}. N is the number of microbatches.", request.theme)
    y = page.heading(title) + 16
    for number, moment in enumerate(MOMENTS):
        page.text(MARGIN + NAME + (number + 0.5) * CELL, y - 6, moment, size=11, anchor="middle", bold=True)
    for life in LIVES:
        y = _life(page, y, life)
    notes = (
        "Counts of one step, in fprop and dgrad: directions whose scales were moved in a step of their own, "
        "and directions whose scales were written in the GEMM layout by quantizing (TEL-7). A flag says where "
        "they are (TEL-4); an update in place keeps every address, as a captured graph needs it (TEL-5)."
    )
    page.lines(MARGIN, y + 10, wrap(notes, page.width - 2 * MARGIN, 11), size=11, kind="muted")
    return page.svg()


def _life(page: Canvas, y: float, life: Life) -> float:
    page.text(MARGIN, y + 24, life.name, size=12, bold=True)
    page.lines(MARGIN, y + 42, wrap(life.note, NAME - 10, 10), size=10, kind="muted")
    for number, done in enumerate(life.done):
        x = MARGIN + NAME + number * CELL
        kind = "c" if done.startswith("quantize") else "a" if "move" in done else "paper"
        page.box(x + 4, y, CELL - 8, TALL - 12, kind, title=f"{life.name}, {MOMENTS[number]}: {done}")
        page.lines(x + 12, y + 18, wrap(done, CELL - 24, 11), size=11)
    page.text(
        MARGIN + NAME + 8,
        y + TALL + 4,
        f"moved alone: {life.moved}; written by quantizing: {life.written}",
        size=11,
        mono=True,
    )
    return y + TALL + 24
