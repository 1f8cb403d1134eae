"""The stage of the scales: hypotheses that make the candidate's scale bytes, given its own maxima.

For example, if the candidate returns an amax that is twice the right one, the scales are judged with that amax. So a
wrong amax alone does not make the scales wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fp4ref.conformance.diagnosis.displaced import constant_scales
from fp4ref.conformance.diagnosis.evidence import Item, Part
from fp4ref.conformance.diagnosis.hypotheses import AFTER_SCALES, Hypothesis
from fp4ref.conformance.diagnosis.measured.floors import floors
from fp4ref.conformance.diagnosis.measured.maps import byte_maps
from fp4ref.conformance.diagnosis.measured.missing import missing_scales
from fp4ref.conformance.diagnosis.measured.order import scale_orders
from fp4ref.conformance.diagnosis.measured.own_digits import named_places
from fp4ref.conformance.diagnosis.measured.scales import constants_of_scales, scale_boundaries
from fp4ref.conformance.diagnosis.measured.stages import seen_positions
from fp4ref.conformance.mistakes import MISTAKES, SCALE_ROUNDINGS
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide
from fp4ref.conformance.mistakes.readers import DECLARED, ScaleReader
from fp4ref.conformance.mistakes.record import Mistake, Slot
from fp4ref.formats import Codes
from fp4ref.model.tiles import split
from fp4ref.spec import Block

OF_SCALES = frozenset(set(Slot) - AFTER_SCALES - {Slot.AMAX, Slot.DIRECTION, Slot.SEARCH})


Tick = Callable[[], None]


def right_scales(item: Item) -> bool:
    """Return True if the candidate's scale bytes, read as declared, are the specification's."""
    got = item.scales(DECLARED)
    return got is not None and np.array_equal(got, item.base.scales)


def with_each(start: Hypothesis, mistakes: Iterable[Mistake]) -> Iterator[Hypothesis]:
    """Yield a hypothesis, then the same with each mistake that means anything."""
    yield start
    for mistake in mistakes:
        changed = start.but(mistake)
        if changed is not None:
            yield changed


def given_amax(kernel: Kernel, item: Item) -> Kernel:
    """Return the kernel with the candidate's own maxima."""
    if item.amax is None or not kernel.takes_amax:
        return kernel
    if (item.amax.size == item.rows) != (kernel.spec.global_scale == "row") and item.amax.size != 1:
        return kernel
    return kernel if item.made_amax(kernel) else kernel.but(amax=item.own_amax, takes_amax=False)


def given_scales(kernel: Kernel, part: Part, reader: ScaleReader) -> ScaleSide | None:
    """Return a kernel's scale side with the candidate's own maxima and scale bytes."""
    side = part.side(given_amax(kernel, part.item))
    got = part.item.scales(reader)
    if side is None or got is None:
        return None
    own = split(np.ascontiguousarray(got[part.rows, part.across]), Block(kernel.block.rows, 1))
    byte = own[:, :, :, :1]
    return None if byte.shape[:2] != side.blocks.shape[:2] else side._replace(byte=byte, codes=None)


def explained_scales(start: Hypothesis, parts: Sequence[Part], tick: Tick) -> list[Hypothesis]:
    """Hypotheses whose scale bytes are the candidate's, given its maxima."""
    usable = [part for part in parts if part.item.size]
    if not usable:
        return [start]
    if read_as(start, usable, [DECLARED], tick):
        return [start.reading(scales=DECLARED)]
    if (constant := _one_byte(start, usable)) is not None:
        return [constant]
    declared, anywhere = usable[0].item.declared, usable[0].item.of_tensors
    readers = [DECLARED, *(named_places(declared, start.kernel, usable) if anywhere else ())]
    taken = {mistake.stage for mistake in start.mistakes}
    known = [m for m in MISTAKES if m.stage in OF_SCALES and not m.special and m.stage not in taken]
    moved = anywhere and permuted(usable)

    def possible(reader: ScaleReader) -> bool:
        """Return padding that is not zero holds scales, if all of them are somewhere."""
        return not (moved and any(part.item.stray(reader) for part in usable))

    if moved:  # the right bytes elsewhere need no mistake that makes other bytes
        for tried in itertools.chain([readers], ([order] for order in scale_orders(start.kernel, usable))):
            held = list(filter(possible, read_as(start, usable, tried, tick)))
            if held:
                return [start.reading(scales=reader) for reader in held]
    readers = list(filter(possible, readers))
    found: list[Hypothesis] = []
    positions = seen_positions(start.kernel, usable)
    measured = [*constants_of_scales(start.kernel, usable), *([positions] if positions else [])]
    measured += floors(start.kernel, usable)
    for changed in itertools.chain(with_each(start, [*known, *measured]), _measured_pairs(start, known, usable, found)):
        alive = read_as(changed, usable, readers, tick)
        found += [changed.reading(scales=reader) for reader in alive]
        if changed is start and alive:
            break
    if not found:
        found = [one for one in _unnamed_scales(start, known, usable, tick) if possible(one.scales)]
    return sorted(found, key=lambda hypothesis: hypothesis.cost)


def _one_byte(start: Hypothesis, parts: Sequence[Part]) -> Hypothesis | None:
    """Return the mistake that one byte is stored for all scales, though the codes are those of the right ones."""
    stored = [part.declared_scales for part in parts]
    if any(one is None for one in stored) or any(part.item.stray(DECLARED) for part in parts):
        return None  # the padding may hold the scales
    numbers = np.unique(np.concatenate([one.reshape(-1) for one in stored if one is not None]))
    if len(numbers) != 1 or start.kernel.search is not None:
        return None
    for part in (part for part in parts if part.serves(start.kernel)):
        side = part.side(start.kernel)
        if side is None or not part.codes_match(start.kernel, side, LOW_FIRST):
            return None
    return start.but(constant_scales(int(numbers[0])))


def read_as(
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
        alive = [] if side is None else list(part.matching(kernel, side, alive, tick))
        if not alive:
            break
    return alive


def _unnamed_scales(start: Hypothesis, known: Sequence[Mistake], parts: Sequence[Part], tick: Tick) -> list[Hypothesis]:
    """Scales in an order that was measured; then bytes that each became another."""
    places = list(scale_orders(start.kernel, parts)) if parts[0].item.of_tensors else []
    for changed in with_each(start, known) if places else ():
        alive = read_as(changed, parts, places, tick)
        if alive:
            return [changed.reading(scales=reader) for reader in alive]
    missing = missing_scales(start.kernel, parts)
    left_out = None if missing is None else start.but(missing)
    if left_out is not None and read_as(left_out, parts, [DECLARED], tick):
        return [left_out]
    for place in (DECLARED, *places):
        made = (start.but(mistake) for mistake in byte_maps(start.kernel, parts, place))
        found = [changed for changed in made if changed is not None and read_as(changed, parts, [place], tick)]
        if found:
            return [changed.reading(scales=place) for changed in found]
    return []


def _measured_pairs(
    start: Hypothesis, known: Sequence[Mistake], parts: Sequence[Part], found: Sequence[Hypothesis]
) -> Iterator[Hypothesis]:
    """Yield each rounding with the constant that it allows, then any rounding: for codes that nothing else explains."""
    roundings = [mistake for mistake in known if mistake.name in SCALE_ROUNDINGS]
    for changed in (start.but(mistake) for mistake in roundings):
        if found:
            return
        if changed is not None:
            both = (changed.but(constant) for constant in constants_of_scales(changed.kernel, parts, simple=True))
            yield from (hypothesis for hypothesis in both if hypothesis is not None)
    boundaries = None if found else scale_boundaries(start.kernel, parts)
    last = None if boundaries is None else start.but(boundaries)
    yield from () if last is None else (last,)


def permuted(parts: Sequence[Part]) -> bool:
    """Return True if the scale bytes are the right ones at other places."""
    checked = [part.item for part in parts if part.whole and part.item.rows * part.item.blocks > 1][:8]

    def sorted_bytes(scales: Codes) -> Any:
        flat = np.sort(scales, axis=None)
        return flat[flat != 0].tobytes()

    return bool(checked) and all(sorted_bytes(item.stored) == sorted_bytes(item.base.scales) for item in checked)
