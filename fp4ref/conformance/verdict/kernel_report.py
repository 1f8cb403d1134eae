"""The report on a kernel: a verdict over all cases, counts by family and rule, the first failures, the diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.budget import SECONDS as BUDGET
from fp4ref.conformance.diagnosis.clock import SECONDS
from fp4ref.conformance.diagnosis.declared_packing import diagnose_packed
from fp4ref.conformance.diagnosis.diagnose import Diagnosis, verdict
from fp4ref.conformance.diagnosis.operations import diagnose_operation
from fp4ref.conformance.families import FAMILIES, Case, Reach, seed_of
from fp4ref.conformance.families.absence import absence
from fp4ref.conformance.judge import coverage
from fp4ref.conformance.judge.cases import ONLY_ZEROS, Judgement, Zeros
from fp4ref.conformance.judge.coverage import Coverage, Extent
from fp4ref.conformance.judge.excuses import Excuse
from fp4ref.conformance.judge.isolation import InternalError, unexplained
from fp4ref.conformance.subjects.subject import Declaration, Finding, FindingKind
from fp4ref.conformance.verdict.dump_report import Cell, Result, Verdict, counts, incomplete, result_json, untried_text
from fp4ref.conformance.verdict.telling import told
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Spec

KEPT = 64  # failed judgements that are kept whole
EVIDENCE = 1 << 26  # bytes of input of which the outputs are kept for the diagnosis
STATE = {FindingKind.UNSTABLE, FindingKind.DEPENDS}  # findings on bytes that no mistake of arithmetic explains
LARGE = 1 << 22  # elements of a case that is evidence only if something is wrong with it


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The choice of the cases that a kernel is run on.

    families: names, None for all. required: families that must be tried, or "all". piped: a program reads the cases
    from a pipe. repeated: cases are run again, in another order.
    """

    reach: Reach = Reach()  # noqa: RUF009 - it is frozen
    families: tuple[str, ...] | None = None
    required: tuple[str, ...] = ()
    piped: bool = False
    repeated: bool = False


@dataclass
class KernelReport:
    """The findings about one kernel under one specification.

    families, rules: tests passed and made. findings: what went wrong other than bytes, counted, with the first of each
    kind. skipped: cases that do not apply, by reason. untried: at least as many were left when the time of the
    run was over. failing: the names of all cases with anything wrong. failures: the first such judgements. evidence:
    cases and outputs, low nibble first, scales in the declared layout; results_of: of an operation other than quantize.
    settings: which cases were to be run; stopped: why the run ended early. extent: of the cases that were compared.
    zeros: of these. tried: compared cases by family; excluded: why cases of a family did not apply. returned_amax: an
    amax was returned. last_seed: the largest seed of a case.
    """

    subject: str
    spec: Spec
    declaration: Declaration
    settings: Settings = Settings()
    stopped: str = ""
    extent: Extent = field(default_factory=Extent)
    tried: Counter[str] = field(default_factory=Counter)
    excluded: dict[str, str] = field(default_factory=dict)
    returned_amax: bool = False
    zeros: Zeros = field(default_factory=Zeros)
    families: dict[str, Cell] = field(default_factory=dict)
    rules: dict[str, Cell] = field(default_factory=dict)
    findings: Counter[FindingKind] = field(default_factory=Counter)
    first: dict[FindingKind, tuple[str, Finding]] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    untried: int = 0
    failing: list[str] = field(default_factory=list)
    failures: list[Judgement] = field(default_factory=list)
    evidence: list[tuple[Case, DirectionData]] = field(default_factory=list)
    results_of: list[tuple[Case, NDArray[Any]]] = field(default_factory=list)
    excused: Counter[Excuse] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    unexcused: int = 0
    tolerated: int = 0
    judged: bool = False
    compared: int = 0
    diagnosis: Diagnosis | None = None
    errors: list[InternalError] = field(default_factory=list)
    size: int = 0
    last_seed: int = 0

    def add(self, judgement: Judgement) -> None:
        """Count one case."""
        if judgement.finding is not None and judgement.finding.kind is FindingKind.NOT_TRIED:
            self.untried, self.stopped = self.untried + 1, judgement.finding.text
            if judgement.compared is None and judgement.values is None:
                return
            judgement = replace(judgement, finding=None)  # it was not tried again
        case, compared, finding = judgement.case, judgement.compared, judgement.finding
        family, failed = self.families.setdefault(case.family, Cell()), judgement.failed
        self.last_seed = max(self.last_seed, seed_of(case.id))
        family.total += 1
        family.passed += judgement.equal
        for rule in judgement.rules:
            cell = self.rules.setdefault(rule, Cell())
            cell.total += 1
            cell.passed += rule not in failed
        if finding is not None:
            self.findings[finding.kind] += 1
            self.first.setdefault(finding.kind, (case.id, finding))
        if judgement.mismatches:
            self.differing["results"] += 1
            self.unexcused += 1
        if compared is not None:
            self.excused.update(compared.excused)
            self.differing.update(counts(compared))
            self.unexcused += compared.unexcused
            self.tolerated += compared.tolerated
            self.judged = self.judged or compared.judged
        self.compared += finding is None
        if compared is not None or judgement.values is not None:
            self.tried[case.family] += 1
            self.extent.add(case.x.dtype.name, *case.matrix)
            self.returned_amax = self.returned_amax or judgement.returned_amax
            self.zeros.add(judgement)
        if not judgement.equal:
            self.failing.append(case.id)
            self.failures += [judgement] if len(self.failures) < KEPT else []
        telling = not judgement.equal or case.x.size <= LARGE
        if judgement.got is not None and self.size < EVIDENCE and telling:
            self.size += case.x.nbytes
            self.evidence.append(self._evidence(case, judgement.got))

        if judgement.values is not None and self.size < EVIDENCE:
            self.size += case.x.nbytes
            self.results_of.append((case, judgement.values))

    def skip(self, case: Case, reason: str) -> None:
        """Count a case that does not apply. Rules: CNF-8."""
        self.skipped[reason] += 1
        self.excluded.setdefault(case.family, reason)

    @property
    def coverage(self) -> Coverage:
        """The basis of the verdict. Rules: CNF-22."""
        return Coverage(
            self.extent,
            tried=dict(self.tried),
            untried=coverage.untried(FAMILIES, self.tried, self._absence, self.stopped),
            not_judged=coverage.not_judged(
                self.spec,
                self.declaration,
                amax=self.returned_amax,
                piped=self.settings.piped,
                repeated=self.settings.repeated,
            ),
            stopped=self.stopped,
        )

    def _absence(self, family: str) -> str | None:
        """Return why no case of a family was compared; None if it has none for the specification."""
        settings, declared = self.settings, self.declaration
        if settings.families is not None and family not in settings.families:
            return coverage.NOT_ASKED
        if family in self.excluded:
            return self.excluded[family]
        if family in self.families:
            return coverage.BROKE
        direction: Direction = "row" if declared.direction == "row" else "column"
        return absence(family, self.spec, settings.reach, direction, declared.dtypes)

    @property
    def seeds(self) -> int:
        """The number of seeds that were tried, from the first one on. Rules: CNF-21."""
        return max(self.last_seed - self.settings.reach.seed, 0) + 1

    @property
    def missing(self) -> dict[str, str]:
        """Required families of which no case was compared, with the reasons. Rules: CNF-23."""
        return self.coverage.missing(self.settings.required) if self.settings.required else {}

    def _evidence(self, case: Case, got: DirectionData) -> tuple[Case, DirectionData]:
        """Return a case as the kernel saw it, and what it gave: a kernel that is told the amax cannot get it wrong."""
        told = case.amax is None and self.declaration.told_amax
        returned = "amax" in self.declaration.outputs and not self.declaration.optional_amax
        return replace(case, amax=got.amax) if told else case, got if returned else got._replace(amax=None)

    def explain(self, seconds: float | None = None) -> None:
        """Look for what the kernel does instead, if its bytes are wrong.

        seconds: of processor time; None for the usual, 0 for no diagnosis.

        Rules: CNF-10.
        """
        usual = BUDGET if self.declaration.operation == "quantize" else SECONDS
        budget = usual if seconds is None else seconds
        if budget and self.differing and not self.zeros.only and not self.findings.keys() & STATE:
            self.diagnosis = told(partial(self._diagnosed, budget), self.errors)

    def _diagnosed(self, seconds: float) -> Diagnosis | None:
        """Return what explains the results, where there are any to explain."""
        if self.declaration.operation == "quantize" and self.evidence:
            return diagnose_packed(self.declaration, self.evidence, seconds)
        return diagnose_operation(self.declaration, self.results_of, seconds) if self.results_of else None

    @property
    def cases(self) -> int:
        """The number of cases."""
        return sum(cell.total for cell in self.families.values())

    @property
    def kind(self) -> Verdict:
        """The verdict. Rules: CNF-2, CNF-9, CNF-23."""
        if self.findings or not self.compared:
            return Verdict.WRONG
        if not self.differing:
            return Verdict.INCOMPLETE if self.missing else Verdict.CONFORMS
        if not self.unexcused and self.judged:
            return Verdict.EXCEPT
        return Verdict.PROFILE if self.diagnosis is not None and self.diagnosis.profiles else Verdict.WRONG

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return self.kind is Verdict.CONFORMS

    @property
    def headline(self) -> str:
        """The verdict in a line, and whether the run was cut. Rules: CNF-2, CNF-13."""
        if self.untried and not self.cases:
            return "not judged: the time limit was over before the first case"
        return self._verdict + untried_text(self.untried)

    @property
    def _verdict(self) -> str:
        names = self.diagnosis.profiles if self.diagnosis is not None else ()
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        match self.kind:
            case Verdict.CONFORMS:
                orders = f" ({self.tolerated:,} by the bound of HAD-7)" if self.tolerated else ""
                level = " at the level exact, random bits given" if self.spec.stochastic else ""
                return f"conforms to {self.spec.name}{level}: no byte differs in {self.compared} cases{orders}"
            case Verdict.INCOMPLETE:
                return incomplete(f"no byte differs in {self.compared} cases", self.missing)
            case Verdict.EXCEPT:
                special = ", ".join(excuse for excuse in Excuse if self.excused[excuse])
                cause = f"{self._sentence}is profile {shown}" if shown else self._explained()
                return f"conforms to {self.spec.name} except on {special}{cause and f'; {cause}'}"
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

    def _cause(self) -> str:
        """Return the faults in words: findings first, then the explanation of the bytes of the other cases."""
        if self.findings:
            found = []
            for kind, (case, finding) in self.first.items():
                found.append(f"{kind} in {self.findings[kind]} of {self.cases} cases, first {case}: {finding.text}")
            bytes_too = self._explained()
            return "; ".join([*found, *([f"and in its bytes: {bytes_too}"] if bytes_too else [])])
        undiagnosed = self._explained() or unexplained(self.errors) or f"differs from {self.spec.name}"
        return undiagnosed if self.diagnosis is None else verdict(self.diagnosis)

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


def collected(report: KernelReport, judgements: Iterable[Judgement], seconds: float | None = None) -> KernelReport:
    """Return the report with all judgements added and explained. seconds: those of `KernelReport.explain`."""
    for judgement in judgements:
        report.add(judgement)
    report.explain(seconds)
    return report
