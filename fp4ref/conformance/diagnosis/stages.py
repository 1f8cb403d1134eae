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

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fp4ref.conformance.diagnosis.clock import OutOfTimeError, processor_time
from fp4ref.conformance.diagnosis.evidence import LARGE, Item, Part
from fp4ref.conformance.diagnosis.hypotheses import AFTER_SCALES, Hypothesis
from fp4ref.conformance.diagnosis.measured.amax import measured_amax
from fp4ref.conformance.diagnosis.measured.bits import source_of_bits
from fp4ref.conformance.diagnosis.measured.floors import floors
from fp4ref.conformance.diagnosis.measured.maps import byte_maps, code_map, factor_of_elements
from fp4ref.conformance.diagnosis.measured.missing import missing_codes, missing_scales
from fp4ref.conformance.diagnosis.measured.order import element_orders, scale_orders
from fp4ref.conformance.diagnosis.measured.scales import constants_of_scales, scale_boundaries
from fp4ref.conformance.diagnosis.measured.stages import element_boundaries, seen_positions, sign_mask
from fp4ref.conformance.diagnosis.measured.transform import transform_matrix
from fp4ref.conformance.diagnosis.support import tellable
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.mistakes.kernel import EVERY, Kernel, ScaleSide, code_side, kernel_of
from fp4ref.conformance.mistakes.readers import (
    DATA_READERS,
    DECLARED,
    LOW_FIRST,
    DataReader,
    ScaleReader,
    scale_readers,
)
from fp4ref.conformance.mistakes.record import Mistake, Slot
from fp4ref.formats import Codes
from fp4ref.model.tiles import split
from fp4ref.spec import Block, Spec

BEFORE_AMAX = frozenset({Slot.INPUT, Slot.HADAMARD, Slot.AMAX})
OF_SCALES = frozenset(set(Slot) - AFTER_SCALES - {Slot.AMAX, Slot.DIRECTION, Slot.SEARCH})
Tick = Callable[[], None]
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


def by_stages(spec: Spec, items: Sequence[Item], parts: Sequence[Part], deadline: float) -> Stagewise:
    """Judge maxima, then scales given the candidate's maxima, then codes given its scales."""
    base = Hypothesis(kernel_of(spec))
    complete = True

    def tick() -> None:
        if processor_time() > deadline:
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
    for start in dict.fromkeys([*maxima[:2], *maxima[-2:]]) if maxima else [base]:
        scales = found(_scales, start) or [base] * (start is base and all(_right_scales(item) for item in items))
        codes = found(_codes, scales[0] if scales else start)
        if scales and codes:
            break
    findings = (
        *(() if all(item.amax is None for item in items) else (_finding("amax", base, maxima),)),
        _finding("scale", start, scales),
        _finding("code", scales[0] if scales else start, codes),
    )
    composed = [*codes, *(h for other in scales[1:ALIKE] for h in found(_codes, other))] if maxima and scales else []
    composed += [moved for other in maxima[1:ALIKE] for h in composed if (moved := _onto(other, start, h)) is not None]
    first = next((finding.stage for finding in findings if not finding.right), None)
    if first == "scale" and not scales and permuted(parts):
        first = "layout"
    if first == "code" and not codes:
        first = _code_stage(start, parts)
    return Stagewise(findings, tuple(composed), first, complete)


def _right_maxima(item: Item) -> bool:
    """Return True if the candidate's maxima are the specification's, or it gives none."""
    return Part(item, EVERY, EVERY, tier=True).amax_matches(kernel_of(item.spec), item.base)


def _right_scales(item: Item) -> bool:
    """Return True if the candidate's scale bytes, read as declared, are the specification's."""
    got = item.scales(DECLARED)
    return got is not None and np.array_equal(got, item.base.scales)


def _finding(stage: str, start: Hypothesis, found: Sequence[Hypothesis]) -> StageFinding:
    if not found:
        return StageFinding(stage, right=False)
    texts = [mistake.text for mistake in found[0].mistakes if mistake not in start.mistakes]
    texts += [reader.text for reader in (found[0].scales, found[0].data) if reader.text]
    texts = [text for text in texts if text not in {start.scales.text, start.data.text}]
    return StageFinding(stage, right=not texts, text="; ".join(texts) or None)


def _with(start: Hypothesis, mistakes: Iterable[Mistake]) -> Iterator[Hypothesis]:
    yield start
    for mistake in mistakes:
        changed = start.but(mistake)
        if changed is not None:
            yield changed


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
    for changed in _with(base, [*known, *measured]):
        tick()
        sides = ((part, part.side(changed.kernel)) for part in parts if part.serves(changed.kernel))
        if all(side is not None and part.amax_matches(changed.kernel, side) for part, side in sides):
            found.append(changed)
            if changed is base:
                break
    other = None if found else measured_amax(base.kernel, parts)
    own = None if other is None else base.but(other)
    return found if own is None else [own]


def given_amax(kernel: Kernel, item: Item) -> Kernel:
    """Return the kernel with the candidate's own maxima."""
    if item.amax is None or not kernel.takes_amax:
        return kernel
    if (item.amax.size == item.rows) != (kernel.spec.global_scale == "row") and item.amax.size != 1:
        return kernel
    own = item.amax
    return kernel.but(amax=lambda values, keep_nan, by_row: own, takes_amax=False)


def given_scales(kernel: Kernel, part: Part, reader: ScaleReader) -> ScaleSide | None:
    """Return a kernel's scale side with the candidate's own maxima and scale bytes."""
    side = part.side(given_amax(kernel, part.item))
    got = part.item.scales(reader)
    if side is None or got is None:
        return None
    own = split(np.ascontiguousarray(got[part.rows, part.across]), Block(kernel.block.rows, 1))
    byte = own[:, :, :, :1]
    return None if byte.shape[:2] != side.blocks.shape[:2] else side._replace(byte=byte, codes=None)


def _scales(start: Hypothesis, parts: Sequence[Part], tick: Tick) -> list[Hypothesis]:
    """Hypotheses whose scale bytes are the candidate's, given its maxima."""
    usable = [part for part in parts if part.item.size]
    if not usable:
        return [start]
    if _read_as(start, usable, [DECLARED], tick):
        return [start.reading(scales=DECLARED)]
    readers = [DECLARED, *scale_readers(usable[0].item.declared)]
    taken = {mistake.stage for mistake in start.mistakes}
    known = [m for m in MISTAKES if m.stage in OF_SCALES and not m.special and m.stage not in taken]
    moved = permuted(usable)

    def possible(reader: ScaleReader) -> bool:
        """Return padding that is not zero holds scales, if all of them are somewhere."""
        return not (moved and any(part.item.stray(reader) for part in usable))

    readers = [reader for reader in readers if possible(reader)]
    found: list[Hypothesis] = []
    positions = seen_positions(start.kernel, usable)
    measured = [*constants_of_scales(start.kernel, usable), *([positions] if positions else [])]
    measured += floors(start.kernel, usable)
    for changed in itertools.chain(_with(start, [*known, *measured]), _measured_pairs(start, known, usable, found)):
        alive = _read_as(changed, usable, readers, tick)
        found += [changed.reading(scales=reader) for reader in alive]
        if changed is start and alive:
            break
    if not found:
        found = [one for one in _unnamed_scales(start, known, usable, tick) if possible(one.scales)]
    return sorted(found, key=lambda hypothesis: hypothesis.cost)


def _read_as(
    changed: Hypothesis, parts: Sequence[Part], readers: Sequence[ScaleReader], tick: Tick
) -> Sequence[ScaleReader]:
    """Return the places of scales in which a hypothesis makes the candidate's bytes, given its maxima."""
    alive = readers
    for part in parts:
        tick()
        if not part.serves(changed.kernel):
            continue
        kernel = given_amax(changed.kernel, part.item)
        side = part.side(kernel)
        alive = [] if side is None else [reader for reader in alive if part.bytes_match(kernel, side, reader)]
        if not alive:
            break
    return alive


def _unnamed_scales(start: Hypothesis, known: Sequence[Mistake], parts: Sequence[Part], tick: Tick) -> list[Hypothesis]:
    """Scales in an order that was measured; then bytes that each became another."""
    places = list(scale_orders(start.kernel, parts))
    for changed in _with(start, known) if places else ():
        alive = _read_as(changed, parts, places, tick)
        if alive:
            return [changed.reading(scales=reader) for reader in alive]
    missing = missing_scales(start.kernel, parts)
    left_out = None if missing is None else start.but(missing)
    if left_out is not None and _read_as(left_out, parts, [DECLARED], tick):
        return [left_out]
    for place in (DECLARED, *places):
        made = (start.but(mistake) for mistake in byte_maps(start.kernel, parts, place))
        found = [changed for changed in made if changed is not None and _read_as(changed, parts, [place], tick)]
        if found:
            return [changed.reading(scales=place) for changed in found]
    return []


def _measured_pairs(
    start: Hypothesis, known: Sequence[Mistake], parts: Sequence[Part], found: Sequence[Hypothesis]
) -> Iterator[Hypothesis]:
    """Yield each rounding with the constant that it allows, then any rounding: for codes that nothing else explains."""
    roundings = [mistake for mistake in known if mistake.name.startswith(("scale-codec", "scale-double", "block-amax"))]
    for changed in (start.but(mistake) for mistake in roundings):
        if found:
            return
        if changed is not None:
            both = (changed.but(constant) for constant in constants_of_scales(changed.kernel, parts, simple=True))
            yield from (hypothesis for hypothesis in both if hypothesis is not None)
    boundaries = None if found else scale_boundaries(start.kernel, parts)
    last = None if boundaries is None else start.but(boundaries)
    yield from () if last is None else (last,)


def _codes(found: Hypothesis, parts: Sequence[Part], tick: Tick) -> list[Hypothesis]:
    """Hypotheses whose codes are the candidate's, given its maxima and scale bytes."""
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
            alive = [] if side is None else [r for r in alive if part.codes_match(changed.kernel, side, r)]
            if not alive:
                break
        return alive

    result: list[Hypothesis] = []
    for changed in _with(found, known):
        alive = written(changed, [LOW_FIRST, *DATA_READERS])
        result += [changed.reading(data=reader) for reader in alive]
        if changed is found and alive:
            break
    if not result:
        whole = [part for part in usable if part.whole and part.item.size <= LARGE]
        pairs = [(part, side) for part in whole if (side := _side(found, part)) is not None]
        result = _unnamed_codes(found, known, pairs, written)
    return sorted(result, key=lambda hypothesis: hypothesis.cost)


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
    orders = list(element_orders(found.kernel, pairs))
    for changed in _with(found, known) if orders else ():
        alive = written(changed, orders)
        if alive:
            return [changed.reading(data=reader) for reader in alive]
    for reader in (LOW_FIRST, *orders, *(r for r in DATA_READERS if r.name == "nibbles")):
        for measure in (factor_of_elements, code_map, element_boundaries):
            mistake = measure(found.kernel, pairs, reader)
            changed = None if mistake is None else found.but(mistake)
            if changed is not None and written(changed, [reader]):
                return [changed.reading(data=reader)]
    return []


def permuted(parts: Sequence[Part]) -> bool:
    """Return True if the scale bytes are the right ones at other places."""
    checked = [part.item for part in parts if part.whole and part.item.blocks > 1][:8]

    def sorted_bytes(scales: Codes) -> Any:
        flat = np.sort(scales, axis=None)
        return flat[flat != 0].tobytes()

    return bool(checked) and all(sorted_bytes(item.stored) == sorted_bytes(item.base.scales) for item in checked)


def _code_stage(start: Hypothesis, parts: Sequence[Part]) -> str:
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
