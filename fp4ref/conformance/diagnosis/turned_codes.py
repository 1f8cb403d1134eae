"""Codes in another order, in other bits or with the signs of others, tried in one place only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fp4ref.conformance.diagnosis.displaced import recoded
from fp4ref.conformance.mistakes.elsewhere import exchanged, taken
from fp4ref.conformance.mistakes.kernel import Codes2, Kernel, after
from fp4ref.conformance.mistakes.record import Mistake, Slot
from fp4ref.formats import Codes

GROUPS = (2, 4, 8, 16)
GROUPS_OF_SIGNS = (1, 2, 4, 8)
NIBBLE = 4  # bits of a code, of which two in reverse order are the nibbles of a byte
SIX = 6  # bits of a code, in which the order of bits within bytes is a choice of its own


def codes_turned(bits: int) -> Iterator[Mistake]:
    """Yield codes of some bits in another order, or in other bits, of a group."""
    nibbles = "the two nibbles of a byte are exchanged"
    if bits == NIBBLE:
        yield recoded("codes-swapped", nibbles, partial(_reversed, 2, False))
        yield recoded("codes-swapped-spare", f"{nibbles}, a spare one as well", _swapped_with_spare, fills=True)
    high_first = "6-bit codes are stored from the highest bit of each byte down, not from the lowest up"
    reversed_three = "the three bytes of four 6-bit codes are in reverse order"
    high, three = (partial(_repacked, bits) for bits in (_high_first, _three_reversed))
    yield Mistake("codes-high-bits-first", Slot.PACKING, high_first, high, fills=True)
    yield Mistake("codes-bytes-reversed", Slot.PACKING, reversed_three, three)
    for text, name, move in (
        ("column - 1", "before", partial(np.roll, shift=1, axis=1)),
        ("column + 1", "after", partial(np.roll, shift=-1, axis=1)),
        *((f"column ^ {n}", f"xor-{n}", partial(taken, partial(exchanged, n), 1)) for n in GROUPS_OF_SIGNS),
    ):
        apply = partial(_signed_as, move)
        yield Mistake(f"codes-sign-{name}", Slot.SIGN, f"elements have the sign of that in {text}", apply)
    for size in GROUPS[bits == NIBBLE :]:
        yield recoded(
            f"codes-reversed-{size}", f"codes are in reverse order in groups of {size}", partial(_reversed, size, False)
        )
    for size in GROUPS:
        text = f"codes of rows are in reverse order in groups of {size} rows"
        yield recoded(f"codes-rows-reversed-{size}", text, partial(_reversed, size, True))


def _swapped_with_spare(codes: Codes) -> Codes:
    """Return codes of which the last one of an odd row is in the spare nibble, and 0 in its own."""
    made = _reversed(2, False, codes)
    if codes.shape[1] % 2:
        made[:, -1] = 0
    return made


def _signed_as(move: Codes2, kernel: Kernel) -> Kernel:
    """Return a kernel whose codes have the signs of other ones. move: of codes, those with the signs."""
    sign = kernel.spec.element.format.sign_bit

    def signed(codes: Codes) -> Codes:
        return np.asarray((codes & ~np.uint8(sign)) | (move(codes) & np.uint8(sign)))

    return kernel.but(codes=after(kernel.codes, signed), whole=True)


def _repacked(write: Codes2, kernel: Kernel) -> Kernel | None:
    """Return a kernel of 6-bit codes that writes a row's bytes in another way. write: of codes, read as declared."""
    six = kernel.spec.element.format.bits == SIX
    return kernel.but(codes=after(kernel.codes, write)) if six else None


def _high_first(codes: Codes) -> Codes:
    rows, columns = codes.shape
    bits = np.unpackbits(codes.astype(np.uint8)[:, :, None], axis=2)[:, :, 8 - SIX :].reshape(rows, columns * SIX)
    return _read(np.packbits(bits, axis=1), columns)


def _three_reversed(codes: Codes) -> Codes:
    rows, columns = codes.shape
    bits = np.unpackbits(codes.astype(np.uint8)[:, :, None], axis=2, bitorder="little")[:, :, :SIX]
    data = np.packbits(bits.reshape(rows, columns * SIX), axis=1, bitorder="little")
    whole = data.shape[1] // 3 * 3
    turned = data[:, :whole].reshape(rows, -1, 3)[:, :, ::-1].reshape(rows, whole)
    return _read(np.concatenate([turned, data[:, whole:]], axis=1), columns)


def _read(data: Codes, columns: int) -> Codes:
    """Return 6-bit codes of bytes. Rules: PACK-6."""
    bits = np.unpackbits(data, axis=1, bitorder="little")[:, : columns * SIX].reshape(len(data), columns, SIX)
    return np.packbits(bits, axis=2, bitorder="little")[:, :, 0]


def _reversed(size: int, down: bool, codes: Codes) -> Codes:
    """Whole groups in reverse order; what fills no group stays."""
    lines = codes.T if down else codes
    whole = lines.shape[1] // size * size
    turned = lines[:, :whole].reshape(len(lines), whole // size, size)[..., ::-1].reshape(len(lines), whole)
    made = np.concatenate([turned, lines[:, whole:]], axis=1)
    return made.T if down else made
