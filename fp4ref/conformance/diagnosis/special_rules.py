"""Rules for special values that make an explanation of ordinary values whole.

For example, a candidate rounds scales up and writes code 0 for NaN. Blocks without NaN are explained by the rounding
alone; this search then adds "NaN becomes code 0", which makes the class of NaN right and no other class wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from fp4ref.conformance.diagnosis.clock import OutOfTimeError
from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.hypotheses import Hypothesis
from fp4ref.conformance.diagnosis.measured.specials import measured_specials
from fp4ref.conformance.diagnosis.special_input import Special
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.mistakes.record import Mistake


class SpecialRules:
    """The search for rules for special values. kinds: the classes that occur. tick: raises when the time is over."""

    def __init__(self, items: Sequence[Item], kinds: list[Special], tick: Callable[[], None]) -> None:
        self.items, self.kinds, self.tick = items, kinds, tick
        self.complete = True

    def completed(self, hypothesis: Hypothesis) -> tuple[Hypothesis, tuple[str, ...]]:
        """Return the hypothesis with rules for special values, and the classes that stay unexplained."""
        bad = [kind for kind in self.kinds if not self.right(hypothesis, kind)]
        named = [mistake for mistake in MISTAKES if mistake.special]
        hypothesis, bad = self._bettered(hypothesis, bad, named)
        if bad:
            measured = measured_specials(hypothesis.kernel, self.items, hypothesis.scales, hypothesis.data)
            hypothesis, bad = self._bettered(hypothesis, bad, [*measured, *named])
        if not bad:
            open_kinds = {kind for item in self.items if not hypothesis.explains(item) for kind in item.kinds()}
            bad = [kind for kind in Special if kind in open_kinds]
        return hypothesis, tuple(kind.value for kind in bad)

    def _bettered(
        self, hypothesis: Hypothesis, bad: list[Special], special: Sequence[Mistake]
    ) -> tuple[Hypothesis, list[Special]]:
        """With special rules for as long as they make more classes right, and there is time."""
        try:
            while bad and (better := self._best(hypothesis, bad, special)) is not None:
                hypothesis, bad = better
        except OutOfTimeError:
            self.complete = False
        return hypothesis, bad

    def _best(
        self, hypothesis: Hypothesis, bad: list[Special], special: Sequence[Mistake]
    ) -> tuple[Hypothesis, list[Special]] | None:
        """With the one or two special rules that make most classes right and none wrong."""
        good = [kind for kind in self.kinds if kind not in bad]
        best: tuple[Hypothesis, list[Special]] | None = None
        for changed in self._singles_then_pairs(hypothesis, special, bad[0]):
            self.tick()
            if best is not None and changed.cost > best[0].cost:
                break
            left = [kind for kind in bad if not self.right(changed, kind)]
            fewer = len(left) < (len(bad) if best is None else len(best[1]))
            if fewer and all(self.right(changed, kind) for kind in good):
                best = changed, left
            if best is not None and not best[1]:
                break
        return best

    def _singles_then_pairs(
        self, hypothesis: Hypothesis, special: Sequence[Mistake], kind: Special
    ) -> Iterator[Hypothesis]:
        """With each special rule; then with each two of them that change the bytes of a case that is wrong."""
        singles = [changed for mistake in special if (changed := hypothesis.but(mistake)) is not None]
        yield from singles
        item = next(item for item in self._of_kind(kind) if not hypothesis.explains(item, kind))
        before = item.made(hypothesis.kernel)
        active = [changed for changed in singles if item.made(changed.kernel) != before]
        for changed in active:
            alone = item.made(changed.kernel)
            for mistake in special:
                both = changed.but(mistake) if mistake not in changed.mistakes else None
                if both is not None and item.made(both.kernel) != alone:
                    yield both

    def right(self, hypothesis: Hypothesis, kind: Special) -> bool:
        """Return True if a class of special values is explained."""
        return hypothesis.explains_all(self._of_kind(kind), kind)

    def _of_kind(self, kind: Special) -> list[Item]:
        return self._by_kind[kind]

    @cached_property
    def _by_kind(self) -> dict[Special, list[Item]]:
        found = [(item, item.kinds()) for item in self.items]
        return {kind: [item for item, kinds in found if kind in kinds] for kind in Special}
