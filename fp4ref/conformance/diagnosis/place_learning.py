"""Learning a place: the shortest conjunction of predicates that separates units inside from units outside.

Every predicate is made as tight as the units inside allow. A place is then the cheapest choice of predicates that
together leave out every unit outside. For example, wrong blocks in rows 127, 255 and 383 allow `row >= 127`,
`row <= 383`, `row % 2 == 1` and `row % 128 == 127`; only the last one leaves out all right blocks by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import lgamma, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.mistakes import places
from fp4ref.conformance.mistakes import predicates as predicates_of
from fp4ref.conformance.mistakes.places import Place, PlaceAxis, Predicate, Units

Bools = NDArray[np.bool_]
MARGIN = 3.0  # bits that the evidence must hold beyond a predicate's own description
COUNTED = 8  # units of a tensor that count for a predicate about its type, direction or rank
OF_A_SIZE = 1  # and about its size: all of them have one
SHAPES = 2  # that a predicate about sizes must hold for, and as many that it must not
FAMILIES = 2  # of tensors on either side of such a predicate, unless one family is on both sides
MOST = 3  # predicates of a place
TRIPLES = 40  # cheapest predicates of which three are tried together
TYPES = ("float32", "bfloat16", "float16")


class Labelled(NamedTuple):
    """Units as arrays, the number of the case of each, and which must be inside; the others must be outside.

    families: of the cases, by their numbers; empty: they are all of one.
    """

    units: Units
    case: NDArray[np.int64]
    inside: Bools
    families: tuple[str | None, ...] = ()

    def family(self, chosen: Bools) -> set[str | None]:
        """Return the families of some units."""
        numbers = np.unique(self.case[chosen]).tolist()
        return {self.families[number] if self.families else None for number in numbers}


def joined(samples: Sequence[tuple[Units, Bools]]) -> Labelled:
    """Return the units of several cases in one record. Each sample: one case's units, coordinates [n], and labels."""
    counts = [len(labels) for _, labels in samples]
    fields = zip(*(units for units, _ in samples), strict=True)
    made: list[Any] = []
    for place, values in enumerate(fields):
        if place == Units._fields.index("width"):
            made.append(values[0])
        else:
            made.append(np.concatenate([np.broadcast_to(v, n) for v, n in zip(values, counts, strict=True)]))
    return Labelled(
        Units(*made), np.repeat(np.arange(len(samples)), counts), np.concatenate([labels for _, labels in samples])
    )


def learn(given: Labelled, *, about_tensor: bool = False, by_element: bool = False) -> Place | None:
    """Return the place with the shortest description that separates units; None without one that is supported.

    about_tensor: only predicates about whole tensors. by_element: units are elements, not blocks.

    Rules: CNF-26, CNF-42, CNF-43, CNF-91.
    """
    if not given.inside.any():
        return None
    if given.inside.all():
        return places.EVERYWHERE
    found = _cover(list(predicates(given, about_tensor=about_tensor, by_element=by_element)), given)
    return found if found is not None and supported(found, given) else None


def predicates(given: Labelled, *, about_tensor: bool, by_element: bool) -> Iterator[Predicate]:
    """Yield every predicate that holds for all units inside, as tight as they allow."""
    ones, zeros = given.units.at(given.inside), given.units.at(~given.inside)
    without_blocks = ones.width == 1
    by_element = by_element or without_blocks
    yield from _about_kinds(ones)
    for axis in places.SIZES:
        yield from _about_size(axis, ones, zeros)
    if about_tensor:
        return
    for axis in places.COORDINATES:
        if (axis is places.NUMBER and by_element) or (axis is places.BLOCK and without_blocks):
            continue
        yield from _about_coordinate(axis, ones, zeros, least=1 if by_element or axis is not places.COLUMN else 0)


def _about_kinds(ones: Units) -> Iterator[Predicate]:
    types = [name for name in TYPES if (ones.dtype == name).any()]
    if len(types) < len(TYPES):
        yield predicates_of.of_types(types)
    directions = np.unique(ones.direction)
    if len(directions) == 1:
        yield predicates_of.of_direction(str(directions[0]))
    least, most = int(ones.rank.min()), int(ones.rank.max())
    if least > 2 or most <= 2:
        yield predicates_of.of_rank(least, most)


def _about_size(axis: PlaceAxis, ones: Units, zeros: Units) -> Iterator[Predicate]:
    values, others = np.asarray(axis.of(ones)), np.asarray(axis.of(zeros))
    if not values.any():
        return  # it has no such size
    least, most = int(values.min()), int(values.max())
    below, above = others[others < least], others[others > most]
    if below.size:
        yield predicates_of.at_least(axis, least, int(below.max()))
    if above.size:
        yield predicates_of.at_most(axis, most, int(above.min()))
    if axis is places.ELEMENTS:
        return
    for modulus in predicates_of.POWERS[:8]:
        whole = values % modulus == 0
        if whole.all() or not whole.any():
            yield predicates_of.multiples(axis, modulus, are=bool(whole.all()), width=ones.width)


def _about_coordinate(axis: PlaceAxis, ones: Units, zeros: Units, least: int) -> Iterator[Predicate]:
    """Yield predicates on a coordinate. least: 0 where a column stands for its block: only ends of the matrix."""
    values, length = axis.of(ones), axis.length(ones)
    end = int((length - values).max())
    past = [modulus for modulus in predicates_of.POWERS if (values >= length // modulus * modulus).all()]
    before = [modulus for modulus in predicates_of.POWERS if (values < length // modulus * modulus).all()]
    if axis is places.COLUMN:
        width = ones.width
        if (values >= length // width * width).all():
            yield predicates_of.partial_block()
        past = [modulus for modulus in past if least or modulus >= width]
        before = [modulus for modulus in before if least or modulus >= width]
    if axis is not places.NUMBER:
        yield from (predicates_of.past_multiple(axis, modulus) for modulus in past)
        yield from (predicates_of.before_multiple(axis, modulus) for modulus in before)
    if not least:
        return
    low, high = int(values.min()), int(values.max())
    others = axis.of(zeros)
    if low > 0:
        under = others[others < low]
        yield predicates_of.at_least(axis, roundest(int(under.max(initial=0)) + 1, low))
    over = others[others > high]
    yield predicates_of.at_most(axis, (roundest(high + 1, int(over.min())) if over.size else high + 1) - 1)
    if low == high and low:
        yield predicates_of.equal_to(axis, low)
    if axis is not places.NUMBER:
        yield predicates_of.from_end(axis, end)
        for modulus in predicates_of.POWERS:
            if (values >= (length - 1) // modulus * modulus).all():
                yield predicates_of.last_group(axis, modulus)
    for modulus in predicates_of.POWERS:
        yield from _residues(axis, modulus, values)


def _residues(axis: PlaceAxis, modulus: int, values: NDArray[np.int64]) -> Iterator[Predicate]:
    """Yield the shortest run of residues that holds all values, if it leaves any out."""
    seen = np.flatnonzero(np.bincount(values % modulus, minlength=modulus))
    gaps = np.diff(np.append(seen, seen[0] + modulus))
    widest = int(gaps.argmax())
    if gaps[widest] > 1:
        first = int(seen[(widest + 1) % len(seen)])
        yield predicates_of.residues(axis, modulus, first, int(seen[widest]))


def roundest(low: int, high: int) -> int:
    """Return the number from low to high that the highest power of two divides."""
    step = 1 << max(high.bit_length(), 1)
    while high // step * step < low:
        step //= 2
    return high // step * step


def _cover(candidates: Sequence[Predicate], given: Labelled) -> Place | None:
    """Return the cheapest predicates, at most three, that leave out every unit outside. Rules: CNF-91."""
    zeros = given.units.at(~given.inside)
    count = int((~given.inside).sum())
    kept = np.array([np.broadcast_to(candidate.holds(zeros), count) for candidate in candidates], np.bool_)
    patterns = np.unique(np.packbits(kept, axis=0), axis=1)
    left = np.unpackbits(patterns, axis=0, count=len(candidates)).astype(np.bool_)  # [predicate, kind of unit]
    order = sorted(range(len(candidates)), key=lambda index: candidates[index].bits)
    best: tuple[float, tuple[int, ...]] | None = None
    for size in range(1, MOST + 1):
        chosen_from = [index for index in order if not left[index].all()][: None if size < MOST else TRIPLES]
        for group in itertools.combinations(chosen_from, size):
            bits = sum(candidates[index].bits for index in group)
            if best is not None and bits >= best[0]:
                continue
            if not np.logical_and.reduce(left[list(group)]).any():
                best = bits, group
    return None if best is None else Place(tuple(candidates[index] for index in best[1]))


def likeliest(given: Labelled, *, about_tensor: bool, passing: Sequence[Units] = ()) -> Place:
    """Return the one predicate that best confines the units labelled, among which others may be; or everywhere.

    A predicate that leaves out fewer than half of the units does not count, nor one that chance may have brought about.
    passing: units of tensors of which nothing differs; a predicate that holds for none of them comes first.

    Rules: CNF-59, CNF-60.
    """
    if not given.inside.any() or given.inside.all():
        return places.EVERYWHERE
    found = []
    for number, predicate in enumerate(predicates(given, about_tensor=about_tensor, by_element=False)):
        held = np.broadcast_to(predicate.holds(given.units), given.inside.shape)
        if predicate.about_tensor != about_tensor or 2 * held.sum() > held.size:
            continue
        if concentration(predicate, given) >= predicate.bits + MARGIN:
            refuted = any(np.any(predicate.holds(units)) for units in passing)
            found.append((not refuted, -held.sum(), -predicate.bits, -number, predicate))
    best = max(found, key=lambda item: item[:4], default=None)
    return places.EVERYWHERE if best is None else Place((best[-1],))


def supported(place: Place, given: Labelled) -> bool:
    """Return True if every predicate leaves out more than chance would. Rules: CNF-42."""
    return all(
        surprise(predicate, Place(tuple(p for p in place.predicates if p is not predicate)), given)
        >= predicate.bits + MARGIN
        for predicate in place.predicates
    )


def surprise(predicate: Predicate, others: Place, given: Labelled) -> float:
    """Return the bits of choosing what a predicate keeps from what the other predicates of a place leave.

    Rows, columns or blocks are counted for a predicate about them, tensors for one about their size, if they are
    various enough to tell a size from what else they differ in, and up to eight units of a tensor otherwise.
    """
    among = others.holds(given.units)
    held = np.broadcast_to(predicate.holds(given.units), among.shape)
    if predicate.about_size and not _various(given, among & held, among & ~held):
        return 0.0
    if predicate.about_tensor:
        most = OF_A_SIZE if predicate.about_size else COUNTED
        inside, total = (_by_tensor(given.case[units], most) for units in (among & held, among))
    else:
        numbers = _numbers(predicate, given)
        inside, total = len(np.unique(numbers[among & held])), len(np.unique(numbers[among]))
    return (lgamma(total + 1) - lgamma(inside + 1) - lgamma(total - inside + 1)) / log(2)


def _various(given: Labelled, inside: Bools, outside: Bools) -> bool:
    """Return True if tensors on both sides have several shapes, and are of one family or of several families each."""
    shapes = np.asarray((given.units.rows << 42) | (given.units.columns << 21) | given.units.depth)
    families = given.family(inside), given.family(outside)
    related = bool(families[0] & families[1]) or min(map(len, families)) >= FAMILIES
    return related and all(len(np.unique(shapes[side])) >= SHAPES for side in (inside, outside))


def _by_tensor(case: NDArray[np.int64], most: int) -> int:
    return int(np.minimum(np.bincount(case), most).sum())


def concentration(predicate: Predicate, given: Labelled) -> float:
    """Return the bits by which chance would not confine the units labelled to those that a predicate keeps."""
    held = np.broadcast_to(predicate.holds(given.units), given.inside.shape)
    numbers = given.case if predicate.about_tensor else _numbers(predicate, given)
    total, kept = len(np.unique(numbers)), len(np.unique(numbers[held]))
    return len(np.unique(numbers[given.inside])) * float(np.log2(total / max(kept, 1)))


def _numbers(predicate: Predicate, given: Labelled) -> NDArray[np.int64]:
    """Return a number for every unit, equal for units of one row, column or block of one tensor."""
    assert predicate.axis is not None
    return np.asarray(given.case << 40 | predicate.axis.of(given.units))
