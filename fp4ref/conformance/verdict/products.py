"""The report on a kernel that multiplies: verdict, families, what it does instead."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fp4ref.conformance.diagnosis.explanations import Diagnosis
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.conformance.families.products.cases import FAMILIES
from fp4ref.conformance.judge.cases import ONLY_ZEROS
from fp4ref.conformance.judge.coverage import BROKE, NOT_ASKED, ONCE, UNCHECKED, Coverage, Extent, untried
from fp4ref.conformance.judge.isolation import InternalError, unexplained
from fp4ref.conformance.judge.product_stages import broken_rules, checked_rules
from fp4ref.conformance.judge.products import ProductJudgement
from fp4ref.conformance.judge.unchecked import Unchecked
from fp4ref.conformance.run.ending import Ending, words
from fp4ref.conformance.subjects.outcomes import WITHOUT_RESULT, Finding
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.conformance.verdict.dump_report import (
    Cell,
    KernelVerdict,
    Verdict,
    count_test,
    incomplete,
    others,
    untried_text,
)
from fp4ref.formats import F, ignoring_float_warnings
from fp4ref.operands import AlphaRule
from fp4ref.spec import Spec


@dataclass
class ProductReport(KernelVerdict):
    """The findings about one GEMM under one specification.

    judgements: of every case that has a result, by the pick of GEM-6 that suits the kernel better. findings: what went
    wrong otherwise, with the case. skipped: cases that do not apply, by reason; excluded: such a reason by family.
    asked: families, None for all. required: families that must be tried, or "all". repeated: cases are run again, in
    another order.
    untried: cases that were left when the time of the run was over. seed: of the first cases; seeds: how many sets of
    these were tried, of which this is the last. stopped: why the run ended early. cut: the signal that ended it.
    """

    subject: str
    spec: Spec
    declaration: Declaration
    rule: AlphaRule = AlphaRule.RECIPROCAL
    judgements: list[ProductJudgement] = field(default_factory=list)
    findings: list[tuple[GemmCase, Finding]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    untried: int = 0
    diagnosis: Diagnosis | None = None
    lost: list[InternalError] = field(default_factory=list)
    unchecked: Unchecked = field(default_factory=Unchecked)
    excluded: dict[str, str] = field(default_factory=dict)
    asked: tuple[str, ...] | None = None
    required: tuple[str, ...] = ()
    repeated: bool = False
    seed: int = 0
    seeds: int = 1
    stopped: str = ""
    cut: Ending | None = None

    @property
    def failed(self) -> list[ProductJudgement]:
        """Judgements of cases with a wrong result."""
        return [judgement for judgement in self.judgements if not judgement.equal]

    @property
    def failing(self) -> list[str]:
        """IDs of the cases with a finding, then of those with a wrong result."""
        return [case.id for case, _ in self.findings] + [judgement.case.id for judgement in self.failed]

    @property
    def kind(self) -> Verdict:
        """The verdict. Rules: CNF-2, CNF-23."""
        if self.failed or self.findings or not (self.judgements or self.unchecked):
            return Verdict.WRONG
        if self.unchecked:
            return Verdict.UNCHECKED
        return Verdict.INCOMPLETE if self.missing else Verdict.CONFORMS

    @property
    def coverage(self) -> Coverage:
        """The basis of the verdict. Rules: CNF-22."""
        extent, tried = Extent(), Counter[str]()
        for judgement in self.judgements:
            tried[judgement.case.family] += 1
            extent.add(self.declaration.to, *judgement.case.shape)
        guards = {} if self.declaration.out_buffers else {"writes past the results": "no out= buffers"}
        return Coverage(
            extent,
            tried=dict(tried),
            untried=untried(FAMILIES, tried, self._absence, self.stopped),
            not_judged={
                "strides": "operands are always contiguous",
                **guards,
                **({} if self.repeated and self.cut is None else ONCE),
                **self.unchecked.not_judged,
            },
            stopped=self.stopped,
        )

    @property
    def missing(self) -> dict[str, str]:
        """Required families of which no case was compared, with the reasons. Rules: CNF-23."""
        return self.coverage.missing(self.required) if self.required else {}

    def _absence(self, family: str) -> str | None:
        """Return why no case of a family was compared; None if it has none for the specification."""
        if self.asked is not None and family not in self.asked:
            return NOT_ASKED
        if any(case.family == family for case, _ in self.findings):
            return BROKE
        if family in self.unchecked.families:
            return UNCHECKED
        return self.excluded.get(family)

    @property
    def headline(self) -> str:
        """The verdict in a line, and whether the run was cut. Rules: CNF-2, CNF-13, CNF-48."""
        if self.untried and not self.judgements and not self.findings:
            return "not judged: the time limit was over before the first case"
        return self._verdict + self._seeds + self.unchecked.words + untried_text(self.untried) + words(self.cut)

    @property
    def _seeds(self) -> str:
        last = self.seed + self.seeds - 1
        return f", seeds {self.seed} to {last}" if self.seeds > 1 else f", seed {last}" if last else ""

    @property
    def _verdict(self) -> str:
        count, wrong = len(self.judgements), len(self.failed)
        if self.ok:
            picked = ", amaxes divided by the factor (GEM-6)" if self.rule is AlphaRule.DIVISION else ""
            aimed = sum(judgement.case.aimed for judgement in self.judgements)
            return (
                f"conforms to GEMM of {self.spec.name}: no bit differs in {aimed} aimed cases, "
                f"{count - aimed} keep the bound{picked}"
            )
        if self.kind is Verdict.UNCHECKED:
            return f"{self.kind}: no bit differs in {count} cases"
        if self.kind is Verdict.INCOMPLETE:
            return incomplete(f"no bit differs in {count} cases", self.missing)
        if not count and not self.findings:
            return "wrong: no case applies"
        texts = (ONLY_ZEROS,) if self.only_zeros else self.causes
        cause = f"{'; or '.join(texts) or self._unexplained()}; {wrong} of {count} cases fail" if wrong else ""
        if self.findings:
            case, finding = self.findings[0]
            found = [f"{finding.kind} in {len(self.findings)} cases, first {case.id}: {finding.text}"]
            found += [f"and in its results: {cause}"] if wrong else []
            apart = all(found.kind in WITHOUT_RESULT for _, found in self.findings)
            found += [f"no bit differs in {others(count)}"] if apart and count and not wrong else []
            return f"wrong: {'; '.join(found)}"
        return f"wrong: {cause}"

    @property
    def causes(self) -> tuple[str, ...]:
        """The sentences that explain the results."""
        if self.diagnosis is None:
            return ()
        told = (*self.diagnosis.explanations, self.diagnosis.partial)
        return tuple(explanation.text for explanation in told if explanation is not None)

    @property
    def only_zeros(self) -> bool:
        """True if the kernel returned zeros in every case, though other results are right."""
        return not any(np.asarray(judgement.got).astype(F).any() for judgement in self.judgements)

    def _unexplained(self) -> str:
        """Return the rule that failing families are about, or their place, if no known mistake gives these bits."""
        if undiagnosed := unexplained(self.errors):
            return undiagnosed
        failed = {judgement.case.family for judgement in self.failed}
        alone = {FAMILIES[name].alone for name in failed}
        if len(alone) == 1 and (said := alone.pop()):
            return said
        place = "" if self.diagnosis is None else self.diagnosis.place
        return f"not explained{place and f', {place}'}"

    def families(self) -> dict[str, Cell]:
        """Return tests passed and made, by family."""
        found: dict[str, Cell] = {}
        for judgement in self.judgements:
            count_test(found, judgement.case.family, passed=judgement.equal)
        return found

    def rules(self) -> dict[str, Cell]:
        """Return tests passed and made, by rule; a rule fails only for a stage that it decides. Rules: CNF-79."""
        found: dict[str, Cell] = {}
        to = self.declaration.to
        broken = broken_rules(self.judgements, to, self.rule)
        for judgement, at_fault in zip(self.judgements, broken, strict=True):
            for rule in checked_rules(judgement.case, to):
                count_test(found, rule, passed=rule not in at_fault)
        return found

    def mismatches(self, limit: int) -> list[str]:
        """Return the first wrong results, one of each case."""
        return [_first(judgement) for judgement in self.failed[:limit]]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "subject": self.subject,
            "spec": self.spec.name,
            "operation": "gemm",
            "ok": self.ok,
            "verdict": self.kind.value,
            "headline": self.headline,
            "alpha_rule": self.rule.value,
            "seed": self.seed,
            "seeds": self.seeds,
            "cases": len(self.judgements),
            "coverage": self.coverage.to_json(),
            "required_but_not_tried": self.missing,
            "families": {
                name: {**vars(cell), "reason": FAMILIES[name].reason} for name, cell in self.families().items()
            },
            "rules": {name: vars(cell) for name, cell in sorted(self.rules().items())},
            "findings": [
                {"case": case.id, "kind": found.kind.value} | found.to_json() for case, found in self.findings
            ],
            "skipped": dict(self.skipped),
            "not_tried": self.untried,
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_json(),
            "mismatches": self.mismatches(64),
            "internal_errors": [error.to_json() for error in self.errors],
        }


@ignoring_float_warnings
def _first(judgement: ProductJudgement) -> str:
    """Return a line about one wrong result."""
    assert judgement.got is not None
    m, n = map(int, np.argwhere(judgement.wrong)[0])
    low, high, got = (float(part[m, n].astype(F)) for part in (judgement.low, judgement.high, judgement.got))
    needed = f"{low:.9g}" if low == high or np.isnan(low) else f"{low:.9g} to {high:.9g}"
    return f"{judgement.case.id} d[{m}, {n}]: got {got:.9g}, need {needed} ({int(judgement.wrong.sum())} differ)"
