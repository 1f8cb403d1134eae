"""The figure of a scale layout: the tiles of a buffer, and one of them byte by byte."""

from __future__ import annotations

from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.place import ElementPlace, Geometry, named
from fp4ref.diagrams.request import Request, clipped
from fp4ref.diagrams.scale_map import LINE, Byte, ScaleMap, unused
from fp4ref.diagrams.text_width import text_width, wrap
from fp4ref.layout import TILED_128X4

KINDS = "abcd"
MOST_TILES = (16, 12)
NEAR_TILES = (4, 6)  # that are drawn around an element of a large tensor
CELL = (36, 15)  # pixels of a byte
MEMORY_LINES = 32
LONGEST = 8  # characters of a label that fit in a byte's cell


def scale_layout(request: Request) -> str:
    """Return a layout of a tensor's scales: tile order with padding, then the bytes of one tile in memory order.

    Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5.
    """
    layout = request.layout or TILED_128X4
    geometry = Geometry(request.spec, request.shape or (300, 288), request.direction)
    found = ScaleMap(geometry, layout)
    place = geometry.place(*request.element) if request.element else None
    title = f"Scale layout {layout.name}: where scale (m, k) is stored"
    said = place.sentence(named(layout)) if place else ""
    summary = f"{found.caption()}. {said}".strip()
    page = Canvas(title, f"{summary} {'; '.join(found.digits())}.", request.theme)
    y = page.heading(title)
    y = page.lines(MARGIN, y + 4, wrap(found.caption(), page.width - 2 * MARGIN, 12), kind="muted")
    first = _first_byte(request, found, place)
    if found.tiled:
        y = _tiles(page, y + 6, request, found, place)
    y = _bytes(page, y + 26, found, first, place)
    room = page.width - 2 * MARGIN
    y = page.lines(MARGIN, y + 22, [f"offset of scale (m, k), {layout.rule}:"], size=12, bold=True)
    for line in found.expressions():
        y = page.lines(MARGIN, y, wrap(line, room, 11, mono=True), size=11, mono=True)
    if place:
        y = page.lines(MARGIN, y + 8, wrap(said, room, 12, bold=True), kind="mark", bold=True)
        sums = place.sums((layout.name,))[0]
        page.lines(MARGIN, y + 2, wrap(sums, room, 12, mono=True, bold=True), kind="mark", mono=True, bold=True)
    return page.svg()


def _first_byte(request: Request, found: ScaleMap, place: ElementPlace | None) -> int:
    """First byte of the drawn piece of memory: that of the element's tile, or of the window's first scale."""
    if request.window:
        clipped(f"diagram {found.layout.name}", request.window, found.padded, found.padded)
    size = found.layout.tile[0] * found.layout.tile[1] if found.tiled else LINE * MEMORY_LINES
    scale = place.scale if place else (request.window[0][0], request.window[1][0]) if request.window else (0, 0)
    return found.offset(*scale) // size * size


def _tiles(page: Canvas, y: float, request: Request, found: ScaleMap, place: ElementPlace | None) -> float:
    """All tiles in a grid, numbered in memory order, their padding hatched."""
    high, wide = found.layout.tile
    (rows, columns), (down, across) = found.geometry.scales, found.grid
    window = request.window
    if window:
        (top, bottom), (left, right) = window
        window = (top // high, -(-bottom // high)), (left // wide, -(-right // wide))
    (top, bottom), (left, right) = _window(found, window, (down, across), place)
    label = 12 + text_width(f"m {bottom * high}–{bottom * high}", 10)
    size = min(112.0, (page.width - 2 * MARGIN - label) / (right - left))
    tall = 44.0
    for column in range(left, right):
        words = [f"k {column * wide}–{column * wide + wide - 1}", f"k {column * wide}", f"{column * wide}"]
        text, points = _largest(words, size - 4)
        page.text(
            MARGIN + label + (column - left + 0.5) * size, y + 10, text, size=points, anchor="middle", kind="muted"
        )
    y += 16
    for row in range(top, bottom):
        line = y + (row - top) * tall
        page.text(
            MARGIN + label - 8,
            line + tall / 2 + 4,
            f"m {row * high}–{row * high + high - 1}",
            size=10,
            anchor="end",
            kind="muted",
        )
        for column in range(left, right):
            x = MARGIN + label + (column - left) * size
            first = found.offset(row * high, column * wide)
            number = first // (high * wide)
            used = min(max(rows - row * high, 0), high) / high, min(max(columns - column * wide, 0), wide) / wide
            text = f"tile {number}: bytes {first} to {first + high * wide - 1}"
            page.box(x, line, size, tall, "pad", title=f"{text}, hatched part padding")
            page.box(x, line, size * used[1], tall * used[0], "paper", stroke="none", title=text)
            page.box(x, line, size, tall, "none")
            _plate(page, x + size / 2, line + 18, [f"tile {number}", str(number)], size - 10, bold=True)
            last = first + high * wide - 1
            _plate(page, x + size / 2, line + 34, [f"{first}–{last}", f"{first} …", f"{first}"], size - 10)
            if place and (place.scale[0] // high, place.scale[1] // wide) == (row, column):
                page.mark(x + 2, line + 2, size - 4, tall - 4)
    y += (bottom - top) * tall
    way = "down the rows, then across" if found.layout.takes_rows else "along a row, then down"
    fills = sorted({f"0x{axis.fill or 0:02x}" for axis in found.layout.axes})
    note = f"Tiles follow each other {way}. Hatched: padding, {' or '.join(fills)}."
    page.text(MARGIN + label, y + 16, note, size=11, kind="muted")
    return y + 20


def _window(
    found: ScaleMap,
    window: tuple[tuple[int, int], tuple[int, int]] | None,
    grid: tuple[int, int],
    place: ElementPlace | None,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Tiles to draw. A grid that is too large is refused in the caller's units, scales."""
    high, wide = found.layout.tile
    in_scales = None
    if window:
        in_scales = (window[0][0] * high, window[0][1] * high), (window[1][0] * wide, window[1][1] * wide)
    most, near = ((down * high, across * wide) for down, across in (MOST_TILES, NEAR_TILES))
    size = grid[0] * high, grid[1] * wide
    (top, bottom), (left, right) = clipped(
        f"diagram {found.layout.name}", in_scales, size, most, place.scale if place else None, near
    )
    return (top // high, bottom // high), (left // wide, right // wide)


def _largest(
    texts: list[str], room: float, mono: bool = False, sizes: tuple[float, ...] = (10, 9, 8)
) -> tuple[str, float]:
    """Return the first text that fits, and its size; if all are too wide, the last and a size at which it fits."""
    fits = ((text, size) for text in texts for size in sizes if text_width(text, size, mono) <= room)
    return next(fits, (texts[-1], max(room / text_width(texts[-1], 1, mono), 7)))


def _plate(page: Canvas, x: float, y: float, texts: list[str], room: float, bold: bool = False) -> None:
    """Draw the longest text that fits, on a plate that keeps it off a hatch."""
    text, size = _largest(texts, room, mono=True)
    width = text_width(text, size, mono=True) + 4
    page.box(x - width / 2, y - size, width, size + 3, "paper", stroke="none")
    page.text(x, y, text, size=size, anchor="middle", mono=True, bold=bold)


def _bytes(page: Canvas, y: float, found: ScaleMap, first: int, place: ElementPlace | None) -> float:
    """Return a tile, or the start of a linear buffer, in memory order: 16 bytes to a line."""
    tiled = found.tiled
    count = found.layout.tile[0] * found.layout.tile[1] if tiled else LINE * MEMORY_LINES
    lines = found.lines(first, -(-count // LINE))
    left = MARGIN + 132
    what = f"Tile {first // count} in memory" if tiled else f"Memory from byte {first}"
    page.text(left, y, f"{what}: the scale (m, k) at each byte, {LINE} bytes to a line", size=12, bold=True)
    y += 8
    for number in range(LINE):
        page.text(
            left + 50 + (number + 0.5) * CELL[0], y + 10, f"+{number}", size=9, anchor="middle", mono=True, kind="muted"
        )
    y += 14
    drawn = [byte for line in lines for byte in line if not byte.padding]
    base = _origin(found.byte(first), [] if tiled else drawn)
    relative = _longest(drawn) > LONGEST
    two_lines = relative and _longest(drawn, base) > LONGEST
    relative = relative and not two_lines
    high = 2 * CELL[1] if two_lines else CELL[1]
    longest = _longest(drawn, base if relative else None)
    size = 7 if longest > 6 else 8 if longest > 5 or relative else 9
    for number, line in enumerate(lines):
        top = y + number * high
        page.text(left + 44, top + 11, str(line[0].offset), size=9, anchor="end", mono=True, kind="muted")
        for byte in line:
            kind = "pad" if byte.padding else _kind(found, byte.row)
            x = left + 50 + (byte.offset - line[0].offset) * CELL[0]
            label = "" if byte.padding or two_lines else _label(byte, base if relative else None)
            page.cell(x, top, CELL[0], high, label, kind, size=size, title=byte.title)
            if two_lines and not byte.padding:
                for below, text in ((11, f"{byte.row},"), (11 + CELL[1], f"{byte.column}")):
                    page.text(x + CELL[0] / 2, top + below, text, size=7, anchor="middle", mono=True)
            if place and (byte.row, byte.column) == place.scale and not byte.padding:
                page.mark(x, top, CELL[0], high)
    return max(y + len(lines) * high, _legend(page, y, found, base, relative, lines))


def _origin(first: Byte, drawn: list[Byte]) -> Byte:
    """Return the place from which labels count: the least row and column that are drawn, or the first byte's."""
    if not drawn:
        return first
    return Byte(first.offset, min(byte.row for byte in drawn), min(byte.column for byte in drawn))


def _label(byte: Byte, base: Byte | None = None) -> str:
    return byte.label if base is None else f"{byte.row - base.row},{byte.column - base.column}"


def _longest(drawn: list[Byte], base: Byte | None = None) -> int:
    return max((len(_label(byte, base)) for byte in drawn), default=0)


def _kind(found: ScaleMap, row: int) -> str:
    tiled = found.tiled
    return KINDS[(row // found.band if tiled else row) % 4]


def _legend(page: Canvas, y: float, found: ScaleMap, base: Byte, relative: bool, lines: list[list[Byte]]) -> float:
    """Draw the legend of the fills, at the left of the bytes."""
    row, column = base.row, base.column
    _, wide = found.layout.tile
    if found.tiled:
        page.text(MARGIN, y + 9, "the tile's rows:", size=11, kind="muted")
        names = [
            f"m {row + i * found.band}–{row + (i + 1) * found.band - 1}" if found.band > 1 else f"m % 4 = {i}"
            for i in range(4)
        ]
    else:
        page.text(MARGIN, y + 9, "rows:", size=11, kind="muted")
        names = [f"m % 4 = {i}" for i in range(4)]
    for number, name in enumerate(names):
        page.cell(MARGIN, y + 18 + number * 26, 112, 22, name, KINDS[number], size=10)
    y += 18 + len(names) * 26
    for word in unused(lines):
        page.cell(MARGIN, y, 20, 18, "", "pad")
        page.text(MARGIN + 26, y + 13, word, size=11, kind="muted")
        y += 24
    notes = [f"k {column}–{column + wide - 1} in bytes", "of one row side by side"] if found.tiled else []
    if relative:
        notes += ["labels count from", f"scale ({row}, {column})"]
    return page.lines(MARGIN, y + 14, notes, size=10, kind="muted")
