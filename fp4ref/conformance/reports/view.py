"""The content of a report on a dump, a kernel or the installed backends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.explanations import Diagnosis, report_lines
from fp4ref.conformance.dumps.cases import expected
from fp4ref.conformance.families import FAMILIES
from fp4ref.conformance.judge.cases import Judgement
from fp4ref.conformance.judge.comparison import Comparison
from fp4ref.conformance.judge.coverage import Coverage
from fp4ref.conformance.judge.isolation import InternalError, attempted
from fp4ref.conformance.selfcheck.report import SelfCheckReport
from fp4ref.conformance.subjects.outcomes import Finding
from fp4ref.conformance.subjects.subject import golden
from fp4ref.conformance.vectors.text import Mismatch
from fp4ref.conformance.verdict.dump_report import Cell, DumpReport, Result, Verdict
from fp4ref.conformance.verdict.dumps import DumpRequest, dumps, given
from fp4ref.conformance.verdict.huge import HugeReport
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.sweep_report import SweepReport
from fp4ref.conformance.verdict.violated import Blame, blame, differing, dump_cells, worst
from fp4ref.formats import F
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Spec

EXHIBITS = 6  # tensors or cases that are shown with their input
LARGEST = 1 << 26  # elements of a tensor that is shown


@dataclass(frozen=True, eq=False)
class ShownDirection:
    """A direction of a tensor that differs, with everything that its explanation needs.

    x: [..., K]. got: scales in `scale_layout`; expected: scales linear. amax: by which the bytes are judged, or None
    for that of x.
    """

    name: str
    x: NDArray[Any]
    spec: Spec
    direction: Direction
    scale_layout: str
    got: DirectionData
    expected: DirectionData
    compared: Comparison
    amax: NDArray[Any] | None = None
    random_bits: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class ReportLine:
    """A line of a test report. failure: the defects, in lines, or empty. skipped: the reason for not running it."""

    group: str
    name: str
    failure: str = ""
    skipped: str = ""


@dataclass(frozen=True)
class View:
    """A report, ready to be written.

    rules: passed and made tests by rule and subject. families: by name, with the reason. counts: what differs.
    findings: kind, count, first case and text; traces: titles and tracebacks of some of them. others: mismatches of
    other operations than quantize, by case. errors: parts of the report that failed. coverage: basis of the verdict.
    blame: what the diagnosis tells of the rules that fail. failing: those that fail, the likeliest cause first.
    """

    title: str
    ok: bool
    headline: str
    diagnosis: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    rules: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    families: Mapping[str, tuple[Cell, str]] = field(default_factory=dict)
    findings: tuple[tuple[str, int, str, str], ...] = ()
    traces: tuple[tuple[str, str], ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    exhibits: tuple[ShownDirection, ...] = ()
    others: tuple[tuple[str, Mismatch], ...] = ()
    tests: tuple[ReportLine, ...] = ()
    errors: tuple[InternalError, ...] = ()
    coverage: Coverage | None = None
    blame: Blame = Blame()  # noqa: RUF009 - it is a tuple
    failing: tuple[str, ...] = ()


def of_kernel(report: KernelReport) -> View:
    """Return the view of a kernel's report. Rules: CNF-2, CNF-9."""
    families = {
        name: (cell, FAMILIES[name].reason if name in FAMILIES else "") for name, cell in report.families.items()
    }
    failed: dict[str, list[str]] = {}
    for judgement in report.failures:
        failed.setdefault(judgement.case.family, []).append(_said(judgement))
    tests = [ReportLine("families", name, "\n".join(failed.get(name, []))) for name in families]
    tests += [ReportLine("not applicable", f"{count} cases", skipped=why) for why, count in report.skipped.items()]
    tests += [
        ReportLine("findings", kind.value, f"{report.findings[kind]} cases, first {case}: {finding.text}")
        for kind, (case, finding) in report.first.items()
    ]
    errors = list(report.errors)
    failing = worst(report.spec, report.rules, len(report.failing), report.diagnosis)
    exhibits = _shown(_kernel_exhibits(report), errors)
    return View(
        title=f"{report.subject} under {report.spec.name}",
        ok=report.ok,
        headline=report.headline,
        diagnosis=_diagnosis(report.diagnosis),
        subjects=(report.subject,),
        rules={rule: {report.subject: cell} for rule, cell in report.rules.items()},
        families=families,
        findings=tuple(
            (kind.value, report.findings[kind], case, found.text) for kind, (case, found) in report.first.items()
        ),
        traces=traces(report.first.values()),
        skipped=report.skipped,
        exhibits=exhibits,
        others=tuple((j.case.id, item) for j in report.failures for item in j.mismatches),
        tests=tuple(tests),
        errors=tuple(errors),
        coverage=report.coverage,
        blame=blame(report.diagnosis, report.spec, failing, report.rules),
        failing=tuple(failing),
    )


def of_calls(report: HugeReport | SweepReport, tests: Sequence[ReportLine]) -> View:
    """Return the view of a report on calls that no family of cases has. Rules: CNF-2."""
    title, right = f"{report.subject} under {report.spec.name}", report.kind is Verdict.CONFORMS
    return View(title, right, report.headline, tests=tuple(tests), coverage=report.coverage)


def _shown(exhibits: Iterator[ShownDirection], errors: list[InternalError]) -> tuple[ShownDirection, ...]:
    """Return the first exhibits; none if they cannot be made. Rules: CNF-10."""
    return attempted("choice of tensors to show", lambda: tuple(islice(exhibits, EXHIBITS)), errors) or ()


def traces(findings: Iterable[tuple[str, Finding]]) -> tuple[tuple[str, str], ...]:
    """Return the last output of kernels that raised or crashed, each with its case. Rules: CNF-9."""
    return tuple((f"{found.kind} in {case}: {found.text}", found.trace) for case, found in findings if found.trace)


def _said(judgement: Judgement) -> str:
    """Return a case's finding, first mismatch and counts of differing bytes, in a line."""
    parts = [] if judgement.finding is None else [f"{judgement.finding.kind}: {judgement.finding.text}"]
    parts += [str(item) for item in judgement.mismatches[:1]]
    if judgement.compared is not None and not judgement.compared.equal:
        compared = judgement.compared
        parts.append(f"{compared.codes} codes, {compared.scales} scales, {compared.amax} amax differ")
    return f"{judgement.case.id}: {'; '.join(parts)}"


def _kernel_exhibits(report: KernelReport) -> Iterator[ShownDirection]:
    for judgement in report.failures:
        case, got, compared = judgement.case, judgement.got, judgement.compared
        if got is None or compared is None or compared.equal or case.x.size > LARGEST:
            continue
        returned = "amax" in report.declaration.outputs
        yield ShownDirection(
            name=case.id,
            x=case.x,
            spec=case.spec,
            direction=case.direction,
            scale_layout=report.declaration.scale_layout,
            got=got if returned else got._replace(amax=None),
            expected=golden(case),
            compared=compared,
            amax=case.amax,
            random_bits=case.random_bits,
        )


def of_dump(report: DumpReport, request: DumpRequest) -> View:
    """Return the view of a dump's report; its tensors that differ are read again. Rules: CNF-2."""
    errors = list(report.errors)
    cells = dump_cells(report)
    failing = []
    if report.results:
        failing = worst(report.results[0].spec, cells, differing(report), report.diagnosis, report.profiles)
    tests = [
        ReportLine(result.spec.name, f"{result.name or 'tensor'}:{result.compared.direction}", _differing(result))
        for result in report.results
    ]
    return View(
        report.path,
        report.ok,
        report.headline,
        _diagnosis(report.diagnosis),
        (report.path,),
        {rule: {report.path: cell} for rule, cell in cells.items()},
        blame=blame(report.diagnosis, report.results[0].spec, failing, cells) if report.results else Blame(),
        failing=tuple(failing),
        exhibits=_shown(_dump_exhibits(report, request), errors),
        tests=tuple(tests),
        errors=tuple(errors),
        coverage=report.coverage,
    )


def _differing(result: Result) -> str:
    from fp4ref.conformance.verdict.dump_report import counts

    return ", ".join(f"{count} {what} differ" for what, count in counts(result.compared).items())


def _dump_exhibits(report: DumpReport, request: DumpRequest) -> Iterator[ShownDirection]:
    compared = {(r.name, r.compared.direction): r.compared for r in report.results if not r.compared.equal}
    amax_given = bool(compared) and given(request)
    for dump in dumps(request) if compared else ():
        q = dump.quantized
        for direction in ("row", "column"):
            found = compared.get((dump.name, direction))
            if found is None or dump.x is None or dump.x.size > LARGEST:
                continue
            got, _ = q.direction(direction)
            amax = np.asarray(got.amax, F) if amax_given and got.amax is not None else None
            wanted = expected(dump, direction, q.spec, amax)
            bits = getattr(dump.random_bits, direction)
            name = dump.name or "tensor"
            yield ShownDirection(
                name=name,
                x=dump.x,
                spec=q.spec,
                direction=direction,
                scale_layout=q.scale_layout,
                got=got,
                expected=wanted,
                compared=found,
                amax=amax,
                random_bits=bits,
            )


def of_error(title: str, reason: str) -> View:
    """Return the view of a file that could not be compared. Rules: CNF-11."""
    return View(title, ok=False, headline=reason)


def of_backends(report: SelfCheckReport) -> View:
    """Return the view of the check of installed backends. Rules: CNF-5."""
    reasons = {
        f"{name}: {reason}": count for name, found in report.unsupported.items() for reason, count in found.items()
    }
    tests = []
    for rule, row in report.cells.items():
        for name, cell in row.items():
            said = [str(failure) for failure in report.failures if failure.subject == name and rule in failure.rules]
            wrong = "\n".join([f"{cell.total - cell.passed} of {cell.total} tests fail", *said])
            tests.append(ReportLine(name, rule, wrong if cell.passed < cell.total else ""))
    tests += [ReportLine(name, "available", skipped=reason) for name, reason in report.unavailable.items()]
    return View(
        "installed implementations",
        report.ok,
        report.headline,
        subjects=tuple(report.subjects),
        rules=report.cells,
        skipped=reasons | {f"{name} is not available: {why}": 1 for name, why in report.unavailable.items()},
        others=tuple((f"{failure.subject} {failure.id}", failure.first) for failure in report.failures),
        tests=tuple(tests),
        coverage=report.coverage,
    )


def _diagnosis(found: Diagnosis | None) -> tuple[str, ...]:
    return () if found is None else tuple(report_lines(found))
