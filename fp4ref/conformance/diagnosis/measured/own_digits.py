"""The declared layout's own digits, stored in another order, without its XOR or with another one.

Each change of the declared text is compared with some scale bytes, the smallest change first. For example, a kernel
that is declared with `k0^m0 m0 m1 m2 k1` may store `k0^m0 m0 m1 k1 m2`: its tiles follow each other along a row first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from fp4ref.conformance.diagnosis.evidence import Part
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.readers import ScaleReader, by_layout, scale_readers
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.errors import Fp4Error
from fp4ref.formats import Codes
from fp4ref.layout import STANDARD_LAYOUTS, Layout, Term, scale_layouts

Order = tuple[Term, ...]  # the fastest first
LEAST = 3  # digits: of two, the other order is the transposed matrix
MOST = 6  # digits of which every order is tried; of more, those in which one or two have another place
CASES, WRONG, OTHERS = 16, 96, 32  # cases that are looked at, and scales of each: wrong ones, and any
LARGEST = 1 << 19  # elements of a case, if there are such
FITS = 0.9  # the least share of these scales that a change makes
SEED = 20261129


class Sampled(NamedTuple):
    """Scales of some cases: their digits and the radices of these by (axis, digit), and what is stored.

    start, size: of the case's buffer within `stored`.
    """

    digits: dict[tuple[int, int], Any]
    radices: dict[tuple[int, int], Any]
    stored: Codes
    start: Any
    size: Any
    wanted: Codes

    def share(self, order: Order) -> float:
        """Return the share of the scales that are stored where an order has them."""
        offset, running = np.zeros(len(self.wanted), np.int64), np.ones(len(self.wanted), np.int64)
        for term in order:
            digit = self.digits[term[:2]] ^ (self.digits[term.by] if term.by else term.flip)
            offset += digit * running
            running *= self.radices[term[:2]]
        inside = offset < self.size
        return float(np.mean(inside & (self.stored[self.start + np.minimum(offset, self.size - 1)] == self.wanted)))


def named_places(declared: Layout, kernel: Kernel, parts: Sequence[Part]) -> list[ScaleReader]:
    """Return the named places of scales; the declared digits in another order come before layouts that others have."""
    named, own = list(scale_readers(declared)), own_order(declared, kernel, parts)
    if own is None:
        return named
    strangers = {f"layout-{form.name}" for form in scale_layouts(field=True) if form not in STANDARD_LAYOUTS}
    return sorted([own, *named], key=lambda reader: (reader.name in strangers, reader is own))


def own_order(declared: Layout, kernel: Kernel, parts: Sequence[Part]) -> ScaleReader | None:
    """Return the smallest change of the declared order of digits that makes nearly all of some scales."""
    if not _changes(declared) or (seen := _seen(declared, kernel, parts)) is None:
        return None
    best, most = None, max(FITS, seen.share(_terms(declared)))
    for order in _changes(declared):
        share = seen.share(order)
        if share > most:
            best, most = order, share
        if share == 1:
            break
    return None if best is None else _reader(declared, best)


def _terms(declared: Layout) -> Order:
    return tuple(item for item in declared.form.order if isinstance(item, Term))


@lru_cache(maxsize=16)
def _changes(declared: Layout) -> tuple[Order, ...]:
    """Return other orders of the digits, with the layout's XOR, without one and with others, small changes first."""
    terms = _terms(declared)
    if not LEAST <= len(terms) == len(declared.form.order) or declared.form.table or declared.form.base.number:
        return ()
    near, turned = _near(len(terms)), _turned(declared, terms)
    bare = tuple(term._replace(flip=0, by=None) for term in terms)
    alike = [terms, bare] if bare != terms else [terms]
    found = [tuple(terms[at] for at in order) for order in near] + turned
    found += [tuple(other[at] for at in order) for order in near for other in turned]
    if len(terms) <= MOST:
        found += [
            tuple(each[at] for at in order) for order in itertools.permutations(range(len(terms))) for each in alike
        ]
    return tuple(order for order in dict.fromkeys(found) if order != terms)


def _near(count: int) -> list[tuple[int, ...]]:
    """Return the orders in which two digits are exchanged, the slowest first, then those in which one is moved."""
    found, whole = [], range(count)
    for first, second in sorted(itertools.combinations(whole, 2), key=lambda pair: (pair[1] - pair[0], -pair[0])):
        order = [*whole]
        order[first], order[second] = second, first
        found.append(tuple(order))
    for one, place in itertools.permutations(whole, 2):
        rest = [at for at in whole if at != one]
        found.append((*rest[:place], one, *rest[place:]))
    return [*dict.fromkeys(found)]


def _turned(declared: Layout, terms: Order) -> list[Order]:
    """Return the same order without any XOR, and with another one of one digit."""
    found = [tuple(term._replace(flip=0, by=None) for term in terms)]
    for at, term in enumerate(terms):
        radix = declared.axes[term.axis].radices[term.digit] or 0
        bits = range(radix.bit_length() - 1) if radix & (radix - 1) == 0 else ()
        others = [term._replace(flip=0, by=other[:2]) for other in terms if other is not term]
        flips = dict.fromkeys([0, *(1 << bit for bit in bits), max(radix - 1, 0) if bits else 0])
        for other in (*(term._replace(flip=flip, by=None) for flip in flips), *others):
            order = (*terms[:at], other, *terms[at + 1 :])
            if other != term and _layout(declared, order) is not None:
                found.append(order)
    return [order for order in dict.fromkeys(found) if order != terms]


def _layout(declared: Layout, order: Order) -> Layout | None:
    """Return the layout with the digits in another order; None if a text may not say so."""
    try:
        return Layout(declared.name, str(replace(declared.form, order=order)), declared.rule)
    except Fp4Error:
        return None


def _seen(declared: Layout, kernel: Kernel, parts: Sequence[Part]) -> Sampled | None:
    """Return some scales of some cases, mostly wrong ones."""
    random = np.random.default_rng(SEED)
    rows, blocks, shapes, buffers, wanted = [], [], [], [], []
    wholes = sorted((part for part in parts if part.whole and part.count > 1), key=lambda part: part.item.size)
    usable = [part for part in wholes if part.item.size <= LARGEST] or wholes[:1]
    usable.sort(key=lambda part: (part.item.equal, -part.item.size))  # of one tile, many orders are alike
    for part in usable[:CASES]:
        item, got, side = part.item, part.declared_scales, part.side(kernel)
        if got is None or side is None or got.shape != side.scales.shape:
            continue
        wrong = np.flatnonzero(got != side.scales)
        some = [random.choice(wrong, min(WRONG, wrong.size), replace=False), random.integers(0, got.size, OTHERS)]
        at = np.concatenate(some).astype(np.int64)
        rows.append(at // item.blocks)
        blocks.append(at % item.blocks)
        shapes += [declared.padded(item.rows, item.blocks)] * len(at)
        buffers.append((item.stored, len(at)))
        wanted.append(side.scales.reshape(-1)[at])
    if not wanted:
        return None
    padded, index = np.array(shapes).T, (np.concatenate(rows), np.concatenate(blocks))
    digits, radices = {}, {}
    for axis, form in enumerate(declared.axes):
        weight = np.ones_like(index[axis])
        for number, radix in enumerate(form.radices):
            whole = padded[axis] // form.tile if radix is None else np.full_like(weight, radix)
            digits[axis, number], radices[axis, number] = index[axis] // weight % whole, whole
            weight = weight * whole
    sizes = np.array([stored.size for stored, _ in buffers])
    counts = [count for _, count in buffers]
    starts = np.repeat(np.cumsum(sizes) - sizes, counts)
    stored = np.concatenate([stored for stored, _ in buffers])
    return Sampled(digits, radices, stored, starts, np.repeat(sizes, counts), np.concatenate(wanted))


# In words


def _reader(declared: Layout, order: Order) -> ScaleReader | None:
    form = _layout(declared, order)
    if form is None:
        return None
    terms, said = _terms(declared), []
    if [term[:2] for term in order] != [term[:2] for term in terms]:
        bare = [" ".join(_digit(declared, term[:2]) for term in each) for each in (order, terms)]
        said.append(
            _across(declared, order)
            or f"the digits of a scale's place are stored in the order {bare[0]}, not {bare[1]}"
        )
    before = {term[:2]: term for term in terms}
    changed = [(before[term[:2]], term) for term in order if term != before[term[:2]]]
    said += [_turn(declared, *pair) for pair in changed]
    name = ".".join(_word(declared, term) for term in order)
    return ScaleReader(f"layout-digits-{name}", Slot.LAYOUT, ", and ".join(said), partial(by_layout, form))


def _across(declared: Layout, order: Order) -> str:
    """Return the words for tiles that follow each other along the other axis; empty if more is changed."""
    rests = [(axis, form.radices.index(None)) for axis, form in enumerate(declared.axes)]
    terms, last = _terms(declared), [term[:2] for term in order[-2:]]
    same = [term[:2] for term in order[:-2]] == [term[:2] for term in terms[:-2]]
    if not same or sorted(last) != sorted(rests):
        return ""
    words = "x".join(map(str, declared.tile)) if declared in STANDARD_LAYOUTS else declared.name
    way = "down the rows" if last[0] == rests[0] else "along a row"
    return f"{words} tiles follow each other {way} first (tile axes exchanged)"


def _turn(declared: Layout, before: Term, after: Term) -> str:
    now, was = (f"XOR {other}" if (other := _other(declared, term)) else "as it is" for term in (after, before))
    return f"digit {_digit(declared, before[:2])} is stored {now}, not {was}"


def _word(declared: Layout, term: Term) -> str:
    """Return a digit as the text of the layout has it: k0^m0."""
    other = _other(declared, term)
    return _digit(declared, term[:2]) + (f"^{other}" if other else "")


def _other(declared: Layout, term: Term) -> str:
    """Return the constant or the digit with which a digit is stored XOR; empty if there is no such thing."""
    return _digit(declared, term.by) if term.by else str(term.flip or "")


def _digit(declared: Layout, digit: tuple[int, int]) -> str:
    return f"{declared.axes[digit[0]].name}{digit[1]}"
