"""The search for a mistake that holds in one place only.

Each known mistake is compared with the candidate block by block. It is possible if each block has either the bytes of
the mistake or those of the specification; then a place must separate the two kinds of blocks.

For example, a candidate rounds scales up in the last row of each tile of 128 rows. In rows 127 and 255 its bytes are
those of the mistake "block scales are rounded up", in all others those of the specification. The predicate
`row % 128 == 127` separates them, so the diagnosis names the mistake with that place.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis import displaced
from fp4ref.conformance.diagnosis.evidence import FAILURES, SMALL, Item, Part, Tier
from fp4ref.conformance.diagnosis.hypotheses import AFTER_SCALES, Hypothesis
from fp4ref.conformance.diagnosis.place_learning import joined, likeliest
from fp4ref.conformance.diagnosis.place_rounds import DRAWN, drawn, learnt, recorded
from fp4ref.conformance.diagnosis.support import tellable
from fp4ref.conformance.judge.compare import unequal
from fp4ref.conformance.mistakes.kernel import EVERY, Kernel, ScaleSide, code_side, kernel_of
from fp4ref.conformance.mistakes.places import EVERYWHERE, Place, Tensor, Units, units_of
from fp4ref.conformance.mistakes.readers import DECLARED, LOW_FIRST
from fp4ref.conformance.mistakes.record import Mistake, Slot
from fp4ref.formats import Codes
from fp4ref.spec import Spec

Bools = NDArray[np.bool_]
PROBES = 12  # views on which every mistake is tried first
WIDE = 1 << 21  # elements above which windows of rows stand for a case
CUT = 16  # rows of a large case on which a mistake is tried before the whole
WINDOW = 128  # rows of a window
KEPT = 8  # possible mistakes of a group whose place is learnt
PAIR_PROBES = 6  # views on which it is seen what a mistake explains of the whole
PAIRS = 12  # pairs of mistakes that are tried on all views
SHARE = 0.05  # of the blocks that differ, which each of two mistakes explains at least
LEAST = 8  # blocks that differ, below which two mistakes are not blamed together
FEW = 2  # blocks that differ by accident, for which no place is claimed


class Labels(NamedTuple):
    """The blocks and elements that must be inside a place, and those that must be outside.

    mixed: some blocks are partly inside, so only elements can say. about_tensor: so do the maxima of tensors.
    """

    blocks: tuple[Bools, Bools]
    elements: tuple[Bools, Bools]
    mixed: bool = False
    about_tensor: bool = False

    def of(self, *, by_element: bool) -> tuple[Bools, Bools]:
        """Return the units inside and outside."""
        return self.elements if by_element else self.blocks


class PlacedPart:
    """A case, or some of its rows, with the candidate's bytes and the specification's."""

    def __init__(self, item: Item, rows: slice, tier: Tier) -> None:
        self.item, self.rows = item, rows
        self.part = Part(item, rows, EVERY, tier)

    @property
    def family(self) -> str | None:
        """The family of the case."""
        return _family(self.item.exhibit.case)

    @cached_property
    def got(self) -> tuple[Codes, Codes] | None:
        """The candidate's scale bytes and codes."""
        scales, codes = self.item.scales(DECLARED), self.item.codes(LOW_FIRST)
        return None if scales is None or codes is None else (scales[self.rows], codes[self.rows])

    @cached_property
    def plain(self) -> tuple[Bools, Bools]:
        """Return the marks of scale bytes and codes that are the specification's, or do not count."""
        kernel = kernel_of(self.item.spec)
        found = self._compared(self._base.scales, code_side(kernel, self._base))
        assert found is not None
        return found

    @cached_property
    def right(self) -> Bools:
        """The marks of blocks that are the specification's."""
        return self.blockwise(*self.plain)

    def blockwise(self, scales: Bools, codes: Bools) -> Bools:
        """Return which blocks are equal in their scale and in every code."""
        starts = range(0, codes.shape[1], self.item.spec.block.columns)
        return np.asarray(scales & np.logical_and.reduceat(codes, starts, axis=1))

    def _compared(self, scales: Codes, codes: Codes) -> tuple[Bools, Bools] | None:
        spec, part = self.item.spec, self.part
        assert self.got is not None
        if scales.shape != self.got[0].shape or codes.shape != self.got[1].shape:
            return None
        same = ~unequal(spec.scale, self.got[0], scales, spec)
        alike = ~unequal(spec.element, self.got[1], codes, spec)
        if part.blocks is not None:
            same |= ~part.blocks
        if part.elements is not None:
            alike |= ~part.elements
        return same, alike

    def labels(self, kernel: Kernel) -> Labels | None:
        """Return which units are the kernel's only, and which the specification's only; None if some are neither's."""
        if kernel.whole and self.rows != EVERY:
            none = np.zeros(self.right.shape, np.bool_)
            return Labels((none, none), (np.zeros(self.plain[1].shape, np.bool_),) * 2)
        try:
            side = self.part.side(kernel)
            made = None if side is None else self._compared(side.scales, code_side(kernel, side))
        except FAILURES:
            return None
        if side is None or made is None:
            return None
        found = self._labels(*made)
        maxima = self.part.amax_matches(kernel, side), self.part.amax_matches(kernel_of(self.item.spec), self._base)
        if found is None or not any(maxima):
            return None
        if maxima[0] == maxima[1]:
            return found
        inside, outside = found.blocks
        inside[:1, :1] |= maxima[0]
        outside[:1, :1] |= maxima[1]
        return None if (inside & outside).any() or found.mixed else found._replace(about_tensor=True)

    def own(self, kernel: Kernel) -> Bools | None:
        """Return which blocks are a kernel's; None where it means nothing or its maxima are not the candidate's."""
        if kernel.whole and self.rows != EVERY:
            return None
        try:
            side = self.part.side(kernel)
            made = None if side is None else self._compared(side.scales, code_side(kernel, side))
        except FAILURES:
            return None
        right = made is not None and side is not None and self.part.amax_matches(kernel, side)
        return self.blockwise(*made) if right and made is not None else None

    def _labels(self, scales: Bools, codes: Bools) -> Labels | None:
        own, right = self.blockwise(scales, codes), self.right
        mixed = ~(own | right)
        if mixed.any():
            shared = self.blockwise(scales & self.plain[0], codes | self.plain[1])
            if (mixed & ~shared).any():
                return None
        elements = codes & ~self.plain[1], self.plain[1] & ~codes
        return Labels((own & ~right, right & ~own), elements, mixed=bool(mixed.any()))

    @cached_property
    def _base(self) -> ScaleSide:
        found = self.part.side(kernel_of(self.item.spec))
        assert found is not None
        return found

    def units(self, chosen: Bools, count: int, *, by_element: bool) -> Units:
        """Return some of the units that are marked, as arrays."""
        row, across = drawn(chosen, count)
        width = self.item.spec.block.columns
        first = self.rows.start or 0
        column = across if by_element else across * width
        return units_of(self.item.exhibit.case, width, row + first, column)

    def inside(self, place: Place, *, by_element: bool) -> Bools:
        """Return which units are in a place."""
        width = self.item.spec.block.columns
        mask = place.of_elements(self.item.exhibit.case, width, self.rows, EVERY)
        return mask if by_element else mask[:, ::width]


def views(items: Sequence[Item], tier: Tier) -> list[PlacedPart]:
    """Return what of the evidence is looked at: whole cases, and of very large ones some rows.

    Rows of a window are around the first and last ones that differ, and at both ends of the matrix.
    """
    found = []
    for item in items:
        if item.scales(DECLARED) is None or item.codes(LOW_FIRST) is None:
            return []
        found += [PlacedPart(item, rows, tier) for rows in _windows(item)]
    return [view for view in found if view.part.side(kernel_of(view.item.spec)) is not None]


def _windows(item: Item) -> list[slice]:
    if item.size <= WIDE or item.rows <= 4 * WINDOW:
        return [EVERY]
    wrong = np.flatnonzero(item.wrong.any(axis=1))
    rows = [0, item.rows - 1, *(wrong[[0, -1]].tolist() if wrong.size else ())]
    starts = sorted({int(row) // WINDOW * WINDOW for row in rows})
    return [slice(start, min(start + WINDOW, item.rows)) for start in starts]


class PlacedSearch:
    """Mistakes that explain the evidence if they hold in one place only."""

    def __init__(self, spec: Spec, items: Sequence[Item], tier: Tier, tick: Callable[[], None]) -> None:
        self.spec, self.tier, self.tick = spec, tier, tick
        self.base = Hypothesis(kernel_of(spec))
        self.views = views(items, tier)
        self.items = items
        self.paired = True  # until no two mistakes are found that explain enough of the probes

    @cached_property
    def probes(self) -> list[PlacedPart]:
        """The first views that differ, small ones if there are any, types and directions by turns."""
        wrong = [view for view in self.views if not view.right.all()]
        small = [view for view in wrong if view.item.size <= SMALL]
        tried = small or sorted(wrong, key=lambda view: view.item.size)
        seen: Counter[str] = Counter()
        ranks = []
        for view in tried:
            kind = f"{view.item.exhibit.dtype} {view.item.exhibit.case.direction}"
            ranks.append(seen[kind])
            seen[kind] += 1
        ordered = sorted(zip(ranks, tried, strict=True), key=lambda pair: pair[0])
        return [view for _, view in ordered][:PROBES]

    @cached_property
    def cut(self) -> list[PlacedPart]:
        """The probes, of large ones only some rows from the first that differs."""
        return [self._cut(view) if view.item.size > SMALL else view for view in self.probes]

    def _cut(self, view: PlacedPart) -> PlacedPart:
        first = (view.rows.start or 0) + int(np.flatnonzero(~view.right.all(axis=1))[0])
        high = self.spec.block.rows
        top = first // high * high
        return PlacedPart(view.item, slice(top, min(top + max(CUT, high), view.item.rows)), self.tier)

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Yield single mistakes with the place of each."""
        wrong = sum(int(np.count_nonzero(~view.right)) for view in self.views)
        if wrong <= FEW or not self.probes:
            return
        for mistake in self._possible():
            place = self.place_of(self.base.but(mistake))
            if place is None or not place.predicates:
                continue
            hypothesis = self.base.but(mistake.at(place))
            if hypothesis is not None and all(hypothesis.explains(item, self.tier) for item in self.items):
                yield hypothesis

    def _possible(self) -> Iterator[Mistake]:
        """Yield the first mistakes of each group that no probe refutes."""
        for group in self._groups():
            yield from itertools.islice(filter(self._unrefuted, group), KEPT)

    def _unrefuted(self, mistake: Mistake) -> bool:
        """Return True if every block of the probes is the mistake's or the specification's."""
        self.tick()
        changed = self.base.but(mistake)
        if changed is None:
            return False
        probes = self.probes if changed.kernel.whole else [*self.cut[:1], *self.probes]
        return all(view.labels(changed.kernel) is not None for view in probes)

    def _groups(self) -> Iterator[Iterable[Mistake]]:
        """Yield the mistakes that are known everywhere, then those that are made in one place only."""
        known = tellable(self.items, special=self.tier is True)
        yield known
        yield (displaced.after_maxima(m) for m in known if m.stage in {Slot.INPUT, Slot.HADAMARD})
        yield self._constants()
        yield displaced.displaced(self.spec.block.columns)

    def pairs(self) -> list[Hypothesis]:
        """Return two mistakes, each in a place of its own, or one of them everywhere; the first two that explain all.

        Each explains blocks that the other does not. Rules: CNF-27.
        """
        probes = [view for view in self.probes if not view.right.all()][:PAIR_PROBES]
        wrong = [~view.right for view in probes]
        total = sum(int(np.count_nonzero(bad)) for bad in wrong)
        if total < LEAST:
            return []
        useful: list[tuple[Mistake, Bools]] = []
        for mistake in itertools.chain.from_iterable(self._groups()):
            self.tick()
            changed = None if mistake.alone else self.base.but(mistake)
            made = [] if changed is None else [view.own(changed.kernel) for view in probes]
            if changed is None or any(own is None for own in made):
                continue
            held = np.concatenate([own[bad] for own, bad in zip(made, wrong, strict=True) if own is not None])
            if SHARE * total <= np.count_nonzero(held) < total:
                useful.append((mistake, held))
        ranked = sorted(
            (
                (-int(np.count_nonzero(a | b)), n, m)
                for (n, (_, a)), (m, (_, b)) in itertools.combinations(enumerate(useful), 2)
                if (a & ~b).any() and (b & ~a).any()
            )
        )
        likely = [pair for pair in ranked[:PAIRS] if -2 * pair[0] >= total]
        self.paired = bool(likely)
        for _, n, m in likely:
            self.tick()
            found = self._both(useful[n][0], useful[m][0])
            if found is not None:
                return [found]
        return []

    def _both(self, one: Mistake, other: Mistake) -> Hypothesis | None:
        """Return two mistakes with the place of each, if they explain all."""
        singles = [self.base.but(one), self.base.but(other)]
        both = singles[0] and singles[0].but(other)
        if singles[0] is None or singles[1] is None:
            return None
        units: tuple[list[tuple[PlacedPart, Bools, Bools]], ...] = ([], [])
        for view in self.views:
            self.tick()
            alone = [view.own(hypothesis.kernel) for hypothesis in singles if hypothesis is not None]
            nothing = np.zeros(view.right.shape, np.bool_)
            a, b = (nothing if own is None else own for own in alone)
            joint = view.own(both.kernel) if both is not None else None
            joint = nothing if joint is None else joint
            if not (view.right | a | b | joint).all():
                return None
            for found, mine, others in zip(units, (a, b), (b, a), strict=True):
                with_it, without = mine | joint, view.right | others
                found.append((view, with_it & ~without, without & ~with_it))
        result: Hypothesis | None = self.base
        for mistake, found in zip((one, other), units, strict=True):
            telling = [unit for unit in found if unit[1].any() or unit[2].any()]
            place = learnt(telling, self.tick, by_element=False)
            if place is None or result is None:
                return None
            result = result.but(mistake.at(place) if place.predicates else mistake)
        right = result is not None and all(result.explains(item, self.tier) for item in self.items)
        return result if right else None

    def _constants(self) -> Iterator[Mistake]:
        """Yield one byte for all scales, or codes, if those that differ are all one."""
        codes = [view.got[1][~view.plain[1]] for view in self.probes if view.got is not None]
        scales = [view.got[0][~view.plain[0]] for view in self.probes if view.got is not None]
        code, byte = np.unique(np.concatenate(codes)), np.unique(np.concatenate(scales))
        if len(byte) == 1:
            yield displaced.constant_scales(int(byte[0]))
        if len(code) == 1:
            yield displaced.constant_codes(int(code[0]))
        if len(byte) == len(code) == 1:
            yield displaced.constant_bytes(int(byte[0]), int(code[0]))

    def place_of(self, hypothesis: Hypothesis | None) -> Place | None:
        """Return the place where a hypothesis holds; None if there is none, or none that is supported.

        Rules: CNF-26.
        """
        if hypothesis is None:
            return None
        labelled: list[tuple[PlacedPart, Labels]] = []
        for view in self.views:
            self.tick()
            labels = view.labels(hypothesis.kernel)
            if labels is None:
                return None
            labelled.append((view, labels))
        by_element = any(labels.mixed for _, labels in labelled)
        units = [(view, *labels.of(by_element=by_element)) for view, labels in labelled]
        about_tensor = any(labels.about_tensor for _, labels in labelled)
        telling = [unit for unit in units if unit[1].any() or unit[2].any()]
        place = learnt(telling, self.tick, by_element=by_element, about_tensor=about_tensor)
        if place is None or any(mistake.stage not in AFTER_SCALES for mistake in hypothesis.mistakes):
            return place
        return place.in_columns(self.spec.block.columns)


def _family(case: Tensor) -> str | None:
    return getattr(case, "family", None)


def likely_place(items: Sequence[Item]) -> Place:
    """Return where the blocks that differ are, whatever made them. Rules: CNF-44."""
    seen = []
    for item in items:
        every = item.differing == item.wrong.size
        seen.append((item.exhibit.case, np.ones_like(item.wrong) if every else item.wrong))
    return confined(seen, items[0].spec.block.columns if items else 1)


def confined(seen: Sequence[tuple[Tensor, Bools]], width: int) -> Place:
    """Return where units that differ are: first which rows and blocks, then which tensors of those that have such.

    seen: cases, and which blocks [rows, blocks] of each differ. Rows and blocks are compared within the tensors that
    fail, tensors within the families that fail.

    Rules: CNF-44.
    """
    failed = [(case, wrong) for case, wrong in seen if wrong.any()]
    if sum(int(np.count_nonzero(wrong)) for _, wrong in failed) <= FEW:
        return EVERYWHERE
    families = {_family(case) for case, _ in failed}
    samples = [_units(*pair, width) for pair in failed if not pair[1].all()]
    inside = likeliest(recorded(samples), about_tensor=False) if samples else EVERYWHERE
    related = [pair for pair in seen if _family(pair[0]) in families]
    compared = [_whole(*pair, width) for pair in related if _any(inside, *pair, width)]
    tensors = likeliest(joined(compared), about_tensor=True)
    return Place((*inside.predicates, *tensors.predicates))


def _whole(case: Tensor, wrong: Bools, width: int) -> tuple[Units, Bools]:
    zero = np.zeros(1, np.int64)
    return units_of(case, width, zero, zero), np.array([bool(wrong.any())])


def _any(place: Place, case: Tensor, wrong: Bools, width: int) -> bool:
    row, block = np.arange(wrong.shape[0])[:, None], np.arange(wrong.shape[1])[None]
    return bool(place.holds(units_of(case, width, row, block * width)).any())


def _units(case: Tensor, wrong: Bools, width: int) -> list[tuple[Units, Bools]]:
    found = []
    for wanted, chosen in ((True, wrong), (False, ~wrong)):
        row, block = drawn(chosen, 4 * DRAWN)
        found.append((units_of(case, width, row, block * width), np.full(len(row), wanted)))
    return found
