"""Mistakes in the sign of a code, and in the code of NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot, When, e2m1, eight_bit, known, of, other_than
from fp4ref.formats import Codes, Sign


def other_codec(**changes: Any) -> of:
    """Return the codec of the elements with other fields."""
    return of(lambda kernel: replace(kernel.codec, **changes))


def _sign(kernel: Kernel) -> int:
    return kernel.codec.format.sign_bit


def _complement(kernel: Kernel) -> Callable[[Codes], Codes]:
    sign, mask = kernel.codec.format.sign_bit, 2 * kernel.codec.format.sign_bit - 1
    return lambda code: np.where(code & sign, -(code & (sign - 1)).astype(np.int16) & mask, code).astype(np.uint8)


def _low_sign(kernel: Kernel) -> Callable[[Codes], Codes]:
    sign, width = kernel.codec.format.sign_bit, kernel.codec.format.bits
    return lambda code: ((code & (sign - 1)).astype(np.uint16) << 1 | code >> (width - 1)).astype(np.uint8)


sign = partial(known, Slot.SIGN)

SIGNS = (
    *(
        sign(
            f"sign-{rule}",
            text,
            other_than("codec", "sign", rule),
            special=rule is not Sign.NONZERO,  # that one changes small negative values, too
            codec=other_codec(sign=rule),
        )
        for rule, text in (
            (Sign.NEGATIVE, "-0 in the input becomes +0 (the sign is x < 0)"),
            (Sign.NONZERO, "the sign is dropped where the code is 0"),
            (Sign.NOT_POSITIVE, "zeros of either sign become -0 (the sign is x <= 0)"),
            (Sign.BIT, "-0 keeps its sign"),
        )
    ),
    sign(
        "sign-negative-scaled",
        "the sign is that of y < 0, after scaling: small negative elements that underflow to -0 lose it, and -0 does",
        other_than("codec", "sign", Sign.NEGATIVE),
        codec=other_codec(sign=Sign.NEGATIVE),
    ),
    sign("sign-lost", "elements lose their sign", code=of(lambda k: lambda code: code & np.uint8(_sign(k) - 1))),
    sign("sign-flipped", "elements have the opposite sign", code=of(lambda k: lambda code: code ^ np.uint8(_sign(k)))),
    sign("sign-complement", "negative elements are in two's complement", code=of(_complement)),
    sign("sign-low", "the sign is in the lowest bit of a code", code=of(_low_sign)),
)


def _nan(code: int, negative: int, name: str, text: str, when: When) -> Mistake:
    return sign(f"nan-{name}", f"NaN {text}", when, special=True, codec=other_codec(nan=(code, negative)))


def _four_bit_nans() -> Iterator[Mistake]:
    for code in range(16):
        yield _nan(code, code, f"{code}", f"becomes code {code}", e2m1)
        if code < 8:
            text = f"becomes code {code} or {code + 8}, with its sign"
            yield _nan(code, code | 8, f"{code}-signed", text, e2m1)


NANS = (
    *_four_bit_nans(),
    *(_nan(c, c, f"{c:02x}", f"becomes code {c:#04x}", eight_bit) for c in (0x00, 0x7E, 0x80, 0xFF, 0x7F)),
    _nan(0x7F, 0xFF, "signed", "keeps its sign", eight_bit),
)
