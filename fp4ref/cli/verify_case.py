"""Find a case of a kernel or a program by its name, show it alone, or save it as a dump."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fp4ref.cli.common import console
from fp4ref.cli.verify_choice import CaseChoice, Choice
from fp4ref.cli.verify_text import print_kernel_case, print_replay
from fp4ref.conformance import families
from fp4ref.conformance.dumps import cases as blocks
from fp4ref.conformance.dumps.files import Dump
from fp4ref.conformance.judge.cases import Judgement
from fp4ref.conformance.run import stream
from fp4ref.conformance.run.rounds import named
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.replay import replay, save
from fp4ref.errors import DomainError
from fp4ref.quantized import Directions, Quantized
from fp4ref.spec import Granularity, Spec


def no_case(name: str) -> DomainError:
    """Return the error for a name that no case has."""
    return DomainError("verify", f"no case {name!r}", "the ID of a case, as a report prints it", "CNF-2")


def no_block() -> DomainError:
    """Return the error for a report in which nothing differs that could be saved."""
    return DomainError("verify", "no block that differs", "one to save", "CNF-2")


def case_name(text: str) -> str:
    """Return the case of a name that may be that of a block."""
    return blocks.parse(text).tensor if _is_block(text) else text


def _is_block(text: str) -> bool:
    try:
        return bool(blocks.parse(text).tensor)
    except DomainError:
        return False


def case_of_name(declared: Declaration, spec: Spec, text: str, cases: CaseChoice) -> families.Case:
    """Return the case of the name of a case or of a block of one. Rules: CNF-103, CNF-106."""
    found = named(declared, spec, case_name(text), **vars(cases))
    if found is None:
        raise no_case(case_name(text))
    return found


def save_first(report: KernelReport, path: Path | None, *, force: bool) -> str:
    """Write the first block that differs, and return its name; empty if there is none, or if it is not wanted."""
    found = [(result, item) for result in report.results() for item in result.compared.differences]
    if path is None or not found:
        return ""
    result, item = min(found, key=lambda pair: pair[1].excuse is not None)
    name = result.case(item)
    failed = next(j for j in report.failures if j.case.id == name.tensor)
    _save(path, failed, name, report, force=force)
    return str(name)


def _save(path: Path, judgement: Judgement, name: blocks.CaseID, report: KernelReport, *, force: bool) -> None:
    block = _block(judgement, name, report.declaration)
    save(path, block, name._replace(tensor=""), report.subject, force=force)


def _block(judgement: Judgement, name: blocks.CaseID, declared: Declaration) -> Dump:
    """Return one block of a case as a dump."""
    case, got = judgement.case, judgement.got
    assert got is not None
    parts = {case.direction: got}
    q = Quantized(case.spec, case.x.shape, case.x.dtype.name, declared.scale_layout, **parts)
    whole = Dump(name.tensor, case.x, q, random_bits=Directions(**{case.direction: case.random_bits}))
    amax = stream.golden_amax(case) if case.spec.global_scale is not Granularity.NONE else None
    return blocks.cut(whole, name, amax)


def show_case(report: KernelReport, choice: Choice) -> int:
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
