"""Mistakes in where bytes are stored: the candidate's buffers read as a kernel with the mistake wrote them.

A reader of scales is a map from (row, block) to a byte; a reader of data takes bytes apart into codes. The bytes that a
reader of scales does not touch are padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.foreign import FOREIGN, is_tiled, tiles_exchanged
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.conformance.mistakes.tile_places import Offsets, Place, tile_places
from fp4ref.layout import STANDARD_LAYOUTS, Layout, scale_layouts


@dataclass(frozen=True)
class ScaleReader:
    """Scales in another place than the declared layout's. place None: the declared one.

    shares: some scales are stored where others are, and only one of them is there. remembered: False for one of
    thousands, each asked about once.
    """

    name: str
    stage: Slot
    text: str
    place: Place | None = None
    shares: bool = False
    remembered: bool = True

    def offsets(self, declared: Layout, rows: int, blocks: int) -> Offsets:
        """Return the byte of every scale, [rows, blocks]."""
        row, block = np.arange(rows)[:, None], np.arange(blocks)[None, :]
        if self.place is None:
            return np.broadcast_to(declared.offset(row, block, blocks, rows), (rows, blocks))
        return np.broadcast_to(self.place(row, block, rows, blocks), (rows, blocks))


def _padded(value: int, to: int) -> int:
    return -(-value // to) * to


def by_layout(form: Layout, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """Return where a layout has a scale, with the arguments of a reader's place."""
    return np.asarray(form.offset(row, block, blocks, rows))


@lru_cache
def _taking_any_size(form: Layout) -> Layout:
    """Return a layout that pads the sizes which its owner refuses. Rules: LAY-43."""
    axes = (axis._replace(multiple=axis.tile, refused=False) if axis.refused else axis for axis in form.axes)
    return Layout(form.name, str(replace(form.form, axes=tuple(axes))), form.rule)


def _places(form: Layout) -> Any:
    """Return the parts of a layout that decide offsets; the contents of padding have no influence."""
    return tuple((axis.radices, axis.multiple) for axis in form.axes), form.form.order, form.form.base


def _transposed_layout(form: Layout, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    return np.asarray(form.offset(block, row, rows, blocks))


def _transposed(row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    return np.asarray(block * rows + row)


def _twice(form: Layout, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """Return the offset of a scale if a laid out buffer is taken for a linear one and laid out again."""
    _, columns = form.padded_shape(rows, blocks)
    once = np.asarray(form.offset(row, block, blocks, rows))
    return np.asarray(form.offset(once // columns, once % columns, columns))


def _undone(form: Layout, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """Return the offset of a scale if a linear buffer is taken for a laid out one and put in order."""
    _, columns = form.padded_shape(rows, blocks)
    linear = np.asarray(row * columns + block)
    r, c = form.index(linear, columns)
    return np.asarray(r * columns + c)


def tiles_down(form: Layout, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """Return offsets if tiles follow each other down the rows first."""
    return by_layout(tiles_exchanged(form), row, block, rows, blocks)


def _tiles_by_height(form: Layout, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """Return offsets if the leading dimension of the tiles is that of the other direction; past the end they wrap."""
    high, wide = form.padded_shape(1, 1)
    down, across = _padded(rows, high) // high, _padded(blocks, wide) // wide
    inside = np.asarray(form.offset(row % high, block % wide, wide, high))
    return np.asarray((row // high * down + block // wide) % max(down * across, 1) * (high * wide) + inside)


def _digits(
    order: tuple[int, ...], split: int, high: int, wide: int, row: Any, block: Any, rows: int, blocks: int
) -> Offsets:
    """Digits (tile row, row // split, row % split, tile column, column in the tile) in some order, slowest first."""
    down, across = _padded(rows, high) // high, _padded(blocks, wide) // wide
    radix = (down, high // split, split, across, wide)
    digit = (row // high, row % high // split, row % split, block // wide, block % wide)
    offset = np.zeros(np.broadcast_shapes(np.shape(row), np.shape(block)), np.int64)
    for which in order:
        offset = offset * radix[which] + digit[which]
    return offset


DECLARED = ScaleReader("", Slot.LAYOUT, "")


def scale_readers(declared: Layout) -> Iterator[ScaleReader]:
    """Named places of scales other than the declared layout's."""
    others: dict[Any, Layout] = {}
    for form in scale_layouts(field=True):
        others.setdefault(_places(form), form)
    others.pop(_places(declared), None)
    for form in others.values():
        yield ScaleReader(
            f"layout-{form.name}",
            Slot.LAYOUT,
            f"scales are {form.name} where {declared.name} is declared",
            partial(by_layout, _taking_any_size(form)),
        )
    for form in filter(is_tiled, scale_layouts()):
        words = "x".join(map(str, form.tile)) if form in STANDARD_LAYOUTS else form.name
        named = _places(tiles_exchanged(form)) in {*others, _places(declared)}
        yield from (
            ScaleReader(f"layout-{words}-{name}", Slot.LAYOUT, text, partial(place, form), shares=name == "stride")
            for name, text, place in (
                ("twice", f"scales are laid out in {words} tiles twice", _twice),
                ("undone", f"scales are permuted by the inverse of the {words} layout", _undone),
                ("down", f"{words} tiles follow each other down the rows first (tile axes exchanged)", tiles_down),
                (
                    "stride",
                    f"the stride between rows of {words} tiles is the number of tiles down, not across",
                    _tiles_by_height,
                ),
                ("transposed", f"scales are transposed and then laid out in {words} tiles", _transposed_layout),
            )
            if not (named and name == "down")  # then it is told by the name of that layout
            if name != "stride" or _places(form) == _places(declared)
        )
    for text, form in FOREIGN:
        if _places(form) not in others and _places(form) != _places(declared):
            yield ScaleReader(f"layout-{form.name}", Slot.LAYOUT, text, partial(by_layout, form))
    for name, text, place, shares in tile_places(declared):
        yield ScaleReader(name, Slot.LAYOUT, text, place, shares=shares)
    yield ScaleReader("layout-transposed", Slot.LAYOUT, "scales are transposed", _transposed)
    for count in (2, 4, 8):
        yield ScaleReader(
            f"scale-bytes-reversed-{count}",
            Slot.LAYOUT,
            f"scale bytes are in reverse order within words of {count}",
            partial(_reversed, declared, count),
        )
    yield ScaleReader(
        "scale-rows-reversed",
        Slot.LAYOUT,
        "rows of scales are in reverse order",
        partial(_flip, declared, True, False),
    )
    yield ScaleReader(
        "scale-columns-reversed",
        Slot.LAYOUT,
        "scales are in reverse order along a row",
        partial(_flip, declared, False, True),
    )


def _flip(declared: Layout, down: bool, across: bool, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    row = rows - 1 - row if down else row
    block = blocks - 1 - block if across else block
    return np.asarray(declared.offset(row, block, blocks, rows))


def _reversed(declared: Layout, count: int, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    offset = np.asarray(declared.offset(row, block, blocks, rows))
    return np.asarray(offset // count * count + (count - 1 - offset % count))


def unreduced(declared: Layout) -> Iterator[tuple[str, str, Place]]:
    """Yield (name, text, offsets) of a layout's places if the modulo of one digit is missing; some lie outside."""
    for axis, what in enumerate(("row", "block")):
        weight = 1
        for radix in filter(None, declared.axes[axis].radices):
            digit = what if weight == 1 else f"{what} // {weight}"
            name = f"layout-no-modulo-{what}-{weight}"
            text = f"the offset of a scale is made of {digit} instead of {digit} % {radix}"
            yield name, text, partial(_unreduced, declared, axis, weight, radix)
            weight *= radix


def _unreduced(
    declared: Layout, axis: int, weight: int, radix: int, row: Any, block: Any, rows: int, blocks: int
) -> Offsets:
    unit = (weight, 0) if axis == 0 else (0, weight)
    stride = int(declared.offset(*unit, blocks, rows)) - int(declared.offset(0, 0, blocks, rows))
    digit = (row, block)[axis] // weight
    return np.asarray(declared.offset(row, block, blocks, rows) + (digit - digit % radix) * stride)


NAMES = ("tile row", "row // {0} % {1}", "row % {0}", "tile column", "block % {2}")


def digit_readers() -> Iterator[ScaleReader]:
    """Every order of the digits of a tiled layout, for tiles that have no name."""
    for high, wide in (
        (128, 4),
        (64, 4),
        (32, 4),
        (16, 4),
        (8, 4),
        (32, 8),
        (128, 8),
        (128, 2),
        (128, 16),
        (64, 2),
        (16, 16),
        (32, 2),
    ):
        for split in (s for s in (2, 4, 8, 16, 32, 64) if s <= high):
            if split == high and high != 8:
                continue
            for order in itertools.permutations(range(5)):
                words = "".join(f"[{NAMES[which].format(split, high // split, wide)}]" for which in order)
                yield ScaleReader(
                    f"layout-order-{high}x{wide}-{split}-{''.join(map(str, order))}",
                    Slot.LAYOUT,
                    f"scales are stored in tiles of {high}x{wide}, in the order {words}",
                    partial(_digits, order, split, high, wide),
                    remembered=False,
                )


def fits(offsets: Offsets, size: int) -> bool:
    """Return True if every scale has a byte of its own in a buffer."""
    if offsets.size == 0:
        return True
    return int(offsets.min()) >= 0 and int(offsets.max()) < size and size >= offsets.size
