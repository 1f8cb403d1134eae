"""Packing: two 4-bit codes in a byte, or one 8-bit code."""

import numpy as np

from fp4ref.errors import ShapeError
from fp4ref.formats import Codes, Format


def width(columns: int, form: Format) -> int:
    """Bytes in a row of `columns` codes. Rules: PACK-1, PACK-2, PACK-3."""
    return -(-columns * form.bits // 8)


def pack(codes: Codes, form: Format) -> Codes:
    """Pack codes [..., K] into bytes [..., width], element 2i in the low nibble of byte i.

    The spare high nibble of an odd row is 0. Eight-bit codes are their own bytes.

    Rules: PACK-1, PACK-2, PACK-3.
    """
    if form.bits == 8:
        return codes
    packed = codes[..., 0::2].copy()
    odd = codes[..., 1::2]
    packed[..., : odd.shape[-1]] |= odd << 4
    return packed


def unpack(packed: Codes, columns: int, form: Format) -> Codes:
    """Unpack bytes [..., width] into codes [..., columns]; a spare nibble is ignored.

    Rules: PACK-1, PACK-2, PACK-3.
    """
    if packed.shape[-1] != width(columns, form):
        got = f"{packed.shape[-1]} bytes for {columns} codes of {form.bits} bits"
        raise ShapeError("unpack", got, f"{width(columns, form)}", "PACK-1")
    if form.bits == 8:
        return packed
    codes = np.empty((*packed.shape[:-1], columns), np.uint8)
    codes[..., 0::2] = packed & 0b1111
    codes[..., 1::2] = (packed >> 4)[..., : columns // 2]
    return codes
