"""Packing: the codes of a row as one stream of bits, low bits first."""

from collections.abc import Iterator

import numpy as np

from fp4ref.errors import ShapeError
from fp4ref.formats import Codes, Format


def width(columns: int, form: Format) -> int:
    """Bytes in a row of `columns` codes. Rules: PACK-1, PACK-2, PACK-3, PACK-4, PACK-5."""
    return -(-columns * form.bits // 8)


def pack(codes: Codes, form: Format) -> Codes:
    """Pack codes [..., K] into bytes [..., width]: code j begins at bit j * bits of its row, low bits first.

    Two 4-bit codes share a byte, four 6-bit codes share three. Spare bits of a row are 0. Eight-bit codes are their own
    bytes.

    Rules: PACK-1, PACK-2, PACK-3, PACK-4, PACK-5. Certificates: packing-*.
    """
    if form.bits == 8:
        return codes
    packed = np.zeros((*codes.shape[:-1], width(codes.shape[-1], form)), np.uint8)
    for own, first, second, shift in _places(codes, packed, form.bits):
        first[...] |= own << shift
        second[...] |= own[..., : second.shape[-1]] >> (8 - shift)
    return packed


def unpack(packed: Codes, columns: int, form: Format) -> Codes:
    """Unpack bytes [..., width] into codes [..., columns]; spare bits are ignored.

    Rules: PACK-1, PACK-2, PACK-3, PACK-4, PACK-5.
    """
    if packed.shape[-1] != width(columns, form):
        got = f"{packed.shape[-1]} bytes for {columns} codes of {form.bits} bits"
        raise ShapeError("unpack", got, f"{width(columns, form)}", "PACK-1")
    if form.bits == 8:
        return packed
    codes = np.empty((*packed.shape[:-1], columns), np.uint8)
    mask = (1 << form.bits) - 1
    for own, first, second, shift in _places(codes, packed, form.bits):
        own[...] = first >> shift & mask
        own[..., : second.shape[-1]] |= second << (8 - shift) & mask
    return codes


def part_of_byte(bits: int, column: int) -> str:
    """Return the bits of a byte that hold a code, in words; empty if the code is the byte.

    >>> part_of_byte(4, 3), part_of_byte(6, 0), part_of_byte(6, 1), part_of_byte(8, 0)
    ('high nibble', 'bits 0 to 5', 'bits 6 to 7 and, in the next byte, 0 to 3', '')

    Rules: PACK-1, PACK-3, PACK-4.
    """
    return bits_in_words(bits, column * bits % 8)


def bits_in_words(bits: int, first: int) -> str:
    """Return the bits of a byte from `first` on in words; empty for a whole byte."""
    if bits in {4, 8}:
        return {0: "low nibble", 4: "high nibble"}[first] if bits == 4 else ""
    past = first + bits - 8
    more = f" and, in the next byte, 0 to {past - 1}" if past > 0 else ""
    return f"bits {first} to {min(first + bits, 8) - 1}{more}"


def _places(codes: Codes, packed: Codes, bits: int) -> Iterator[tuple[Codes, Codes, Codes, int]]:
    """Yield views of every code at one position of the pattern, and of the bytes with its low and high bits.

    A pattern is one byte of two 4-bit codes, or three bytes of four 6-bit codes. Yields the codes, the bytes of their
    low bits, the bytes of the bits that these have no room for (none if all fit), and the position in the first byte.
    """
    each = np.lcm(bits, 8)  # bits of the pattern
    for place in range(each // bits):
        own = codes[..., place :: each // bits]
        byte, shift = divmod(place * bits, 8)
        first, second = (packed[..., start :: each // 8][..., : own.shape[-1]] for start in (byte, byte + 1))
        yield own, first, second if shift + bits > 8 else second[..., :0], shift
