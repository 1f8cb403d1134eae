"""The view of a report on a kernel that draws its own random bits."""

from __future__ import annotations

from fp4ref.conformance.reports.view import ReportLine, View
from fp4ref.conformance.verdict.stochastic import StochasticReport


def of_drawing(report: StochasticReport) -> View:
    """Return a stochastic report as a page shows it, with a test for each count. Rules: CNF-2, SR-11."""
    tests = [ReportLine("counts", test.name, "" if test.passed else str(test)) for test in report.tests]
    tests += [ReportLine("bytes", line.partition(":")[0], line) for line in report.wrong]
    return View(
        f"{report.subject} under {report.spec.name}, {report.level}",
        report.ok,
        report.headline,
        (*report.mistakes, *report.lines),
        (report.subject,),
        tests=tuple(tests),
        errors=tuple(report.errors),
        coverage=report.coverage,
    )
