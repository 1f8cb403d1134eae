"""Packings: at which bits of a buffer the codes of a matrix are stored, as layouts with units of 4, 6 or 8 bits.

Model and backends pack each width in one way, the canonical packing; `repack` converts at the border.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError, DTypeError, LayoutError, ShapeError
from fp4ref.formats import WIDTHS, Codes
from fp4ref.layout import LAYOUTS, LINEAR, ORIGINS, Layout
from fp4ref.layout.field_data import CODES
from fp4ref.layout.text import Form, Product, Term
from fp4ref.names import Names
from fp4ref.packed_records import move, records_of, width_of

PIECE = 1 << 18  # codes that a conversion moves at a time
CANONICAL = "canonical"

LOW_FIRST = Layout("low_first", "n(*) k(2,*): k0 k1 n0; unit 4", "PACK-1")
HIGH_FIRST = Layout("high_first", "n(*) k(2,*): k0^1 k1 n0; unit 4", "PACK-8")
PAIRS_8 = Layout("pairs_8", "n(*) k(8,2,*): k1 k0 k2 n0; unit 4", "PACK-8")
PAIRS_16 = Layout("pairs_16", "n(*) k(16,2,*): k1 k0 k2 n0; unit 4", "PACK-8")
WORDS_BIG = Layout("words_big", "n(*) k(2,4,*): k0 k1^3 k2 n0; unit 4", "PACK-8")
WORDS_HIGH_FIRST = Layout("words_high_first", "n(*) k(8,*): k0^7 k1 n0; unit 4", "PACK-8")
SIX_LOW_FIRST = Layout("six_low_first", "n(*) k(*): k0 n0; unit 6", "PACK-4")
CANONICAL_OF = {4: LOW_FIRST, 6: SIX_LOW_FIRST, 8: LINEAR}

STANDARD_PACKINGS = (*CANONICAL_OF.values(), HIGH_FIRST, PAIRS_8, PAIRS_16, WORDS_BIG, WORDS_HIGH_FIRST)

PACKINGS: Names[Layout] = Names("packing")
for _value, _source in (
    *((value, "this standard") for value in STANDARD_PACKINGS),
    *((entry.layout, str(entry.origin)) for entry in CODES),
):
    PACKINGS.register(_value, _source)
ORIGINS.update((entry.name, entry.origin) for entry in CODES)


def packing(given: Layout | str, bits: int | None = None) -> Layout:
    """Return a packing by its name, or the value itself.

    bits: the width that it must have. With it, the name "canonical" is that of the packing of model and backends, and a
    packing of bytes is that of the pairs of 4-bit codes in them.

    Errors: LayoutError for a value that cannot be a packing, or has units of another width.

    Rules: PACK-7, PACK-13.
    """
    if given == CANONICAL:
        if bits in CANONICAL_OF:
            return CANONICAL_OF[bits]
        raise LayoutError("packing", f"'canonical' for codes of {bits} bits", "a width: 4, 6 or 8", "PACK-7")
    known = LAYOUTS if isinstance(given, str) and given not in PACKINGS and given in LAYOUTS else PACKINGS
    found = given if isinstance(given, Layout) else known[given]
    if len(found.axes) != 2 or found.unit not in WIDTHS:
        got = f"{found.name!r} with {len(found.axes)} axes and units of {found.unit} bits"
        raise LayoutError("packing", got, "two axes and units of 4, 6 or 8 bits", "PACK-7")
    if shared := found.form.irregularities.get("LAY-20"):
        got = f"{found.name!r}, {shared}"
        raise LayoutError("packing", got, "a place for every code", "PACK-7")
    if bits == 4 and found.unit == 8:
        return _of_pairs(found)
    if bits not in {None, found.unit}:
        got = f"{found.name!r} with units of {found.unit} bits"
        raise LayoutError("packing", got, f"units of {bits} bits", "PACK-7")
    return found


@lru_cache
def _of_pairs(form: Layout) -> Layout:
    """Return a layout of bytes as that of the two codes in each byte, the first one low. Rules: PACK-14, PACK-15."""
    down, across = form.form.axes
    if down.fill or across.fill:
        raise LayoutError(
            "packing", f"{form.name!r} with padding other than 0x00", "0x00 around 4-bit codes", "PACK-15"
        )
    pairs = across._replace(radices=(2, *across.radices), multiple=2 * across.multiple)
    order: list[Term | Product] = [Term(1, 0)]
    for item in form.form.order:
        if isinstance(item, Term):
            by = (item.by[0], item.by[1] + item.by[0]) if item.by else None
            order.append(item._replace(digit=item.digit + item.axis, by=by))
        else:
            order.append(_doubled(item))
    table = tuple(2 * place + half for place in form.form.table for half in (0, 1))
    codes = Form((down, pairs), tuple(order), 4, _doubled(form.form.base), form.form.repeated, table)
    return Layout(form.name, str(codes), form.rule)


def _doubled(units: Product) -> Product:
    """Return a number of bytes as one of 4-bit codes; the padded size of the columns is doubled already."""
    return units if 1 in units.axes else units._replace(number=2 * units.number)


def packed_shape(form: Layout | str, rows: int, columns: int) -> tuple[int, int]:
    """Return the shape of the bytes of a packed matrix: [R, bytes of a row], or [1, bytes].

    >>> packed_shape("low_first", 3, 5), packed_shape("pairs_16", 3, 5), packed_shape("ggml.mxfp4_data", 3, 64)
    ((3, 3), (3, 16), (1, 102))

    Rules: PACK-1, PACK-4, PACK-12.
    """
    return _Places(packing(form), rows, columns).shape


def bit_of(form: Layout | str, shape: tuple[int, int], row: int, column: int) -> tuple[int, int]:
    """Return the byte in which a code begins, and its first bit there, for a matrix of some shape.

    >>> bit_of("low_first", (3, 64), 0, 17), bit_of("pairs_16", (3, 64), 0, 17), bit_of("pairs_16", (3, 64), 1, 1)
    ((8, 4), (1, 4), (33, 0))

    Rules: PACK-11, LAY-34.
    """
    places = _Places(packing(form), *shape)
    byte, bit = divmod(places.bits(np.array([row]), np.array([column])).item(), 8)
    return byte, bit


def codes_of(form: Layout | str, shape: tuple[int, int], byte: int) -> list[tuple[int, int]]:
    """Return row and column of the codes that have bits in a byte of the packed matrix, in the order of the bits.

    A byte that holds spare bits, padding, a gap or the scales of a struct alone has none.

    >>> codes_of("pairs_16", (3, 64), 33), codes_of("six_low_first", (1, 4), 1), codes_of("ggml.mxfp4_data", (1, 32), 0)
    ([(1, 1), (1, 17)], [(0, 1), (0, 2)], [])

    Rules: PACK-10, PACK-11.
    """
    places = _Places(packing(form), *shape)
    size, unit = math.prod(places.shape), places.form.unit
    if not 0 <= byte < size:
        raise DomainError("packing", f"data byte {byte}", f"0 <= byte < {size}", places.form.rule)
    row, start = divmod(byte, places.row_bytes) if places.row_bytes else (0, byte)
    units = np.arange(start * 8 // unit, -(-(start + 1) * 8 // unit))
    if places.row_bytes:
        units = units[units < places.units[1]] + row * places.units[1]
    (down, across), known = places.form.strides(*shape).gather(units)
    inside = known & (down < shape[0]) & (across < shape[1])
    return [(int(at), int(column)) for at, column in zip(down[inside], across[inside], strict=True)]


def repack(
    data: NDArray[np.uint8],
    rows: int,
    columns: int,
    source: Layout | str,
    target: Layout | str = CANONICAL,
    *,
    bits: int | None = None,
) -> NDArray[np.uint8]:
    """Move the codes of a matrix [rows, columns] from one packing to another; return new bytes.

    data: the bytes of the source in the order of memory, of any shape. source, target: names or values; "canonical" is
    the packing that the model and the backends use for codes of that width. bits: the width, which a named packing
    implies. Padding, spare bits and gaps of the result hold 0, or what the padding of the target says; those of the
    source have no influence.

    >>> import numpy as np
    >>> repack(np.uint8([[0x12, 0x30]]), 1, 3, "high_first").tolist()
    [[33, 3]]

    Rules: PACK-1, PACK-2, PACK-4, PACK-5, PACK-7, PACK-8.
    """
    named = (value for value in (source, target) if value != CANONICAL)
    bits = bits or next((packing(value).unit for value in named), None)
    origin = packing(source, bits)
    read, write = _Places(origin, rows, columns), _Places(packing(target, bits), rows, columns)
    array = np.asarray(data)
    if array.dtype != np.uint8:
        raise DTypeError("repack", f"data of type {array.dtype}", "uint8", "PACK-7")
    if array.size != math.prod(read.shape):
        got = f"{array.size} bytes for {rows} x {columns} codes in {origin.name}"
        raise ShapeError("repack", got, f"{math.prod(read.shape)}", "PACK-7")
    flat, result = np.ascontiguousarray(array).reshape(-1), np.zeros(write.shape, np.uint8)
    width = width_of(origin, write.form)
    records = [records_of(each.form, (rows, columns), width) for each in (read, write)]
    if records[0] is not None and records[1] is not None:
        move(flat, result.reshape(-1), records[0], records[1])
        return result
    for down, across in write.pieces():
        codes = np.full((len(down), len(across)), write.fill(1), np.uint8)
        codes[down >= rows] = write.fill(0)
        inside = codes[: np.count_nonzero(down < rows), : np.count_nonzero(across < columns)]
        inside[...] = read.loaded(flat, down[: inside.shape[0]], across[: inside.shape[1]])
        write.store(result.reshape(-1), codes, down, across)
    return result


def rows_follow(form: Layout) -> bool:
    """Return True if the rows follow each other, each from a byte on, and every code has a place of its own.

    Rules: PACK-10.
    """
    alone = form.axes[0].radices == (None,) and form.form.order[-1][:2] == (0, 0)
    return alone and not form.has_gaps and not form.form.irregular


@dataclass(frozen=True)
class _Places:
    """The bits of a buffer at which the codes of a matrix of one size are stored."""

    form: Layout
    rows: int
    columns: int

    @cached_property
    def units(self) -> tuple[int, int]:
        """The shape of the buffer in units."""
        high, wide = self.form.padded_shape(self.rows, self.columns)
        return high, wide

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row if the rows follow each other, each from a byte on; else 0. Rules: PACK-10."""
        return -(-self.units[1] * self.form.unit // 8) if rows_follow(self.form) else 0

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the buffer in bytes. Rules: PACK-12, LAY-35."""
        high, wide = self.units
        if self.row_bytes:
            return high, self.row_bytes
        if wide * self.form.unit % 8 == 0:
            return high, wide * self.form.unit // 8
        return 1, -(-high * wide * self.form.unit // 8)

    def fill(self, axis: int) -> int:
        """Return the value of the padding of an axis; 0 where it is unspecified. Rules: LAY-15."""
        return self.form.axes[axis].fill or 0

    def pieces(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the rows and the columns of parts of the padded matrix, each of at most `PIECE` codes."""
        high, wide = self.form.padded(self.rows, self.columns)
        across = min(max(wide, 1), PIECE)
        down = max(PIECE // across, 1)
        for top in range(0, high, down):
            for left in range(0, wide, across):
                yield np.arange(top, min(top + down, high)), np.arange(left, min(left + across, wide))

    def bits(self, down: NDArray[np.int64], across: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first bit of each code of some rows and columns, counted from the start of the buffer."""
        strides, unit = self.form.strides(self.rows, self.columns), self.form.unit
        if not self.row_bytes:
            return strides.offsets([down[:, None], across[None, :]]) * unit
        return np.asarray((down * self.row_bytes * 8)[:, None] + (strides.spread(1, across) + strides.first) * unit)

    def loaded(self, flat: Codes, down: NDArray[np.int64], across: NDArray[np.int64]) -> Codes:
        """Return the codes of some rows and columns."""
        if not len(down) * len(across):
            return np.zeros((len(down), len(across)), np.uint8)
        byte, shift = np.divmod(self.bits(down, across), 8)
        pair = flat[byte].astype(np.uint16)
        if self.form.unit == 6:  # a code may need the next byte; the last code of a buffer does not
            pair |= flat[np.minimum(byte + 1, flat.size - 1)].astype(np.uint16) << 8
        codes: NDArray[Any] = pair >> shift.astype(np.uint16) & (1 << self.form.unit) - 1
        return codes.astype(np.uint8)

    def store(self, flat: Codes, codes: Codes, down: NDArray[np.int64], across: NDArray[np.int64]) -> None:
        """Write the codes of some rows and columns into a buffer that holds 0 there."""
        byte, shift = np.divmod(self.bits(down, across), 8)
        for place in range(0, 8, 8 if self.form.unit == 8 else math.gcd(8, self.form.unit)):
            here = shift == place  # codes that begin at the same bit of a byte share none
            flat[byte[here]] |= codes[here] << place
            if place + self.form.unit > 8:
                flat[byte[here] + 1] |= codes[here] >> (8 - place)
