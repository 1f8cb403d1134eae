"""Exact binomial intervals: tails summed term by term, with bounds on what is left out and on rounding.

A term is exp of a sum of logarithms below 3e7 in magnitude for n up to 2^20, each right to 4 parts in 2^53; so a term
is right to 1 part in 10^6. The terms past the first decrease at least geometrically, which bounds their sum. Every tail
here is an upper bound: an interval can be too wide by one count, never too narrow.
"""

from __future__ import annotations

import math

LARGEST = 1 << 20  # trials
SLACK = 1 + 1e-5
LEAST = 2.0**-1000  # smaller tails, whose terms may be lost below float64's range, are called this


def upper_tail(count: int, n: int, p: float) -> float:
    """Return a bound on the probability of `count` successes or more in n trials of probability p.

    Rules: SR-11.
    """
    if count <= 0 or p >= 1:
        return 1.0
    if count > n or p <= 0:
        return 0.0
    odds = p / (1 - p)
    if (n - count) * odds >= count + 1:  # at or below the mean
        return 1.0
    logarithm = math.lgamma(n + 1) - math.lgamma(count + 1) - math.lgamma(n - count + 1)
    term = math.exp(min(logarithm + count * math.log(p) + (n - count) * math.log1p(-p), 0.0))
    total = 0.0
    for k in range(count, n + 1):
        total += term
        ratio = (n - k) / (k + 1) * odds
        if ratio < 1 and term * ratio / (1 - ratio) <= total * 1e-6:
            break
        term *= ratio
    return min(max(total, LEAST) * SLACK, 1.0)


def interval(n: int, low: float, high: float, alpha: float) -> tuple[int, int]:
    """Return counts that n trials, each with a probability between low and high, leave with a probability below alpha.

    The number of successes of unlike trials is between those of n trials at either bound, so half of alpha on each
    side holds for any mixture.

    Rules: SR-11. Certificates: count-intervals.
    """
    if n > LARGEST:
        raise ValueError(n)
    return n - _largest(n, 1 - low, alpha / 2), _largest(n, high, alpha / 2)


def _largest(n: int, p: float, alpha: float) -> int:
    """Return the largest count whose upper tail is not below alpha."""
    inside, outside = 0, n + 1
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if upper_tail(middle, n, p) >= alpha:
            inside = middle
        else:
            outside = middle
    return inside
