"""`fp4ref verify` of a kernel: a Python function on aimed cases, or a program's answers to a stream."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import click

from fp4ref.cli.common import console, load_spec, progress, refuse_options, repeat_options
from fp4ref.cli.verify_choice import Choice
from fp4ref.cli.verify_text import print_kernel, print_kernel_case, print_replay
from fp4ref.conformance import families
from fp4ref.conformance.dumps import cases as blocks
from fp4ref.conformance.dumps.files import Dump
from fp4ref.conformance.judge import coverage
from fp4ref.conformance.judge.cases import Judgement, judge
from fp4ref.conformance.reports.intermediates import with_intermediates
from fp4ref.conformance.reports.view import of_kernel
from fp4ref.conformance.run import recent, stream
from fp4ref.conformance.run.machine import require_no_flush
from fp4ref.conformance.run.rounds import in_order, named
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.runner import Run, run, subject
from fp4ref.conformance.subjects.subject import Declaration, Subject, draws, reasons
from fp4ref.conformance.verdict.kernel_report import KernelReport, Settings
from fp4ref.conformance.verdict.replay import replay, save
from fp4ref.errors import DomainError
from fp4ref.quantized import Directions, Quantized
from fp4ref.spec import Granularity, Spec

OF_A_CASE = [
    "--kernel",
    "--library",
    "--signature",
    "--spec",
    "--layout",
    "--nibbles",
    "--direction",
    "--device",
    "--level",
    "--weights",
    "--timeout",
    "--start-timeout",
]  # options with which a case is the same again


def check_kernel(target: str, choice: Choice, device: str | None, options: RunOptions, cases: dict[str, Any]) -> int:
    """Run a function on the cases of a specification, and print what was found; the exit status. Rules: CNF-2."""
    if choice.spec is None:
        raise click.UsageError("--kernel and --library need --spec")
    if choice.forever and (options.repeat or choice.case):
        raise click.UsageError("--forever does not end, so it takes neither --repeat nor --case")
    _require_all_cases(choice)
    spec = load_spec(choice.spec)
    require_no_flush("verify")
    with progress(None, "verify") as step:
        step(f"loading {target}")
        options = replace(options, tell=step)
        on_trial = _subject(target, spec, choice, options, {"device": device} if device else {})
        declared = on_trial.declaration
        choice = _stated(choice, on_trial)
        if choice.huge:
            from fp4ref.cli.verify_huge import check_huge

            return check_huge(on_trial, spec, choice, options, step)
        if declared.operation == "gemm":
            from fp4ref.cli.verify_gemm import check_gemm

            return check_gemm(on_trial, spec, choice, options, cases["families"], step)
        if spec.stochastic and draws(declared):
            from fp4ref.cli.verify_stochastic import check_stochastic

            return check_stochastic(on_trial, spec, choice, options, step)
        required = coverage.required(choice.require, families.FAMILIES)
        reach = families.Reach(
            level=cases["level"], multiple=declared.multiple, seed=cases["seed"], weights=cases["weights"]
        )
        names = None if cases["families"] is None else tuple(cases["families"])
        settings = Settings(reach=reach, families=names, required=required, repeated=options.repeat > 0)
        report = KernelReport(on_trial.name, spec, declared, settings)
        if choice.case is not None:
            chosen: Iterable[families.Case] = [_named(declared, spec, choice.case, cases)]
        else:
            failed = recent.recall(target, spec)
            chosen = in_order(
                declared, spec, failed, forever=choice.forever, stop=lambda: bool(report.failures), **cases
            )
        judgements = _judged(run(on_trial, _counted(chosen, declared, report, step), options), on_trial.declaration)
        status = _finish(report, judgements, choice, step)
        if choice.case is None:
            recent.remember(target, spec, (judgement.case.id for judgement in report.failures))
        return status


def _require_all_cases(choice: Choice) -> None:
    """Refuse to require families of a run of one case."""
    if choice.case is not None:
        refuse_options(choice.given & {"--require"}, "not with --case, which runs one case")


def _stated(choice: Choice, on_trial: Subject) -> Choice:
    """Return the choice with the name of the subject in the statement that is wanted."""
    if choice.statement is None:
        return choice
    signature = None if on_trial.library is None else on_trial.library["signature"]
    kind = "kernel" if signature is None else "library"
    return replace(choice, statement=choice.statement.about(kind, on_trial.name, signature))


def _subject(target: str, spec: Spec, choice: Choice, options: RunOptions, changes: dict[str, Any]) -> Subject:
    """Return the kernel or the function of a library that a target names."""
    if choice.signature is None:
        return subject(target, None, options, **choice.changes, **changes)
    from fp4ref.conformance.run.libraries import library, named

    return library(target, named(choice.signature), spec, options, **choice.changes, **changes)


def check_stream(path: Path, choice: Choice) -> int:
    """Judge a program's answers, from a file or from standard input; the exit status. Rules: CNF-2, CNF-6."""
    _require_all_cases(choice)
    require_no_flush("verify")
    if path.is_file():
        with path.open("rb") as file:
            return _check(file, str(path), None, choice)
    return _check(sys.stdin.buffer, "standard input", None if str(path) == "-" else str(path), choice)


def _check(file: IO[bytes], name: str, named: str | None, choice: Choice) -> int:
    reader = stream.Reader(file, name)
    plan = stream.read_plan(reader)
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
        runs = stream.read(reader, plan, declared)
        if choice.case is not None:
            wanted = _case_name(choice.case)
            runs = _only(runs, wanted)
        return _finish(report, _told(_judged(runs, declared), step), choice, step)


def _only(runs: Iterable[Run], name: str) -> Iterator[Run]:
    found = False
    for item in runs:
        if item.case.id == name:
            found = True
            yield item
    if not found:
        raise _no_case(name)


def _no_case(name: str) -> DomainError:
    return DomainError("verify", f"no case {name!r}", "the ID of a case, as a report prints it", "CNF-2")


def _case_name(text: str) -> str:
    """The case of a name that may be that of a block."""
    return blocks.parse(text).tensor if _is_block(text) else text


def _is_block(text: str) -> bool:
    try:
        return bool(blocks.parse(text).tensor)
    except DomainError:
        return False


def _named(declared: Declaration, spec: Spec, text: str, cases: dict[str, Any]) -> families.Case:
    """The case of the name of a case or of a block of one. Rules: CNF-21."""
    found = named(declared, spec, _case_name(text), **cases)
    if found is None:
        raise _no_case(_case_name(text))
    return found


def _counted(
    chosen: Iterable[families.Case], declared: Declaration, report: KernelReport, step: Callable[[str], None]
) -> Iterator[families.Case]:
    """The cases that apply; the others are counted by reason."""
    for case in chosen:
        reason = reasons(case, declared)
        if reason:
            report.skip(case, reason)
        else:
            step(case.id)
            yield case


def _judged(runs: Iterable[Run], declared: Declaration) -> Iterator[Judgement]:
    return (judge(item.case, item.outcome, declared, item.expected) for item in runs)


def _told(judgements: Iterable[Judgement], step: Callable[[str], None]) -> Iterator[Judgement]:
    for judgement in judgements:
        step(judgement.case.id)
        yield judgement


def _finish(report: KernelReport, judgements: Iterable[Judgement], choice: Choice, step: Callable[[str], None]) -> int:
    """Print the report, or one case of it; save a block. Rules: CNF-2."""
    try:
        for judgement in judgements:
            report.add(judgement)
    except KeyboardInterrupt:
        if not (choice.forever and report.cases):
            raise
        report.stopped = "interrupted"
    if choice.case is not None:
        return _show_case(report, choice)
    if report.differing and choice.seconds != 0:
        step("diagnosis")
    report.explain(choice.seconds)
    if choice.statement is not None:
        choice.statement.write_kernel(report)
    saved = _save_first(report, choice.save_case, force=choice.pages.force)
    view = of_kernel(report)
    choice.pages.write([view])
    if choice.as_json:
        click.echo(json.dumps(with_intermediates(report.to_json(), view), indent=1, allow_nan=False))
    else:
        out = console()
        print_kernel(out, report, choice.limit)
        if saved:
            out.print(f"saved {saved}; see it again: fp4ref verify {choice.save_case}", markup=False, soft_wrap=True)
        if choice.given & {"--forever", "--seed"} and report.failures:
            name = shlex.quote(report.failures[0].case.id)
            again = f"fp4ref verify {repeat_options(OF_A_CASE)} --case {name}"
            out.print(f"see it again: {again}", markup=False, soft_wrap=True)
    return report.kind.status


def _save_first(report: KernelReport, path: Path | None, *, force: bool) -> str:
    """Write the first block that differs; its name."""
    if path is None:
        return ""
    found = [(result, item) for result in report.results() for item in result.compared.differences]
    if not found:
        raise DomainError("verify", "no block that differs", "one to save", "CNF-2")
    result, item = min(found, key=lambda pair: pair[1].excuse is not None)
    name = result.case(item)
    failed = next(j for j in report.failures if j.case.id == name.tensor)
    _save(path, failed, name, report, force=force)
    return str(name)


def _save(path: Path, judgement: Judgement, name: blocks.CaseID, report: KernelReport, *, force: bool) -> None:
    block = _block(judgement, name, report.declaration)
    save(path, block, name._replace(tensor=""), report.subject, force=force)


def _block(judgement: Judgement, name: blocks.CaseID, declared: Declaration) -> Dump:
    """One block of a case as a dump."""
    case, got = judgement.case, judgement.got
    assert got is not None
    parts = {case.direction: got}
    q = Quantized(case.spec, case.x.shape, case.x.dtype.name, declared.scale_layout, **parts)
    whole = Dump(name.tensor, case.x, q, random_bits=Directions(**{case.direction: case.random_bits}))
    amax = stream.golden_amax(case) if case.spec.global_scale is not Granularity.NONE else None
    return blocks.cut(whole, name, amax)


def _show_case(report: KernelReport, choice: Choice) -> int:
    """Show one case: its findings, or the elements of a block of it."""
    assert choice.case is not None
    judgement = next(iter(report.failures), None)
    found = [] if judgement is None or judgement.compared is None else judgement.compared.differences
    name = next((report.results()[0].case(item) for item in found), None)
    name = blocks.parse(choice.case) if _is_block(choice.case) else name
    if name is None or (judgement is not None and judgement.got is None) or not report.evidence:
        if choice.as_json:
            click.echo(json.dumps(report.to_json(), indent=1, allow_nan=False))
        else:
            print_kernel_case(console(), choice.case, report, judgement)
        return 0 if report.ok else 1
    shown = judgement
    if shown is None:
        case, got = report.evidence[0]
        shown = Judgement(case, None, None, (), (), got)
    found_block = replay(_block(shown, name, report.declaration), name)
    if choice.save_case is not None:
        _save(choice.save_case, shown, name, report, force=choice.pages.force)
    if choice.as_json:
        click.echo(json.dumps(found_block.to_json(), indent=1, allow_nan=False))
    else:
        print_replay(console(), report.subject, found_block)
    return 0 if report.ok else 1
