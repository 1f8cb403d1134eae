"""Codes that are not written, or at the wrong end of a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fp4ref.conformance.mistakes.elsewhere import EVERY, LAST, blank, cleared
from fp4ref.conformance.mistakes.inputs import SIZES
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot, e2m1, known, of
from fp4ref.formats import Codes

# Codes that are not written


packed = partial(known, Slot.PACKING, whole=True)


def missing() -> Iterator[Mistake]:
    """Codes that stay zero, and bytes that are written to the wrong end of a buffer."""
    several: tuple[tuple[str, str, Callable[[Codes], Codes]], ...] = (
        *((f"columns-{n}", f"elements past the last multiple of {n} columns", partial(cleared, 1, n)) for n in SIZES),
        *((f"rows-{n}", f"elements of rows past the last multiple of {n}", partial(cleared, n, 1)) for n in SIZES),
    )
    one: tuple[tuple[str, str, Callable[[Codes], Codes]], ...] = (
        ("last-element", "the last element", partial(_last_codes, 1)),
        ("last-byte", "the last byte of data", lambda codes: _last_codes(2 - codes.shape[1] % 2, codes)),
        ("last-column", "the last column of elements", lambda codes: blank(codes, EVERY, LAST)),
        ("last-row", "the last row of elements", lambda codes: blank(codes, LAST)),
        ("first-row", "the first row of elements", lambda codes: blank(codes, slice(0, 1))),
    )
    for verb, ways in (("are", several), ("is", one)):
        for name, text, change in ways:
            said = f"{text} {verb} not written (0)"
            yield packed(f"unwritten-codes-{name}", said, codes=change)
    yield known(Slot.PACKING, "unwritten-codes-all", "every code is 0, or not written", codes=np.zeros_like)
    for name, text, joined in (
        (
            "sign-extended",
            "the lower nibble is sign-extended over the upper one (int8)",
            lambda low, high: (low, high | (low >> 3) * 15),
        ),
        (
            "shift-3",
            "the upper code is shifted by 3 bits instead of 4",
            lambda low, high: (low | high << 3 & 8, high >> 1),
        ),
        (
            "low-added",
            "the upper nibble is increased by one beside a negative lower one",
            lambda low, high: (low, high - (low >> 3) & 15),
        ),
        ("masked-7", "the lower nibble loses its sign", lambda low, high: (low & 7, high)),
        ("unmasked", "the sign of the lower code is the sign of both", lambda low, high: (low, high & 7 | low & 8)),
    ):
        yield packed(f"codes-pair-{name}", text, e2m1, codes=partial(_paired, joined))
    for power in (15, 16, 17):
        yield packed(
            f"data-wrap-{power}",
            f"offsets of data wrap at {1 << power} bytes ({power}-bit index), the rest is not written",
            codes=of(partial(_wrapping, 1 << power)),
        )


def _paired(joined: Callable[[Codes, Codes], tuple[Codes, Codes]], codes: Codes) -> Codes:
    """Return the codes of bytes that are put together of two codes in another way."""
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    made = np.stack(joined(even[:, ::2], even[:, 1::2]), axis=-1).astype(np.uint8)
    return made.reshape(even.shape)[:, : codes.shape[1]]


def _last_codes(count: int, codes: Codes) -> Codes:
    flat = codes.reshape(-1).copy()
    flat[max(flat.size - count, 0) :] = 0
    return flat.reshape(codes.shape)


def _wrapping(size: int, kernel: Kernel) -> Callable[[Codes], Codes]:
    return partial(_wrapped, size * 8 // kernel.codec.format.bits)


def _wrapped(limit: int, codes: Codes) -> Codes:
    flat, kept = codes.reshape(-1), np.zeros(codes.size, np.uint8)
    for start in range(0, flat.size, limit):
        piece = flat[start : start + limit]
        kept[: piece.size] = piece
    return kept.reshape(codes.shape)
