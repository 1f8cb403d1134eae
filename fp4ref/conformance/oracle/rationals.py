"""Floating-point by exact rationals: every operation computes the true value, then rounds it once.

A Python float holds a float32, with its infinities, NaN and signed zeros; nothing here adds or multiplies floats.
Written from the rules and kept apart from the golden model, which it checks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from fp4ref.errors import DomainError
from fp4ref.formats import Codec, Rounding, Sign

HALF = Fraction(1, 2)
MADE_NAN = math.copysign(math.nan, -1.0)  # of an invalid operation. NUM-2


class Binary(NamedTuple):
    """A binary floating-point type: significant bits, exponents of the smallest normal and the largest value."""

    precision: int
    emin: int
    emax: int


FLOAT32 = Binary(24, -126, 127)
BFLOAT16 = Binary(8, -126, 127)
FLOAT16 = Binary(11, -14, 15)
FLT_MAX = float((2 - Fraction(1, 2**23)) * 2**127)


@cache
def power(exponent: int) -> Fraction:
    """2^exponent."""
    return Fraction(2) ** exponent


def floor_log2(value: Fraction) -> int:
    """Return the largest n with 2^n <= value; value > 0."""
    return _floor_log2(value.numerator, value.denominator)


def _floor_log2(numerator: int, denominator: int) -> int:
    guess = numerator.bit_length() - denominator.bit_length()
    return guess if denominator << max(guess, 0) <= numerator << max(-guess, 0) else guess - 1


def rounded(value: Fraction, to: Binary = FLOAT32) -> float:
    """Return the nearest number of a type, ties to the even one; past the largest an infinity.

    Rules: NUM-1, DEQ-3.
    """
    return math.copysign(_rounded(abs(value.numerator), value.denominator, to), value)


def _rounded(numerator: int, denominator: int, to: Binary = FLOAT32) -> float:
    """Return a quotient that is not negative, rounded: the steps between two numbers of the type are counted."""
    if not numerator:
        return 0.0
    step = max(_floor_log2(numerator, denominator), to.emin) - to.precision + 1
    unit = denominator << max(step, 0)
    count, rest = divmod(numerator << max(-step, 0), unit)
    if 2 * rest > unit or (2 * rest == unit and count % 2 == 1):
        count += 1
    return math.inf if count.bit_length() + step > to.emax + 1 else math.ldexp(count, step)


def narrowed(x: float, to: Binary) -> float:
    """Return a float32 rounded to a narrower type."""
    return math.copysign(rounded(Fraction(x), to), x) if math.isfinite(x) else x


def times(a: float, b: float) -> float:
    """Return a * b. Rules: NUM-1, NUM-2, NUM-11."""
    if math.isnan(a) or math.isnan(b):
        return a if math.isnan(a) else b
    if math.isinf(a) or math.isinf(b):
        return MADE_NAN if 0 in {a, b} else math.copysign(math.inf, _sign(a, b))
    (p, q), (r, s) = a.as_integer_ratio(), b.as_integer_ratio()
    return math.copysign(_rounded(abs(p * r), q * s), _sign(a, b))


def over(a: float, b: float) -> float:
    """Return a / b. Rules: NUM-1, NUM-2, NUM-11."""
    if math.isnan(a) or math.isnan(b):
        return a if math.isnan(a) else b
    if math.isinf(a):
        return MADE_NAN if math.isinf(b) else math.copysign(math.inf, _sign(a, b))
    if b == 0:
        return MADE_NAN if a == 0 else math.copysign(math.inf, _sign(a, b))
    if math.isinf(b):
        return math.copysign(0.0, _sign(a, b))
    (p, q), (r, s) = a.as_integer_ratio(), b.as_integer_ratio()
    return math.copysign(_rounded(abs(p * s), q * abs(r)), _sign(a, b))


def plus(a: float, b: float) -> float:
    """Return a + b; an exact zero is +0 unless both are -0. Rules: NUM-1, NUM-2, NUM-11."""
    if math.isnan(a) or math.isnan(b):
        return a if math.isnan(a) else b
    if math.isinf(a) or math.isinf(b):
        return MADE_NAN if math.isinf(a) and a == -b else (a if math.isinf(a) else b)
    if a == 0 == b:
        return -0.0 if math.copysign(1, a) + math.copysign(1, b) < 0 else 0.0
    (p, q), (r, s) = a.as_integer_ratio(), b.as_integer_ratio()
    total = p * s + r * q
    return math.copysign(_rounded(abs(total), q * s), total)


def minus(a: float, b: float) -> float:
    """Return a - b."""
    return plus(a, -b)


def fused_with_zero(a: float, b: float) -> float:
    """fma(a, b, +0): a product, but +0 where it is exactly zero. Rules: BLK-11."""
    product = times(a, b)
    return 0.0 if 0 in {a, b} and not math.isnan(product) else product


def at_most(a: float, limit: float) -> float:
    """Return the smaller one; limit if a is NaN."""
    return limit if math.isnan(a) or a > limit else a


def _sign(a: float, b: float) -> float:
    return math.copysign(1, a) * math.copysign(1, b)


class Fields(NamedTuple):
    """The bit fields of a format, widest first: sign, exponent, mantissa."""

    sign: int
    exponent: int
    mantissa: int
    bias: int
    specials: dict[int, float]  # by code without sign
    complement: bool = False  # negative codes are those of two's complement
    unread: dict[int, float] | None = None  # codes above those of the grid, which are read without their highest bit


FIELDS = {
    "e2m1": Fields(1, 2, 1, 1, {}),
    "e4m3": Fields(1, 4, 3, 7, {0x7F: math.nan}),
    "e5m2": Fields(1, 5, 2, 15, {0x7C: math.inf, 0x7D: math.nan, 0x7E: math.nan, 0x7F: math.nan}),
    "e8m0": Fields(0, 8, 0, 127, {0xFF: math.nan}),
    "e2m3": Fields(1, 2, 3, 1, {}),
    "e3m2": Fields(1, 3, 2, 3, {}),
    "int8": Fields(1, 0, 7, 0, {}, complement=True),
    "ue5m3": Fields(0, 5, 3, 15, {0xFF: math.nan}),
    "ue4m3": Fields(0, 4, 3, 7, {0x7F: 0.0}, unread={0xFF: 480.0}),
}


def magnitude_bits(name: str) -> int:
    """Bits of a code without its sign."""
    return FIELDS[name].exponent + FIELDS[name].mantissa


def value(code: int, name: str) -> float:
    """Return the value of a code, read from its bit fields.

    Rules: E2M1-1, E4M3-1, E5M2-1, E8M0-1, E8M0-4, INT8-1, UE4M3-1, UE5M3-1.
    """
    fields = FIELDS[name]
    if fields.complement and code >> magnitude_bits(name):
        return float(Fraction(code - 256, 64))
    if fields.unread is not None and code in fields.unread:
        return fields.unread[code]
    magnitude = code % (1 << magnitude_bits(name))
    sign = -1.0 if fields.sign and code >> magnitude_bits(name) else 1.0
    if magnitude in fields.specials:
        return math.copysign(fields.specials[magnitude], sign)
    exponent, mantissa = divmod(magnitude, 1 << fields.mantissa)
    fraction = Fraction(mantissa, 1 << fields.mantissa)
    if fields.mantissa and exponent == 0:  # subnormals; powers of two have neither these nor a zero
        return math.copysign(float(fraction * power(1 - fields.bias)), sign)
    return math.copysign(float((1 + fraction) * power(exponent - fields.bias)), sign)


@cache
def magnitudes(name: str) -> list[float]:
    """Return the finite values without a sign, by code: ascending."""
    count = (1 << magnitude_bits(name)) - len(FIELDS[name].specials)
    return [value(code, name) for code in range(count)]


@cache
def beyond(name: str) -> Fraction:
    """Return the value that would follow the largest: a magnitude that rounds to it overflows."""
    *_, before, last = (Fraction(v) for v in magnitudes(name))
    return last * last / before if name == "e8m0" else last + (last - before)


@cache
def midpoints(name: str) -> list[float]:
    """Return the middle between each finite magnitude and the next, the value beyond the largest included: exact."""
    grid = [*map(Fraction, magnitudes(name)), beyond(name)]
    middles = [(below + above) / 2 for below, above in pairwise(grid)]
    assert middles == [Fraction(float(middle)) for middle in middles]
    return [float(middle) for middle in middles]


def nearest(magnitude: float, name: str, rounding: Rounding) -> int:
    """Return the code of a finite or infinite magnitude; one past the last means that it overflows.

    Rules: E2M1-3, E4M3-2, E5M2-2, E8M0-2, E2M3-2, E3M2-2, INT8-2, E2M1-6, UE4M3-2, UE5M3-2.
    """
    grid = magnitudes(name)
    if magnitude >= beyond(name):
        return len(grid)
    upper = bisect_left(grid, magnitude)
    if upper == 0 or (upper < len(grid) and grid[upper] == magnitude):
        return upper
    even = upper if upper % 2 == 0 else upper - 1
    tie = {Rounding.EVEN: even, Rounding.DOWN: upper - 1, Rounding.AWAY: upper}
    if rounding in tie:
        middle = midpoints(name)[upper - 1]
        return tie[rounding] if magnitude == middle else (upper - 1 if magnitude < middle else upper)
    if rounding not in (Rounding.UP, Rounding.TRUNCATE):
        raise DomainError("oracle", f"rounding {rounding}", "one that the oracle has", "E2M1-6")
    return upper if rounding is Rounding.UP else upper - 1


def stochastic(magnitude: float, random_byte: int) -> int:
    """Return the E2M1 code of a magnitude moved up by random_byte / 256 of a step, then cut off.

    Rules: SR-2, SR-3.
    """
    if math.isinf(magnitude):
        return 7
    step = 2 if magnitude >= 4 else 1 if magnitude >= 2 else HALF
    moved = rounded(Fraction(magnitude) + step * Fraction(random_byte, 256))
    return max(code for code, v in enumerate(magnitudes("e2m1")) if v <= moved)


def encode(x: float, codec: Codec, random_byte: int | None = None) -> int:
    """Return the code of one float32.

    Rules: E2M1-2, E2M1-4, E2M1-5, E2M1-6, E4M3-3, E4M3-4, E4M3-5, E5M2-3, E5M2-4, E5M2-5, E8M0-3, SR-1.
    """
    name, negative = codec.format.name, math.copysign(1, x) < 0
    if math.isnan(x):
        return codec.nan[negative]
    code = nearest(abs(x), name, codec.rounding) if random_byte is None else stochastic(abs(x), random_byte)
    if code == len(magnitudes(name)):
        code = code - 1 if codec.overflow is None else codec.overflow
    if math.isinf(x) and codec.infinity is not None:
        code = codec.infinity
    minus_sign = {
        Sign.BIT: negative,
        Sign.NEGATIVE: x < 0,
        Sign.NOT_POSITIVE: x <= 0,
        Sign.NONZERO: x < 0 and code != 0,
    }[codec.sign]
    if FIELDS[name].complement:
        return -code & 0xFF if minus_sign else code
    return code | 1 << magnitude_bits(name) if minus_sign and FIELDS[name].sign else code
