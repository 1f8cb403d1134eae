"""`fp4ref verify --kernel` of a kernel that draws its own random bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fp4ref.cli.common import console, print_lines, printable, refuse_options
from fp4ref.cli.verify_again import SEEDED, see_again
from fp4ref.cli.verify_choice import KernelChoice
from fp4ref.cli.verify_statement import Statement
from fp4ref.conformance.families import FAMILIES
from fp4ref.conformance.judge.coverage import required
from fp4ref.conformance.reports.drawing import of_drawing
from fp4ref.conformance.run.ending import status
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.stochastic import StochasticReport
from fp4ref.conformance.verdict.stochastic_kernel import judge_drawing
from fp4ref.spec import Spec

IGNORED = frozenset(
    {"--case", "--save-case", "--known-failures", "--family", "--level", "--weights"}
)  # options about cases; such a kernel has aimed inputs of its own


def check_stochastic(
    on_trial: Subject, spec: Spec, choice: KernelChoice, options: RunOptions, step: Callable[[str], None]
) -> int:
    """Print the verdict, its level, and the counts that fail; return the exit status.

    Rules: CNF-2, CNF-23, CNF-48, SR-11.
    """
    refuse_options(choice.given & IGNORED, "for a kernel that is given its random bits; this one draws its own")
    needed = required(choice.require, FAMILIES)
    report = judge_drawing(
        spec, on_trial, options=options, step=step, required=needed, seed=choice.cases.seed, forever=choice.forever
    )

    def state(statement: Statement, report: StochasticReport) -> None:
        statement.write_drawing(report, on_trial.declaration)

    choice.deliver(report, partial(_print, report, choice), of_drawing, state if report.cut is None else None)
    return status(report.status, report.cut)


def _print(report: StochasticReport, choice: KernelChoice) -> None:
    out = console()
    print_lines(out, report.text(choice.limit))
    if choice.given & SEEDED and not report.ok:
        again = see_again("--seed", str(report.seed + report.seeds - 1))
        out.print(printable(again), markup=False, soft_wrap=True)
