"""`fp4ref verify` of a kernel: a Python function on aimed cases, or a program's answers to a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import click

from fp4ref.cli.common import load_spec, progress, refuse_options, with_names_of
from fp4ref.cli.verify_case import case_of_name
from fp4ref.cli.verify_choice import Choice, KernelChoice
from fp4ref.cli.verify_finish import finish
from fp4ref.conformance import families
from fp4ref.conformance.judge import coverage
from fp4ref.conformance.run import recent
from fp4ref.conformance.run.machine import require_no_flush
from fp4ref.conformance.run.rounds import in_order
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.runner import run, subject
from fp4ref.conformance.subjects.subject import Declaration, Subject, draws, reasons
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.tally import Settings
from fp4ref.spec import Spec

Made = TypeVar("Made")


def check_kernel(choice: KernelChoice, options: RunOptions) -> int:
    """Run a function on the cases of a specification, and print what was found; the exit status. Rules: CNF-2."""
    if choice.spec is None:
        raise click.UsageError("--kernel and --library need --spec")
    if choice.forever and (options.repeat or choice.case):
        raise click.UsageError("--forever does not end, so it takes neither --repeat nor --case")
    if choice.huge and choice.exhaustive is not None:
        raise click.UsageError("--huge and --exhaustive choose the inputs in two ways: give one")
    if choice.resume is not None and choice.exhaustive is None:
        raise click.UsageError("--resume is for --exhaustive")
    require_all_cases(choice)
    assert choice.spec is not None
    spec = _with_names_of_the_kernel(choice, partial(load_spec, choice.spec))
    require_no_flush("verify")
    with progress(None, "verify") as step:
        step(f"loading {choice.target}")
        options = replace(options, tell=step)
        on_trial = _with_names_of_the_kernel(choice, partial(_subject, spec, choice, options))
        declared = on_trial.declaration
        choice = _stated(choice, on_trial)
        if choice.huge:
            from fp4ref.cli.verify_huge import check_huge

            return check_huge(on_trial, spec, choice, options, step)
        if choice.exhaustive is not None:
            from fp4ref.cli.verify_exhaustive import check_exhaustive

            return check_exhaustive(on_trial, spec, choice, options, step)
        if declared.operation == "gemm":
            from fp4ref.cli.verify_gemm import check_gemm

            return check_gemm(on_trial, spec, choice, options, choice.cases.families, step)
        if spec.stochastic and draws(declared):
            from fp4ref.cli.verify_stochastic import check_stochastic

            return check_stochastic(on_trial, spec, choice, options, step)
        required = coverage.required(choice.require, families.FAMILIES)
        cases = choice.cases
        reach = families.Reach(level=cases.level, multiple=declared.multiple, seed=cases.seed, weights=cases.weights)
        settings = Settings(reach=reach, families=cases.families, required=required, repeated=options.repeat > 0)
        report = KernelReport(on_trial.name, spec, declared, settings)
        if choice.case is not None:
            chosen: Iterable[families.Case] = [case_of_name(declared, spec, choice.case, cases)]
        else:
            # A statement rests on the cases that were asked for, in their usual order, on every machine.
            failed = [] if choice.statement else recent.recall(choice.target, spec)
            chosen = in_order(
                declared, spec, failed, forever=choice.forever, stop=lambda: bool(report.failures), **vars(cases)
            )
        runs = run(on_trial, _counted(chosen, declared, report, step), options)
        status = None
        try:
            status = finish(report, runs, choice, step)
            return status
        finally:
            if choice.case is None and (report.failures or status is not None):
                recent.remember(choice.target, spec, (judgement.case.id for judgement in report.failures))


def _with_names_of_the_kernel(choice: KernelChoice, make: Callable[[], Made]) -> Made:
    """Call `make`, after importing the kernel's own file if a name is unknown. Rules: SPC-4, CNF-8."""
    return make() if choice.signature is not None else with_names_of(choice.target, make)


def require_all_cases(choice: Choice) -> None:
    """Refuse to require families of a run of one case."""
    if choice.case is not None:
        refuse_options(choice.given & {"--require"}, "not with --case, which runs one case")


def _stated(choice: KernelChoice, on_trial: Subject) -> KernelChoice:
    """Return the choice with the name of the subject in the statement that is wanted."""
    if choice.statement is None:
        return choice
    signature = None if on_trial.library is None else on_trial.library["signature"]
    kind = "kernel" if signature is None else "library"
    return replace(choice, statement=choice.statement.about(kind, on_trial.name, signature))


def _subject(spec: Spec, choice: KernelChoice, options: RunOptions) -> Subject:
    """Return the kernel or the function of a library that the choice names."""
    if choice.signature is None:
        return subject(choice.target, None, options, **choice.changes)
    from fp4ref.conformance.run.libraries import library, named

    return library(choice.target, named(choice.signature), spec, options, **choice.changes)


def _counted(
    chosen: Iterable[families.Case], declared: Declaration, report: KernelReport, step: Callable[[str], None]
) -> Iterator[families.Case]:
    """Yield the cases that apply; the others are counted by reason."""
    for case in chosen:
        reason = reasons(case, declared)
        if reason:
            report.skip(case, reason)
        else:
            step(case.id)
            yield case
