"""The figure of stochastic rounding: which of the 256 random bytes give which code."""

from __future__ import annotations

import numpy as np

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import wrap
from fp4ref.formats import STOCHASTIC_E2M1, F

VALUES = (0.3, -0.3, 1.0, 1.9, 2.4, 4.5, 5.9, 7.0)
BAR = 560


def stochastic(request: Request) -> str:
    """For some inputs: the random bytes that round toward zero, and those that round away. Rules: SR-2, SR-3, SR-4."""
    title = "Stochastic rounding to E2M1: one random byte per element"
    words = "code = truncate(fma(byte / 256, step, |y|)); each bar covers the random bytes 0 to 255"
    page = Canvas(title, words + ".", request.theme)
    y = page.heading(title)
    page.text(MARGIN, y + 2, words, size=12, kind="muted")
    y, x = y + 40, MARGIN + 90.0
    for byte in (0, 64, 128, 192, 256):
        page.text(x + byte / 256 * BAR, y - 4, str(byte), size=10, anchor="middle", mono=True, kind="muted")
    for value in VALUES:
        page.text(x - 14, y + 24, f"y = {value:g}".replace("-", "−"), size=12, anchor="end", mono=True)
        _bar(page, x, y + 6, value)
        y += 42
    note = (
        "The value of each code in brackets. A value of the format keeps its code for every byte; 6 and more saturate."
    )
    page.text(MARGIN, y + 18, note, size=11, kind="muted")
    note = (
        "floor(256 · f) of the 256 bytes round away from zero; f is the part of a step by which |y| is above the "
        "smaller magnitude. So the mean over all bytes is below |y| by less than step / 256."
    )
    page.lines(MARGIN, y + 34, wrap(note, page.width - 2 * MARGIN, 11), size=11, kind="muted")
    return page.svg()


def runs(value: float) -> list[tuple[int, int, int]]:
    """(first byte, past the last byte, code) of every run of random bytes with one code. Rules: SR-2."""
    bits = np.arange(256, dtype=np.uint8)
    codes = STOCHASTIC_E2M1.encode(np.full(256, value, F), bits)
    starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist()]
    return [(start, stop, int(codes[start])) for start, stop in zip(starts, [*starts[1:], 256], strict=True)]


def _bar(page: Canvas, x: float, y: float, value: float) -> None:
    for number, (start, stop, code) in enumerate(runs(value)):
        left, width = x + start / 256 * BAR, (stop - start) / 256 * BAR
        meaning = float(STOCHASTIC_E2M1.decode(np.array([code], np.uint8))[0])
        label = f"code {code:x} ({meaning:g})".replace("-", "−")
        title = f"bytes {start} to {stop - 1}: code {code:x}, {meaning:g}"
        fits = width > len(label) * 7 + 6
        page.cell(left, y, width, 26, label if fits else "", "ab"[number % 2], size=11, title=title)
        if start:
            page.text(left, y + 37, str(start), size=10, anchor="middle", mono=True, kind="mark")
