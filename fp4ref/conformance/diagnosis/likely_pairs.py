"""Pairs of mistakes before the scale bytes that are likely together.

Where one of two mistakes changes nothing, the other alone decides, and its scale bytes must be the candidate's. For
example, a global scale of 448 * 4 moves every block, so that "zero blocks have the scale byte 1" can come with it only
if the global scale alone makes the bytes of all blocks that are not zero. Pairs that this excludes are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import SMALL, Part
from fp4ref.conformance.diagnosis.excluded import Change, Changes, excluded, excluded_with, same_candidates, same_change
from fp4ref.conformance.diagnosis.hypotheses import ORDER, Hypothesis
from fp4ref.conformance.mistakes.kernel import ScaleSide
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


class LikelyPairs:
    """Pairs of single mistakes of a start, and the mistakes that are likely with a profile."""

    def __init__(
        self,
        start: Hypothesis,
        singles: Sequence[tuple[Mistake, Hypothesis]],
        parts: Sequence[Part],
        tick: Callable[[], None],
    ) -> None:
        self.start, self.singles = start, singles
        self._parts = [part for part in parts if part.item.size <= SMALL or not part.whole][:SAMPLED]
        sides = _sides(start, self._parts)
        self._plain, self._outcomes = _outcomes(start, self._parts, sides), list[Outcomes]()
        self._changes, self._made = Changes(start.kernel, self._parts, sides), list[Change]()
        for mistake, hypothesis in singles:
            tick()
            sides = _sides(hypothesis, self._parts)
            self._outcomes.append(_outcomes(hypothesis, self._parts, sides))
            self._made.append(self._changes.of(hypothesis.kernel, mistake, sides))

    def likeliest(self) -> Iterator[tuple[Mistake, Mistake]]:
        """Pairs of mistakes, the likeliest first: where one changes nothing, the other alone is mostly right."""
        if not self.singles:
            return
        wrong = np.array([~outcome.right for outcome in self._outcomes], np.float32)
        idle = np.array([outcome.same_as(self._plain) for outcome in self._outcomes], np.float32)
        share = idle @ wrong.T / np.maximum(idle.sum(axis=1, keepdims=True), 1)
        worst = np.minimum(np.maximum(share, share.T), CLASH)
        stages = np.array([ORDER.index(mistake.stage) for mistake, _ in self.singles])
        one, other = np.triu_indices(len(self.singles), 1)
        kept = stages[one] != stages[other]
        if self.start.kernel.search is None:  # where codes choose the scales, what changes codes may change these
            kept &= ~excluded(self._made)[one, other]
        one, other = one[kept], other[kept]
        for place in np.argsort(worst[one, other], kind="stable").tolist():
            first, second = sorted((one[place], other[place]), key=stages.__getitem__)
            yield self.singles[first][0], self.singles[second][0]

    def excluded_from(self, profile: Hypothesis) -> Callable[[Mistake, Hypothesis], bool]:
        """Return a test of mistakes, each with the profile that has it: True if both together make other bytes."""
        found = excluded_with(self._changes.of_profile(profile.kernel, _sides(profile, self._parts)), self._made)
        single = {self.singles[place][0].name: self.singles[place][1] for place in np.flatnonzero(found).tolist()}
        plain, start = self.start.kernel, profile.kernel
        hopeless = not all(part.may_choose(start) for part in self._parts if part.item.size <= SMALL)

        def test(mistake: Mistake, made: Hypothesis) -> bool:
            if hopeless and same_candidates(start, made.kernel):
                return True
            alone = single.get(mistake.name)
            return alone is not None and same_change(plain, alone.kernel, start, made.kernel)

        return test


def _sides(hypothesis: Hypothesis, parts: Sequence[Part]) -> list[ScaleSide | None]:
    """Return a hypothesis up to its scales on small parts, None where it means nothing or is not tried."""
    kernel = hypothesis.kernel
    return [part.side(kernel) if part.serves(kernel) else None for part in parts]


def _outcomes(hypothesis: Hypothesis, parts: Sequence[Part], sides: Sequence[ScaleSide | None]) -> Outcomes:
    """Return the scale byte that a hypothesis gives each block of small pieces, int64, and whether it is right.

    parts: whole cases, and a piece of each case that is too large.
    """
    made: list[NDArray[np.int64]] = []
    right: list[NDArray[np.bool_]] = []
    for part, side in zip(parts, sides, strict=True):
        got, kernel = part.declared_scales, hypothesis.kernel
        if side is None or got is None or side.scales.shape != got.shape:
            made += [np.full(part.count + 1, -1, np.int64)]
            right += [np.zeros(part.count + 1, np.bool_)]
            continue
        told = np.zeros(1, F) if side.amax is None else np.asarray(side.amax, F)
        made += [side.scales.reshape(-1).astype(np.int64), np.array([hash(told.tobytes()) & MASK])]
        equal = side.scales == got if part.blocks is None else (side.scales == got) | ~part.blocks
        right += [equal.reshape(-1), np.array([part.amax_matches(kernel, side)])]
    return Outcomes(np.concatenate(made), np.concatenate(right))
