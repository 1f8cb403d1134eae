"""Mistakes in where bytes lie: the candidate's buffers read as a kernel with the mistake wrote them.

A reader of scales is a map from (row, block) to a byte; a reader of data takes bytes apart into codes. The bytes that a
reader of scales does not touch are padding.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.conformance.mistakes.foreign import FOREIGN, is_tiled, tiles_exchanged
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.conformance.mistakes.said import moved
from fp4ref.formats import Codes, Format
from fp4ref.layout import Layout, scale_layouts

Offsets = NDArray[np.int64]
Place = Callable[[NDArray[np.int64], NDArray[np.int64], int, int], Offsets]  # (row, block, rows, blocks) -> byte


@dataclass(frozen=True)
class ScaleReader:
    """Scales in another place than the declared layout's. place None: the declared one.

    shares: some scales lie where others do, and only one of them is there.
    """

    name: str
    stage: Slot
    text: str
    place: Place | None = None
    shares: bool = False

    def offsets(self, declared: Layout, rows: int, blocks: int) -> Offsets:
        """Return the byte of every scale, [rows, blocks]."""
        row, block = np.arange(rows)[:, None], np.arange(blocks)[None, :]
        if self.place is None:
            return np.broadcast_to(declared.offset(row, block, blocks, rows), (rows, blocks))
        return np.broadcast_to(self.place(row, block, rows, blocks), (rows, blocks))


@dataclass(frozen=True)
class DataReader:
    """Codes in another order than low nibble first, row by row."""

    name: str
    stage: Slot
    text: str
    read: Callable[[Codes, tuple[int, int], Format], Codes | None]


def _padded(value: int, to: int) -> int:
    return -(-value // to) * to


def _by_layout(form: Layout, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    return np.asarray(form.offset(row, block, blocks, rows))


@lru_cache
def _taking_any_size(form: Layout) -> Layout:
    """Return a layout that pads the sizes which its owner refuses. Rules: LAY-15."""
    return Layout(form.name, re.sub(r"; pad \w+( \d+)? refused", "", form.text), form.rule)


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
    return _by_layout(tiles_exchanged(form), row, block, rows, blocks)


def _unpadded_tiles(row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """128x4 tiles whose stride does not count the padding columns."""
    tiles = blocks // 4 or 1
    return np.asarray((row // 128 * tiles + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4)


def _compact_tiles(row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """128x4 tiles of which the last of a row of tiles is only as wide as the blocks that are left."""
    left = block // 4 * 4
    wide = np.minimum(blocks - left, 4)
    inside = row % 32 * 4 * wide + row % 128 // 32 * wide + block % 4
    return np.asarray(row // 128 * 128 * blocks + left * 128 + inside)


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


LOST = 0xFF  # in the place of a 4-bit code that was never stored
ABSENT = 0x100  # the same, of codes that are held in 16 bits
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
            partial(_by_layout, _taking_any_size(form)),
        )
    for form in filter(is_tiled, scale_layouts()):
        words = form.name.removeprefix("tiled_")
        named = _places(tiles_exchanged(form)) in {*others, _places(declared)}
        yield from (
            ScaleReader(f"layout-{words}-{name}", Slot.LAYOUT, text, partial(place, form))
            for name, text, place in (
                ("twice", f"scales are laid out in {words} tiles twice", _twice),
                ("undone", f"scales are permuted by the inverse of the {words} layout", _undone),
                ("down", f"{words} tiles follow each other down the rows first (tile axes exchanged)", tiles_down),
                ("transposed", f"scales are transposed and then laid out in {words} tiles", _transposed_layout),
            )
            if not (named and name == "down")  # then it is told by the name of that layout
        )
    for text, form in FOREIGN:
        if _places(form) not in others and _places(form) != _places(declared):
            yield ScaleReader(f"layout-{form.name}", Slot.LAYOUT, text, partial(_by_layout, form))
    yield ScaleReader(
        "layout-unpadded",
        Slot.LAYOUT,
        "the stride of 128x4 tiles does not count padding columns",
        _unpadded_tiles,
        shares=True,
    )
    yield ScaleReader(
        "layout-compact",
        Slot.LAYOUT,
        "the last 128x4 tile of a row of tiles is as wide as the blocks that are left, not padded to 4",
        _compact_tiles,
    )
    yield ScaleReader("layout-transposed", Slot.LAYOUT, "scales are transposed", _transposed)
    for count in (2, 4, 8):
        yield ScaleReader(
            f"scale-bytes-reversed-{count}",
            Slot.PACKING,
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
                )


# Data


def unpacked(data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    """Unpack as the standard packs. Rules: PACK-1, PACK-3."""
    rows, columns = shape
    width = packing.width(columns, form)
    if data.size != rows * width:
        return None
    return packing.unpack(np.ascontiguousarray(data).reshape(rows, width), columns, form)


def _swapped(data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    return unpacked(data << np.uint8(4) | data >> np.uint8(4), shape, form) if form.bits == 4 else None


def _transposed_data(data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    codes = unpacked(data, shape[::-1], form)
    return None if codes is None else codes.T


def _column_major_bytes(data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    width = packing.width(shape[1], form)
    return unpacked(data.reshape(width, shape[0]).T, shape, form) if data.size == width * shape[0] else None


def _bytes_reversed(count: int, data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    flat = np.ascontiguousarray(data).reshape(-1)
    if flat.size % count:
        return None
    return unpacked(flat.reshape(-1, count)[:, ::-1].reshape(-1), shape, form)


def _word_reversed(count: int, data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    """Element 0 in the highest nibble of a word."""
    turned = _bytes_reversed(count, data, shape, form)
    if turned is None or form.bits == 8 or shape[1] % 2:
        return None
    return turned.reshape(*shape[:1], -1, 2)[..., ::-1].reshape(shape)


def _halves(size: int, data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    """Elements i and i + size / 2 of a group share a byte, the first in the low nibble; what has no byte is LOST."""
    rows, columns = shape
    width = packing.width(columns, form)
    if form.bits == 8 or data.size != rows * width:
        return None
    padded = np.pad(np.asarray(data).reshape(rows, width), ((0, 0), (0, -width % (size // 2))))
    groups = padded.reshape(rows, padded.shape[1] // (size // 2), size // 2)
    codes = np.concatenate([groups & 15, groups >> 4], axis=2).reshape(rows, groups.shape[1] * size)
    place = np.arange(codes.shape[1])
    codes[:, place // size * (size // 2) + place % (size // 2) >= width] = LOST
    return codes[:, :columns]


def _row_halves(data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    return None if shape[1] % 2 else _halves(shape[1], data, shape, form)


def _pairs_of_rows(data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    """Elements of rows 2i and 2i + 1 share a byte."""
    rows, columns = shape
    if form.bits == 8 or rows % 2 or data.size * 2 != rows * columns:
        return None
    flat = np.ascontiguousarray(data).reshape(rows // 2, columns)
    return np.stack([flat & 15, flat >> 4], axis=1).reshape(shape)


def _flipped_rows(data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    codes = unpacked(data, shape, form)
    return None if codes is None else codes[::-1]


def _rows_reversed(count: int, data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    codes = unpacked(data, shape, form)
    if codes is None:
        return None
    whole = shape[0] // count * count
    turned = codes[:whole].reshape(whole // count, count, shape[1])[:, ::-1].reshape(whole, shape[1])
    return np.concatenate([turned, codes[whole:]])


def _flipped_columns(data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    codes = unpacked(data, shape, form)
    return None if codes is None else codes[:, ::-1]


def _reversed_bits(data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    codes = unpacked(data, shape, form)
    if codes is None:
        return None
    table = np.array([int(f"{i:0{form.bits}b}"[::-1], 2) for i in range(1 << form.bits)], np.uint8)
    return table[codes]


def _permuted(order: tuple[int, ...], data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    """Elements of a group stand at other places of it."""
    codes = unpacked(data, shape, form)
    if codes is None or shape[1] % len(order):
        return None
    return codes.reshape(shape[0], -1, len(order))[..., list(order)].reshape(shape)


LOW_FIRST = DataReader("", Slot.PACKING, "", unpacked)
DATA_READERS = (
    DataReader("nibbles", Slot.PACKING, "the high nibble comes first", _swapped),
    DataReader("data-transposed", Slot.DIRECTION, "data is transposed", _transposed_data),
    DataReader("data-bytes-transposed", Slot.DIRECTION, "bytes of data lie column by column", _column_major_bytes),
    DataReader("data-row-pairs", Slot.PACKING, "elements of two rows share a byte", _pairs_of_rows),
    *(
        DataReader(
            f"data-bytes-reversed-{n}",
            Slot.PACKING,
            f"bytes of data are in reverse order within words of {n}",
            partial(_bytes_reversed, n),
        )
        for n in (2, 4, 8)
    ),
    *(
        DataReader(
            f"data-words-{n}",
            Slot.PACKING,
            f"the first element is in the highest nibble of a word of {n} bytes",
            partial(_word_reversed, n),
        )
        for n in (2, 4, 8)
    ),
    *(
        DataReader(
            f"data-halves-{n}",
            Slot.PACKING,
            f"elements i and i + {n // 2} share a byte instead of 2i and 2i + 1",
            partial(_halves, n),
        )
        for n in (4, 8, 16, 32, 64, 128)
    ),
    DataReader(
        "data-row-halves", Slot.PACKING, "the two halves of a row share bytes, low and high nibbles", _row_halves
    ),
    *(
        DataReader(
            f"data-rows-{'pairs' if n == 2 else n}",
            Slot.DIRECTION,
            moved(range(n)[::-1], "rows of elements"),
            partial(_rows_reversed, n),
        )
        for n in (2, 4, 8, 16, 32)
    ),
    DataReader("data-rows-reversed", Slot.DIRECTION, "rows of data are in reverse order", _flipped_rows),
    DataReader("data-columns-reversed", Slot.DIRECTION, "elements are in reverse order along a row", _flipped_columns),
    DataReader("data-bits-reversed", Slot.PACKING, "the bits of each code are in reverse order", _reversed_bits),
    DataReader(
        "data-interleaved-8",
        Slot.PACKING,
        "elements of each 8 are stored with even places first, 0 2 4 6 1 3 5 7",
        partial(_permuted, (0, 4, 1, 5, 2, 6, 3, 7)),
    ),
    DataReader(
        "data-interleaved-8b",
        Slot.PACKING,
        "elements of each 8 are stored as two halves in turn, 0 4 1 5 2 6 3 7",
        partial(_permuted, (0, 2, 4, 6, 1, 3, 5, 7)),
    ),
)


def fits(offsets: Offsets, size: int) -> bool:
    """Return True if every scale has a byte of its own in a buffer."""
    if offsets.size == 0:
        return True
    return int(offsets.min()) >= 0 and int(offsets.max()) < size and size >= offsets.size
