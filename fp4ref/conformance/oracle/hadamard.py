"""The 16-point Hadamard transform in exact rationals, and what a foreign order of additions may give."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from fp4ref.conformance.oracle import rationals as r


def minus_ones(i: int, j: int) -> int:
    """Return True if entry (i, j) of the Sylvester matrix is -1: the parity of the ones in i & j. Rules: HAD-1."""
    return (i & j).bit_count() % 2


def exact_sums(group: Sequence[float], mask: int) -> list[Fraction]:
    """Return the true sums of 16 finite values with their signs, a quarter each. Rules: HAD-1."""
    signed = [-Fraction(v) if mask >> i & 1 else Fraction(v) for i, v in enumerate(group)]
    return [sum((-v if minus_ones(i, j) else v for i, v in enumerate(signed)), Fraction(0)) / 4 for j in range(16)]


def transform(group: Sequence[float], mask: int) -> list[float]:
    """Return the 16 values as the rules order them, rounded to bfloat16. Rules: HAD-2, HAD-3."""
    signed = [r.times(v, -0.25 if mask >> i & 1 else 0.25) for i, v in enumerate(group)]
    return [r.narrowed(v, r.BFLOAT16) for v in butterfly(signed)]


def inverse(group: Sequence[float], mask: int) -> list[float]:
    """Return a quarter, the butterfly, then the signs. Rules: HAD-6."""
    sums = butterfly([r.times(v, 0.25) for v in group])
    return [-v if mask >> i & 1 else v for i, v in enumerate(sums)]


def butterfly(values: Sequence[float]) -> list[float]:
    """Return sums and differences of the elements 1, 2, 4 and 8 apart; then +0 is added. Rules: HAD-2, HAD-3."""
    current = list(values)
    for stride in (1, 2, 4, 8):
        current = [
            r.minus(current[i - stride], v) if i & stride else r.plus(v, current[i + stride])
            for i, v in enumerate(current)
        ]
    return [r.plus(v, 0.0) for v in current]


def interval(group: Sequence[float], mask: int) -> list[tuple[float, float]]:
    """For each output the lowest and the highest bfloat16 that any order of additions may give.

    Rules: HAD-7. Certificates: hadamard-interval.
    """
    exponents = [r.floor_log2(abs(Fraction(v))) for v in group if v]
    if not exponents or max(exponents) - min(exponents) <= 12:
        return [(y, y) for y in transform(group, mask)]
    slack = 15 * r.power(-23) * sum((abs(Fraction(v)) for v in group), Fraction(0)) / 4
    sums = exact_sums(group, mask)
    return [(r.rounded(s - slack, r.BFLOAT16), r.rounded(s + slack, r.BFLOAT16)) for s in sums]
