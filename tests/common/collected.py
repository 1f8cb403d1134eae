from __future__ import annotations

from collections.abc import Iterable

from fp4ref.conformance.judge.cases import Judgement
from fp4ref.conformance.verdict.kernel_report import KernelReport


def collected(report: KernelReport, judgements: Iterable[Judgement], seconds: float | None = None) -> KernelReport:
    """Return the report with all judgements added and explained. seconds: those of `KernelReport.explain`."""
    for judgement in judgements:
        report.add(judgement)
    report.explain(seconds)
    return report
