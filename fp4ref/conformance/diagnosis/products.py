"""Diagnosis of a wrong GEMM: the known mistakes that make all of its bits, and the width of its sums.

Mistakes, places, explanations and deadlines are those of the other kernels. The search for several mistakes differs:
that for quantizers drops a hypothesis by its scale bytes before it makes codes; a product has no bytes of an earlier
slot. Here the sums of each reading of the operands are computed once, and every end of the product is tried on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.diagnosis.budget import OPERATION_SECONDS
from fp4ref.conformance.diagnosis.clock import Deadline, OutOfTimeError
from fp4ref.conformance.diagnosis.explanations import Diagnosis, Explanation
from fp4ref.conformance.diagnosis.placed_results import KnownResult, ResultSite, explained, place_of, same
from fp4ref.conformance.diagnosis.product_ends import Way, as_it_is, finished, made_alike, near, scalings_of, ways_of
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.conformance.families.products.cases import FAMILIES, cases
from fp4ref.conformance.judge.product_stages import significant_bits
from fp4ref.conformance.judge.products import judge
from fp4ref.conformance.mistakes.operand_pairs import OperandPair, pair_of, product
from fp4ref.conformance.mistakes.places import COLUMN, ROW
from fp4ref.conformance.mistakes.product_additions import Additions, single_ways, ways
from fp4ref.conformance.mistakes.product_amaxes import Scaling, of_other_rows, orders
from fp4ref.conformance.mistakes.product_blocks import gathered_readings, placed_readings
from fp4ref.conformance.mistakes.product_depths import depths
from fp4ref.conformance.mistakes.product_roundings import Rounds, roundings
from fp4ref.conformance.mistakes.product_specials import ENDS, RESULTS, special_sums
from fp4ref.conformance.mistakes.products import Reading, readings
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.conformance.mistakes.result_places import result_mistakes
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.formats import F, Floats, ignoring_float_warnings
from fp4ref.quantized import Direction
from fp4ref.spec import Spec

Evidence = Sequence[tuple[GemmCase, NDArray[Any]]]
WIDTHS = {8: "bfloat16", 11: "float16 or TF32", 14: "the sums of FP8 tensor cores of SM89 and SM90"}
TOLD = 3  # explanations
ALMOST = 23  # bits of sums that show in the last column only, which may be wrong for another reason
OWN = {"a": ROW, "b": COLUMN}  # of a result, which are the rows of an operand


@ignoring_float_warnings
def diagnose(evidence: Evidence, declared: Declaration, budget_seconds: float = OPERATION_SECONDS) -> Diagnosis:
    """Explain results of which some are wrong.

    evidence: cases and results [M, N] of the declared type. budget_seconds: of processor time.

    Rules: CNF-2, CNF-26, GEM-13.
    """
    tick, to = Deadline(budget_seconds), declared.to
    aimed = [(case, got) for case, got in evidence if case.aimed and not case.specials]
    right = [judge(case, got, to).equal for case, got in aimed]
    if all(right):
        told = special([(case, got) for case, got in evidence if case.specials], to, declared.scale_layout)
        return Diagnosis(conforms=False, explanations=told, first_stage=Slot.RESULTS)
    bits = significant_bits((judge(case, got, to) for case, got in aimed), to)
    elsewhere = any(not equal for (case, _), equal in zip(aimed, right, strict=True) if to not in case.measured_in)
    if bits is not None and not (bits == ALMOST and elsewhere):
        return Diagnosis(conforms=False, partial=_narrow(bits), first_stage=Slot.SUM)
    ordered = sorted(zip(aimed, right, strict=True), key=lambda each: (each[1], _work(each[0][0])))
    search = _Search([item for item, _ in ordered if to not in item[0].measured_in], declared, tick)
    complete = True
    try:
        search.run()
    except OutOfTimeError:
        complete = False
    found = search.found
    told = tuple({explanation.text: explanation for explanation in found}.values())[:TOLD]
    place = "" if told or not search.sites else place_of(search.sites)
    return Diagnosis(conforms=False, explanations=told, first_stage=Slot.RESULTS, complete=complete, place=place)


def single_mistakes(declared: Declaration, spec: Spec) -> Iterator[KnownResult]:
    """Yield the mistakes of a product that are tried alone, for one to which a bias and C are added."""
    case = next(cases(spec, ("bias-accumulate",)))
    m, n, _ = case.shape
    evidence = [(case, np.zeros((m, n), INPUT_DTYPES[declared.to]))]
    yield from chain(*_Search(evidence, declared, Deadline(OPERATION_SECONDS)).singles())


def _work(case: GemmCase) -> int:
    """Return about how long a product takes, so that a wrong mistake is refuted by a short one."""
    rows, columns, depth = case.shape
    return (rows + columns) * depth + rows * columns


def _narrow(bits: int) -> Explanation:
    """Return the measured width of sums; it tells no bits of sums in another order."""
    like = f", as {WIDTHS[bits]} has" if bits in WIDTHS else ""
    text = f"sums are held in {bits} significant bits instead of 24{like}"
    return Explanation((f"sums-{bits}-bits",), Slot.SUM, text, except_on=("sums that this rounds",))


def special(evidence: Evidence, to: str, layout: str) -> tuple[Explanation, ...]:
    """Return the mistakes with NaN and infinities that reproduce results of cases that hold them. Rules: GEM-17."""
    if not any(not judge(case, got, to).equal for case, got in evidence):
        return ()
    remaining: dict[str, str] | None = None
    for case, got in evidence:
        pair, judged = pair_of(case, layout), judge(case, got, to)
        right, adding = scalings_of(pair)[0], next(ways(pair))
        made = {
            (name, text): finished(sums.astype(F), pair, right, adding, to) for name, text, sums in special_sums(pair)
        }
        plain = finished(product(pair.a, pair.b).astype(F), pair, right, adding, "float32").astype(F)
        made |= {(name, text): change(plain, to).astype(INPUT_DTYPES[to]) for name, text, change in RESULTS}
        beside = ~np.isfinite(judged.low.astype(F))
        alike = {
            text: name
            for (name, text), values in made.items()
            if (same(values, got) | (beside & near(values, got))).all()
        }
        remaining = alike if remaining is None else {text: name for text, name in remaining.items() if text in alike}
    return tuple(Explanation((name,), Slot.RESULTS, text) for text, name in sorted((remaining or {}).items())[:TOLD])


@dataclass(frozen=True)
class ProductResult:
    """A result [M, N] as a tensor in whose rows and columns something is wrong. depth: K."""

    x: NDArray[Any]
    family: str
    depth: int
    direction: Direction = "row"


def _end_of(end: Callable[[Floats, str], Floats], to: str, right: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(end(right.astype(F), to)).astype(right.dtype)


class _Search:
    """Known mistakes on all cases, the wrong ones first, small ones first."""

    def __init__(self, evidence: Evidence, declared: Declaration, tick: Callable[[], None]) -> None:
        self.evidence, self.to, self.tick = evidence, declared.to, tick
        self.pairs = [pair_of(case, declared.scale_layout) for case, _ in evidence]
        self.sees_both = declared.sees_directions
        self.sites = []
        for case, got in evidence:
            judged = judge(case, got, self.to)
            self.sites.append(
                ResultSite(ProductResult(got, case.family, case.shape[2]), got, judged.low, accepted=~judged.wrong)
            )
        self.sums: dict[int, Floats] = {}
        self.found: list[Explanation] = []

    def run(self) -> None:
        """Look for single mistakes, in a place if need be, then for several; what is found is kept if time ends."""
        for known in self.singles():
            self.found = self.found or explained(self.sites, known, self.tick, by_element=True)
        if not self.found:
            self._several()

    def right(self, index: int) -> Floats:
        """Return the right sums of a case."""
        if index not in self.sums:
            self.sums[index] = np.asarray(product(self.pairs[index].a, self.pairs[index].b), F)
        return self.sums[index]

    def tells(self, reading: Reading, index: int) -> bool:
        """Return True if a reading's sums of a case are exact."""
        return not reading.bounded or FAMILIES[self.evidence[index][0].family].bounded

    @property
    def _fullest(self) -> OperandPair:
        """The operands of a case to which most is added."""
        return max(self.pairs, key=lambda pair: (pair.bias is not None) + (pair.accumulate is not None))

    def _read_as(self, readings: Iterable[Reading]) -> Iterator[KnownResult]:
        """Yield misreadings of an operand."""
        if self.sites:
            right = scalings_of(self._fullest)[0], next(ways(self._fullest))
            for reading in readings:
                made, tells = partial(self._read, reading, *right), partial(self.tells, reading)
                yield KnownResult((reading.name,), Slot.OPERANDS, reading.text, made, tells, OWN.get(reading.side))

    def singles(self) -> tuple[Iterator[KnownResult], ...]:
        """Return single mistakes: everywhere, with rows of others, in blocks of some places."""
        return self._everywhere(), self._read_as(gathered_readings()), self._read_as(placed_readings())

    def _everywhere(self) -> Iterator[KnownResult]:
        if not self.sites:
            return
        fullest = self._fullest
        right = scalings_of(fullest)[0], next(ways(fullest))
        for name, text, end in ENDS:
            yield KnownResult((name,), Slot.RESULTS, text, partial(self._changed, partial(_end_of, end, self.to)))
        for name, text, change in result_mistakes(numbers=True):
            yield KnownResult((name,), Slot.RESULTS, text.format("results"), partial(self._changed, change))
        yield from self._read_as(reading for reading in readings(both=self.sees_both) if reading.text)
        yield from (known._replace(stage=Slot.SUM) for known in self._read_as(depths()))
        for name, text, rounds in roundings("sums"):
            if text:
                yield KnownResult((name,), Slot.SUM, text, partial(self._ended, *right, rounds, as_it_is))
        known = scalings_of(fullest)[1:]
        for scaling in (*known, *(orders() if known else ()), *(of_other_rows() if fullest.row_scaled else ())):
            assert scaling is not None
            scaled = partial(self._ended, scaling, right[1], as_it_is, as_it_is)
            yield KnownResult((scaling.name,), Slot.GLOBAL, scaling.text, scaled)
        for adding in single_ways(fullest):
            added = partial(self._ended, right[0], adding, as_it_is, as_it_is)
            yield KnownResult(adding.names, Slot.ADDITIONS, adding.texts[0], added)
        for name, text, rounds in roundings("results"):
            if text:
                yield KnownResult((name,), Slot.RESULTS, text, partial(self._ended, *right, as_it_is, rounds))

    def _read(self, reading: Reading, scaling: Scaling | None, adding: Additions, index: int) -> NDArray[Any] | None:
        sums = reading.sums(self.pairs[index])
        return None if sums is None else finished(np.asarray(sums, F), self.pairs[index], scaling, adding, self.to)

    def _ended(
        self, scaling: Scaling | None, adding: Additions, early: Rounds, late: Rounds, index: int
    ) -> NDArray[Any]:
        return finished(early(self.right(index)), self.pairs[index], scaling, adding, self.to, late)

    def _changed(self, change: Callable[[NDArray[Any]], NDArray[Any]], index: int) -> NDArray[Any]:
        return change(self.sites[index].right)

    def _several(self) -> None:
        """Look for the fewest mistakes that reproduce everything: found on the first wrong case, checked on all."""
        for reading in (*readings(both=self.sees_both), *depths()):
            self.tick()
            for explanation in self._with(reading):
                fewest = min((len(known.names) for known in self.found), default=len(explanation.names))
                if len(explanation.names) <= fewest:
                    kept = [known for known in self.found if len(known.names) == len(explanation.names)]
                    self.found = [*kept, explanation]

    def _with(self, reading: Reading) -> Iterator[Explanation]:
        cases = [index for index in range(len(self.pairs)) if self.tells(reading, index)]
        known: dict[int, Floats] = {}

        def of(index: int) -> Floats:
            if index not in known:
                sums = reading.sums(self.pairs[index])
                known[index] = self.right(index) if sums is None else np.asarray(sums, F)
            return known[index]

        if not cases or reading.sums(self.pairs[cases[0]]) is None:
            return
        first = cases[0]
        for names, texts, way in ways_of(self.pairs[first], self.to, alone=not reading.text):
            self.tick()
            said = tuple(filter(None, (reading.text, *texts)))
            if len(said) > 1 and self._made(way, of, [first]) and self._made(way, of, cases):
                own = (reading.name,) if reading.text else ()
                yield Explanation((*own, *names), Slot.OPERANDS if own else Slot.RESULTS, " and ".join(said))

    def _made(self, way: Way, of: Callable[[int], Floats], cases: Sequence[int]) -> bool:
        """Return True if a way makes the results of some cases."""
        return all(made_alike(way(of(index), self.pairs[index]), self.evidence[index][1]) for index in cases)
