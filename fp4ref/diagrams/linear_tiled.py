"""The figure of the same scales in two layouts: linear beside tiled."""

from __future__ import annotations

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import ElementPlace, Geometry, named
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.scale_map import LINE, ScaleMap, require_tiles
from fp4ref.diagrams.text_width import fitting, text_width, wrap
from fp4ref.layout import LINEAR, TILED_128X4

KINDS = "abcd"
COLUMNS = 8  # of scales in a table


def linear_tiled(request: Request) -> str:
    """Return the same scales in two layouts side by side, then the first bytes of both buffers.

    Rules: LAY-1, LAY-3, LAY-4.
    """
    layout = request.layout or TILED_128X4
    require_tiles(layout, "diagram linear-tiled")
    geometry = Geometry(request.spec, request.shape or (160, 128), request.direction)
    place = geometry.place(*request.element) if request.element else None
    maps = ScaleMap(geometry, LINEAR), ScaleMap(geometry, layout)
    title = f"The same scales, {LINEAR.name} and {layout.name}"
    page = Canvas(
        title, f"{maps[1].caption()}. {place.sentence(named(layout)) if place else ''}".strip(), request.theme
    )
    y = page.heading(title)
    y = page.lines(MARGIN, y + 4, wrap(maps[1].caption(), page.width - 2 * MARGIN, 12), kind="muted")
    rows = sorted(maps[1].sampled_rows(place))
    columns = _columns(request, geometry, place)
    half = (page.width - 2 * MARGIN - 24) / 2
    bottoms = []
    for number, found in enumerate(maps):
        x = MARGIN + number * (half + 24)
        page.text(x, y + 14, f"{found.layout.name}: byte of scale (m, k)", bold=True)
        bottoms.append(_offsets(page, x, y + 22, half, found, rows, columns, place))
    y = max(bottoms)
    for found in maps:
        page.text(MARGIN, y + 26, f"{found.layout.name} in memory: scale (m, k) at each byte", bold=True)
        y = _strip(page, y + 34, found, place)
    if place:
        room = page.width - 2 * MARGIN
        y = page.lines(MARGIN, y + 24, wrap(place.sentence(named(layout)), room, 12, bold=True), kind="mark", bold=True)
        for line in place.sums((LINEAR.name, layout.name)):
            y = page.lines(
                MARGIN, y, wrap(line, room, 11, mono=True, bold=True), size=11, kind="mark", mono=True, bold=True
            )
    return page.svg()


def _columns(request: Request, geometry: Geometry, place: ElementPlace | None) -> list[int]:
    """Eight scale columns: the window's, or those around the element."""
    columns = geometry.scales[1]
    first = request.window[1][0] if request.window else place.scale[1] // 4 * 4 if place else 0
    first = max(min(first, columns - COLUMNS), 0)
    return list(range(first, min(first + COLUMNS, columns)))


def _offsets(
    page: Canvas,
    x: float,
    y: float,
    width: float,
    found: ScaleMap,
    rows: list[int],
    columns: list[int],
    place: ElementPlace | None,
) -> float:
    """Return a table of offsets; a gap where rows are left out."""
    cell = min((width - 52) / COLUMNS, 44)
    for number, column in enumerate(columns):
        label = f"k {column}" if text_width(f"k {column}", 10) <= cell else f"{column}"
        page.text(x + 48 + (number + 0.5) * cell, y + 11, label, size=10, anchor="middle", kind="muted")
    y += 16
    for number, row in enumerate(rows):
        if number and row != rows[number - 1] + 1:
            page.text(x + 40, y + 8, "…", size=12, anchor="end", kind="muted")
            y += 12
        page.text(x + 42, y + 13, f"m {row}", size=10, anchor="end", kind="muted")
        for at, column in enumerate(columns):
            offset = found.offset(row, column)
            title = f"scale ({row}, {column}): byte {offset}"
            kind = KINDS[row // 32 % 4]
            points = fitting(str(offset), cell - 3, 10)
            page.cell(x + 48 + at * cell, y, cell, 18, str(offset), kind, size=points, title=title)
            if place and place.scale == (row, column):
                page.mark(x + 48 + at * cell, y, cell, 18)
        y += 18
    return y


def _strip(page: Canvas, y: float, found: ScaleMap, place: ElementPlace | None) -> float:
    """Two lines of memory: the first one, and the one with the element, or the next."""
    first = [0, LINE]
    if place:
        own = found.offset(*place.scale) // LINE * LINE
        first = [0, own] if own else first
    cell = (page.width - 2 * MARGIN - 52) / LINE
    for start in first:
        page.text(MARGIN + 46, y + 14, str(start), size=10, anchor="end", mono=True, kind="muted")
        for byte in (found.lines(start, 1) or [[]])[0]:
            kind = "pad" if byte.padding else KINDS[byte.row // 32 % 4]
            x = MARGIN + 52 + (byte.offset - start) * cell
            label = "" if byte.padding else byte.label
            points = fitting(label, cell - 3, 10)
            split = text_width(label, points, mono=True) > cell - 3
            page.cell(x, y, cell, 20, "" if split else label, kind, size=points, title=byte.title)
            for line, part in enumerate(label.partition(",")[::2] if split else ()):
                page.text(x + cell / 2, y + 8.5 + 9 * line, part, size=8, anchor="middle", mono=True)
            if place and (byte.row, byte.column) == place.scale:
                page.mark(x, y, cell, 20)
        y += 24
    return y
