"""Pairs of mistakes before the scale bytes that are likely together.

Where one of two mistakes changes nothing, the other alone decides, and its scale bytes must be the candidate's. For
example, a global scale of 448 * 4 moves every block, so that "zero blocks have the scale byte 1" can come with it only
if the global scale alone makes the bytes of all blocks that are not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import SMALL, Part
from fp4ref.conformance.diagnosis.hypotheses import Hypothesis, pairs
from fp4ref.conformance.mistakes.record import Mistake
from fp4ref.formats import F

MASK = (1 << 62) - 1
CLASH = 0.1  # up to this share of contradicting blocks two mistakes are likely together
SAMPLED = 24  # pieces on which pairs of mistakes are excluded


class Outcomes(NamedTuple):
    """Scale bytes, and a number for the maxima; and which of them are the candidate's."""

    made: NDArray[np.int64]
    right: NDArray[np.bool_]

    def same_as(self, other: Outcomes) -> NDArray[np.bool_]:
        """Return True where two hypotheses make the same bytes and both are defined."""
        return np.asarray((self.made == other.made) & (self.made >= 0))


def likeliest(
    start: Hypothesis, singles: Sequence[tuple[Mistake, Hypothesis]], parts: Sequence[Part], tick: Callable[[], None]
) -> Iterator[tuple[Mistake, Mistake]]:
    """Pairs of mistakes, the likeliest first: where one changes nothing, the other alone is mostly right."""
    if not singles:
        return
    small = [part for part in parts if part.item.size <= SMALL or not part.whole][:SAMPLED]
    plain, made = _outcomes(start, small), []
    for _, hypothesis in singles:
        tick()
        made.append(_outcomes(hypothesis, small))
    wrong = np.array([~outcome.right for outcome in made], np.float32)
    idle = np.array([outcome.same_as(plain) for outcome in made], np.float32)
    share = idle @ wrong.T / np.maximum(idle.sum(axis=1, keepdims=True), 1)
    worst = np.maximum(share, share.T)
    places = {mistake.name: place for place, (mistake, _) in enumerate(singles)}
    found = [
        (float(worst[places[one.name], places[other.name]]), one, other)
        for one, other in pairs([mistake for mistake, _ in singles])
    ]
    yield from ((one, other) for _, one, other in sorted(found, key=lambda pair: min(pair[0], CLASH)))


def _outcomes(hypothesis: Hypothesis, parts: Sequence[Part]) -> Outcomes:
    """Return the scale byte that a hypothesis gives each block of small pieces, int64, and whether it is right.

    parts: whole cases, and a piece of each case that is too large.
    """
    made: list[NDArray[np.int64]] = []
    right: list[NDArray[np.bool_]] = []
    for part in parts:
        got, kernel = part.declared_scales, hypothesis.kernel
        side = part.side(kernel) if part.serves(kernel) else None
        if side is None or got is None or side.scales.shape != got.shape:
            made += [np.full(part.count + 1, -1, np.int64)]
            right += [np.zeros(part.count + 1, np.bool_)]
            continue
        told = np.zeros(1, F) if side.amax is None else np.asarray(side.amax, F)
        made += [side.scales.reshape(-1).astype(np.int64), np.array([hash(told.tobytes()) & MASK])]
        equal = side.scales == got if part.blocks is None else (side.scales == got) | ~part.blocks
        right += [equal.reshape(-1), np.array([part.amax_matches(kernel, side)])]
    return Outcomes(np.concatenate(made), np.concatenate(right))
