"""Exact hypergeometric intervals: how often two independent draws agree, given how often each one succeeds.

Weights are relative to that of the mode, and each is a product of at most 10^5 ratios, right to 1 part in 10^10. The
tail beyond the last weight is bounded by a geometric series. Tails are divided by a sum that leaves out only positive
terms, so an interval can be too wide by one count, never too narrow.
"""

from __future__ import annotations

from collections.abc import Callable

LEAST = 2.0**-200  # weights below it are bounded, not summed
SLACK = 1 + 1e-6


def interval(n: int, first: int, second: int, alpha: float) -> tuple[int, int]:
    """Return counts of pairs with two successes that independent draws leave with a probability below alpha.

    n: pairs. first, second: successes among the first and among the second elements of the pairs.

    Rules: SR-11. Certificates: count-intervals.
    """
    least, most = max(0, first + second - n), min(first, second)
    mode = min(max((first + 1) * (second + 1) // (n + 2), least), most)

    def up(x: int) -> float:
        return (first - x) * (second - x) / ((x + 1) * (n - first - second + x + 1))

    def down(x: int) -> float:
        return x * (n - first - second + x) / ((first - x + 1) * (second - x + 1))

    above, beyond = _weights(up, mode, most, 1)
    below, before = _weights(down, mode, least, -1)
    total = (sum(above) + sum(below) - 1) / SLACK
    return mode - _inside(below, before, total, alpha / 2), mode + _inside(above, beyond, total, alpha / 2)


def _weights(ratio: Callable[[int], float], mode: int, end: int, step: int) -> tuple[list[float], float]:
    """Return the weights from the mode outward, and a bound on the sum of those that follow."""
    found, x = [1.0], mode
    while x != end:
        last = ratio(x)
        weight = found[-1] * last
        if weight < LEAST:
            return found, weight / (1 - last)
        found.append(weight)
        x += step
    return found, 0.0


def _inside(weights: list[float], rest: float, total: float, alpha: float) -> int:
    """Return how far from the mode the tail is not below alpha."""
    tail = rest
    for distance in range(len(weights) - 1, -1, -1):
        tail += weights[distance]
        if tail / total >= alpha:
            return distance
    return 0
