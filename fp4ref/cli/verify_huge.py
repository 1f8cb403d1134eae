"""`fp4ref verify --huge`: a quantizer on inputs past 2^31 bytes."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from fp4ref.cli.common import console, printable, refuse_options
from fp4ref.cli.verify_choice import Choice
from fp4ref.conformance.run.ending import status
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.huge import check
from fp4ref.spec import Spec

IGNORED = frozenset(
    [
        "--case",
        "--diagnosis-seconds",
        "--family",
        "--forever",
        "--html",
        "--junit",
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
    """Run a quantizer on huge inputs, and print what was found; the exit status. Rules: CNF-2, CNF-29, CNF-48."""
    refuse_options(choice.given & IGNORED, "not with --huge, whose inputs are always the same")
    report = check(subject, spec, options, step)
    if choice.as_json:
        click.echo(json.dumps(report.to_json(), indent=1, allow_nan=False))
        return status(report.kind.status, report.cut)
    out = console()
    out.print(printable(f"{report.subject}: {report.headline}"), style="bold", markup=False, soft_wrap=True)
    for line in (*report.coverage.lines, *(line for case in report.cases for line in case.lines)):
        out.print(printable(line), markup=False, emoji=False, soft_wrap=True)
    return status(report.kind.status, report.cut)
