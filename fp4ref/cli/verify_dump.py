"""`fp4ref verify DUMP`: the verdict on files of quantized tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fp4ref.cli.common import INTERNAL, REFUSED, console, load_spec, printable, progress
from fp4ref.cli.selection import select
from fp4ref.cli.verify_again import see_saved
from fp4ref.cli.verify_choice import DumpChoice
from fp4ref.cli.verify_pages import Delayed
from fp4ref.cli.verify_sources import dump_files
from fp4ref.cli.verify_text import print_replay, print_report
from fp4ref.conformance.diagnosis.budget import SECONDS
from fp4ref.conformance.dumps.cases import parse
from fp4ref.conformance.judge.isolation import InternalError
from fp4ref.conformance.reports.intermediates import with_intermediates
from fp4ref.conformance.reports.view import View, of_dump, of_error
from fp4ref.conformance.verdict.dump_report import DumpReport
from fp4ref.conformance.verdict.dumps import DumpRequest
from fp4ref.conformance.verdict.dumps import verify as verify_file
from fp4ref.conformance.verdict.replay import block_of, first_case, replay, save
from fp4ref.errors import Fp4Error
from fp4ref.packings import CANONICAL
from fp4ref.spec import SPEC_VERSION

if TYPE_CHECKING:
    from rich.console import Console


def check_dumps(paths: Sequence[Path], choice: DumpChoice) -> int:
    """Judge dumps, or show one block of a dump; return the exit status. Rules: CNF-2, CNF-109, CNF-110."""
    if choice.statement is not None:
        choice.statement.require_no_known_failures()
    name = choice.spec or choice.profile
    request = partial(
        DumpRequest,
        spec=load_spec(name) if name else None,
        scale_layout=choice.scale_layout,
        dtype=choice.dtype,
        packing=choice.packing or CANONICAL,
        inputs=choice.inputs,
        select=partial(select, patterns=choice.patterns),
        amax=choice.amax,
        keep=max(choice.limit, 16),
        seconds=SECONDS if choice.seconds is None else choice.seconds,
    )
    files = dump_files(paths)
    choice.pages.require_one(len(files), choice.statement is not None)
    if choice.case or choice.save_case:
        if len(files) > 1:
            raise click.UsageError("--case and --save-case take one file")
        return _show_case(request(path=files[0]), choice)
    return _check(files, request, choice)


def _check(files: Sequence[Path], request: partial[DumpRequest], choice: DumpChoice) -> int:
    """Print the verdict on every file, after the pages are written; return the worst exit status."""
    out, found, pages, stated = console(), list[_Checked](), choice.pages, choice.statement
    explained = bool(pages) or choice.as_json
    for path in files:
        found.append(_checked(path, request, explained=explained, alone=len(files) == 1))
        if not (pages or stated or choice.as_json):
            found[-1].show(out, choice.limit)
    status = max(item.status for item in found)
    delayed = Delayed()
    if stated is not None and found[0].report is not None:
        with delayed.attempt():
            stated.write_dump(found[0].report, files[0])
    with delayed.attempt():
        pages.write([item.view for item in found if item.view is not None])
    if choice.as_json:
        record = {"fp4ref": SPEC_VERSION, "ok": status == 0, "files": [item.record for item in found]}
        click.echo(json.dumps(record, indent=1, allow_nan=False))
    elif pages or stated:
        for item in found:
            item.show(out, choice.limit)
    delayed.end()
    return status


@dataclass(frozen=True)
class _Checked:
    """A file: its exit status and JSON data, its report, or why there is none, and the view for pages."""

    status: int
    record: dict[str, Any]
    report: DumpReport | None = None
    view: View | None = None

    def show(self, out: Console, limit: int) -> None:
        """Print the report; a reason was printed when it arose."""
        if self.report is not None:
            print_report(out, self.report, limit)


def _checked(path: Path, request: partial[DumpRequest], *, explained: bool, alone: bool) -> _Checked:
    """Verify one file; among several, one that cannot be verified does not end the others. Rules: CNF-10, CNF-11."""
    record: dict[str, Any]
    try:
        with progress(None, "verify") as step:
            report = verify_file(request(path=path), step)
        view = of_dump(report, request(path=path)) if explained else None
    except (Fp4Error, OSError) as error:
        if alone:
            raise
        status, reason, record = REFUSED, str(error), {"path": str(path), "error": str(error)}
    except Exception as error:
        if alone:
            raise
        broken = InternalError.of("verification", error)
        status, reason = INTERNAL, f"{path}: {broken}"
        record = {"path": str(path), "error": reason, "internal_errors": [broken.to_json()]}
    else:
        record = report.to_json()
        if view is not None and not report.ok:
            record = with_intermediates(record, view)
        return _Checked(report.kind.status, record, report, view)
    click.echo(f"fp4ref: {printable(reason)}", err=True)
    return _Checked(status, record, view=of_error(str(path), reason) if explained else None)


def _show_case(request: DumpRequest, choice: DumpChoice) -> int:
    """Show one block, and save it; return 1 if it differs."""
    case = parse(choice.case) if choice.case else first_case(request)
    block = block_of(request, case)
    found = replay(block, case)
    if choice.save_case is not None:
        save(choice.save_case, block, case, request.path, force=choice.pages.force)
    if choice.as_json:
        click.echo(json.dumps(found.to_json(), indent=1, allow_nan=False))
    else:
        out = console()
        print_replay(out, request.path, found)
        if choice.save_case is not None:
            out.print(f"saved; {see_saved(choice.save_case)}", markup=False, soft_wrap=True)
    return 0 if found.equal else 1
