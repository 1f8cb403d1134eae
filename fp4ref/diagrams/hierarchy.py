"""The figure of the scale hierarchy: global scale, block scales, codes, with the numbers of a small tensor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import spoken
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import fitting, wrap
from fp4ref.formats import F
from fp4ref.model.quantize import constants, global_scale, quantize
from fp4ref.packing import unpack
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity, Spec

Values = np.ndarray[tuple[int, int], np.dtype[np.float32]]
OVER = {
    Granularity.NONE: "; there is no global scale",
    Granularity.TENSOR: ", over the global scale of the tensor",
    Granularity.ROW: ", over the global scale of its row",
}
ROWS, BLOCKS, SHOWN = 3, 2, 4  # of the tensor, per row, and codes that are shown of a block


def hierarchy(request: Request) -> str:
    """Draw the reach of one global scale, one block scale and one code, on real numbers.

    Rules: GLB-1, GLB-2, GLB-5, GLB-6, BLK-3.
    """
    spec = request.spec
    x = tensor(spec)
    made = quantize(x, spec)
    codes = unpack(made.data, x.shape[1], spec.element.format)
    title = f"{spoken(spec)}: which scale covers what"
    page = Canvas(title, _words(spec), request.theme)
    y = page.heading(title)
    y = page.lines(MARGIN, y + 2, wrap(_words(spec), page.width - 2 * MARGIN, 12), kind="muted") + 26
    left, block_x, code_x, tall = MARGIN, 296.0, 470.0, 46.0
    page.text(left, y - 8, "global", bold=True)
    page.text(block_x, y - 8, "block scale", bold=True)
    page.text(code_x, y - 8, f"first {SHOWN} codes of the {spec.block.columns} in a block", bold=True)
    height = ROWS * BLOCKS * tall - 6
    if made.amax is None:
        page.cell(left, y, 250, height, "g = 1", "paper", size=13)
    for row, amax in enumerate([] if made.amax is None else made.amax):
        per_row = height if len(made.amax) == 1 else BLOCKS * tall - 6
        top = y + row * BLOCKS * tall
        page.box(left, top, 250, per_row, "d")
        g = float(np.ravel(global_scale(np.array([amax], F)[:, None, None, None], spec, constants(spec, x.dtype)))[0])
        owner = "the tensor" if spec.global_scale is Granularity.TENSOR else f"row {row}"
        page.text(left + 10, top + per_row / 2 - 8, f"amax of {owner} = {amax:g}", size=12)
        page.text(left + 10, top + per_row / 2 + 12, f"g = {g:.7g}", size=12, mono=True)
    for row in range(ROWS):
        for block in range(BLOCKS):
            top = y + (row * BLOCKS + block) * tall
            _block(page, top, (left, block_x, code_x), spec, int(made.scales[row, block]), (row, block), codes)
    page.lines(MARGIN, page.bottom + 22, _decoded(spec, x, made, codes), size=12, mono=True)
    return page.svg()


def _decoded(spec: Spec, x: Values, made: DirectionData, codes: NDArray[np.uint8]) -> list[str]:
    """Return how the first element of the middle row is read back, in exact arithmetic, beside what it was."""
    row = ROWS // 2
    q, s = float(spec.element.decode(codes[row, :1])[0]), float(spec.scale.decode(made.scales[row, :1])[0])
    if made.amax is None:
        return [f"x[{row}, 0] = {x[row, 0]:g} is read back as code · s = {q:g} · {s:g} = {q * s:g}"]
    amax = made.amax[0 if len(made.amax) == 1 else row]
    g = float(np.ravel(global_scale(np.array([amax], F)[:, None, None, None], spec, constants(spec, x.dtype)))[0])
    return [f"x[{row}, 0] = {x[row, 0]:g} is read back as code · s / g = {q:g} · {s:g} / {g:.7g} = {q * s / g:.6g}"]


def tensor(spec: Spec) -> Values:
    """Rows of different size, so that their scales differ."""
    step = np.arange(BLOCKS * spec.block.columns, dtype=F) % 13 - 6
    return np.asarray(step[None] * np.array([[1], [0.25], [40]], F), F) * (
        1 + np.arange(step.size, dtype=F) // spec.block.columns
    )


def _block(
    page: Canvas,
    y: float,
    x: tuple[float, float, float],
    spec: Spec,
    byte: int,
    at: tuple[int, int],
    codes: np.ndarray[tuple[int, int], np.dtype[np.uint8]],
) -> None:
    row, block = at
    value = float(spec.scale.decode(np.array([byte], np.uint8))[0])
    page.line([(x[0] + 254, y + 20), (x[1] - 4, y + 20)], head=True)
    page.box(x[1], y, 144, 40, "a", title=f"scale ({row}, {block})")
    page.text(x[1] + 8, y + 16, f"scale ({row}, {block})", size=11)
    page.text(x[1] + 8, y + 33, f"0x{byte:02x} = {value:g}", size=11, mono=True)
    page.line([(x[1] + 148, y + 20), (x[2] - 4, y + 20)], head=True)
    first = block * spec.block.columns
    digits = spec.element.format.digits
    for number in range(SHOWN):
        code = int(codes[row, first + number])
        q = float(spec.element.decode(np.array([code], np.uint8))[0])
        label = f"{code:0{digits}x} = {q:g}".replace("-", "−")
        size, what = fitting(label, 70, 11), f"element ({row}, {first + number})"
        page.cell(x[2] + number * 78, y + 6, 74, 28, label, "b", size=size, title=what)


def point(request: Request) -> str:
    """Return the sentence on the scales of a value. Rules: GLB-1, GLB-5, GLB-6."""
    return f"{spoken(request.spec)}: a value is its code times the scale of its block{OVER[request.spec.global_scale]}."


def _words(spec: Spec) -> str:
    covers = {
        Granularity.NONE: "There is no global scale (g = 1).",
        Granularity.TENSOR: "One amax, and the global scale g made from it, for the whole tensor.",
        Granularity.ROW: "One amax, and the global scale g made from it, for each row.",
    }[spec.global_scale]
    bits = spec.element.format.bits + spec.scale.format.bits / (spec.block.rows * spec.block.columns)
    stored = spec.element.format.bits + spec.scale.format.bits / spec.block.columns
    size = f"{stored:g} bits per element" + (
        f" stored ({bits:g} without the repeated scale bytes)" if bits != stored else ""
    )
    block = f"{spec.scale.format.name.upper()} byte for a block of {spec.block.rows} x {spec.block.columns}"
    return f"{covers} One {block}. {size}."
