"""The rules at fault of a kernel that multiplies: each stage is judged by what the stages before it made.

A kernel returns results only. Its own sums are seen in a case whose alpha is a power of two and that adds nothing; a
case that shows another stage names such a case with the same elements and scales. If the sums of this *plain* case are
wrong, the other case breaks a rule on scales or additions only if it does not follow from them. For example, a kernel
that skips a block breaks GEM-1 in every case, and GEM-5 in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.conformance.families.products.cases import FAMILIES
from fp4ref.conformance.judge.products import ProductJudgement, accepted, adds, with_additions
from fp4ref.conformance.judge.result_stages import neighbour
from fp4ref.formats import F, Floats, ignoring_float_warnings
from fp4ref.model.epilogue import finish, total_alpha
from fp4ref.model.gemm import values
from fp4ref.operands import AlphaRule
from fp4ref.spec import Granularity

Bools = NDArray[np.bool_]
NEAR = 4  # float32 steps by which another order of the amaxes moves a result
SCALES = {Granularity.NONE: "", Granularity.TENSOR: "GEM-5", Granularity.ROW: "GEM-7"}
UNIT = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # a step of a type, relative, at most


class ProductPart(StrEnum):
    """A part of the work whose results a rule decides."""

    OPERANDS = "what is multiplied and added"
    WIDTH = "precision of the sums"
    BOUND = "bound on orders of additions"
    SPECIAL = "NaN and infinities"
    SCALES = "global scales"
    ADDITIONS = "bias and C"
    CAST = "rounding to the type"


P = ProductPart
DECIDING = {
    "GEM-1": {P.OPERANDS},
    "GEM-13": {P.OPERANDS, P.WIDTH},
    "GEM-14": {P.BOUND},
    "GEM-3": {P.SPECIAL},
    "GEM-17": {P.SPECIAL},
    "GEM-5": {P.SCALES},
    "GEM-7": {P.SCALES},
    "GEM-8": {P.ADDITIONS, P.CAST},
    "GEM-15": {P.ADDITIONS},
}


def checked_rules(case: GemmCase, to: str) -> tuple[str, ...]:
    """Return the rules that a case checks. Rules: CNF-77."""
    own = [rule for rule in FAMILIES[case.family].rules if rule not in SCALES.values()]
    if case.aimed:
        own += ["GEM-1", "GEM-13", SCALES[case.a.spec.global_scale]]
    return tuple(dict.fromkeys(filter(None, [*own, "" if to == "float32" else "GEM-8"])))


def broken_rules(judgements: Sequence[ProductJudgement], to: str, rule: AlphaRule) -> list[frozenset[str]]:
    """Return the rules that each case breaks. If no stage can be named, a wrong case breaks all rules of its family.

    Rules: CNF-79.
    """
    stages = _Stages(judgements, to, rule)
    found = []
    for judgement in judgements:
        parts = stages.parts(judgement)
        found.append(frozenset(name for name in checked_rules(judgement.case, to) if DECIDING[name] & parts))
    if any(found):
        return found
    checked = (checked_rules(judgement.case, to) for judgement in judgements)
    return [
        frozenset() if judgement.equal else frozenset({*FAMILIES[judgement.case.family].rules} & {*rules})
        for judgement, rules in zip(judgements, checked, strict=True)
    ]


def significant_bits(judgements: Iterable[ProductJudgement], to: str) -> int | None:
    """Return significant bits of the accumulator, if the cases that measure it fail from some column on."""
    measured: list[int] = []
    for judgement in judgements:
        if to not in judgement.case.measured_in:
            continue
        wrong = np.asarray(judgement.wrong.any(axis=0))
        first = int(np.argmax(wrong))
        if not wrong.any() or not wrong[first:].all() or first < 2:
            continue
        measured.append(first)
    return min(measured) if measured else None


class _Stages:
    """The stages at fault in each case of a kernel."""

    def __init__(self, judgements: Sequence[ProductJudgement], to: str, rule: AlphaRule) -> None:
        self.to, self.rule = to, rule
        self.bits = significant_bits(judgements, to)
        self.named = {(j.case.family, j.case.name): j for j in judgements}
        self.known: dict[str, set[ProductPart]] = {}
        showing = [j for j in judgements if j.case.aimed and not (j.case.plain or j.case.specials or adds(j.case))]
        wrong = [j for j in showing if not j.equal]
        self.scaled_only = 2 * sum(self._one_factor(j) for j in wrong) > len(wrong)
        self.seen: set[ProductPart] = {part for j in showing for part in self.parts(j)}

    @ignoring_float_warnings
    def parts(self, judgement: ProductJudgement) -> set[ProductPart]:
        """Return the stages at fault in a case."""
        name = judgement.case.id
        if name not in self.known:
            self.known[name] = set() if judgement.equal else self._parts(judgement)
        return self.known[name]

    def _parts(self, judgement: ProductJudgement) -> set[ProductPart]:
        case, wrong, got = judgement.case, judgement.wrong, judgement.got
        assert got is not None
        if not case.aimed:
            return set() if self.seen - {P.WIDTH} else {P.ADDITIONS if adds(case) else P.BOUND}
        found: set[ProductPart] = set()
        if case.specials:
            special = ~np.isfinite(got.astype(F)) | ~np.isfinite(judgement.low.astype(F))
            if (wrong & special).any() and P.OPERANDS not in self.seen:
                found.add(P.SPECIAL)
            wrong = wrong & ~special
        if not wrong.any():
            return found
        plain = self.named.get((case.family, case.plain))
        if plain is None:
            return found | self._sums(judgement, wrong)
        zeros = not (got[wrong].any() or judgement.low[wrong].any())  # their signs tell whether a zero was added
        own = P.ADDITIONS if adds(case) or zeros else P.SCALES
        if plain.equal:
            return found | {P.CAST if self._cast(judgement, wrong) else own}
        found |= self.parts(plain)
        return found if self._follows(judgement, plain) else found | {own}

    def _sums(self, judgement: ProductJudgement, wrong: Bools) -> set[ProductPart]:
        """Return the stage at fault in a case that shows its sums."""
        case, got = judgement.case, judgement.got
        assert got is not None
        scaled = case.a.spec.global_scale is not Granularity.NONE
        right, made = judgement.low.astype(np.float64), got.astype(np.float64)
        if self.scaled_only and self._one_factor(judgement):
            return {P.SCALES}
        if self._cast(judgement, wrong):
            return {P.CAST}
        if self.bits is not None:
            bound = 4 * case.shape[2] * 2.0**-self.bits * self._magnitudes(case)
            close = (np.abs(made - right) <= bound) | ~np.isfinite(made)  # a narrower type may overflow
            return {P.WIDTH if close[wrong].all() else P.OPERANDS}
        near = np.abs(made - right) <= NEAR * np.spacing(np.abs(right).astype(F))
        return {P.SCALES if scaled and near[wrong].all() else P.OPERANDS}

    def _one_factor(self, judgement: ProductJudgement) -> bool:
        """Return True if all numbers are the right ones times one factor, which no rounding explains."""
        assert judgement.got is not None
        right, made = judgement.low.astype(np.float64), judgement.got.astype(np.float64)
        known, slack = (right != 0) & np.isfinite(right), 4 * UNIT[self.to]
        if judgement.case.a.spec.global_scale is Granularity.NONE or not known.any() or made[right == 0].any():
            return False
        factors = made[known] / right[known]
        least, most = float(factors.min()), float(factors.max())
        return least > 0 and most <= least * (1 + slack) and not 1 - slack <= least <= 1 + slack

    def _cast(self, judgement: ProductJudgement, wrong: Bools) -> bool:
        """Return True if every wrong result is the other neighbour of the right float32 value."""
        assert judgement.got is not None
        value = accepted(judgement.case, "float32", self.rule)[0][wrong]
        return bool(neighbour(judgement.got[wrong], judgement.low[wrong], value).all())

    def _magnitudes(self, case: GemmCase) -> Floats:
        """Return the sums of magnitudes, scaled as sums are."""
        (a, b), rest = case.operands, case.epilogue("float32", self.rule)
        sums = np.abs(values(a)).astype(np.float64) @ np.abs(values(b)).T.astype(np.float64)
        return np.asarray(finish(sums.astype(F), a, b, rest._replace(bias=None, accumulate=None)), F)

    def _follows(self, judgement: ProductJudgement, plain: ProductJudgement) -> bool:
        """Return True if a result may follow from the kernel's own sums, which the plain case shows.

        A narrower type leaves an interval of sums; what follows is monotone.
        """
        case, got = judgement.case, judgement.got
        assert got is not None
        assert plain.got is not None
        ends: list[NDArray[Any]] = [plain.got.astype(F)] * 2
        if self.to != "float32":
            ends = [np.nextafter(plain.got, plain.got.dtype.type(way)).astype(F) for way in (-np.inf, np.inf)]
        (a, b), rest = case.operands, case.epilogue(self.to, self.rule)
        by_row = a.row_scaled or b.row_scaled
        if adds(case):
            low, high = with_additions(case, ends[0], ends[1], INPUT_DTYPES[self.to], row_scaled=by_row)
        else:
            low, high = (finish(end, a, b, rest) for end in self._unscaled(plain.case, ends, by_row=by_row))
        own, known = got.astype(F), np.isfinite(plain.got.astype(F))
        return bool(((low.astype(F) <= own) & (own <= high.astype(F)))[known].all())

    def _unscaled(self, case: GemmCase, ends: Sequence[Floats], *, by_row: bool) -> list[Floats]:
        """Return the sums of results that were only scaled; with amaxes of rows a little more than these."""
        (a, b), rest = case.operands, case.epilogue("float32", self.rule)
        scale = np.full((1, 1), total_alpha(a, b, rest), np.float64)
        for amax, shape in ((a.data.amax, (-1, 1)), (b.data.amax, (1, -1))) if by_row else ():
            scale = scale * np.asarray(amax, np.float64).reshape(shape)
        slack = 2.0**-21 if by_row else 0.0
        wide = [end.astype(np.float64) / scale for end in ends]
        return [(wide[0] - slack * np.abs(wide[0])).astype(F), (wide[1] + slack * np.abs(wide[1])).astype(F)]
