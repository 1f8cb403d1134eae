"""Layouts as text, for a terminal: the byte of every scale, and the scale of every byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import wrap

from fp4ref.diagrams.place import ElementPlace, Geometry, named
from fp4ref.diagrams.request import Request, clipped
from fp4ref.diagrams.scale_map import LINE, Byte, ScaleMap, unused
from fp4ref.layout import TILED_128X4

MOST = (64, 24)  # rows and columns of scales in a window
COLUMNS = 8  # that are shown without one, or half of them
LINES = 4
WIDTH = 96  # characters of a line, as far as its words and cells can be parted


def layout_text(request: Request, width: int = WIDTH) -> str:
    """Print the layout of a request as text. Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5."""
    layout = request.layout or TILED_128X4
    geometry = Geometry(request.spec, request.shape or (300, 160), request.direction)
    place = geometry.place(*request.element) if request.element else None
    found = ScaleMap(geometry, layout)
    parts = [*_wrapped(f"{layout.name} [{layout.rule}]: {found.caption()}", width), ""]
    parts += [part for line in [*found.digits(), *found.expressions()] for part in sum_lines(line, width, "  ")]
    parts += ["", "byte of scale (row, column):", *_table(found, _rows(request, found, place, width), place)]
    first = found.offset(*place.scale) // LINE * LINE if place else 0
    lines = found.lines(first, LINES)
    dashes = " or ".join(unused(lines))
    heading = "scale (row,column) at each byte" + (f"; -- is {dashes}:" if dashes else ":")
    parts += ["", heading, *_memory(lines, place, width)]
    if place:
        parts += ["", *_wrapped(place.sentence(named(layout)), width)]
        parts += [part for line in place.sums((layout.name,)) for part in sum_lines(line, width)]
    return "\n".join(parts) + "\n"


def sum_lines(text: str, width: int, indent: str = "") -> list[str]:
    """Return lines of a sum, broken between its terms only."""
    whole = re.sub(r"(?<![+=:]) (?![+=])", "\N{NO-BREAK SPACE}", text)
    lines = wrap(whole, width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _wrapped(text: str, width: int) -> list[str]:
    """Return lines of a text: one for each of its parts, or several."""
    first, *others = text.split("; ")
    return [
        *wrap(first, width, subsequent_indent="  "),
        *(line for part in others for line in wrap(part, width, initial_indent="  ", subsequent_indent="  ")),
    ]


def _rows(request: Request, found: ScaleMap, place: ElementPlace | None, width: int) -> tuple[list[int], list[int]]:
    """Rows and columns of the table: the window's, or a sample that fits the width."""
    rows, columns = found.geometry.scales
    if request.window:
        down, across = clipped(f"diagram {found.layout.name}", request.window, (rows, columns), MOST)
        return list(range(*down)), list(range(*across))
    shown = COLUMNS if COLUMNS * (len(str(found.size)) + 4) <= width else COLUMNS // 2
    first = max(min(place.scale[1] // 4 * 4, columns - shown), 0) if place else 0
    return sorted(found.sampled_rows(place, 12)), list(range(first, min(first + shown, columns)))


def _table(found: ScaleMap, chosen: tuple[list[int], list[int]], place: ElementPlace | None) -> list[str]:
    rows, columns = chosen
    heads = [f"k={column}" for column in columns]
    size = max(len(str(found.size - 1)) + 2, *map(len, heads))
    name = max(5, len(str(max(rows))))
    lines = [f"{'row':>{name}} " + "".join(f"{head:>{size + 1}}" for head in heads)]
    for number, row in enumerate(rows):
        if number and row != rows[number - 1] + 1:
            lines.append("    …")
        cells = [_cell(str(found.offset(row, column)), place, (row, column)) for column in columns]
        lines.append(f"{row:>{name}} " + "".join(f"{cell:>{size + 1}}" for cell in cells))
    return lines


def _memory(lines: list[list[Byte]], place: ElementPlace | None, width: int) -> Iterator[str]:
    """Yield lines of memory, each as many bytes as fit."""
    labels = [[("--" if b.padding else _cell(b.label, place, (b.row, b.column))) for b in line] for line in lines]
    size = max((len(label) for line in labels for label in line), default=2)
    name = max(7, *(len(str(line[0].offset)) for line in lines)) if lines else 7
    across = next((n for n in (LINE, LINE // 2, LINE // 4) if name + 1 + n * (size + 1) <= width), LINE // 4)
    for line, row in zip(lines, labels, strict=True):
        for i in range(0, len(line), across):
            shown = " ".join(f"{label:>{size}}" for label in row[i : i + across])
            yield f"{line[i].offset:>{name}}: {shown}"


def _cell(text: str, place: ElementPlace | None, scale: tuple[int, int]) -> str:
    return f"[{text}]" if place and place.scale == scale else text
