"""The order in which causes are told that explain the same bytes, and which of them are not told at all.

Fewer mistakes come first. Among as many, a rule for special values is told where nothing else differs, then any change
of the computation, then a symptom: the byte that zeros or NaN end up as, which follows from causes further up. A
profile is told last: its name says less than a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

from fp4ref.conformance.diagnosis.hypotheses import Hypothesis
from fp4ref.conformance.mistakes.record import Mistake

RULE, CHANGE, SYMPTOM, PROFILE = range(4)


def ranked(found: Sequence[Hypothesis], *, only_special: bool = False) -> list[Hypothesis]:
    """Return hypotheses that explain the same bytes, in the order in which they are told.

    only_special: nothing but special values differs. Then a change of the computation that acts on them alone, such as
    an addition of +0, is not told beside a rule for them.

    Rules: CNF-87.
    """
    ordered = sorted(found, key=lambda hypothesis: (hypothesis.cost, _rank(hypothesis)))
    if only_special and ordered and _rank(ordered[0]) == RULE:
        return [hypothesis for hypothesis in ordered if _rank(hypothesis) != CHANGE]
    return ordered


def _rank(hypothesis: Hypothesis) -> int:
    return PROFILE if hypothesis.profile else max((_kind(mistake) for mistake in hypothesis.mistakes), default=CHANGE)


def _kind(mistake: Mistake) -> int:
    if mistake.symptom:
        return SYMPTOM
    return RULE if mistake.special else CHANGE
