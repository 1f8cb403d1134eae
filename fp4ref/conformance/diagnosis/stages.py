"""Stage by stage: each stage of a candidate, judged on the candidate's own output of the stages before it.

A quantizer is a chain: maxima, scales, scale bytes, scaled elements, codes, packing. If the candidate's scale bytes are
wrong, the golden codes say nothing about its codes. The codes that follow from the candidate's own scale bytes do: if
these are the candidate's, then elements are right and the scales alone are to blame.

For example, a kernel with a wrong amax, truncated scales and ties away from zero has three mistakes, more than a search
over hypotheses can try together. Judged by stages, the scales are compared with those that follow from the kernel's own
amax, and one mistake explains them; the codes are compared with those that follow from its own scale bytes, and another
one explains them. If nothing explains a stage, the report still names the stages that are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fp4ref.conformance.diagnosis.clock import OutOfTimeError, processor_time
from fp4ref.conformance.diagnosis.code_stage import explained_codes, first_wrong_of_codes, right_codes
from fp4ref.conformance.diagnosis.evidence import Item, Part
from fp4ref.conformance.diagnosis.hypotheses import Hypothesis
from fp4ref.conformance.diagnosis.measured.amax import measured_amax, returned_amax
from fp4ref.conformance.diagnosis.measured.stages import sign_mask
from fp4ref.conformance.diagnosis.measured.transform import transform_matrix
from fp4ref.conformance.diagnosis.scale_stage import Tick, explained_scales, permuted, read_as, right_scales, with_each
from fp4ref.conformance.diagnosis.support import tellable
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.mistakes.exhibit import EVERY
from fp4ref.conformance.mistakes.kernel import kernel_of
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.spec import Spec

BEFORE_AMAX = frozenset({Slot.INPUT, Slot.HADAMARD, Slot.AMAX})
ALIKE = 6  # explanations of the scales that are carried on to the codes


@dataclass(frozen=True)
class StageFinding:
    """The state of one stage: right, explained by something, or not explained (None)."""

    stage: str
    right: bool
    text: str | None = None


@dataclass(frozen=True)
class Stagewise:
    """Findings on maxima, scales and codes; composed: hypotheses that hold explanations of all, if all have one.

    first: the stage at which bytes first differ from what the stages before call for.
    """

    findings: tuple[StageFinding, ...]
    composed: tuple[Hypothesis, ...]
    first: str | None
    complete: bool


def by_stages(
    spec: Spec, items: Sequence[Item], parts: Sequence[Part], deadline: float, *, compose: bool = True
) -> Stagewise:
    """Judge maxima, then scales given the candidate's maxima, then codes given its scales.

    compose: other explanations of the scales are carried on to the codes as well.
    """
    base = Hypothesis(kernel_of(spec))
    complete = True

    def tick() -> None:
        if processor_time.passed(deadline):
            raise OutOfTimeError

    def found(search: Callable[..., list[Hypothesis]], *arguments: Any) -> list[Hypothesis]:
        nonlocal complete
        try:
            return search(*arguments, parts, tick)
        except OutOfTimeError:
            complete = False
            return []

    # Right bytes are seen without a search, so that a search that runs out of time does not count as a difference.
    maxima = found(_maxima, base) or [base] * all(_right_maxima(item) for item in items)
    enough = [one for one in maxima if found(_right_bytes, one)] if len(maxima) > 1 else []
    for start in enough[:2] or dict.fromkeys([*maxima[:2], *maxima[-2:]]) or [base]:
        scales = found(explained_scales, start) or [base] * (
            start is base and all(right_scales(item) for item in items)
        )
        unmoved = not scales and not any(item.wrong_codes.any() for item in items)
        codes = [base] if unmoved else found(explained_codes, scales[0] if scales else start)
        if scales and codes:
            break
    for told in found(_global_scales, start) if maxima and not scales else ():
        scales = found(explained_scales, told)
        if scales:
            codes = found(explained_codes, scales[0])
            break
    findings = (
        *(() if all(item.amax is None for item in items) else (_finding("amax", base, maxima),)),
        _finding("scale", start, scales),
        _finding("code", scales[0] if scales else start, codes),
    )
    lead = next((one for one in codes[:1] if all(map(one.explains, items))), None)

    def alike(other: Hypothesis) -> list[Hypothesis]:
        """Explain the codes with other scales, only by what is not told after a hypothesis that explains every byte."""
        if lead is None:
            return found(explained_codes, other)
        if other.cost < lead.cost or (lead.measured and not other.measured):  # named mistakes come before measured ones
            return found(partial(explained_codes, measure=lead.measured and other.cost < lead.cost), other)
        return found(_right_codes, other)

    composed = (
        [*codes, *(h for other in scales[1:ALIKE] for h in alike(other))] if compose and maxima and scales else []
    )
    composed += [moved for other in maxima[1:ALIKE] for h in composed if (moved := _onto(other, start, h)) is not None]
    first = next((finding.stage for finding in findings if not finding.right), None)
    if first == "scale" and not scales and permuted(parts):
        first = "layout"
    if first == "code" and not codes:
        first = first_wrong_of_codes(start, parts)
    return Stagewise(findings, tuple(composed), first, complete)


def _global_scales(start: Hypothesis, parts: Sequence[Part], tick: Tick) -> list[Hypothesis]:
    """Hypotheses with another global scale that makes the candidate's codes, given its own maxima and scale bytes."""
    known = [m for m in MISTAKES if m.stage is Slot.GLOBAL and not m.special]
    return [
        changed for changed in with_each(start, known) if changed is not start and right_codes(changed, parts, tick)
    ]


def _right_bytes(start: Hypothesis, parts: Sequence[Part], tick: Tick) -> list[Hypothesis]:
    """Return the hypothesis if it makes the candidate's scale bytes as well, so that no second cause is needed."""
    return [start] if read_as(start, parts, [DECLARED], tick) else []


def _right_codes(start: Hypothesis, parts: Sequence[Part], tick: Tick) -> list[Hypothesis]:
    """Return the hypothesis if it makes the candidate's codes as well, given its maxima and scale bytes."""
    return [start] if right_codes(start, parts, tick) else []


def _right_maxima(item: Item) -> bool:
    """Return True if the candidate's maxima are the specification's, or it gives none."""
    return Part(item, EVERY, EVERY, tier=True).amax_matches(kernel_of(item.spec), item.base)


def _finding(stage: str, start: Hypothesis, found: Sequence[Hypothesis]) -> StageFinding:
    if not found:
        return StageFinding(stage, right=False)
    texts = [mistake.text for mistake in found[0].mistakes if mistake not in start.mistakes]
    texts += [reader.text for reader in (found[0].scales, found[0].data) if reader.text]
    texts = [text for text in texts if text not in {start.scales.text, start.data.text}]
    return StageFinding(stage, right=not texts, text="; ".join(texts) or None)


def _onto(start: Hypothesis, instead_of: Hypothesis, hypothesis: Hypothesis) -> Hypothesis | None:
    """Return the same with other mistakes in the maxima: what follows was judged on the candidate's own."""
    moved: Hypothesis | None = start.reading(hypothesis.scales, hypothesis.data)
    for mistake in hypothesis.mistakes:
        if mistake not in instead_of.mistakes:
            moved = None if moved is None else moved.but(mistake)
    return moved


def _maxima(base: Hypothesis, parts: Sequence[Part], tick: Tick) -> list[Hypothesis]:
    """Hypotheses whose maxima are the candidate's."""
    found = []
    measured = [m for m in (sign_mask(base.kernel, parts), transform_matrix(base.kernel, parts)) if m is not None]
    items = list({id(part.item): part.item for part in parts}.values())
    known = [m for m in tellable(items, special=False) if m.stage in BEFORE_AMAX]
    for changed in with_each(base, [*known, *measured]):
        tick()
        sides = ((part, part.side(changed.kernel)) for part in parts if part.serves(changed.kernel))
        if all(side is not None and part.amax_matches(changed.kernel, side) for part, side in sides):
            found.append(changed)
            if changed is base:
                break
    other = None if found else measured_amax(base.kernel, parts)
    own = None if other is None else base.but(other)
    if own is not None and all(map(right_scales, items)) and not read_as(own, parts, [DECLARED], tick):
        returned = returned_amax(base.kernel, parts)
        own = own if returned is None else base.but(returned)
    return found if own is None else [own]
