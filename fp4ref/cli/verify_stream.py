"""`fp4ref verify` of a program's answers, from a file or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from fp4ref.cli.common import load_spec, progress
from fp4ref.cli.verify_case import case_name, no_case
from fp4ref.cli.verify_choice import Choice
from fp4ref.cli.verify_finish import finish
from fp4ref.cli.verify_kernel import require_all_cases
from fp4ref.conformance import families
from fp4ref.conformance.judge import coverage
from fp4ref.conformance.run import stream
from fp4ref.conformance.run.machine import require_no_flush
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.runner import Run
from fp4ref.conformance.run.timed_input import TimedInput
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.tally import Settings
from fp4ref.errors import DomainError

STDIN = "standard input"


def check_stream(path: Path, choice: Choice, options: RunOptions) -> int:
    """Judge a program's answers, from a file or from standard input; return the exit status.

    options: the times that answers from a pipe may take.

    Rules: CNF-2, CNF-6, CNF-45.
    """
    require_all_cases(choice)
    require_no_flush("verify")
    if path.is_file():
        with path.open("rb") as file:
            return _check(stream.Reader(file, str(path)), str(path), None, choice, options)
    reader, named = stream.Reader(_standard_input(), STDIN), None if str(path) == "-" else str(path)
    return _check(reader, STDIN, named, choice, options)


def _standard_input() -> IO[bytes] | TimedInput:
    """Return standard input, with limits of time if it is a stream of the system."""
    try:
        return TimedInput(sys.stdin.buffer)
    except (OSError, ValueError):  # bytes in memory
        return sys.stdin.buffer


def _check(reader: stream.Reader, name: str, named: str | None, choice: Choice, options: RunOptions) -> int:
    plan = stream.read_plan(reader, options)
    for wanted in filter(None, (named, choice.spec)):
        if load_spec(wanted) != plan.spec:
            raise DomainError(
                f"verify {wanted}", f"answers to cases of {plan.spec.name}", f"those of {wanted}", "CNF-6"
            )
    declared = replace(Declaration(inputs=("x", "amax"), direction=plan.direction), **choice.changes)
    required = coverage.required(choice.require, families.FAMILIES)
    settings = Settings(
        reach=families.Reach(level=plan.level, multiple=plan.multiple, seed=plan.seed),
        families=plan.families,
        required=required,
        piped=True,
    )
    report = KernelReport(name, plan.spec, declared, settings)
    if choice.statement is not None:
        choice = replace(choice, statement=choice.statement.about("stream", name))
    with progress(None, "verify") as step:
        runs = stream.read(reader, plan, declared, options)
        if choice.case is not None:
            wanted = case_name(choice.case)
            runs = _only(runs, wanted)
        return finish(report, _told(runs, step), choice, step)


def _only(runs: Iterable[Run], name: str) -> Iterator[Run]:
    found = False
    for item in runs:
        if item.case.id == name:
            found = True
            yield item
    if not found:
        raise no_case(name)


def _told(runs: Iterable[Run], step: Callable[[str], None]) -> Iterator[Run]:
    for item in runs:
        step(item.case.id)
        yield item
