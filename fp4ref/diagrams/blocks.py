"""The figure of block scaling: which elements share a scale, and the scale array that belongs to them."""

from __future__ import annotations

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import ElementPlace, Geometry, spoken
from fp4ref.diagrams.request import Range, Request, clipped
from fp4ref.diagrams.text_width import fitting, text_width, wrap
from fp4ref.errors import DomainError
from fp4ref.spec import Block

MOST = (64, 160)  # elements
KINDS = "abcd"


def blocks(request: Request) -> str:
    """Blocks of a matrix, 1-D or 2-D, its scale array beside it. Rules: BLK-1, BLK-7, LAY-10."""
    spec = request.spec
    require_visible(spec.block, "diagram blocks")
    shape = request.shape or (
        (6, 70) if spec.block.rows == 1 else (2 * spec.block.rows + 4, 4 * spec.block.columns + 6)
    )
    geometry = Geometry(spec, shape, request.direction)
    place = geometry.place(*request.element) if request.element else None
    near = max(8, 2 * spec.block.rows), 4 * spec.block.columns
    window = clipped("diagram blocks", request.window, geometry.matrix, MOST, place.at if place else None, near)
    title = f"{spoken(spec)}: one scale for {block_words(spec.block)}"
    page = Canvas(title, _summary(geometry), request.theme)
    y = page.heading(title)
    y = page.lines(MARGIN, y + 2, wrap(_summary(geometry), page.width - 2 * MARGIN, 11), size=11, kind="muted")
    (top, bottom), (left, right) = window
    scale_left, scale_right = left // spec.block.columns, -(-right // spec.block.columns)
    scales_width = (scale_right - scale_left) * 32.0
    room = page.width - 2 * MARGIN - 40 - 90 - scales_width
    pixel = min(room / (right - left + spec.block.columns), 24.0 if spec.block.rows == 1 else 14.0)
    tall = 24.0 if spec.block.rows == 1 else max(pixel, 8.0)
    x, y = MARGIN + 40, y + 24
    name = "x" if request.direction == "row" else "x^T"
    page.text(x, y - 6, f"{name}: {geometry.matrix[0]} x {geometry.matrix[1]} elements", size=12, bold=True)
    x_scales = page.width - MARGIN - scales_width
    page.text(
        page.width - MARGIN,
        y - 6,
        f"scales: {geometry.scales[0]} x {geometry.scales[1]} bytes",
        size=12,
        anchor="end",
        bold=True,
    )
    y += 16
    _column_numbers(page, (x, y - 5), geometry, (left, right), pixel, 32.0, x_scales)
    _matrix(page, (x, y), (pixel, tall), geometry, window, place)
    _scales(page, (x_scales, y), (32.0, tall), geometry, (top, bottom), (scale_left, scale_right))
    middle = y + (bottom - top) * tall / 2
    page.line([(x_scales - 74, middle), (x_scales - 44, middle)], head=True)
    if place:
        _highlight(page, place, (x, y), (pixel, tall), (x_scales, y), window)
        text = wrap(place.sentence(), page.width - 2 * MARGIN, 12, bold=True)
        page.lines(MARGIN, page.bottom + 24, text, kind="mark", bold=True)
    return page.svg()


def require_visible(block: Block, operation: str) -> None:
    """Require that a block fits into a figure. Rules: BLK-1."""
    if block.rows > MOST[0] or block.columns > MOST[1] // 2:
        got = f"blocks of {block.rows} x {block.columns}"
        raise DomainError(operation, got, f"blocks of at most {MOST[0]} x {MOST[1] // 2} to draw", "BLK-1")


def point(request: Request) -> str:
    """Return the sentence on which elements share a scale. Rules: BLK-1, BLK-7."""
    return f"{spoken(request.spec)} has one scale for {block_words(request.spec.block)}."


def block_words(block: Block) -> str:
    """Return the elements of a block as prose has them."""
    if block.rows == 1:
        return f"{block.columns} elements of a row"
    return f"a block of {block.rows} x {block.columns}"


def _summary(geometry: Geometry) -> str:
    spec, (rows, columns) = geometry.spec, geometry.matrix
    parts = [
        f"Blocks of {spec.block.rows} x {spec.block.columns}; B (i, j) is the block in block row i and block column j"
    ]
    if rows % spec.block.rows or columns % spec.block.columns:
        parts.append("elements past the matrix (hatched) count as +0 and are not stored")
    if spec.block.rows > 1:
        parts.append(f"each of the {spec.block.rows} rows of a block has the same scale byte")
    return "; ".join(parts) + "."


def _matrix(
    page: Canvas,
    at: tuple[float, float],
    pixel: tuple[float, float],
    geometry: Geometry,
    window: tuple[Range, Range],
    place: ElementPlace | None,
) -> None:
    """Draw the blocks of the window, with a line per element, and the padding of the last ones."""
    (x, y), (wide, tall), (high, broad) = at, pixel, geometry.spec.block
    (top, bottom), (left, right) = window
    rows, columns = geometry.matrix
    for down in range(top // high, -(-bottom // high)):
        for across in range(left // broad, -(-right // broad)):
            box_x = x + (max(across * broad, left) - left) * wide
            box_y = y + (max(down * high, top) - top) * tall
            end_x = x + ((across + 1) * broad - left) * wide
            end_y = y + ((down + 1) * high - top) * tall
            used_x, used_y = (
                min(end_x, x + (min(right, columns) - left) * wide),
                min(end_y, y + (min(bottom, rows) - top) * tall),
            )
            title = f"block ({down}, {across})"
            page.box(box_x, box_y, end_x - box_x, end_y - box_y, "pad", title=f"{title}, hatched part padding")
            page.box(box_x, box_y, used_x - box_x, used_y - box_y, _kind(down, across), title=title)
            _grid(page, (box_x, box_y), (used_x, used_y), pixel)
            page.box(box_x, box_y, end_x - box_x, end_y - box_y, "none")
            label = f"B ({down}, {across})"
            size = 10 if used_x - box_x > 62 else 8
            width = text_width(label, size, mono=True) + 4
            chosen = place is not None and (place.at[0] // high, place.at[1] // broad) == (down, across)
            if used_x - box_x > width and used_y - box_y > size + 4 and not chosen:
                cx, cy = (box_x + used_x) / 2, (box_y + used_y) / 2
                page.box(cx - width / 2, cy - size / 2 - 3, width, size + 5, _kind(down, across), stroke="none")
                page.text(cx, cy + size * 0.35, label, size=size, anchor="middle", mono=True)
    for row in range(top, bottom, max(high, 1)):
        page.text(x - 6, y + (row - top + 0.5) * tall + 4, f"{row}", size=9, anchor="end", mono=True, kind="muted")


def _column_numbers(
    page: Canvas, at: tuple[float, float], geometry: Geometry, window: Range, pixel: float, cell: float, scales: float
) -> None:
    """Write the first column of each block, and the column of each scale."""
    broad, (left, right) = geometry.spec.block.columns, window
    for number, block in enumerate(range(left // broad, -(-right // broad))):
        first = str(max(block * broad, left))
        if text_width(first, 9, mono=True) < broad * pixel - 2:
            x = at[0] + (int(first) - left) * pixel
            page.text(x, at[1], first, size=9, mono=True, kind="muted")
        points = fitting(str(block), cell - 6, 9)
        page.text(
            scales + (number + 0.5) * cell, at[1], str(block), size=points, anchor="middle", mono=True, kind="muted"
        )


def _grid(page: Canvas, start: tuple[float, float], stop: tuple[float, float], pixel: tuple[float, float]) -> None:
    x = start[0] + pixel[0]
    while x < stop[0] - 0.5:
        page.line([(x, start[1]), (x, stop[1])], stroke="faint")
        x += pixel[0]
    y = start[1] + pixel[1]
    while y < stop[1] - 0.5:
        page.line([(start[0], y), (stop[0], y)], stroke="faint")
        y += pixel[1]


def _scales(
    page: Canvas, at: tuple[float, float], cell: tuple[float, float], geometry: Geometry, rows: Range, columns: Range
) -> None:
    """Draw the scale array: one byte per row and block column, named after its block."""
    high = geometry.spec.block.rows
    for row in range(*rows):
        y = at[1] + (row - rows[0]) * cell[1]
        for column in range(*columns):
            x = at[0] + (column - columns[0]) * cell[0]
            title = f"scale ({row}, {column}), of block ({row // high}, {column})"
            page.box(x, y, *cell, _kind(row // high, column), title=title, stroke="edge" if high == 1 else "hatch")
        if row % high == 0:
            page.text(at[0] - 6, y + 0.5 * cell[1] + 4, f"{row}", size=9, anchor="end", mono=True, kind="muted")
    for down in range(rows[0] // high, -(-rows[1] // high)):
        top, bottom = max(down * high, rows[0]) - rows[0], min((down + 1) * high, rows[1]) - rows[0]
        for column in range(*columns):
            x, y = at[0] + (column - columns[0]) * cell[0], at[1] + top * cell[1]
            label, tall = f"{down},{column}", (bottom - top) * cell[1]
            label = label if text_width(label, 9, mono=True) <= cell[0] else f"{column}"
            size = fitting(label, cell[0] - 6, 10)
            page.box(x, y, cell[0], tall, "none")
            if high > 1:
                width = text_width(label, size, mono=True) + 2
                page.box(x + (cell[0] - width) / 2, y + tall / 2 - 7, width, 14, _kind(down, column), stroke="none")
            page.text(x + cell[0] / 2, y + tall / 2 + 3.5, label, size=size, anchor="middle", mono=True)


def _highlight(
    page: Canvas,
    place: ElementPlace,
    at: tuple[float, float],
    pixel: tuple[float, float],
    scales: tuple[float, float],
    window: tuple[Range, Range],
) -> None:
    """Frames around the element and its scale, where the window shows them."""
    (top, bottom), (left, right) = window
    row, column = place.at
    if not (top <= row < bottom and left <= column < right):
        return
    page.mark(at[0] + (column - left) * pixel[0], at[1] + (row - top) * pixel[1], *pixel)
    first = left // place.geometry.spec.block.columns
    page.mark(scales[0] + (place.scale[1] - first) * 32.0, scales[1] + (row - top) * pixel[1], 32.0, pixel[1])


def _kind(down: int, across: int) -> str:
    return KINDS[(across + 2 * down) % 4]
