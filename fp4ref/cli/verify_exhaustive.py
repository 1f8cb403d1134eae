"""`fp4ref verify --exhaustive`: a quantizer on every value of a type under every scale byte."""

from __future__ import annotations

from collections.abc import Callable

from fp4ref.cli.common import refuse_options
from fp4ref.cli.verify_choice import KernelChoice
from fp4ref.cli.verify_huge import IGNORED, show
from fp4ref.cli.verify_statement import Statement
from fp4ref.conformance.reports.view import ReportLine
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.exhaustive import check
from fp4ref.conformance.verdict.sweep_report import PLURALS
from fp4ref.conformance.verdict.sweep_store import SweepStore
from fp4ref.spec import Spec

REFUSED = IGNORED - {"--statement", "--subject-version"}


def check_exhaustive(
    subject: Subject, spec: Spec, choice: KernelChoice, options: RunOptions, step: Callable[[str], None]
) -> int:
    """Sweep a quantizer, and print what was found; the exit status. Rules: CNF-2, CNF-46, CNF-48, CNF-57, CNF-114."""
    refuse_options(choice.given & REFUSED, "not with --exhaustive, whose inputs are all values")
    assert choice.exhaustive is not None
    store = None if choice.resume is None else SweepStore(choice.resume, choice.pages.sources, choice.pages.force)
    report = check(subject, spec, choice.exhaustive, options, step, store=store)
    tests = [ReportLine("exhaustive", PLURALS[kind], text) for kind, text in report.first.items()]
    lines = [f"first: {text}" for text in report.first.values()]
    if report.stopped and store is not None:
        lines.append(f"the same command goes on from {store.path}")
    return show(report, choice, tests, lines, Statement.write_sweep if report.cut is None else None)
