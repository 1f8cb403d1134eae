"""Diagnosis: what a candidate that is wrong did wrong.

Every known mistake, and every registered profile, is a hypothesis about the whole evidence. Only what makes every byte
is called an explanation; the rest is "not explained", with the stage at which bytes first differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnosis.budget import BEFORE_BOUNDS, INSIDE, SECONDS, Share
from fp4ref.conformance.diagnosis.budget import FEW as AMONG_FEW
from fp4ref.conformance.diagnosis.clock import OutOfTimeError, processor_time
from fp4ref.conformance.diagnosis.evidence import LEAST, SMALLEST, Item, Part, Special, Tier
from fp4ref.conformance.diagnosis.hypotheses import ORDER, Hypothesis, Search, special_kinds
from fp4ref.conformance.diagnosis.measured.specials import measured_specials
from fp4ref.conformance.diagnosis.placed import PlacedSearch, likely_place
from fp4ref.conformance.diagnosis.profile_words import differences
from fp4ref.conformance.diagnosis.ranking import ranked
from fp4ref.conformance.diagnosis.stages import StageFinding, Stagewise, by_stages, permuted
from fp4ref.conformance.diagnosis.support import tellable
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.mistakes.kernel import CaseLike, code_side, kernel_of
from fp4ref.conformance.mistakes.places import EVERYWHERE, Place
from fp4ref.conformance.mistakes.readers import DECLARED, LOW_FIRST
from fp4ref.conformance.mistakes.record import Mistake, Slot
from fp4ref.layout import layout
from fp4ref.quantized import DirectionData
from fp4ref.spec import Spec

Evidence = tuple[CaseLike, DirectionData]
KEPT = 6  # explanations that are told apart by nothing in the evidence
ENOUGH = 24  # hypotheses of one cost that are carried on
FEW = 2  # differing blocks for which no two mistakes are blamed together
FIRST = 1 << 19  # elements of wrong cases, and of right ones, among which causes are looked for first
PADDING = ("padding", "padding bytes of the scales are not zero")
SPARE = ("spare-nibble", "spare nibbles are not zero")


@dataclass(frozen=True)
class Explanation:
    """Mistakes that make the candidate's bytes.

    names: of the mistakes in the library, or `profile NAME`. stage: the first one. text: a sentence. except_on: classes
    of special input whose bytes it does not make; empty: it makes every byte. place: where it holds, in words; empty:
    everywhere. differs: what a profile does otherwise than the specification.
    """

    names: tuple[str, ...]
    stage: str
    text: str
    except_on: tuple[str, ...] = ()
    profile: str | None = None
    place: str = ""
    differs: str = ""

    @property
    def complete(self) -> bool:
        """True if it makes every byte of the evidence."""
        return not self.except_on


@dataclass(frozen=True)
class Diagnosis:
    """The findings about a candidate.

    conforms: nothing differs. explanations: what makes every byte, the simplest first; they are equally good on the
    evidence. partial: the best that does not. first_stage: where bytes first differ. findings: of what nothing
    explains, stage by stage, each judged on the candidate's own output of the stages before. where: the first place of
    it that differs. complete: whether the search ended in time. place: where all of it is, in words, if it is
    anywhere in particular.
    """

    conforms: bool
    explanations: tuple[Explanation, ...] = ()
    partial: Explanation | None = None
    first_stage: str | None = None
    findings: tuple[StageFinding, ...] = ()
    complete: bool = True
    where: str = ""
    place: str = ""

    @property
    def profiles(self) -> tuple[str, ...]:
        """Names of the profiles that make every byte without any mistake."""
        return tuple(e.profile for e in self.explanations if e.profile is not None and len(e.names) == 1)

    @property
    def sentence(self) -> str:
        """The cause in words: a mistake's sentence, or what a profile does otherwise; empty without an explanation."""
        plain = sorted(self.explanations, key=lambda explanation: explanation.profile is not None)
        return (plain[0].differs or plain[0].text) if plain else ""

    @property
    def explained(self) -> bool:
        """True if something makes every byte."""
        return self.conforms or bool(self.explanations)

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON data."""
        return {
            "explained": self.explained,
            "explanations": [vars(item) for item in self.explanations],
            "partial": None if self.partial is None else vars(self.partial),
            "first_stage": self.first_stage,
            "stages": [vars(finding) for finding in self.findings],
            "profiles": list(self.profiles),
            "complete": self.complete,
            "where": self.where,
            "place": self.place,
        }


@np.errstate(all="ignore")  # wrong formulas overflow
def diagnose(spec: Spec, scale_layout: str, evidence: Sequence[Evidence], budget_seconds: float = SECONDS) -> Diagnosis:
    """Explain what a candidate made of some cases.

    scale_layout: the declared one, in which the scales of the evidence lie; data is packed as declared too.
    budget_seconds: of processor time, so that a busy machine finds the same.

    Rules: CNF-1, CNF-2, CNF-30.
    """
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
        first = _Session(spec, near, start + AMONG_FEW * budget_seconds)
        confirmed = _confirmed(first, ordered)
        if confirmed is not None:
            return confirmed
        refuted = first.tried
    found = _Session(
        spec, ordered, start + BEFORE_BOUNDS * budget_seconds if spec.hadamard else end, earlier=refuted
    ).diagnosis()
    if found.explanations or spec.hadamard is None:
        return found
    bounded = _varied(
        sorted(_items(spec, scale_layout, evidence, LEAST, bounded=True), key=lambda i: (i.equal, i.size))
    )
    if all(item.equal for item in bounded) and not untidy:
        return Diagnosis(conforms=True)
    again = _Session(spec, bounded, end).diagnosis()
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


def _confirmed(session: _Session, items: Sequence[Item]) -> Diagnosis | None:
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
    made = (Item(case, got, spec, layout(scale_layout), least, bounded=bounded) for case, got in evidence)
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


class Refuted:
    """Searches that ended in time, and all that they found: whatever else they tried is refuted, in more cases too.

    found: by tier and cost. mistakes: the names of those that were tried. paired: whether two mistakes in two places
    may explain the cases.
    """

    def __init__(self, mistakes: Sequence[str] = ()) -> None:
        self.mistakes = mistakes
        self.found: dict[tuple[Tier, int], list[Hypothesis]] = {}
        self.paired = True


class _Session:
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
        self.earlier = earlier if earlier is not None and earlier.mistakes == self.tried.mistakes else Refuted()
        self.kinds = special_kinds(items)
        self.stagewise: Stagewise | None = None

    def diagnosis(self) -> Diagnosis:
        """Mistakes that explain ordinary values, the fewest first, which rules for special ones then join."""
        ordinary = self._search(tier=False, share=Share.SINGLE)
        if self._cheapest(ordinary, (0,)):  # nothing but special values differs, and any mistake may do that
            single = self._cheapest(self._search(tier=True, share=Share.SPECIAL), (0, 1))
            single = single or self._placed(tier=True)
            if single:
                return self._with([self._told(hypothesis) for hypothesis in ranked(single, only_special=True)])
        found = self._cheapest(ordinary, (0, 1)) or self._placed(tier=False)
        if any(place.about_size for hypothesis in found for place, _ in hypothesis.kernel.placed):
            found = [one for one in self._composed(ordinary.parts) if one.cost == 1] or found  # needs no place
        inside = None if found else self._inside()
        if inside is not None and inside.explanations:
            return inside
        composed = [] if found else self._composed(ordinary.parts)
        whole = [hypothesis for hypothesis in composed if hypothesis.cost == 1 and not hypothesis.measured]
        found = found or whole or self._placed_pairs()  # one cause everywhere before two in two places
        if inside is not None and not found:
            return inside
        measured = [hypothesis for hypothesis in composed if hypothesis.measured]
        found = found or [hypothesis for hypothesis in composed if not hypothesis.measured]
        if not found and self._many():
            found = self._cheapest(
                self._search(tier=False, share=Share.PAIR_OR_MEASURED if measured else Share.PAIR), (2,)
            )
        found = found or measured or self._unnamed(self._search(tier=False, share=Share.UNNAMED))
        if found:
            return self._completed(found)
        return self._with([])

    @cached_property
    def _moved(self) -> bool:
        """True if the scale bytes are the right ones at other places."""
        return permuted([part for item in self.items for part in item.parts(False)])

    def _in_padding(self, hypothesis: Hypothesis) -> bool:
        """Return True if padding of the scales is not zero, if they are stored where the hypothesis has them."""
        read = hypothesis.scales
        return any(item.stray(read) for item in self.items if item.scales(read) is not None)

    def _search(self, tier: Tier, share: Share) -> Search:
        deadline = self.start + share.value * self.budget
        return Search(self.spec, self.items, tier, deadline, special=tier is True)

    @cached_property
    def _likely(self) -> Place:
        """The place of everything that differs."""
        return EVERYWHERE if self.within else likely_place(self.items)

    def _inside(self) -> Diagnosis | None:
        """Return what explains the place of everything that differs, looked at alone."""
        if not self._likely.predicates:
            return None
        items = [item for item in (item.inside(self._likely) for item in self.items) if item is not None]
        now = processor_time()
        session = _Session(self.spec, items, now + INSIDE * (self.start + self.budget - now), self._likely)
        found = session.diagnosis()
        self.complete &= found.complete
        told = [e for e in (self._relocated(e, session.made_by[e.names]) for e in found.explanations) if e is not None]
        if told:
            return self._with(told)
        left = found.partial and replace(found.partial, place=self._likely.text)
        return replace(found, explanations=(), partial=left, place=self._likely.text, where=place(self.items))

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
        whole = moved is not None and all(moved.explains(item) for item in self.items)
        return self._told(moved) if moved is not None and whole else None

    def _placed(self, tier: Tier) -> list[Hypothesis]:
        """Single mistakes that hold in one place only, the shortest description first."""
        if self.within:
            return []
        search = PlacedSearch(self.spec, self.items, tier, self._ticking(Share.PLACED))
        found = self._in_time(search.hypotheses)
        return sorted(found, key=lambda hypothesis: sum(place.bits for place, _ in hypothesis.kernel.placed))

    def _placed_pairs(self) -> list[Hypothesis]:
        """Two mistakes that hold in two places."""
        if self.within or not self._many() or not self.earlier.paired:
            return []
        search = PlacedSearch(self.spec, self.items, False, self._ticking(Share.PLACED_PAIRS))
        found = self._in_time(search.pairs)
        self.tried.paired = search.paired
        return found

    def _ticking(self, share: Share) -> Callable[[], None]:
        """Return the function that ends a search when its share of the time is over."""
        deadline = self.start + share.value * self.budget

        def tick() -> None:
            if processor_time() > deadline:
                raise OutOfTimeError

        return tick

    def _cheapest(self, search: Search, costs: Iterable[int]) -> list[Hypothesis]:
        """Hypotheses of the lowest cost that has any."""
        for cost in costs:
            known = self.earlier.found.get((search.tier, cost))
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
        if cost < 2 or not search.scales_right:
            self.tried.found[search.tier, cost] = found

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
        """Return what explains every stage on its own, if it explains the whole."""
        stagewise = self._by_stages(parts)
        return [h for h in stagewise.composed if all(h.explains(item, False) for item in self.items)]

    def _by_stages(self, parts: Sequence[Part]) -> Stagewise:
        if self.stagewise is None:
            deadline = self.start + Share.STAGES.value * self.budget
            self.stagewise = by_stages(self.spec, self.items, parts, deadline)
            self.complete &= self.stagewise.complete
        return self.stagewise

    # Special values, once ordinary ones are explained

    def _completed(self, found: Sequence[Hypothesis]) -> Diagnosis:
        """Each hypothesis with the special rules that make it whole, or with what it leaves open."""
        explanations, partial = [], []
        wrong = {id(hypothesis): sum(not self._right(hypothesis, kind) for kind in self.kinds) for hypothesis in found}
        likeliest = sorted(ranked(found), key=lambda hypothesis: wrong[id(hypothesis)])
        least = float("inf")  # mistakes of an explanation that is whole
        for hypothesis in likeliest[:KEPT]:
            if hypothesis.cost + bool(wrong[id(hypothesis)]) > least:
                continue  # with the rules for special values that it needs, it would assume more
            full, rest = self._with_specials(hypothesis)
            least = least if rest else min(least, full.cost)
            if rest:
                partial.append(self._told(full, rest))
            else:
                explanations.append(self._told(full))
        explanations.sort(key=lambda explanation: len(explanation.names))
        partial.sort(key=lambda explanation: (len(explanation.except_on), len(explanation.names)))
        return self._with(explanations, partial)

    def _with_specials(self, hypothesis: Hypothesis) -> tuple[Hypothesis, tuple[str, ...]]:
        """Return the hypothesis with rules for special values, and the classes that stay unexplained."""
        bad = [kind for kind in self.kinds if not self._right(hypothesis, kind)]
        named = [mistake for mistake in MISTAKES if mistake.special]
        hypothesis, bad = self._bettered(hypothesis, bad, named)
        if bad:
            measured = measured_specials(hypothesis.kernel, self.items, hypothesis.scales, hypothesis.data)
            hypothesis, bad = self._bettered(hypothesis, bad, [*measured, *named])
        if not bad:
            open_kinds = {kind for item in self.items if not hypothesis.explains(item) for kind in item.kinds()}
            bad = [kind for kind in Special if kind in open_kinds]
        return hypothesis, tuple(kind.value for kind in bad)

    def _bettered(
        self, hypothesis: Hypothesis, bad: list[Special], special: Sequence[Mistake]
    ) -> tuple[Hypothesis, list[Special]]:
        """With special rules for as long as they make more classes right, and there is time."""
        try:
            while bad and (better := self._best(hypothesis, bad, special)) is not None:
                hypothesis, bad = better
        except OutOfTimeError:
            self.complete = False
        return hypothesis, bad

    def _best(
        self, hypothesis: Hypothesis, bad: list[Special], special: Sequence[Mistake]
    ) -> tuple[Hypothesis, list[Special]] | None:
        """With the one or two special rules that make most classes right and none wrong."""
        good = [kind for kind in self.kinds if kind not in bad]
        best: tuple[Hypothesis, list[Special]] | None = None
        for changed in self._singles_then_pairs(hypothesis, special, bad[0]):
            if processor_time() - self.start > self.budget:
                raise OutOfTimeError
            if best is not None and changed.cost > best[0].cost:
                break
            left = [kind for kind in bad if not self._right(changed, kind)]
            fewer = len(left) < (len(bad) if best is None else len(best[1]))
            if fewer and all(self._right(changed, kind) for kind in good):
                best = changed, left
            if best is not None and not best[1]:
                break
        return best

    def _singles_then_pairs(
        self, hypothesis: Hypothesis, special: Sequence[Mistake], kind: Special
    ) -> Iterator[Hypothesis]:
        """With each special rule; then with each two of them that change the bytes of a case that is wrong."""
        singles = [changed for mistake in special if (changed := hypothesis.but(mistake)) is not None]
        yield from singles
        item = next(item for item in self._of_kind(kind) if not hypothesis.explains(item, kind))
        before = item.made(hypothesis.kernel)
        active = [changed for changed in singles if item.made(changed.kernel) != before]
        for changed in active:
            alone = item.made(changed.kernel)
            for mistake in special:
                both = changed.but(mistake) if mistake not in changed.mistakes else None
                if both is not None and item.made(both.kernel) != alone:
                    yield both

    def _right(self, hypothesis: Hypothesis, kind: Special) -> bool:
        """Return True if a class of special values is explained."""
        return all(hypothesis.explains(item, kind) for item in self._of_kind(kind))

    def _of_kind(self, kind: Special) -> list[Item]:
        return self._by_kind[kind]

    @cached_property
    def _by_kind(self) -> dict[Special, list[Item]]:
        found = [(item, item.kinds()) for item in self.items]
        return {kind: [item for item, kinds in found if kind in kinds] for kind in Special}

    # In words

    def _told(self, hypothesis: Hypothesis, except_on: tuple[str, ...] = ()) -> Explanation:
        differs = ""
        said = [(mistake.name, mistake.stage, _located(mistake)) for mistake in hypothesis.mistakes]
        main = [part for part, mistake in zip(said, hypothesis.mistakes, strict=True) if not mistake.special]
        rest = [part for part, mistake in zip(said, hypothesis.mistakes, strict=True) if mistake.special]
        readers = [(r.name, r.stage, r.text) for r in (hypothesis.data, hypothesis.scales) if r.name]
        parts = [*main, *readers, *rest]
        if hypothesis.profile:
            differs = differences(self.spec, PROFILES[hypothesis.profile])
            parts.insert(0, (f"profile {hypothesis.profile}", Slot.SCALE, f"it is {hypothesis.profile} ({differs})"))
        if self._in_padding(hypothesis):
            parts.append((PADDING[0], Slot.PADDING, PADDING[1]))
        if any(item.spare() for item in self.items):
            parts.append((SPARE[0], Slot.PACKING, SPARE[1]))
        names, stages, texts = zip(*parts, strict=True) if parts else ((), (), ())
        stage = min(stages, key=ORDER.index).value if stages else ""
        held = "; ".join(dict.fromkeys(mistake.place for mistake in hypothesis.mistakes if mistake.place))
        self.made_by[tuple(names)] = hypothesis
        return Explanation(tuple(names), stage, "; ".join(texts), except_on, hypothesis.profile, held, differs)

    def _with(self, explanations: Sequence[Explanation], partial: Sequence[Explanation] = ()) -> Diagnosis:
        kept: dict[tuple[str, ...], Explanation] = {}
        for explanation in explanations:
            kept.setdefault(explanation.names, explanation)
        told = tuple(kept.values())
        if told:
            least = min(len(explanation.names) for explanation in told)
            told = tuple(explanation for explanation in told if len(explanation.names) == least)
        if told:
            others = tuple(explanation for explanation in told[KEPT:] if explanation.profile)
            return Diagnosis(False, told[:KEPT] + others, first_stage=told[0].stage, complete=self.complete)
        stagewise = self._by_stages(self._search(tier=False, share=Share.WORDS).parts)
        return Diagnosis(
            conforms=False,
            partial=partial[0] if partial else None,
            first_stage=stagewise.first or next(iter(partial[0].except_on if partial else ()), None),
            findings=stagewise.findings,
            complete=self.complete,
            where=place(self.items),
            place=self._likely.text,
        )


def _located(mistake: Mistake) -> str:
    return f"{mistake.text}, {mistake.place}" if mistake.place else mistake.text


def place(items: Sequence[Item]) -> str:
    """Return the number of blocks that differ, and the first one: case, row, block, and its first byte or code."""
    counts = [int(np.count_nonzero(item.wrong)) for item in items]
    found = next((item for item, count in zip(items, counts, strict=True) if count), None)
    if found is None:
        return ""
    row, block = (int(index) for index in np.argwhere(found.wrong)[0])
    name = getattr(found.exhibit.case, "id", "")
    total, wrong = sum(item.wrong.size for item in items), sum(counts)
    said = f"in {wrong:,} of {total:,} blocks, first {f'in {name} ' if name else ''}at row {row}, block {block}"
    got, codes = found.scales(DECLARED), found.codes(LOW_FIRST)
    if got is None or codes is None:
        return said
    if got[row, block] != found.base.scales[row, block]:
        return f"{said}: scale byte {got[row, block]:#04x} instead of {found.base.scales[row, block]:#04x}"
    wanted, start = code_side(kernel_of(found.spec), found.base), block * found.spec.block.columns
    columns = np.flatnonzero(codes[row] != wanted[row])
    column = int(columns[columns >= start][0])
    return f"{said}, element {column - start}: code {codes[row, column]:#x} instead of {wanted[row, column]:#x}"


def verdict(diagnosis: Diagnosis) -> str:
    """Return the diagnosis in a line, to stand behind the word `wrong`. Rules: CNF-2."""
    if diagnosis.conforms:
        return "conforms"
    told = [explanation.text for explanation in diagnosis.explanations if explanation.profile is None]
    told += [explanation.text for explanation in diagnosis.explanations if explanation.profile is not None]
    told = list(dict.fromkeys(told))  # two mistakes may differ in less than their sentences say
    if told:
        others = f" (equally consistent with the evidence: {'; or '.join(told[1:3])})" if told[1:] else ""
        return told[0] + others
    partial = diagnosis.partial
    if partial is not None and partial.text:
        return f"{partial.text}; not explained: the differences on {', '.join(partial.except_on)}"
    if partial is not None:
        return f"not explained: bytes differ on {', '.join(partial.except_on)} only"
    parts = [f"{finding.stage}: {finding.text}" for finding in diagnosis.findings if finding.text]
    known = f" (in part, {'; '.join(parts)})" if parts else ""
    where = f", {diagnosis.where}" if diagnosis.where else ""
    held = f", {diagnosis.place}" if diagnosis.place else ""
    return f"not explained{held}: bytes first differ at the {diagnosis.first_stage}{where}{known}"


def report_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the diagnosis in lines: what makes the bytes, else what is known of each stage."""
    if diagnosis.conforms:
        return []
    lines = [
        f"{'also ' if number else ''}explains every byte: {explanation.text} [{', '.join(explanation.names)}]"
        for number, explanation in enumerate(diagnosis.explanations)
    ]
    if diagnosis.partial is not None:
        what = diagnosis.partial.text or "the specification itself"
        lines.append(f"explains all but {', '.join(diagnosis.partial.except_on)}: {what}")
    if not diagnosis.explanations:
        lines.append(f"bytes first differ at: {diagnosis.first_stage}")
        lines += [diagnosis.where] if diagnosis.where else []
        for finding in diagnosis.findings:
            said = "right" if finding.right else finding.text or "not explained"
            lines.append(f"{finding.stage}, given what comes before it: {said}")
    if not diagnosis.complete:
        lines.append("the search ran out of time")
    return lines
