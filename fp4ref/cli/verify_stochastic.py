"""`fp4ref verify --kernel` of a kernel that draws its own random bits."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from fp4ref.cli.common import console, printable
from fp4ref.cli.verify_choice import Choice
from fp4ref.conformance.coverage import required
from fp4ref.conformance.families import FAMILIES
from fp4ref.conformance.reports.drawing import of_drawing
from fp4ref.conformance.run_options import RunOptions
from fp4ref.conformance.stochastic import StochasticReport
from fp4ref.conformance.stochastic_kernel import judge_drawing
from fp4ref.conformance.subject import Subject
from fp4ref.spec import Spec


def check_stochastic(
    on_trial: Subject, spec: Spec, choice: Choice, options: RunOptions, step: Callable[[str], None]
) -> int:
    """Print the verdict, its level, and the counts that fail; return the exit status. Rules: CNF-2, CNF-23, SR-11."""
    if choice.case or choice.save_case or choice.statement:
        raise click.UsageError("--case, --save-case and --statement need a kernel that is given its random bits")
    needed = required(choice.require, FAMILIES)
    report = judge_drawing(spec, on_trial, options=options, step=step, required=needed)
    if choice.pages:
        choice.pages.write([of_drawing(report)])
    if choice.as_json:
        click.echo(json.dumps(report.to_json(), indent=1, allow_nan=False))
        return report.kind.status
    out = console()
    for line in drawing_lines(report, choice.limit):
        out.print(printable(line), markup=False, soft_wrap=True)
    return report.kind.status


def drawing_lines(report: StochasticReport, limit: int) -> list[str]:
    """Return the verdict, its basis, and the first counts that fail, as text."""
    more = [f"  and {len(report.lines) - limit} more"] if len(report.lines) > limit else []
    shown = [f"  {line}" for line in report.lines[:limit]]
    return [f"{report.subject}: {report.headline}", *report.coverage.lines, *shown, *more]
