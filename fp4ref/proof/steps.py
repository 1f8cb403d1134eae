"""Codecs as steps: the float32 patterns at which a code begins, from exact fractions.

The definition of a format and of its rounding is evaluated on rational numbers; nothing of the encoders is used.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import Codec, Format, Rounding, Sign

INFINITY = 0x7F800000  # float32 patterns
SIGN = 0x80000000
PATTERNS = 1 << 32


class CodeSteps(NamedTuple):
    """A function of all float32 patterns that is constant from each start up to the next; the last ends at 2^32."""

    starts: NDArray[np.uint64]
    codes: NDArray[np.uint8]

    def of(self, patterns: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Return the codes of float32 patterns."""
        found: NDArray[np.uint8] = self.codes[np.searchsorted(self.starts, patterns, side="right") - 1]
        return found


def number(pattern: int) -> Fraction:
    """Return the value of a finite float32 pattern without a sign."""
    field, mantissa = pattern >> 23, pattern & 0x7FFFFF
    return Fraction(mantissa + (field > 0) * 0x800000) * Fraction(2) ** (max(field, 1) - 150)


def magnitudes(form: Format) -> list[Fraction]:
    """Return the values of the codes without a sign, and of the code that would follow the largest."""
    values = []
    for code in range(form.codes + 1):
        field, mantissa = code >> form.mantissa_bits, code & ((1 << form.mantissa_bits) - 1)
        if not form.signed:
            values.append(Fraction(2) ** (code - form.bias))
        else:
            whole = Fraction(mantissa + (field > 0) * (1 << form.mantissa_bits))
            values.append(whole * Fraction(2) ** (max(field, 1) - form.bias - form.mantissa_bits))
    return values


def starts(codec: Codec) -> list[int]:
    """Return the smallest float32 patterns, without a sign, that reach each grid index; the last one is overflow.

    Rules: E2M1-3, E4M3-2, E5M2-2, E8M0-2.
    """
    values = magnitudes(codec.format)
    found = [0]
    for code in range(1, len(values)):
        if codec.rounding is Rounding.EVEN:
            found.append(_first((values[code - 1] + values[code]) / 2, code % 2 == 0))
        elif codec.rounding is Rounding.UP:
            found.append(_first(values[code - 1], reached=False))
        else:
            raise NotImplementedError(codec.rounding)
    return found


def _first(edge: Fraction, reached: bool) -> int:
    """Return the smallest pattern whose value is above the edge, or equal to it if that reaches."""
    low, high = 0, INFINITY  # the pattern of infinity is above every edge
    while low < high:
        middle = (low + high) // 2
        value = number(middle)
        if value > edge or (reached and value == edge):
            high = middle
        else:
            low = middle + 1
    return low


def steps(codec: Codec) -> CodeSteps:
    """Return the codes of all float32 patterns, as the rules of the format and of the codec's choices define them.

    Rules: E2M1-2, E2M1-4, E2M1-5, E4M3-3, E4M3-4, E5M2-3, E5M2-4, E8M0-3.
    """
    if codec.sign is not Sign.BIT:
        raise NotImplementedError(codec.sign)
    last = codec.format.codes - 1
    places, codes = [], []
    for sign, nan in ((0, codec.nan[0]), (1, codec.nan[1])):
        for index, start in enumerate(starts(codec)):
            code = index if index <= last else last if codec.overflow is None else codec.overflow
            if start <= INFINITY:
                places.append(sign * SIGN + start)
                codes.append(code | sign * codec.format.sign_bit)
        places.append(sign * SIGN + INFINITY + 1)
        codes.append(nan)
    return CodeSteps(np.array(places, np.uint64), np.array(codes, np.uint8))


def shown(pattern: int) -> str:
    """Return a float32 pattern with its value, for a message."""
    value = np.array(pattern, np.uint32).view(np.float32)
    return f"0x{pattern:08X} ({value!s})"
