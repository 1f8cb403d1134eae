"""Pictures of how a convention stores a small tensor: the first bytes of its elements and scales."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from fp4ref.checkpoints.convention import Convention, ScaleWay, square_grid
from fp4ref.packings import bit_of

SHAPE, SHOWN = (2, 64), 6  # the tensor of the pictures, and the bytes of a row that are drawn
CELL, HIGH, LEFT, WIDE = 84, 26, 330, 860
STYLE = (
    ".role{font:13px ui-monospace,monospace;fill:currentColor}.box{fill:none;stroke:currentColor;stroke-opacity:.4}"
    ".here{fill:#c33;fill-opacity:.18;stroke:#c33;stroke-width:2}"
)


class Strip(NamedTuple):
    """Consecutive bytes of a tensor. first: the number of the first. more: others follow in the same row."""

    role: str
    first: int
    cells: tuple[str, ...]
    more: bool = False


def strips(convention: Convention) -> Iterator[Strip]:
    """Yield the bytes of the elements, row by row, and those of the scales, of a tensor of SHAPE.

    A cell has the elements of a byte, the low half first, as ROW.COLUMN; those of scales have ROW.BLOCK.
    """
    rows, columns = SHAPE
    held: dict[int, list[tuple[int, str]]] = {}
    for row in range(rows):
        for column in range(columns):
            four = convention.bits == 4
            place, bit = bit_of(convention.packing, SHAPE, row, column) if four else (row * columns + column, 0)
            held.setdefault(place, []).append((bit, f"{row}.{column}"))
    width = (max(held) + 1) // rows
    for row in range(rows):
        places = range(row * width, row * width + SHOWN)
        names = ("+".join(name for _, name in sorted(held[place])) if place in held else "scale" for place in places)
        yield Strip("codes", places[0], tuple(names), more=True)
    if convention.scales is None:
        return
    if not convention.scale:
        yield Strip("scales", 0, tuple(_numbers(convention)))
        return
    blocks = columns // convention.block[1]
    layout = convention.layout
    stored = {
        layout.offset(row, block, columns=blocks): f"{row}.{block}" for row in range(rows) for block in range(blocks)
    }
    across = layout.padded_shape(rows, blocks)[1]
    for first in sorted({place // across * across for place in stored}):
        yield Strip("scales", first, tuple(stored.get(place, "...") for place in range(first, first + across)))


def _numbers(convention: Convention) -> Iterator[str]:
    """Yield what each of a convention's float scales is for."""
    part = convention.granularity
    if part == "tensor":
        yield "tensor"
    elif part == "row":
        yield from (f"row {row}" for row in range(SHAPE[0]))
    else:
        down, across = square_grid(convention.block, SHAPE)
        yield from (f"{row}.{column}" for row in range(down) for column in range(across))


def picture(convention: Convention, role: str, title: str) -> str:
    """Return a drawing in SVG of how a convention stores a tensor of SHAPE, in which one role is marked."""
    lines = [*strips(convention)]
    for name, place in convention.roles.items():
        if name in {"global_scale", "input_scale"} and place is not None:
            direction = convention.global_direction if name == "global_scale" else convention.input_direction
            way = f"{direction.way}" + ("" if direction.way is ScaleWay.NONE else f" of {direction.constant:g}")
            lines.append(Strip(name, 0, (way if direction.way is not ScaleWay.NONE else "number",)))
    drawn = "".join(_line(convention, each, number, each.role == role) for number, each in enumerate(lines))
    height = len(lines) * (HIGH + 8) + 8
    return (
        f'<svg role="img" viewBox="0 0 {WIDE} {height}" width="100%" style="max-width:{WIDE}px">'
        f"<title>{escape(title)}</title>{drawn}</svg>"
    )


def _line(convention: Convention, strip: Strip, number: int, marked: bool) -> str:
    """Return the boxes of a strip, after the name of its tensor."""
    top = 6 + number * (HIGH + 8)
    name = f"{convention.stem.format(module='X')}{convention.roles[strip.role].suffix}, byte {strip.first}"
    cells = [*strip.cells, *(["..."] if strip.more else [])]
    wide = min(CELL, (WIDE - LEFT - 4) / len(cells))
    if len(cells) == 1:
        wide = 3 * CELL
    kind = "here" if marked else "box"
    boxes = "".join(
        f'<rect class="{kind}" x="{LEFT + index * wide:.0f}" y="{top}" width="{wide:.0f}" height="{HIGH}"/>'
        f'<text class="role" text-anchor="middle" x="{LEFT + (index + 0.5) * wide:.0f}" y="{top + 18}">{escape(cell)}'
        "</text>"
        for index, cell in enumerate(cells)
    )
    return f'<text class="role" x="0" y="{top + 18}">{escape(name)}</text>{boxes}'
