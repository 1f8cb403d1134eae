"""The stage of the codes: hypotheses that make the candidate's codes, given its own maxima and scale bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fp4ref.conformance.diagnosis.evidence import LARGE, Part
from fp4ref.conformance.diagnosis.hypotheses import AFTER_SCALES, Hypothesis
from fp4ref.conformance.diagnosis.measured.bits import source_of_bits
from fp4ref.conformance.diagnosis.measured.maps import code_map, factor_of_elements
from fp4ref.conformance.diagnosis.measured.missing import missing_codes
from fp4ref.conformance.diagnosis.measured.order import element_orders
from fp4ref.conformance.diagnosis.measured.stages import element_boundaries
from fp4ref.conformance.diagnosis.scale_stage import Tick, given_amax, given_scales, with_each
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.mistakes.data_readers import ALL_DATA_READERS, HIGH_FIRST, LOW_FIRST, DataReader
from fp4ref.conformance.mistakes.kernel import ScaleSide, kernel_of
from fp4ref.conformance.mistakes.record import Mistake
from fp4ref.conformance.mistakes.sides import code_side


def explained_codes(found: Hypothesis, parts: Sequence[Part], tick: Tick, *, measure: bool = True) -> list[Hypothesis]:
    """Hypotheses whose codes are the candidate's, given its maxima and scale bytes.

    measure: if no named mistake makes them, measure what does.
    """
    if found.kernel.search is not None:
        return []
    usable = [part for part in parts if part.item.size]
    sides = {id(part): _side(found, part) for part in usable if part.serves(found.kernel)}
    known = [m for m in MISTAKES if m.stage in AFTER_SCALES and not m.special]

    def written(changed: Hypothesis, readers: Sequence[DataReader]) -> Sequence[DataReader]:
        alive = readers
        for part in usable:
            tick()
            if not part.serves(changed.kernel):
                continue
            shared = id(part) in sides and changed.kernel.bits is found.kernel.bits
            side = sides[id(part)] if shared else _side(changed, part)
            alive = [] if side is None else part.reading(changed.kernel, side, alive)
            if not alive:
                break
        return alive

    result: list[Hypothesis] = []
    of_tensors = all(part.item.of_tensors for part in usable)
    readers: Sequence[DataReader] = ALL_DATA_READERS if of_tensors else (LOW_FIRST,)
    for changed in with_each(found, known):
        alive = written(changed, readers)
        result += [changed.reading(data=reader) for reader in alive]
        if changed is found and alive:
            break
    if not result and measure:
        result = _unnamed_codes(found, known, _with_sides(found, usable), written)
    return sorted(result, key=lambda hypothesis: hypothesis.cost)


def measured_anew(found: Hypothesis, parts: Sequence[Part], tick: Tick) -> Iterator[Hypothesis]:
    """Yield a hypothesis of a few cases with that of its mistakes that was measured there measured in more of them."""
    measured = [mistake for mistake in found.mistakes if mistake.measured]
    if found.profile is not None or len(measured) != 1 or measured[0].stage not in AFTER_SCALES:
        return
    start: Hypothesis | None = Hypothesis(kernel_of(found.kernel.spec), scales=found.scales)
    for mistake in found.mistakes:
        if not (mistake.measured or mistake.special):
            start = start and start.but(mistake)
    if start is not None:
        tick()
        yield from _measured(start, _with_sides(start, parts), found.data)


def _with_sides(found: Hypothesis, parts: Sequence[Part]) -> list[tuple[Part, ScaleSide]]:
    """Return the whole cases in which codes are measured, and the scales that elements are divided by."""
    whole = [part for part in parts if part.whole and 0 < part.item.size <= LARGE]
    return [(part, side) for part in whole if (side := _side(found, part)) is not None]


def _measured(found: Hypothesis, pairs: Sequence[tuple[Part, ScaleSide]], reader: DataReader) -> Iterator[Hypothesis]:
    """Yield a hypothesis with a factor, other codes, or a rounding that is measured."""
    for measure in (factor_of_elements, code_map, element_boundaries):
        mistake = measure(found.kernel, pairs, reader)
        changed = None if mistake is None else found.but(mistake)
        if changed is not None:
            yield changed.reading(data=reader)


def right_codes(found: Hypothesis, parts: Sequence[Part], tick: Tick) -> bool:
    """Return True if a hypothesis makes the candidate's codes, given its maxima and scale bytes."""
    if found.kernel.search is not None:
        return False
    for part in parts:
        tick()
        if part.item.size and part.serves(found.kernel):
            side = _side(found, part)
            if side is None or not part.codes_match(found.kernel, side, LOW_FIRST):
                return False
    return True


def _side(found: Hypothesis, part: Part) -> ScaleSide | None:
    """Return the scales that elements are divided by: the candidate's own, unless others are stored than are used."""
    if found.kernel.scales is kernel_of(found.kernel.spec).scales:
        return given_scales(found.kernel, part, found.scales)
    return part.side(given_amax(found.kernel, part.item))


def _unnamed_codes(
    found: Hypothesis,
    known: Sequence[Mistake],
    pairs: Sequence[tuple[Part, ScaleSide]],
    written: Callable[[Hypothesis, Sequence[DataReader]], Sequence[DataReader]],
) -> list[Hypothesis]:
    """Codes in an order that was measured; then a factor, other codes, or a rounding that was."""
    for mistake in (missing_codes(found.kernel, pairs), source_of_bits(found.kernel, pairs)):
        changed = None if mistake is None else found.but(mistake)
        if changed is not None and written(changed, [LOW_FIRST]):
            return [changed]
    of_tensors = all(part.item.of_tensors for part, _ in pairs)
    orders = list(element_orders(found.kernel, pairs)) if of_tensors else []
    for changed in with_each(found, known) if orders else ():
        alive = written(changed, orders)
        if alive:
            return [changed.reading(data=reader) for reader in alive]
    for reader in (LOW_FIRST, *orders, HIGH_FIRST) if of_tensors else (LOW_FIRST,):
        for changed in _measured(found, pairs, reader):
            if written(changed, [reader]):
                return [changed]
    return []


def first_wrong_of_codes(start: Hypothesis, parts: Sequence[Part]) -> str:
    """Packing if the codes are the right ones at other places, else the element codes."""
    checked = [part for part in parts if part.whole and part.item.size > 16 and part.serves(start.kernel)][:8]
    same = []
    for part in checked:
        side, got = part.side(start.kernel), part.item.codes(LOW_FIRST)
        if side is not None and got is not None:
            wanted = code_side(start.kernel, side)
            same.append(
                bool((np.bincount(got.ravel(), minlength=256) == np.bincount(wanted.ravel(), minlength=256)).all())
            )
    return "packing" if same and all(same) else "code"
