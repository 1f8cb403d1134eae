"""`fp4ref verify --kernel` of a kernel that draws its own random bits."""

from __future__ import annotations

import json
from collections.abc import Callable

import click

from fp4ref.cli.common import console
from fp4ref.cli.verify_choice import Choice
from fp4ref.conformance.run_options import RunOptions
from fp4ref.conformance.stochastic_kernel import judge_drawing
from fp4ref.conformance.subject import Subject
from fp4ref.spec import Spec


def check_stochastic(
    on_trial: Subject, spec: Spec, choice: Choice, options: RunOptions, step: Callable[[str], None]
) -> int:
    """Print the verdict, its level, and the counts that fail; the exit status. Rules: CNF-2, SR-11."""
    if choice.case or choice.save_case or choice.pages or choice.statement:
        raise click.UsageError(
            "--case, --save-case, --junit, --html and --statement need a kernel that is given its random bits"
        )
    report = judge_drawing(spec, on_trial, options=options, step=step)
    if choice.as_json:
        click.echo(json.dumps({"subject": on_trial.name, **report.to_json()}, indent=1, allow_nan=False))
        return 0 if report.ok else 1
    out = console()
    out.print(report.headline, markup=False, soft_wrap=True)
    lines = [*map(str, report.errors), *report.wrong]
    lines += [f"{t.name}: {t.found:,} of {t.n:,}, need {t.low:,} to {t.high:,}" for t in report.tests if not t.passed]
    for line in lines[: choice.limit]:
        out.print(f"  {line}", markup=False, soft_wrap=True)
    if len(lines) > choice.limit:
        out.print(f"  and {len(lines) - choice.limit} more", markup=False)
    return 0 if report.ok else 1
