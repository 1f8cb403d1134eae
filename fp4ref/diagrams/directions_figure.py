"""The figure of the two directions: what is transposed, and which bytes come of it."""

from __future__ import annotations

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import Geometry, spoken
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import text_width, wrap
from fp4ref.quantized import Direction
from fp4ref.spec import Spec


def directions(request: Request) -> str:
    """Row: blocks along the rows of x. Column: the same quantizer on x^T. Rules: BLK-8, DEQ-4, HAD-4."""
    spec, shape = request.spec, request.shape or (64, 96)
    title = f"{spoken(spec)}: the row and the column direction of x [{shape[0]}, {shape[1]}]"
    described = [f"{name} direction: {_sizes(Geometry(spec, shape, name))}" for name in _BOTH]
    page = Canvas(title, "; ".join(described) + ".", request.theme)
    y = page.heading(title) + 14
    for direction in _BOTH:
        y = _direction(page, y, Geometry(spec, shape, direction)) + 46
    note = "The column direction is quantize(x^T); it is never made from the codes of the row direction (BLK-8)."
    page.lines(MARGIN, y - 8, wrap(note, page.width - 2 * MARGIN, 12), kind="muted")
    return page.svg()


_BOTH: tuple[Direction, ...] = ("row", "column")


def _sizes(geometry: Geometry) -> str:
    data, scales = (geometry.matrix[0], geometry.row_bytes), geometry.scales
    return f"data [{data[0]}, {data[1]}] bytes, scales [{scales[0]}, {scales[1]}] bytes"


def _direction(page: Canvas, y: float, geometry: Geometry) -> float:
    """x, then what is quantized, then the bytes that come of it."""
    spec, shape, column = geometry.spec, geometry.shape, geometry.direction == "column"
    page.text(MARGIN, y, f'directions="{geometry.direction}"', bold=True, mono=True)
    y += 30
    per = 120 / max(shape)
    x, height = MARGIN + 24.0, 128.0
    _array(page, (x, y), (shape[1] * per, shape[0] * per), "x", shape, None)
    kind = "b" if column else "a"
    _strip(page, (x, y), per, shape, spec, column, kind)
    x += shape[1] * per + 16
    middle, start = y + 44, x
    if column:
        step = "x^T, Hadamard" if spec.hadamard else "x^T"
        page.line([(x, middle), (x + 96, middle)], head=True)
        page.text(x + 46, middle - 8, step, size=11, anchor="middle", mono=True)
        page.text(
            x + 46,
            middle + 18,
            "to bfloat16" if spec.hadamard else "transposed",
            size=10,
            anchor="middle",
            kind="muted",
        )
        x += 126
        _array(page, (x, y), (geometry.matrix[1] * per, geometry.matrix[0] * per), "x^T", geometry.matrix, None)
        _strip(page, (x, y), per, geometry.matrix, spec, False, kind)
        x = start = x + geometry.matrix[1] * per + 16
    else:
        x += 126 + shape[0] * per + 16
    page.line([(start, middle), (x + 70, middle)], head=True)
    page.text((start + x + 66) / 2, middle - 8, "quantize", size=11, anchor="middle")
    x += 104
    data = geometry.matrix[0], geometry.row_bytes
    wide, high = max(data[1] * per, 14), geometry.matrix[0] * per
    _array(page, (x, y), (wide, high), "data", data, kind)
    x += max(wide, text_width(_titled("data", data), 11, mono=True)) + 24
    _array(page, (x, y), (max(geometry.scales[1] * per * 2, 14), high), "scales", geometry.scales, kind)
    return y + height


def _titled(name: str, shape: tuple[int, int]) -> str:
    return f"{name} [{shape[0]}, {shape[1]}]"


def _array(
    page: Canvas,
    at: tuple[float, float],
    size: tuple[float, float],
    name: str,
    shape: tuple[int, int],
    kind: str | None,
) -> None:
    title = _titled(name, shape)
    page.text(at[0], at[1] - 7, title, size=11, mono=True)
    page.box(*at, max(size[0], 6), max(size[1], 6), kind or "paper", title=title)


def _strip(
    page: Canvas, at: tuple[float, float], per: float, shape: tuple[int, int], spec: Spec, down: bool, kind: str
) -> None:
    """Draw a few blocks of the direction, to scale, inside a matrix."""
    high, wide = spec.block.rows * per, spec.block.columns * per
    if down:
        high, wide = wide, high
    high, wide = max(high, 5.0), max(wide, 5.0)
    high, wide = min(high, shape[0] * per), min(wide, shape[1] * per)
    page.box(*at, wide, high, kind, title="one block: one scale")
    page.text(at[0], at[1] + max(shape[0] * per, 6) + 14, "filled: one block", size=10, kind="muted")
