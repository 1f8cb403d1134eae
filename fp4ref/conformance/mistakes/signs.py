"""Mistakes in the sign of a code, and in the code of NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot, e2m1, eight_bit, known, of, other_than
from fp4ref.formats import Codes, Sign


def other_codec(**changes: Any) -> of:
    """Return the codec of the elements with other fields."""
    return of(lambda kernel: replace(kernel.codec, **changes))


def signs() -> Iterator[Mistake]:
    """Yield mistakes in the sign of a code."""
    stage = Slot.SIGN
    for sign, text in (
        (Sign.NEGATIVE, "-0 in the input becomes +0 (the sign is x < 0)"),
        (Sign.NONZERO, "the sign is dropped where the code is 0"),
        (Sign.NOT_POSITIVE, "zeros of either sign become -0 (the sign is x <= 0)"),
        (Sign.BIT, "-0 keeps its sign"),
    ):
        yield known(
            stage,
            f"sign-{sign}",
            text,
            other_than("codec", "sign", sign),
            special=sign is not Sign.NONZERO,  # that one changes small negative values, too
            codec=other_codec(sign=sign),
        )
    yield known(
        stage,
        "sign-negative-scaled",
        "the sign is that of y < 0, after scaling: small negative elements that underflow to -0 lose it, and -0 does",
        other_than("codec", "sign", Sign.NEGATIVE),
        codec=other_codec(sign=Sign.NEGATIVE),
    )
    yield known(
        stage,
        "sign-lost",
        "elements lose their sign",
        code=of(lambda kernel: lambda code: code & np.uint8(_low(kernel))),
    )
    yield known(
        stage,
        "sign-flipped",
        "elements have the opposite sign",
        code=of(lambda kernel: lambda code: code ^ np.uint8(kernel.codec.format.sign_bit)),
    )
    yield known(stage, "sign-complement", "negative elements are in two's complement", code=of(_complement))
    yield known(stage, "sign-low", "the sign is in the lowest bit of a code", code=of(_low_sign))


def _low(kernel: Kernel) -> int:
    return kernel.codec.format.sign_bit - 1


def _complement(kernel: Kernel) -> Callable[[Codes], Codes]:
    sign, mask = kernel.codec.format.sign_bit, 2 * kernel.codec.format.sign_bit - 1
    return lambda code: np.where(code & sign, -(code & (sign - 1)).astype(np.int16) & mask, code).astype(np.uint8)


def _low_sign(kernel: Kernel) -> Callable[[Codes], Codes]:
    sign, width = kernel.codec.format.sign_bit, kernel.codec.format.bits
    return lambda code: ((code & (sign - 1)).astype(np.uint16) << 1 | code >> (width - 1)).astype(np.uint8)


def nans() -> Iterator[Mistake]:
    """Yield other codes for NaN."""
    for code in range(16):
        yield known(
            Slot.SIGN,
            f"nan-{code}",
            f"NaN becomes code {code}",
            e2m1,
            special=True,
            codec=other_codec(nan=(code, code)),
        )
        if code < 8:
            yield known(
                Slot.SIGN,
                f"nan-{code}-signed",
                f"NaN becomes code {code} or {code + 8}, with its sign",
                e2m1,
                special=True,
                codec=other_codec(nan=(code, code | 8)),
            )
    for code in (0x00, 0x7E, 0x80, 0xFF, 0x7F):
        yield known(
            Slot.SIGN,
            f"nan-{code:02x}",
            f"NaN becomes code {code:#04x}",
            eight_bit,
            special=True,
            codec=other_codec(nan=(code, code)),
        )
    yield known(
        Slot.SIGN,
        "nan-signed",
        "NaN keeps its sign",
        eight_bit,
        special=True,
        codec=other_codec(nan=(0x7F, 0xFF)),
    )
