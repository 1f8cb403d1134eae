"""The report on a kernel: a verdict over all cases, counts by family and rule, the first failures, the diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fp4ref.conformance.diagnosis.budget import OPERATION_SECONDS, SECONDS
from fp4ref.conformance.diagnosis.declared_packing import diagnose_packed
from fp4ref.conformance.diagnosis.explanations import Diagnosis, verdict
from fp4ref.conformance.diagnosis.operations import diagnose_operation
from fp4ref.conformance.families import FAMILIES
from fp4ref.conformance.families.shapes import EMPTY
from fp4ref.conformance.judge.cases import ONLY_ZEROS
from fp4ref.conformance.judge.excuses import Excuse
from fp4ref.conformance.judge.isolation import InternalError, unexplained
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.run.ending import words
from fp4ref.conformance.subjects.outcomes import WITHOUT_RESULT, FindingKind
from fp4ref.conformance.verdict.dump_report import (
    KernelVerdict,
    Result,
    Verdict,
    incomplete,
    others,
    profiles_text,
    result_json,
    untried_text,
)
from fp4ref.conformance.verdict.tally import Tally
from fp4ref.conformance.verdict.telling import told

STATE = {FindingKind.UNSTABLE, FindingKind.DEPENDS}  # findings on bytes that no mistake of arithmetic explains


@dataclass
class KernelReport(Tally, KernelVerdict):
    """The findings about one kernel under one specification."""

    diagnosis: Diagnosis | None = None
    lost: list[InternalError] = field(default_factory=list)

    def explain(self, seconds: float | None = None) -> None:
        """Look for what the kernel does instead, if its bytes are wrong.

        seconds: of processor time; None for the usual, 0 for no diagnosis.

        Rules: CNF-10.
        """
        usual = SECONDS if self.declaration.operation == "quantize" else OPERATION_SECONDS
        budget = usual if seconds is None else seconds
        if budget and self.differing and not self.zeros.only and not self.findings.keys() & STATE:
            self.diagnosis = told(partial(self._diagnosed, budget), self.lost)

    def _diagnosed(self, seconds: float) -> Diagnosis | None:
        """Diagnose the results that differ, within a number of seconds; None if none does."""
        if self.declaration.operation == "quantize" and self.evidence:
            return diagnose_packed(self.declaration, self.evidence, seconds)
        return diagnose_operation(self.declaration, self.results_of, seconds) if self.results_of else None

    @property
    def cases(self) -> int:
        """The number of cases."""
        return sum(cell.total for cell in self.families.values())

    @property
    def kind(self) -> Verdict:
        """The verdict. Rules: CNF-2, CNF-118, CNF-23."""
        if self.findings or not (self.compared or self.unchecked):
            return Verdict.WRONG
        if not self.differing:
            if self.unchecked:
                return Verdict.UNCHECKED
            return Verdict.INCOMPLETE if self.missing else Verdict.CONFORMS
        if not self.unexcused and self.judged:
            return Verdict.EXCEPT
        return Verdict.PROFILE if self.diagnosis is not None and self.diagnosis.profiles else Verdict.WRONG

    @property
    def headline(self) -> str:
        """The verdict in a line, and whether the run was cut. Rules: CNF-2, CNF-13, CNF-48."""
        if self.untried and not self.cases:
            return "not judged: the time limit was over before the first case"
        return self._verdict + self.unchecked.words + untried_text(self.untried) + words(self.cut)

    @property
    def _verdict(self) -> str:
        names = self.diagnosis.profiles if self.diagnosis is not None else ()
        shown = profiles_text(names)
        match self.kind:
            case Verdict.CONFORMS:
                orders = f" ({self.tolerated:,} by the bound of HAD-7)" if self.tolerated else ""
                level = " at the level exact, random bits given" if self.spec.stochastic else ""
                return f"conforms to {self.spec.name}{level}: no byte differs in {self.compared} cases{orders}"
            case Verdict.UNCHECKED:
                return f"{self.kind}: no byte differs in {self.compared} cases"
            case Verdict.INCOMPLETE:
                return incomplete(f"no byte differs in {self.compared} cases", self.missing)
            case Verdict.EXCEPT:
                special = ", ".join(excuse for excuse in Excuse if self.excused[excuse])
                cause = f"{self._sentence}is profile {shown}" if shown else self._explained() or self._unexplained()
                return f"wrong on {special} only: {cause}; {self._failed()}; conforms to {self.spec.name} elsewhere"
            case Verdict.PROFILE:
                return f"{self._sentence}is profile {shown}, not {self.spec.name}: {self._failed()}"
            case _:
                return f"wrong: {self._cause()}; {self._failed()}" if self.cases else "wrong: no case applies"

    @property
    def _sentence(self) -> str:
        """The cause in words, to stand before the name of a profile. Rules: CNF-28."""
        told = self.diagnosis.sentence if self.diagnosis is not None else ""
        return told and f"{told}; "

    def _explained(self) -> str:
        """Return the diagnosis of the bytes, if it explains them."""
        if self.zeros.only:
            return ONLY_ZEROS
        return verdict(self.diagnosis) if self.diagnosis is not None and self.diagnosis.explanations else ""

    def _unexplained(self) -> str:
        """Return why nothing is said of the cause, or what is known of it, in words that say that it is not all."""
        return unexplained(self.errors) or ("not diagnosed" if self.diagnosis is None else verdict(self.diagnosis))

    def _cause(self) -> str:
        """Return the faults in words: findings first, then the explanation of the bytes of the other cases."""
        if self.findings:
            found = []
            for kind, (case, finding) in self.first.items():
                found.append(f"{kind} in {self.findings[kind]} of {self.cases} cases, first {case}: {finding.text}")
            bytes_too = self._explained()
            if self._only_empty:
                found.append("all of these have no element: a kernel that takes no such tensor is declared empty=False")
                return "; ".join([bytes_too, *found] if bytes_too else [*found, *self._others])
            if self._unwritten_place:
                return "; ".join([*found, f"what is not written is {self._unwritten_place}"])
            return "; ".join([*found, *([f"and in its bytes: {bytes_too}"] if bytes_too else self._others)])
        undiagnosed = self._explained() or unexplained(self.errors) or f"differs from {self.spec.name}"
        return undiagnosed if self.diagnosis is None else verdict(self.diagnosis)

    @property
    def _others(self) -> list[str]:
        """Say what is seen in the cases that have a result, where nothing explains it and others have none."""
        if not self.findings.keys() <= WITHOUT_RESULT or not self.compared:
            return []
        if self.differing:
            return [f"and in its bytes: {self._unexplained()}"]
        return [f"no byte differs in {others(self.compared)}"]

    @property
    def _unwritten_place(self) -> str:
        """The place of bytes that were not written, if nothing else is wrong: they are one byte, that of the guards."""
        told = () if self.diagnosis is None else self.diagnosis.explanations
        constant = {(mistake.name,) for mistake in MISTAKES if mistake.constant}
        alone = bool(told) and all(one.names in constant for one in told)
        return told[0].place if self.findings.keys() == {FindingKind.UNWRITTEN} and alone else ""

    @property
    def _only_empty(self) -> bool:
        """True if every finding is about a tensor without an element."""
        return {*self.found_in} <= {EMPTY}

    def _failed(self) -> str:
        wrong = sum(cell.total - cell.passed for cell in self.families.values())
        return f"{wrong} of {self.cases} cases fail"

    def results(self) -> list[Result]:
        """Return the comparisons of the cases that failed, as those of a dump."""
        return [
            Result(j.case.id, self.spec, j.case.x.dtype.name, j.case.x.shape, self.declaration.scale_layout, j.compared)
            for j in self.failures
            if j.compared is not None and not j.compared.equal
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "subject": self.subject,
            "spec": self.spec.name,
            "operation": self.declaration.operation,
            "ok": self.ok,
            "verdict": self.kind.value,
            "headline": self.headline,
            "cases": self.cases,
            "coverage": self.coverage.to_json(),
            "required_but_not_tried": self.missing,
            "differs_on": [excuse.value for excuse in Excuse if self.excused[excuse]],
            "counts": dict(self.differing),
            "families": {
                name: {**vars(cell), "reason": FAMILIES[name].reason}
                for name, cell in self.families.items()
                if name in FAMILIES
            },
            "rules": {rule: vars(self.rules[rule]) for rule in sorted(self.rules)},
            "findings": [
                {"kind": kind.value, "count": self.findings[kind], "case": case} | finding.to_json()
                for kind, (case, finding) in self.first.items()
            ],
            "skipped": dict(self.skipped),
            "not_tried": self.untried,
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_json(),
            "failures": [result_json(result) for result in self.results()],
            "mismatches": [
                {"case": j.case.id, "mismatches": [vars(item) for item in j.mismatches]}
                for j in self.failures
                if j.mismatches
            ],
            "internal_errors": [error.to_json() for error in self.errors],
        }
