"""The figure of row and column scales: both scale arrays of one tensor, beside the elements that they scale."""

from __future__ import annotations

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import Geometry, spoken
from fp4ref.diagrams.request import Request
from fp4ref.errors import DomainError

MOST = (440.0, 230.0)  # pixels of the matrix: wide, high
LEAST = (240.0, 130.0)  # a narrower one is not drawn to scale
SHOWN = 6  # scale rows and columns
BAR = (24.0, 22.0)


def mx_scales(request: Request) -> str:
    """Row and column scales of one tensor, each beside the elements that it scales. Rules: BLK-1, BLK-8, BLK-10."""
    spec, shape = request.spec, request.shape or (128, 192)
    if spec.block.rows > 1:
        got = f"blocks of {spec.block.rows} x {spec.block.columns}, whose scales are the same in both directions"
        raise DomainError("diagram mxfp8-scales", got, "blocks of one row", "BLK-7")
    row, column = Geometry(spec, shape), Geometry(spec, shape, "column")
    title = f"{spoken(spec)}: row and column scales of x [{shape[0]}, {shape[1]}]"
    down, across = column.scales[1], row.scales[1]
    words = f"Row scales [{shape[0]}, {across}]; column scales [{shape[1]}, {down}], drawn transposed"
    page = Canvas(title, words + ".", request.theme)
    y, x = page.heading(title) + 36, MARGIN + 40.0
    per = min(MOST[0] / shape[1], MOST[1] / shape[0])
    wide, high = max(shape[1] * per, LEAST[0]), max(shape[0] * per, LEAST[1])
    page.text(x, y - 8, f"x [{shape[0]}, {shape[1]}]", mono=True, size=12)
    page.box(x, y, wide, high)
    _blocks(page, (x, y), (wide / shape[1], high / shape[0]), row)
    right, below = x + wide + 54, y + high + 52
    page.text(right, y - 8, f"row scales [{shape[0]}, {across}]", mono=True, size=12)
    _columns(page, (right, y), across, high)
    page.text(right, y + high + 16, "one byte per row", size=11, kind="muted")
    page.text(right, y + high + 30, f"and {spec.block.columns} columns", size=11, kind="muted")
    page.line([(x + wide + 8, y + high / 2), (right - 10, y + high / 2)], stroke="A", head=True)
    page.line([(x + wide / 2, y + high + 8), (x + wide / 2, below - 8)], stroke="B", head=True)
    bottom = _rows(page, (x, below), down, wide)
    name = f"column scales [{shape[1]}, {down}], drawn transposed as [{down}, {shape[1]}]"
    page.text(x, bottom + 18, name, mono=True, size=12)
    notes = [
        f"One byte per column and {spec.block.columns} rows. In memory they are the scales of x^T,",
        f"[{shape[1]}, {down}] in any layout; some frameworks show the transposed array.",
    ]
    page.lines(x, bottom + 36, notes, size=11, kind="muted")
    return page.svg()


def _blocks(page: Canvas, at: tuple[float, float], per: tuple[float, float], geometry: Geometry) -> None:
    """Draw a row block and a column block, as long as they are and thick enough to see."""
    size = geometry.spec.block.columns
    length = max(min(size, geometry.shape[1]) * per[0] - 40, 12.0) if size >= geometry.shape[1] else size * per[0]
    page.box(at[0] + 30, at[1] + 14, length, 12, "a", title="a row block")
    page.text(at[0] + 30, at[1] + 40, f"row block, 1 x {size}", size=11)
    tall = max(min(size, geometry.shape[0]) * per[1] - 60, 12.0) if size >= geometry.shape[0] else size * per[1]
    page.box(at[0] + 10, at[1] + 46, 12, tall, "b", title="a column block")
    page.text(at[0] + 30, at[1] + 62, f"column block, {size} x 1", size=11)


def _columns(page: Canvas, at: tuple[float, float], count: int, height: float) -> None:
    for number in range(min(count, SHOWN)):
        page.box(at[0] + number * BAR[0], at[1], BAR[0], height, "a", title=f"row scales, column {number}")
        page.text(at[0] + (number + 0.5) * BAR[0], at[1] + 16, str(number), size=11, anchor="middle", mono=True)
    if count > SHOWN:
        page.text(at[0] + SHOWN * BAR[0] + 6, at[1] + 16, f"… {count - 1}", size=12)


def _rows(page: Canvas, at: tuple[float, float], count: int, width: float) -> float:
    for number in range(min(count, SHOWN)):
        y = at[1] + number * BAR[1]
        page.box(at[0], y, width, BAR[1], "b", title=f"column scales, row {number} as drawn")
        page.text(at[0] + 8, y + 15, str(number), size=11, mono=True)
    y = at[1] + min(count, SHOWN) * BAR[1]
    if count <= SHOWN:
        return y
    page.text(at[0] + 8, y + 14, f"… {count - 1}", size=12)
    return y + 18
