"""The cases of a run, counted: what a verdict on a kernel rests on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from fp4ref.conformance.families import FAMILIES, Case, Reach
from fp4ref.conformance.families.absence import absence
from fp4ref.conformance.judge import coverage
from fp4ref.conformance.judge.cases import Judgement, Zeros
from fp4ref.conformance.judge.coverage import Coverage, Extent
from fp4ref.conformance.judge.excuses import Excuse
from fp4ref.conformance.judge.unchecked import Unchecked
from fp4ref.conformance.run.ending import Ending
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind
from fp4ref.conformance.subjects.subject import READING, Declaration
from fp4ref.conformance.verdict.dump_report import Cell, count_test, counts
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Spec

KEPT = 64  # failed judgements that are kept whole
EVIDENCE = 1 << 26  # bytes of input of which the outputs are kept: of right and wrong cases, large ones apart
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
class Tally:
    """The cases that a kernel was run on, counted: what passed, what differed, what was found, what was not tried.

    families, rules: tests passed and made. findings: what went wrong other than bytes, counted, with the first of each
    kind; found_in: families of these cases. skipped: cases that do not apply, by reason. untried: at least as many were
    left when the time of the run was over. failing: the names of all cases with anything wrong. failures: the first
    such judgements. evidence: cases and outputs, low nibble first, scales in the declared layout; results_of: of an
    operation other than quantize. settings: which cases were to be run; stopped: why the run ended early. extent: of
    the cases that were compared. kept: bytes of input whose outputs are evidence, of cases that are right, and that are
    large. zeros: of these. tried: compared cases by family; excluded: why cases of a family did not apply.
    returned_amax: an amax was returned. cut: the signal that ended the run. last_seed: the largest seed of a case.
    unchecked: cases whose check failed.
    """

    subject: str
    spec: Spec
    declaration: Declaration
    settings: Settings = Settings()
    stopped: str = ""
    cut: Ending | None = None
    extent: Extent = field(default_factory=Extent)
    tried: Counter[str] = field(default_factory=Counter)
    excluded: dict[str, str] = field(default_factory=dict)
    returned_amax: bool = False
    zeros: Zeros = field(default_factory=Zeros)
    families: dict[str, Cell] = field(default_factory=dict)
    rules: dict[str, Cell] = field(default_factory=dict)
    findings: Counter[FindingKind] = field(default_factory=Counter)
    first: dict[FindingKind, tuple[str, Finding]] = field(default_factory=dict)
    found_in: set[str] = field(default_factory=set)
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
    kept: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    unchecked: Unchecked = field(default_factory=Unchecked)
    last_seed: int = 0

    def add(self, judgement: Judgement) -> None:
        """Count one case."""
        if self._innocent(judgement):
            if judgement.compared is None and judgement.values is None:
                return
            judgement = replace(judgement, finding=None)  # it was not tried, or checked, again
        case, compared, finding = judgement.case, judgement.compared, judgement.finding
        failed = judgement.failed
        self.last_seed = max(self.last_seed, case.seed)
        count_test(self.families, case.family, passed=judgement.equal)
        for rule in judgement.rules:
            count_test(self.rules, rule, passed=rule not in failed)
        if finding is not None:
            self.findings[finding.kind] += 1
            self.found_in.add(case.family)
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
            self.extent.add_bytes(case.encoded)
            self.returned_amax = self.returned_amax or judgement.returned_amax
            self.zeros.add(judgement)
        if not judgement.equal:
            self.failing.append(case.id)
            self.failures += [judgement] if len(self.failures) < KEPT else []
        kind = judgement.equal, case.x.size > LARGE
        if kind == (True, True) or self.kept[kind] >= EVIDENCE:
            return
        if judgement.got is not None:
            self.evidence.append(self._evidence(case, judgement.got, judgement.returned_amax))
        if judgement.values is not None:
            self.results_of.append((case, judgement.values))
        if judgement.got is not None or judgement.values is not None:
            self.kept[kind] += case.x.nbytes

    def _innocent(self, judgement: Judgement) -> bool:
        """Count a finding that says nothing about the kernel; True if it is one. Rules: CNF-38, CNF-68."""
        finding = judgement.finding
        if finding is None or finding.kind not in {FindingKind.NOT_TRIED, FindingKind.INTERNAL}:
            return False
        if finding.kind is FindingKind.INTERNAL:
            self.unchecked.add(judgement.case.id, judgement.case.family, finding)
        else:
            self.untried, self.stopped = self.untried + 1, finding.text
        return True

    def skip(self, case: Case, reason: str) -> None:
        """Count a case that does not apply. Rules: CNF-102."""
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
                repeated=self.settings.repeated and self.cut is None,
            )
            | self.unchecked.not_judged,
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
        if family in self.unchecked.families:
            return coverage.UNCHECKED
        direction: Direction = "row" if declared.direction == "row" else "column"
        reach = replace(settings.reach, encoded=declared.operation in READING)
        return absence(family, self.spec, reach, direction, declared.dtypes)

    @property
    def seeds(self) -> int:
        """The number of seeds that were tried, from the first one on. Rules: CNF-21."""
        return max(self.last_seed - self.settings.reach.seed, 0) + 1

    @property
    def missing(self) -> dict[str, str]:
        """Required families of which no case was compared, with the reasons. Rules: CNF-23."""
        return self.coverage.missing(self.settings.required) if self.settings.required else {}

    def _evidence(self, case: Case, got: DirectionData, returned_amax: bool) -> tuple[Case, DirectionData]:
        """Return a case as the kernel saw it, and what it gave: a kernel that is told the amax cannot get it wrong."""
        told = case.amax is None and self.declaration.told_amax
        return replace(case, amax=got.amax) if told else case, got if returned_amax else got._replace(amax=None)
