"""Packings that a kernel may have written instead of the declared one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from fp4ref import packing
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.conformance.mistakes.said import moved
from fp4ref.formats import Codes, Format


@dataclass(frozen=True)
class DataReader:
    """Codes in another order than low nibble first, row by row. fills: spare bits of a row hold codes, too."""

    name: str
    stage: Slot
    text: str
    read: Callable[[Codes, tuple[int, int], Format], Codes | None]
    fills: bool = False


LOST = 0xFF  # in the place of a code of 4 or 6 bits that was never stored
ABSENT = 0x100  # the same, of codes that are held in 16 bits


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


def _stream(data: Codes, shape: tuple[int, int], form: Format) -> Codes | None:
    """Read rows that follow each other without spare bits."""
    count, flat = shape[0] * shape[1], np.ascontiguousarray(data).reshape(1, -1)
    if form.bits == 8 or flat.size < packing.width(count, form):
        return None
    return packing.unpack(flat[:, : packing.width(count, form)], count, form).reshape(shape)


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
HIGH_FIRST = DataReader("nibbles", Slot.PACKING, "the high nibble comes first", _swapped)
DATA_READERS = (
    HIGH_FIRST,
    DataReader("data-transposed", Slot.DIRECTION, "data is transposed", _transposed_data),
    DataReader("data-bytes-transposed", Slot.DIRECTION, "bytes of data lie column by column", _column_major_bytes),
    DataReader("data-stream", Slot.PACKING, "rows of codes follow each other without spare bits", _stream, fills=True),
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
ALL_DATA_READERS = (LOW_FIRST, *DATA_READERS)
