"""Powers of two of a block's maximum, in exact rationals."""

from __future__ import annotations

import math
from enum import Enum, auto
from fractions import Fraction

from fp4ref.conformance.oracle import rationals as r


class PowerOfTwo(Enum):
    """The rounding of the exponent that a maximum gives. Rules: MXS-2, MXS-3, MXS-4."""

    FLOOR = auto()
    CEIL = auto()
    EVEN = auto()


POWERS = {
    "ocp-floor": PowerOfTwo.FLOOR,
    "ocp-ceil": PowerOfTwo.CEIL,
    "ocp-even": PowerOfTwo.EVEN,
}  # by the name of an arithmetic


def power_of_two_scale(amax: float, mode: PowerOfTwo, element: str) -> float:
    """Return the power of two that an OCP mode picks for a block, NaN where amax is not finite; within 2^-127 .. 2^127.

    Rules: MXS-2, MXS-3, MXS-4, MXS-5.
    """
    if not math.isfinite(amax):
        return r.MADE_NAN
    exponent = -127
    if amax > 0:
        exponent = r.floor_log2(Fraction(amax))
        excess = Fraction(amax) / r.power(exponent)  # in [1, 2)
        if mode is PowerOfTwo.CEIL:
            exponent += excess > 1
        if mode is PowerOfTwo.EVEN:  # half way from the element's largest mantissa to the next power of two
            exponent += excess >= 2 - r.power(-r.FIELDS[element].mantissa - 1)
    return float(r.power(min(max(exponent - r.floor_log2(Fraction(r.magnitudes(element)[-1])), -127), 127)))
