"""A diagnosis with a share of the time: which searches run, in what order, and what is told of their findings.

A session looks for a single mistake everywhere, then for one in a place, then inside the place of all that differs,
then for one mistake per stage, for two in two places, and for any two. It stops at the first that makes every byte. For
example, "ties go away from zero, in bfloat16 only" is found by the second of these, so no pair is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

from fp4ref.conformance.diagnosis.budget import INSIDE, Share
from fp4ref.conformance.diagnosis.clock import Deadline, OutOfTimeError, processor_time
from fp4ref.conformance.diagnosis.code_stage import measured_anew
from fp4ref.conformance.diagnosis.evidence import Item, Part
from fp4ref.conformance.diagnosis.explanations import Diagnosis, Explanation
from fp4ref.conformance.diagnosis.hypotheses import Hypothesis, special_kinds
from fp4ref.conformance.diagnosis.likely_place import likely_place
from fp4ref.conformance.diagnosis.marks import Tier
from fp4ref.conformance.diagnosis.measured.near import nearness
from fp4ref.conformance.diagnosis.padding import in_padding
from fp4ref.conformance.diagnosis.placed import PlacedSearch
from fp4ref.conformance.diagnosis.ranking import ranked
from fp4ref.conformance.diagnosis.refuted import Refuted
from fp4ref.conformance.diagnosis.same_statement import distinct
from fp4ref.conformance.diagnosis.scale_stage import permuted
from fp4ref.conformance.diagnosis.search import PAIR, Search
from fp4ref.conformance.diagnosis.sentences import first_difference, told
from fp4ref.conformance.diagnosis.special_rules import SpecialRules
from fp4ref.conformance.diagnosis.stages import Stagewise, by_stages
from fp4ref.conformance.diagnosis.support import tellable
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.kernel import kernel_of
from fp4ref.conformance.mistakes.places import EVERYWHERE, Place
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.spec import Spec

KEPT = 6  # explanations that are told apart by nothing in the evidence
ENOUGH = 24  # hypotheses of one cost that are carried on
FEW = 2  # differing blocks for which no two mistakes are blamed together


class Session:
    """A diagnosis, from now until `end`. within: the place to which the items are cut, None for everywhere.

    earlier: what is refuted by some of the items already.
    """

    def __init__(
        self,
        spec: Spec,
        items: list[Item],
        end: float,
        within: Place | None = None,
        earlier: Refuted | None = None,
    ) -> None:
        self.spec, self.items, self.within = spec, items, within
        self.made_by: dict[tuple[str, ...], Hypothesis] = {}
        self.start = processor_time()
        self.budget = end - self.start
        self.complete = True
        self.tried = Refuted([mistake.name for mistake in tellable(items, special=True)])
        self.earlier = (earlier or Refuted()).of(self.tried.mistakes)
        self.tried.dead = self.earlier.dead
        self.kinds = special_kinds(items)
        self.stagewise: Stagewise | None = None
        self.paired = False  # if pairs in places were looked for, to the end

    def diagnosis(self) -> Diagnosis:
        """Mistakes that explain ordinary values, the fewest first, which rules for special ones then join.

        Rules: CNF-92.
        """
        ordinary = self._search(tier=False, share=Share.SINGLE)
        if self._cheapest(ordinary, (0,)):  # nothing but special values differs, and any mistake may do that
            single = self._cheapest(self._search(tier=True, share=Share.SPECIAL), (0, 1))
            single = single or self._placed(tier=True)
            if single:
                return self._with([self._told(hypothesis) for hypothesis in ranked(single, only_special=True)])
        found = self._cheapest(ordinary, (0, 1)) or self._measured_anew(ordinary.parts) or self._placed(tier=False)
        if any(place.about_size for one in found for place, _ in one.kernel.placed):  # what needs no place comes first
            found = [one for one in self._composed(ordinary.parts) if one.cost == 1] or found
        found = found or self._placed_pairs(Share.EARLY_PAIRS)
        inside = None if found else self._inside()
        if inside is not None and inside.explanations:
            return inside
        composed = [] if found else self._composed(ordinary.parts)
        whole = [hypothesis for hypothesis in composed if hypothesis.cost == 1 and not hypothesis.measured]
        found = found or whole or self._placed_pairs(Share.PLACED_PAIRS)  # one cause everywhere before two in places
        if inside is not None and not found:
            return inside
        measured = [hypothesis for hypothesis in composed if hypothesis.measured]
        found = found or [hypothesis for hypothesis in composed if not hypothesis.measured]
        if not found and self._many():
            share = Share.PAIR_OR_MEASURED if measured else Share.PAIR
            found = self._cheapest(self._search(tier=False, share=share), (2,))
        found = found or measured or self._unnamed(self._search(tier=False, share=Share.UNNAMED))
        entire = any(all(map(one.explains, self.items)) for one in found if one.profile)
        if found and all(one.profile for one in found) and not entire:
            found = self._placed(tier=True) or found  # one mistake in a place before a profile that leaves something
        return self._completed(found) if found else self._with([])

    @cached_property
    def _moved(self) -> bool:
        """True if the scale bytes are the right ones at other places."""
        return permuted([part for item in self.items for part in item.parts(False)])

    def _in_padding(self, hypothesis: Hypothesis) -> bool:
        """Return True if padding of the scales is not zero, if they are stored where the hypothesis has them."""
        return in_padding(self.items, hypothesis.scales, hypothesis.mistakes)

    def _search(self, tier: Tier, share: Share) -> Search:
        deadline = self.start + share.value * self.budget
        return Search(self.spec, self.items, tier, deadline, special=tier is True, dead=self.tried.dead)

    @cached_property
    def _likely(self) -> Place:
        """The place of everything that differs."""
        return EVERYWHERE if self.within else likely_place(self.items)

    def _inside(self) -> Diagnosis | None:
        """Diagnose only the place that all differences share, and say so in the words; None without such a place."""
        if not self._likely.predicates:
            return None
        items = [item for item in (item.inside(self._likely) for item in self.items) if item is not None]
        now = processor_time()
        session = Session(self.spec, items, now + INSIDE * (self.start + self.budget - now), self._likely)
        found = session.diagnosis()
        self.complete &= found.complete
        told = [e for e in (self._relocated(e, session.made_by[e.names]) for e in found.explanations) if e is not None]
        if told:
            return self._with(told)
        if found.explanations:  # none of which holds in the place alone
            found = session._with((), () if found.partial is None else (found.partial,))
        left = found.partial and replace(found.partial, place=self._likely.text)
        return replace(found, partial=left, place=self._likely.text, where=first_difference(self.items))

    def _relocated(self, explanation: Explanation, hypothesis: Hypothesis) -> Explanation | None:
        """Return an explanation of one place with the place that all evidence calls for; None if that is unclear."""
        if hypothesis.profile or hypothesis.scales is not DECLARED or hypothesis.data is not LOW_FIRST:
            held = self._likely
            told = replace(explanation, text=f"{explanation.text}, {held.text}", place=held.text)
            return told if held.about_tensor else None
        search = PlacedSearch(self.spec, self.items, True, self._ticking(Share.WORDS))
        try:
            exact = search.place_of(hypothesis)
        except OutOfTimeError:
            self.complete, exact = False, None
        if exact is None:
            return None
        moved: Hypothesis | None = Hypothesis(kernel_of(self.spec))
        for mistake in hypothesis.mistakes:
            moved = moved and moved.but(mistake.at(exact) if exact.predicates else mistake)
        return self._told(moved) if moved is not None and all(map(moved.explains, self.items)) else None

    def _placed(self, tier: Tier) -> list[Hypothesis]:
        """Single mistakes that hold in one place only, the shortest description first."""
        if self.within:
            return []
        search = PlacedSearch(self.spec, self.items, tier, self._ticking(Share.PLACED))
        found = self._in_time(search.hypotheses) or self._in_time(search.of_values)
        found = [h for h in found if not (h.kernel.placed or h.kernel.placed_values or h.measured)] or found
        return sorted(found, key=lambda hypothesis: sum(place.bits for place, _ in hypothesis.kernel.placed))

    def _placed_pairs(self, share: Share) -> list[Hypothesis]:
        """Two mistakes that hold in two places."""
        if self.within or self.paired or not self._many() or not (self.earlier.paired and self.tried.paired):
            return []
        search = PlacedSearch(self.spec, self.items, False, self._ticking(share))
        found = self._in_time(search.pairs)
        self.tried.paired, self.paired = search.paired, search.ended
        return found

    def _ticking(self, share: Share) -> Callable[[], None]:
        """Return the function that ends a search when its share of the time is over."""
        return Deadline(share.value * self.budget, self.start)

    def _cheapest(self, search: Search, costs: Iterable[int]) -> list[Hypothesis]:
        """Hypotheses of the lowest cost that has any."""
        for cost in costs:
            known = self.earlier.found.get((search.tier, cost, cost == PAIR and search.scales_right))
            if known is not None:
                found = self._in_time(partial(filter, search.whole, known))
            else:
                found = self._in_time(partial(self._some, search, cost))
            if found:
                return found
        return []

    def _some(self, search: Search, cost: int) -> Iterator[Hypothesis]:
        """Yield the first hypotheses of a cost; note all of them if they are that few and the search was not cut."""
        found: list[Hypothesis] = []
        for hypothesis in search.explanations(cost):
            found.append(hypothesis)
            yield hypothesis
            if len(found) == ENOUGH:
                return
        self.tried.found[search.tier, cost, cost == PAIR and search.scales_right] = found

    def _many(self) -> bool:
        """Return True if more differs than two accidents would explain."""
        return sum(item.differing for item in self.items) > FEW

    def _unnamed(self, search: Search) -> list[Hypothesis]:
        """Scales that are right, in a place that has no name."""

        def tried() -> Iterator[Hypothesis]:
            if not search.scales_right and permuted(search.parts):
                yield from itertools.islice(search.unnamed_layouts(), KEPT)

        return self._in_time(tried)

    def _in_time(self, search: Callable[[], Iterable[Hypothesis]]) -> list[Hypothesis]:
        """Return the findings up to the end of the time."""
        found: list[Hypothesis] = []
        try:
            for hypothesis in search():
                if not (self._in_padding(hypothesis) and self._moved):  # the padding holds scales that it calls wrong
                    found.append(hypothesis)  # noqa: PERF401 - keeps what it has when the time is over
        except OutOfTimeError:
            self.complete = False
        return found

    def _composed(self, parts: Sequence[Part]) -> list[Hypothesis]:
        """Return hypotheses that were found stage by stage, if together they explain all bytes; none of 4over6."""
        if self.spec.four_over_six is not None:
            return []
        found = self._by_stages(parts).composed
        return [h for h in found if h.explains_all(self.items, False)]

    def _measured_anew(self, parts: Sequence[Part]) -> list[Hypothesis]:
        """Return the explanation of a few cases, measured anew in all cases, if it explains all."""
        tick = self._ticking(Share.WORDS)
        anew = (changed for found in self.earlier.measured for changed in measured_anew(found, parts, tick))
        return self._in_time(lambda: (one for one in anew if one.explains_all(self.items, False)))[:1]

    def _by_stages(self, parts: Sequence[Part], *, compose: bool = True) -> Stagewise:
        if self.stagewise is None:
            deadline = self.start + Share.STAGES.value * self.budget
            self.stagewise = by_stages(self.spec, self.items, parts, deadline, compose=compose)
            self.complete &= self.stagewise.complete
        return self.stagewise

    # Special values, once ordinary ones are explained

    def _completed(self, found: Sequence[Hypothesis]) -> Diagnosis:
        """Each hypothesis with the special rules that make it whole, or with what it leaves open."""
        self.tried.measured = [hypothesis for hypothesis in found if hypothesis.measured]
        explanations: list[Explanation] = []
        partial: list[Explanation] = []
        rules = SpecialRules(self.items, self.kinds, self._ticking(Share.WORDS))
        wrong = {id(hypothesis): sum(not rules.right(hypothesis, kind) for kind in self.kinds) for hypothesis in found}
        likeliest = sorted(ranked(found), key=lambda hypothesis: wrong[id(hypothesis)])
        least = float("inf")  # mistakes of an explanation that is whole
        for hypothesis in likeliest[:KEPT]:
            if hypothesis.cost + bool(wrong[id(hypothesis)]) > least:
                continue  # with the rules for special values that it needs, it would assume more
            full, rest = rules.completed(hypothesis)
            least = least if rest else min(least, full.cost)
            (explanations if (told := self._told(full, rest)).complete else partial).append(told)
        self.complete &= rules.complete
        explanations.sort(key=lambda explanation: (explanation.spared, len(explanation.names)))
        partial.sort(key=lambda explanation: (len(explanation.except_on), len(explanation.names)))
        return self._with(explanations, partial)

    # In words

    def _told(self, hypothesis: Hypothesis, except_on: tuple[str, ...] = ()) -> Explanation:
        explanation = told(self.spec, self.items, hypothesis, except_on, in_padding=self._in_padding(hypothesis))
        self.made_by[explanation.names] = hypothesis
        return explanation

    def _with(self, explanations: Sequence[Explanation], partial: Sequence[Explanation] = ()) -> Diagnosis:
        kept: dict[tuple[str, ...], Explanation] = {}
        for explanation in explanations:
            kept.setdefault(explanation.names, explanation)
        told = tuple(kept.values())
        if told:
            least = min((explanation.spared, len(explanation.names)) for explanation in told)
            told = tuple(each for each in told if (each.spared, len(each.names)) == least)
        if told:
            by = [self.made_by.get(explanation.names) for explanation in told]
            kept_by = {id(one) for one in distinct(self.spec, self.items, [one for one in by if one is not None])}
            told = tuple(each for each, one in zip(told, by, strict=True) if one is None or id(one) in kept_by)
            others = tuple(explanation for explanation in told[KEPT:] if explanation.profile)
            return Diagnosis(False, told[:KEPT] + others, first_stage=told[0].stage, complete=self.complete)
        stagewise = self._by_stages(self._search(tier=False, share=Share.WORDS).parts, compose=False)
        return Diagnosis(
            conforms=False,
            partial=partial[0] if partial else None,
            first_stage=stagewise.first or next(iter(partial[0].except_on if partial else ()), None),
            findings=stagewise.findings,
            complete=self.complete,
            where=first_difference(self.items),
            place=self._likely.text,
            near=nearness(self.items),
        )
