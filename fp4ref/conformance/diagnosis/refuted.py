"""The findings of searches of a diagnosis that ended, and so all that they refuted for later ones on more cases."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from fp4ref.conformance.diagnosis.hypotheses import Hypothesis
from fp4ref.conformance.diagnosis.marks import Tier


class Refuted:
    """Searches that ended in time, and all that they found: whatever else they tried is refuted, in more cases too.

    found: by tier and cost, and whether two causes were not tried together for scales that are right. mistakes: the
    names of those that were tried. paired: whether two mistakes in two places may explain the cases. dead: changes
    that no scale bytes of the cases allow. measured: what explains the cases, if something in it was measured there.
    """

    def __init__(self, mistakes: Sequence[str] = ()) -> None:
        self.mistakes = mistakes
        self.found: dict[tuple[Tier, int, bool], list[Hypothesis]] = {}
        self.paired = True
        self.dead: set[Hashable] = set()
        self.measured: list[Hypothesis] = []

    def of(self, mistakes: Sequence[str]) -> Refuted:
        """Return the state of a search that tries these mistakes."""
        if mistakes == self.mistakes:
            return self
        other = Refuted(mistakes)
        other.dead, other.measured = self.dead, self.measured
        return other
