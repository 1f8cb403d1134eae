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

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis import displaced
from fp4ref.conformance.diagnosis.evidence import SMALL, Item
from fp4ref.conformance.diagnosis.hypotheses import AFTER_SCALES, Hypothesis
from fp4ref.conformance.diagnosis.marks import Tier
from fp4ref.conformance.diagnosis.place_rounds import learnt
from fp4ref.conformance.diagnosis.placed_parts import Labels, PlacedPart, views
from fp4ref.conformance.diagnosis.support import tellable
from fp4ref.conformance.diagnosis.turned_codes import codes_turned
from fp4ref.conformance.mistakes.kernel import kernel_of
from fp4ref.conformance.mistakes.places import Place
from fp4ref.conformance.mistakes.record import Mistake, Slot
from fp4ref.spec import Granularity, Spec

Bools = NDArray[np.bool_]


PROBES = 12  # views on which every mistake is tried first
CUT = 16  # rows of a large case on which a mistake is tried before the whole
KEPT = 8  # possible mistakes of a group whose place is learnt
PAIR_PROBES = 6  # views on which it is seen what a mistake explains of the whole
PAIRS = 12  # pairs of mistakes that are tried on all views
SHARE = 0.05  # of the blocks that differ, which each of two mistakes explains at least
LEAST = 8  # blocks that differ, below which two mistakes are not blamed together
FEW = 2  # blocks that differ by accident, for which no place is claimed


class PlacedSearch:
    """Mistakes that explain the evidence if they hold in one place only.

    given: mistakes are compared block by block with the candidate's own maxima given.
    """

    def __init__(
        self, spec: Spec, items: Sequence[Item], tier: Tier, tick: Callable[[], None], *, given: bool = False
    ) -> None:
        self.spec, self.tier, self.tick, self.given = spec, tier, tick, given
        self.base = Hypothesis(kernel_of(spec))
        self.views = views(items, tier, given=given)
        self.items = items
        self.ended = False  # until no pair explains all
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
        rows = slice(top, min(top + max(CUT, high), view.item.rows))
        return PlacedPart(view.item, rows, self.tier, given=self.given)

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Yield single mistakes with the place of each."""
        wrong = sum(int(np.count_nonzero(~view.right)) for view in self.views)
        if wrong <= FEW or not self.probes:
            return
        everywhere = {mistake.name for mistake in tellable(self.items, special=True)}  # was tried without a place
        for mistake in self._possible():
            place = self.place_of(self.base.but(mistake))
            if place is None or (not place.predicates and mistake.name in everywhere):
                continue
            hypothesis = self.base.but(mistake.at(place) if place.predicates else mistake)
            if hypothesis is not None and all(hypothesis.explains(item, self.tier) for item in self.items):
                yield hypothesis

    def of_values(self) -> Iterator[Hypothesis]:
        """Yield mistakes in the values of one place, which count in the maxima of the tensor.

        A place is learnt with the candidate's own maxima given, and then the maxima must follow from it. For example,
        the transform is left out in every other block, and the amax is that of all values, transformed or not.
        """
        if self.spec.global_scale is Granularity.NONE or not self.probes:
            return
        search = PlacedSearch(self.spec, self.items, self.tier, self.tick, given=True)
        known = [m for m in tellable(self.items, special=self.tier is True) if m.stage in {Slot.HADAMARD, Slot.INPUT}]
        tried = filter(search._unrefuted, [*known, *displaced.rows_read()]) if search.probes else iter(())
        for mistake in itertools.islice(tried, KEPT):
            place = search.place_of(self.base.but(mistake))
            if place is None or not place.predicates:
                continue
            hypothesis = self.base.but(mistake.at(place, "placed_values"))
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
        scales, codes = (any(not view.plain[part].all() for view in self.probes) for part in (0, 1))
        known = tellable(self.items, special=self.tier is True)
        if not codes and self.base.kernel.search is None:
            known = [mistake for mistake in known if mistake.stage not in AFTER_SCALES]
        yield self._constants()  # a few, so that the time suffices for what is not written in a large case
        if scales and not codes:
            yield (mistake for mistake in known if mistake.stage is Slot.LAYOUT)
            yield displaced.scales_elsewhere()
            known = [mistake for mistake in known if mistake.stage is not Slot.LAYOUT]
        yield known
        if scales and self.spec.block.rows > 1:
            yield displaced.maxima_of_some_rows()
        yield itertools.chain.from_iterable(displaced.later(m) for m in known if m.stage in {Slot.INPUT, Slot.HADAMARD})
        if codes and not scales:
            yield (m for each in known if each.stage in {Slot.CODE, Slot.SIGN} for m in displaced.of_sign(each))
        if codes:
            yield displaced.scales_used_elsewhere()
            yield itertools.chain(
                displaced.displaced(self.spec.block.columns), codes_turned(self.spec.element.format.bits)
            )

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
        for mistake in itertools.chain(self._commonest(), *self._groups()):
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
        self.ended = True
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

    def _commonest(self) -> Iterator[Mistake]:
        """Yield the byte that most of the scale bytes that differ are, and the code that most codes are."""
        for part, made in ((0, displaced.constant_scales), (1, displaced.constant_codes)):
            found = [view.got[part][~view.plain[part]] for view in self.probes if view.got is not None]
            numbers = np.concatenate(found) if found else np.zeros(0, np.uint8)
            if numbers.size:
                yield made(int(np.bincount(numbers).argmax()))

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
