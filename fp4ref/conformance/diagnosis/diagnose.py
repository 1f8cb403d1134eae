"""Diagnosis: what a candidate that is wrong did wrong.

Every known mistake, and every registered profile, is a hypothesis about the whole evidence. Only what makes every byte
is called an explanation; the rest is "not explained", with the stage at which bytes first differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fp4ref.conformance.diagnosis.budget import BEFORE_BOUNDS, SECONDS
from fp4ref.conformance.diagnosis.budget import FEW as AMONG_FEW
from fp4ref.conformance.diagnosis.clock import processor_time
from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.explanations import Diagnosis
from fp4ref.conformance.diagnosis.refuted import Refuted
from fp4ref.conformance.diagnosis.session import Session
from fp4ref.conformance.diagnosis.special_input import LEAST, SMALLEST
from fp4ref.conformance.mistakes.exhibit import CaseLike
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.layout import layout
from fp4ref.names import load_extensions
from fp4ref.quantized import DirectionData
from fp4ref.spec import Spec

Evidence = tuple[CaseLike, DirectionData]


FIRST = 1 << 19  # elements of wrong cases, and of right ones, among which causes are looked for first


@np.errstate(all="ignore")  # wrong formulas overflow
def diagnose(spec: Spec, scale_layout: str, evidence: Sequence[Evidence], budget_seconds: float = SECONDS) -> Diagnosis:
    """Explain what a candidate made of some cases.

    scale_layout: the declared one, in which the scales of the evidence lie; data is packed as declared too.
    budget_seconds: of processor time, so that a busy machine finds the same.

    Rules: CNF-1, CNF-2, CNF-30, CNF-86.
    """
    load_extensions()  # which may register mistakes
    start = processor_time()
    items = _items(spec, scale_layout, evidence, LEAST)
    wrong = [item for item in items if not item.equal]
    untidy = [item for item in items if item.stray(DECLARED) or item.spare()]
    if not wrong and not untidy:
        return Diagnosis(conforms=True)
    if 2 * sum(np.count_nonzero(item.classes == 0) for item in items) < sum(item.classes.size for item in items):
        items = _items(spec, scale_layout, evidence, SMALLEST)
    ordered = _varied(sorted(items, key=lambda item: (item.equal, item.size)))
    near = _few(ordered)
    end, refuted = start + budget_seconds, Refuted()
    if len(near) < len(ordered) and any(not item.equal for item in near):
        first = Session(spec, near, start + AMONG_FEW * budget_seconds)
        confirmed = _confirmed(first, ordered)
        if confirmed is not None:
            return confirmed
        refuted = first.tried
    found = Session(
        spec, ordered, start + BEFORE_BOUNDS * budget_seconds if spec.hadamard else end, earlier=refuted
    ).diagnosis()
    if found.explanations or spec.hadamard is None:
        return found
    bounded = _varied(
        sorted(_items(spec, scale_layout, evidence, LEAST, bounded=True), key=lambda i: (i.equal, i.size))
    )
    if all(item.equal for item in bounded) and not untidy:
        return Diagnosis(conforms=True)
    again = Session(spec, bounded, end).diagnosis()
    return again if again.explanations else found


def _few(items: Sequence[Item]) -> list[Item]:
    """Return the first wrong cases and the first right ones, few enough for a quick search."""
    kept: list[Item] = []
    for equal in (False, True):
        total = 0
        for item in items:
            if item.equal is equal and total + item.size <= FIRST:
                kept.append(item)
                total += item.size
    return kept


def _confirmed(session: Session, items: Sequence[Item]) -> Diagnosis | None:
    """Return the explanations of some cases that make every byte of all of them, None if there is none."""
    some = set(map(id, session.items))
    far = [item for item in items if id(item) not in some]
    found = session.diagnosis()
    made = ((told, session.made_by.get(told.names)) for told in found.explanations)
    kept = tuple(told for told, by in made if by is not None and all(by.explains(item) for item in far))
    return replace(found, explanations=kept) if kept else None


def _items(
    spec: Spec, scale_layout: str, evidence: Sequence[Evidence], least: float, *, bounded: bool = False
) -> list[Item]:
    order = layout(scale_layout)
    made = (
        Item(case, got, spec, order, least, bounded=bounded, call=call) for call, (case, got) in enumerate(evidence)
    )
    return [item for item in made if item.size]


def _varied(items: Sequence[Item]) -> list[Item]:
    """Items of many families first, so that a wrong hypothesis fails early."""
    seen: dict[Any, int] = {}
    ranks = []
    for place, item in enumerate(items):
        family = getattr(item.exhibit.case, "family", None), item.equal
        seen[family] = seen.get(family, 0) + 1
        ranks.append((item.equal, seen[family], place))
    return [items[place] for *_, place in sorted(ranks)]
