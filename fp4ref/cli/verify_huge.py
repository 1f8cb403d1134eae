"""`fp4ref verify --huge`: a quantizer on inputs past 2^31 bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fp4ref.cli.common import console, print_lines, refuse_options
from fp4ref.cli.verify_choice import Choice
from fp4ref.cli.verify_statement import Statement
from fp4ref.conformance.reports.view import ReportLine, of_calls
from fp4ref.conformance.run.ending import status
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.huge import HugeReport, check
from fp4ref.conformance.verdict.sweep_report import SweepReport
from fp4ref.spec import Spec

IGNORED = frozenset(
    [
        "--case",
        "--diagnosis-seconds",
        "--family",
        "--forever",
        "--known-failures",
        "--level",
        "--limit",
        "--no-diagnosis",
        "--repeat",
        "--require",
        "--save-case",
        "--seed",
        "--statement",
        "--subject-version",
        "--weights",
    ]
)


def check_huge(
    subject: Subject,
    spec: Spec,
    choice: Choice,
    options: RunOptions,
    step: Callable[[str], None],
) -> int:
    """Run a quantizer on huge inputs, and print what was found; the exit status.

    Rules: CNF-2, CNF-48, CNF-53.
    """
    refuse_options(choice.given & IGNORED, "not with --huge, which has cases of its own")
    report = check(subject, spec, options, step)
    tests = [
        ReportLine("huge", case.name, "\n".join(case.lines) if case.wrong else "", case.skipped)
        for case in report.cases
    ]
    return show(report, choice, tests, [line for case in report.cases for line in case.lines])


def show(
    report: HugeReport | SweepReport,
    choice: Choice,
    tests: Sequence[ReportLine],
    lines: Sequence[str],
    state: Callable[[Statement, Any], None] | None = None,
) -> int:
    """Write the wanted files, and print a report on calls that no family of cases has; the exit status.

    tests: of the files. lines: of the text, after those of the basis. state: writes the statement.

    Rules: CNF-2, CNF-48, CNF-110.
    """

    def text() -> None:
        out = console()
        print_lines(out, [f"{report.subject}: {report.headline}"], "bold")
        print_lines(out, [*report.coverage.lines, *lines])

    choice.deliver(report, text, partial(of_calls, tests=tests), state)
    return status(report.kind.status, report.cut)
