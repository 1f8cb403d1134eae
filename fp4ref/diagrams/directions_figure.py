"""Figures of the two directions: what is transposed, and which scales belong to rows and to columns."""

from __future__ import annotations

from fp4ref.diagrams.canvas import MARGIN, Canvas, wrap
from fp4ref.diagrams.place import Geometry, spoken
from fp4ref.diagrams.request import Request
from fp4ref.errors import DomainError
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
    _array(page, (x, y), (shape[1] * per, shape[0] * per), "x", shape, None, spec)
    kind = "b" if column else "a"
    _strip(page, (x, y), per, shape, spec, column, kind)
    x += shape[1] * per + 16
    middle, start = y + 44, x
    if column:
        step = "Hadamard, x^T" if spec.hadamard else "x^T"
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
        _array(page, (x, y), (geometry.matrix[1] * per, geometry.matrix[0] * per), "x^T", geometry.matrix, None, spec)
        _strip(page, (x, y), per, geometry.matrix, spec, False, kind)
        x = start = x + geometry.matrix[1] * per + 16
    else:
        x += 126 + shape[0] * per + 16
    page.line([(start, middle), (x + 70, middle)], head=True)
    page.text((start + x + 66) / 2, middle - 8, "quantize", size=11, anchor="middle")
    x += 104
    data_width = max(geometry.row_bytes * per, 14)
    _array(
        page,
        (x, y),
        (data_width, geometry.matrix[0] * per),
        "data",
        (geometry.matrix[0], geometry.row_bytes),
        kind,
        spec,
    )
    x += max(data_width, 60) + 44
    _array(
        page,
        (x, y),
        (max(geometry.scales[1] * per * 2, 14), geometry.matrix[0] * per),
        "scales",
        geometry.scales,
        kind,
        spec,
    )
    return y + height


def _array(
    page: Canvas,
    at: tuple[float, float],
    size: tuple[float, float],
    name: str,
    shape: tuple[int, int],
    kind: str | None,
    spec: Spec,
) -> None:
    title = f"{name} [{shape[0]}, {shape[1]}]"
    page.text(at[0], at[1] - 7, title, size=11, mono=True)
    page.box(*at, *size, kind or "paper", title=title)


def _strip(
    page: Canvas, at: tuple[float, float], per: float, shape: tuple[int, int], spec: Spec, down: bool, kind: str
) -> None:
    """A few blocks of the direction, drawn to scale inside a matrix."""
    high, wide = spec.block.rows * per, spec.block.columns * per
    if down:
        high, wide = wide, high
    high, wide = max(high, 5.0), max(wide, 5.0)
    high, wide = min(high, shape[0] * per), min(wide, shape[1] * per)
    page.box(*at, wide, high, kind, title="one block: one scale")
    page.text(at[0], at[1] + shape[0] * per + 14, "filled: one block", size=10, kind="muted")


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
    y = page.heading(title) + 36
    per = min(440 / shape[1], 230 / shape[0])
    x = MARGIN + 40.0
    wide, high = shape[1] * per, shape[0] * per
    page.text(x, y - 8, f"x [{shape[0]}, {shape[1]}]", mono=True, size=12)
    page.box(x, y, wide, high)
    _cells(page, (x, y), spec, per, shape)
    right = x + wide + 54
    page.text(right, y - 8, f"row scales [{row.scales[0]}, {row.scales[1]}]", mono=True, size=12)
    _columns(page, (right, y), across, high)
    page.text(right, y + high + 16, "one byte per row", size=11, kind="muted")
    page.text(right, y + high + 30, f"and {spec.block.columns} columns", size=11, kind="muted")
    page.line([(x + wide + 8, y + high / 2), (right - 10, y + high / 2)], stroke="A", head=True)
    below = y + high + 52
    page.line([(x + wide / 2, y + high + 8), (x + wide / 2, below - 8)], stroke="B", head=True)
    _rows(page, (x, below), down, wide)
    bottom = below + down * 22
    page.text(
        x,
        bottom + 18,
        f"column scales [{column.scales[0]}, {column.scales[1]}], drawn transposed as [{down}, {shape[1]}]",
        mono=True,
        size=12,
    )
    notes = [
        f"One byte per column and {spec.block.columns} rows. In memory they are the scales of x^T,",
        f"[{column.scales[0]}, {column.scales[1]}] in any layout; some frameworks show the transposed array.",
    ]
    page.lines(x, bottom + 36, notes, size=11, kind="muted")
    return page.svg()


def _cells(page: Canvas, at: tuple[float, float], spec: Spec, per: float, shape: tuple[int, int]) -> None:
    """A row block and a column block, drawn to scale, at least thick enough to see."""
    length = min(spec.block.columns, shape[1]) * per
    page.cell(at[0] + 30, at[1] + 16, length, 12, "", "a", title="a row block")
    page.text(at[0] + 36 + length, at[1] + 26, f"row block, {spec.block.rows} x {spec.block.columns}", size=11)
    tall = min(spec.block.columns, shape[0]) * per
    page.cell(at[0] + 12, at[1] + 40, 12, tall, "", "b", title="a column block")
    page.text(at[0] + 32, at[1] + 50 + tall / 2, f"column block, {spec.block.columns} x {spec.block.rows}", size=11)


def _columns(page: Canvas, at: tuple[float, float], count: int, height: float) -> None:
    for number in range(min(count, 6)):
        page.box(at[0] + number * 24, at[1], 24, height, "a", title=f"row scales, column {number}")
        page.text(at[0] + number * 24 + 12, at[1] + 16, str(number), size=11, anchor="middle", mono=True)
    if count > 6:
        page.text(at[0] + 6 * 24 + 6, at[1] + 16, "…", size=12)


def _rows(page: Canvas, at: tuple[float, float], count: int, width: float) -> None:
    for number in range(min(count, 6)):
        page.box(at[0], at[1] + number * 22, width, 22, "b", title=f"column scales, row {number} as drawn")
        page.text(at[0] + 8, at[1] + number * 22 + 15, str(number), size=11, mono=True)
