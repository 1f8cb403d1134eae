"""The figure of any registered layout or packing: the first bytes of a buffer, and what is stored in each."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import relayouts
from fp4ref.diagrams.canvas import MARGIN, Canvas
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.text_width import fitting, wrap
from fp4ref.errors import ShapeError
from fp4ref.layout import ORIGINS, TILED_128X4, Layout

LINES = 24
LINE_BITS, MOST_UNITS = 128, 32  # of a drawn line
LEAST = 2  # indices of an axis: whole multiples of its padding, and no fewer
MOST_DRAWN = 1 << 16  # units of a sample whose buffer is drawn
MOST_GIVEN = 1 << 20  # and of an array of given sizes
HIGH = 20.0


class Drawn(NamedTuple):
    """The start of a buffer. owners: for each unit the index stored there, or -1 on every axis for a gap."""

    sizes: tuple[int, ...]
    owners: NDArray[np.int64]


def sample(form: Layout) -> tuple[int, ...]:
    """Return sizes of an array small enough to draw, and large enough to show every digit of a layout."""
    sizes = [max(math.ceil(LEAST / axis.multiple), 1) * axis.multiple for axis in form.axes]
    for number in sorted(range(len(sizes)), key=lambda number: sizes[number]):
        if form.axes[number].multiple == 1 and form.unit < 32:
            sizes[number] *= 2
    last = len(sizes) - 1
    while math.prod(sizes) * 2 <= LINES * LINE_BITS // form.unit and math.prod(sizes) <= MOST_DRAWN:
        sizes[last] *= 2
    return tuple(sizes)


def drawn(form: Layout, given: tuple[int, ...] | None = None) -> Drawn:
    """Return the start of a buffer of a layout, unit by unit, of a sample or of an array of given sizes.

    Rules: LAY-13, LAY-32.
    """
    sizes = sample(form) if given is None else _required(form, given)
    index = np.indices(sizes).reshape(len(sizes), -1)
    offsets = np.broadcast_to(form.offsets(list(np.ogrid[tuple(map(slice, sizes))]), sizes), sizes).reshape(-1)
    owners = np.full((math.prod(form.padded_shape(*sizes)), len(sizes)), -1)
    owners[offsets] = index.T
    return Drawn(sizes, owners)


def _required(form: Layout, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes of an array if it can be drawn."""
    got, axes = "x".join(map(str, sizes)), ", ".join(axis.name for axis in form.axes)
    if len(sizes) != len(form.axes) or 0 in sizes:
        needed = f"{len(form.axes)} sizes of at least 1, of {axes}"
        raise ShapeError(f"diagram {form.name}", f"shape {got}", needed, "LAY-32")
    if math.prod(form.padded_shape(*sizes)) > MOST_GIVEN:
        raise ShapeError(f"diagram {form.name}", f"shape {got}", f"at most {MOST_GIVEN:,} units to draw")
    return sizes


def point(request: Request) -> str:
    """Return the sentence on where a layout first leaves the order of rows, and who reads it. Rules: LAY-13."""
    form = request.layout or TILED_128X4
    found = drawn(form, request.sizes).owners
    found = found[(found >= 0).all(axis=1)]
    along = np.eye(len(form.axes), dtype=np.int64)[-1]
    last = int(np.argmax((np.diff(found, axis=0) != along).any(axis=1)))  # before the first jump
    first, end, then = ("(" + ", ".join(map(str, found[i].tolist())) + ")" for i in (0, last, last + 1))
    run = f"runs along {form.axes[-1].name} to {end}" if last else f"begins with {first}"
    consumer = relayouts.consumer(form.name)
    return f"{form.name} {run}, then comes {then}.{f' Read by: {consumer}.' if consumer else ''}"


def memory_order(request: Request) -> str:
    """Draw the first lines of a buffer, each unit with its index, and name who reads it.

    Rules: LAY-13, LAY-18, PACK-7, PACK-9.
    """
    form = request.layout or TILED_128X4
    found, names = drawn(form, request.sizes), [axis.name for axis in form.axes]
    title = f"{form.name} in memory: the index ({', '.join(names)}) of each unit"
    consumer = relayouts.consumer(form.name)
    said = [f"{form.text}. Units of {form.unit} bits; the array is {' x '.join(map(str, found.sizes))}."]
    if consumer:
        origin = ORIGINS[form.name]
        said.append(
            f"Read by: {consumer}. Written by: {origin.owner} {origin.version}, {origin.note}; {origin.checked}."
        )
    page = Canvas(title, " ".join(said), request.theme)
    y, room = page.heading(title) + 4, page.width - 2 * MARGIN
    y = page.lines(MARGIN, y, wrap(said[0], room, 11, mono=True), size=11, mono=True)
    for words in said[1:]:
        y = page.lines(MARGIN, y, wrap(words, room, 11), size=11, kind="muted")
    per_line = min(LINE_BITS // form.unit, MOST_UNITS)
    start = int(np.argmax((found.owners >= 0).all(1))) // per_line  # a layout may begin behind another one's bytes
    lines = min(-(-len(found.owners) // per_line) - start, LINES)
    for number in range(lines):
        _line(page, y + 6 + number * (HIGH + 3), form, found, (start + number) * per_line, per_line)
    legend = f"Every line is {per_line * form.unit // 8} bytes; the number at its left is that of the first one. "
    legend += f"A cell has {', then '.join(names)}."
    if lines * per_line < (stored := len(found.owners) - start * per_line):
        legend += f" Drawn are {lines * per_line * form.unit // 8} of {stored * form.unit // 8} bytes."
    if form.unit == 4:
        legend += " Two cells are a byte, its low nibble first."
    if (found.owners[start * per_line :][: lines * per_line] < 0).any():
        legend += " Hatched: padding, or bytes that this layout leaves to others."
    page.lines(MARGIN, page.bottom + 18, wrap(legend, room, 11), size=11, kind="muted")
    return page.svg()


def _line(page: Canvas, y: float, form: Layout, found: Drawn, first: int, count: int) -> None:
    """Draw a line of units; the index of each above each other, the first axis on top."""
    left = MARGIN + 46.0
    wide = (page.width - MARGIN - left) / count
    page.text(left - 6, y + 14, str(first * form.unit // 8), size=9, anchor="end", mono=True, kind="muted")
    for place, index in enumerate(found.owners[first : first + count]):
        x, at = left + place * wide, first + place
        gap = bool((index < 0).any())
        words = [] if gap else _words(index)
        told = f"{form.unit}-bit unit {at}: " + ("not of this layout" if gap else f"({', '.join(map(str, index))})")
        page.box(x, y, wide, HIGH, "pad" if gap else "abcd"[int(index[-2]) % 4], title=told)
        for number, text in enumerate(words):
            size = fitting(text, wide - 2.2, 8)
            page.text(x + wide / 2, y + 8.5 + 9 * number, text, size=size, anchor="middle", mono=True)


def _words(index: NDArray[np.int64]) -> list[str]:
    """Return an index as two short lines: its first axes, and the last one."""
    *slow, fast = map(str, index)
    return [",".join(slow), fast]
