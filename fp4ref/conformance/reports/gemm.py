"""The view of a report on a kernel that multiplies."""

from __future__ import annotations

from collections import Counter

from fp4ref.conformance.families.products.cases import FAMILIES
from fp4ref.conformance.reports.view import ReportLine, View, traces
from fp4ref.conformance.verdict.dump_report import Cell
from fp4ref.conformance.verdict.products import ProductReport

SHOWN = 64  # wrong results, one of each case


def of_gemm(report: ProductReport) -> View:
    """Families, rules, findings and first wrong results of a GEMM. Rules: CNF-2, GEM-13."""
    families = report.families()
    wrong = report.mismatches(SHOWN)
    told: dict[str, list[str]] = {}
    for judgement, line in zip(report.failed, wrong, strict=False):  # of the first ones only
        told.setdefault(judgement.case.family, []).append(line)
    kinds = Counter(finding.kind for _, finding in report.findings)
    found = {finding.kind: (case.id, finding) for case, finding in reversed(report.findings)}
    first = {kind: (case, finding.text) for kind, (case, finding) in found.items()}
    tests = [
        ReportLine("families", name, "\n".join(told.get(name, [])) or _missed(cell))
        if cell.passed < cell.total
        else ReportLine("families", name)
        for name, cell in families.items()
    ]
    tests += [
        ReportLine("findings", kind.value, f"{kinds[kind]} cases, first {': '.join(first[kind])}") for kind in kinds
    ]
    tests += [ReportLine("not applicable", f"{count} cases", skipped=why) for why, count in report.skipped.items()]
    return View(
        title=f"{report.subject}, GEMM of {report.spec.name}",
        ok=report.ok,
        headline=report.headline,
        diagnosis=report.causes + tuple(wrong),
        subjects=(report.subject,),
        rules={rule: {report.subject: cell} for rule, cell in report.rules().items()},
        families={name: (cell, FAMILIES[name].reason) for name, cell in families.items()},
        findings=tuple((kind.value, kinds[kind], *first[kind]) for kind in kinds),
        traces=traces(found.values()),
        skipped=report.skipped,
        tests=tuple(tests),
        errors=tuple(report.errors),
        coverage=report.coverage,
    )


def _missed(cell: Cell) -> str:
    return f"{cell.total - cell.passed} of {cell.total} cases fail"
