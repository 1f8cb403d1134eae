"""Packings of 4-bit codes whose records follow each other: whole records are moved by tables of 16-bit words.

A record is the least number of columns after which a packing repeats. It holds the codes of these columns in bytes that
follow each other, in any order, and gaps before or behind them.

Rules: PACK-10, PACK-11.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import Codes
from fp4ref.layout import Layout

WORD, CHUNK = 4, 8  # codes of the words that are read, and of those that are written
PART = 1 << 20  # bytes of codes that are moved at a time


class PackedRecords(NamedTuple):
    """The records of a packing. size: bytes of one; first: the first byte with codes; order: the place of each code.

    A place counts codes from that byte on.
    """

    size: int
    first: int
    order: tuple[int, ...]


def records_of(form: Layout, shape: tuple[int, int], width: int) -> PackedRecords | None:
    """Return the records of a matrix, each of `width` columns; None if the packing has none for that shape.

    Rules: PACK-10.
    """
    rows, columns = shape
    if form.unit != 4 or form.axes[0].radices != (None,) or form.form.irregular or rows * columns == 0:
        return None
    if columns % width or width % CHUNK or width % form.axes[1].multiple:
        return None
    strides = form.strides(*shape)
    units = math.prod(form.padded_shape(*shape))
    records = rows * columns // width
    one = units // records
    places = strides.spread(1, np.arange(width)) + strides.first
    row = strides.spread(0, np.array([1])).item()
    step = strides.spread(1, np.array([width])).item() if columns > width else one
    follows = step == one and (rows == 1 or row == one * (columns // width))
    low = int(places.min())
    dense = int(places.max()) - low + 1 == width
    if units % records or not (follows and dense) or one % 2 or low % 2:
        return None
    return PackedRecords(one // 2, low // 2, tuple((places - low).tolist()))


def width_of(source: Layout, target: Layout) -> int:
    """Return the columns of a record of two packings."""
    return math.lcm(source.axes[1].multiple, target.axes[1].multiple, CHUNK)


def move(flat: Codes, result: Codes, source: PackedRecords, target: PackedRecords) -> None:
    """Move the codes of all records from one buffer to another, which holds 0 there."""
    data, moved = flat.reshape(-1, source.size), result.reshape(-1, target.size)
    count = len(source.order) // 2
    step = max(PART // count, 1)
    origin = dict(zip(target.order, source.order, strict=True))
    chunks = [_words(tuple(origin[place + at] for at in range(CHUNK))) for place in range(0, 2 * count, CHUNK)]
    for begin in range(0, len(data), step):
        part = np.ascontiguousarray(data[begin : begin + step, source.first : source.first + count])
        words = part.view("<u2")
        made = np.empty((len(part), len(chunks)), "<u4")
        for number, reads in enumerate(chunks):
            made[:, number] = _chunk(words, reads)
        moved[begin : begin + step, target.first : target.first + count] = made.view(np.uint8)


Places = tuple[tuple[int, int], ...]  # of codes: in a word that is read, and in the one that is written


@lru_cache(maxsize=1024)
def _words(codes: tuple[int, ...]) -> tuple[tuple[int, int, Places], ...]:
    """Return the words that a written one is made of: each with the places of its codes, from the first one on."""
    found: dict[int, list[tuple[int, int]]] = {}
    for place, code in enumerate(codes):
        found.setdefault(code // WORD, []).append((code % WORD, place))
    return tuple(
        (word, places[0][1], tuple((code, place - places[0][1]) for code, place in places))
        for word, places in found.items()
    )


def _chunk(words: NDArray[np.uint16], reads: tuple[tuple[int, int, Places], ...]) -> NDArray[np.uint32]:
    total = np.zeros(len(words), np.uint32)
    for word, shift, places in reads:
        total |= np.take(_table(places), words[:, word]) << np.uint32(4 * shift)
    return total


@lru_cache(maxsize=64)
def _table(places: Places) -> NDArray[np.uint32]:
    """Return the codes of each word at their new places."""
    every = np.arange(1 << 16, dtype=np.uint32)
    table = np.zeros_like(every)
    for code, place in places:
        table |= (every >> np.uint32(4 * code) & np.uint32(0b1111)) << np.uint32(4 * place)
    return table
