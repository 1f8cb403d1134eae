"""The figure of one row in several formats: what the width of the elements and the type of the scale cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import spoken
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import wrap
from fp4ref.formats import F
from fp4ref.model.dequantize import dequantize
from fp4ref.model.quantize import quantize
from fp4ref.spec import Spec
from fp4ref.specs import MXFP4, MXFP6_E2M3, MXFP8_E4M3, NVFP4

COUNT = 32  # elements: one block of MX, two of NVFP4
HALF = 16
LOUD, QUIET = 7.0, 1.25  # the largest magnitudes of the halves: the block of 32 serves the first
SHOWN = (MXFP4, NVFP4, MXFP6_E2M3, MXFP8_E4M3)
CELL, TALL = 23.0, 30.0
SAID = (
    "Bars are x, lines what is read back. MXFP4 has one power of two for 32 elements: where it was rounded up, the "
    "largest element uses only a part of the codes, and small elements become 0. NVFP4 has a scale with three bits of "
    "mantissa for each 16 elements. Wider elements help at the cost of bits. The error is the root mean square over "
    "that of x."
)


def row() -> NDArray[np.float32]:
    """Return 32 values, the second half of which is much smaller than the first."""
    wave = np.sin(np.arange(COUNT) * 2.4) * np.cos(np.arange(COUNT) * 0.7)
    halves = wave.reshape(2, HALF)
    scaled = halves / np.abs(halves).max(axis=1, keepdims=True) * [[LOUD], [QUIET]]
    return np.asarray(scaled.reshape(1, COUNT), F)


def read_back(x: NDArray[np.float32], spec: Spec) -> tuple[NDArray[np.float32], list[str], float]:
    """Return the values that a row's bytes mean, its scales in words, and the relative error."""
    made = quantize(x, spec)
    values = dequantize(made, (1, COUNT), spec, x.dtype, x.dtype)
    scales = spec.scale.decode(made.scales)[0]
    words = [f"0x{byte:02x} = {scale:g}" for byte, scale in zip(made.scales[0], scales, strict=True)]
    error = np.sqrt(np.mean((values.astype(float) - x) ** 2) / np.mean(x.astype(float) ** 2))
    return values, words, float(error)


def compared_formats(request: Request) -> str:
    """Draw a row of 32 values, and its values in four formats. Rules: BLK-1, BLK-3, MXS-1, DEQ-1, DEQ-2."""
    title = "One row in four formats"
    page = Canvas(title, SAID, request.theme)
    y = page.lines(MARGIN, page.heading(title), wrap(SAID, page.width - 2 * MARGIN, 11), size=11, kind="muted") + 6
    x = row()
    for spec in SHOWN:
        values, scales, error = read_back(x, spec)
        form, width = spec.element.format, spec.block.columns
        bits = form.bits + 8 / width
        head = f"{spoken(spec)}: {bits:g} bits an element, error {100 * error:.3g} %"
        page.text(MARGIN, y + 12, head, size=12, bold=True)
        for block, words in enumerate(scales):
            left = MARGIN + block * width * CELL
            page.cell(left, y + 20, width * CELL, 18, f"scale {words}", "paper", size=10)
        _bars(page, x[0], values[0], y + 40, form.name)
        y += 40 + 2 * TALL + 24
    return page.svg()


def _bars(page: Canvas, x: NDArray[np.float32], values: NDArray[np.float32], y: float, name: str) -> None:
    """Draw each value as a bar from the middle, and what is read back as a line across it."""
    middle, unit = y + TALL, (TALL - 2) / LOUD
    for i, (given, made) in enumerate(zip(x, values, strict=True)):
        left, high = MARGIN + i * CELL, float(given) * unit
        told = f"{name}, element {i}: x = {given:.6g}, read back {made:.6g}"
        page.box(left + 4, middle - max(high, 0), CELL - 8, max(abs(high), 0.5), "ab"[i // HALF], title=told)
        at = middle - float(made) * unit
        page.line([(left + 1, at), (left + CELL - 1, at)], stroke="mark")
    page.text(MARGIN, middle + TALL + 10, "x 0–15", size=9, kind="muted")
    page.text(MARGIN + HALF * CELL, middle + TALL + 10, "x 16–31", size=9, kind="muted")
