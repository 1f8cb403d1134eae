"""The mistakes of a kernel that draws its own random bits, told by the counts that fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fp4ref.conformance.judge.stochastic import Bin, Pair, Rounded, Share, frequency
from fp4ref.quantized import Direction

CERTAIN = 32  # roundings of either kind that a call is expected to have, if it is to tell a constant one


def known_mistakes(parts: Sequence[Rounded], found: Sequence[Bin], shared: set[Pair], alpha: float) -> list[str]:
    """Return the known mistakes that explain what failed. Rules: SR-9, SR-11."""
    if told := constant(parts):
        return told
    shares: dict[str, Share] = {
        "the probability of rounding away is reversed": lambda frac: 1 - np.floor(frac * 256) / 256,
        "only four random bits are used": lambda frac: np.floor(frac * 16) / 16,
        "rounds away with probability 1/2, whatever the value": lambda frac: 0.5,
    }
    return _shared(shared) or [
        name for name, share in shares.items() if all(frequency(each, alpha, share).passed for each in found)
    ]


def constant(parts: Sequence[Rounded]) -> list[str]:
    """Return the rounding that uses no random bits, if the candidate's is one. Rules: SR-11."""
    if not any(part.away.any() for part in parts):
        return ["always rounds down, as with random bits that are all zero"]
    if all((part.away == part.open).all() for part in parts):
        return ["always rounds away from zero"]
    if all((part.away == (part.nearest & part.open)).all() for part in parts):
        return ["always rounds to nearest"]
    return []


def constant_in_some(read: Sequence[Mapping[Direction, Rounded]]) -> list[str]:
    """Return the rounding without random bits that some calls have, and how many calls these are.

    A call tells only if a drawn rounding of its elements is that rounding with a probability below e^-32.
    """
    said: dict[str, list[int]] = {}
    for number, each in enumerate(read, 1):
        parts = list(each.values())
        chances = np.concatenate([part.frac[part.open] for part in parts]) if parts else np.zeros(0)
        if min(chances.sum(), (1 - chances).sum(), np.minimum(chances, 1 - chances).sum()) >= CERTAIN:
            for text in constant(parts):
                said.setdefault(text, []).append(number)
    return [f"{text}, in {len(calls)} of {len(read)} calls, first in call {calls[0]}" for text, calls in said.items()]


def biased(parts: Sequence[Rounded], found: Sequence[Bin], alpha: float) -> list[str]:
    """Say how often halfway elements are rounded away, where the counts of elements fail and those of pairs do not."""
    halves = np.concatenate([part.away[part.open & (part.frac == 0.5)] for part in parts])
    if not len(halves) or all(frequency(each, alpha).passed for each in found):
        return []
    rate = f"{int(halves.sum()):,} of {len(halves):,}"
    return [f"the random bits are independent, but biased: {rate} halfway elements are rounded away"]


def _shared(alike: set[Pair]) -> list[str]:
    """Return the elements that share their bits, given the tests in which all pairs rounded alike. Rules: SR-9."""
    said = []
    if alike & {Pair.ELEMENTS, Pair.PLACES}:
        said.append("both directions use the same bits")
    if Pair.GROUP in alike:
        block = Pair.GROUPS in alike
        pairs = "elements 2i and 2i + 1 share their bits, and perhaps all four of a word"
        said.append("the elements of a block share their bits" if block else pairs)
    elif Pair.GROUPS in alike:
        said.append("the groups of a block use the same bits")
    if Pair.BLOCKS in alike:
        said.append("every block uses the same bits")
    if Pair.ROWS in alike:
        said.append("every row uses the same bits")
    return said
