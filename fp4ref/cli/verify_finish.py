"""The end of `fp4ref verify` of a kernel or a program: judgements become a report, and the report is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import click

from fp4ref.cli.common import console
from fp4ref.cli.verify_again import SEEDED, see_again, see_saved
from fp4ref.cli.verify_case import no_block, save_first, show_case
from fp4ref.cli.verify_choice import Choice
from fp4ref.cli.verify_pages import Delayed
from fp4ref.cli.verify_text import print_kernel
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.reports.intermediates import with_intermediates
from fp4ref.conformance.reports.view import of_kernel
from fp4ref.conformance.run.ending import CAUSE, SIGNALS, STOPPED, Ending
from fp4ref.conformance.run.ending import status as ending_status
from fp4ref.conformance.run.runner import Run
from fp4ref.conformance.verdict.kernel_report import KernelReport


def _explain(report: KernelReport, seconds: float | None, step: Callable[[str], None]) -> None:
    """Look for the cause of what is wrong, unless a signal ends that, too."""
    if report.differing and seconds != 0:
        step("diagnosis")
    try:
        report.explain(seconds)
    except SIGNALS as ending:
        report.cut = Ending.of(ending, CAUSE)


def finish(report: KernelReport, runs: Iterable[Run], choice: Choice, step: Callable[[str], None]) -> int:
    """Judge what was run, and print the report, or one case of it; return the exit status.

    Ctrl-C, TERM and HUP end the cases, or the diagnosis; the report on what was tried is written without one.

    Rules: CNF-2, CNF-48, CNF-96.
    """
    endless = "--forever" in choice.given
    try:
        for item in runs:
            report.add(judge(item.case, item.outcome, report.declaration, item.expected))
            if endless and len(report.failures) == 1 and report.failures[0].case is item.case:
                save_first(report, choice.save_case, force=choice.pages.force)  # at once: such a run may be killed
    except SIGNALS as ending:
        if not (report.cases or report.unchecked) or choice.case is not None:
            raise
        report.stopped, report.cut = STOPPED, Ending.of(ending, endless=endless)
    if choice.case is not None:
        return show_case(report, choice)
    _explain(report, 0 if report.cut else choice.seconds, step)
    saved, view, delayed = "", of_kernel(report), Delayed()
    if choice.statement is not None and report.cut is None:
        with delayed.attempt():
            choice.statement.write_kernel(report)
    with delayed.attempt():
        saved = save_first(report, choice.save_case, force=choice.pages.force)
        if choice.save_case is not None and not saved and not endless:
            raise no_block()
    with delayed.attempt():
        choice.pages.write([view])
    if choice.as_json:
        click.echo(json.dumps(with_intermediates(report.to_json(), view), indent=1, allow_nan=False))
    else:
        out = console()
        print_kernel(out, report, choice.limit)
        if saved:
            assert choice.save_case is not None
            out.print(f"saved {saved}; {see_saved(choice.save_case)}", markup=False, soft_wrap=True)
        if choice.given & SEEDED and report.failures:
            out.print(see_again("--case", report.failures[0].case.id), markup=False, soft_wrap=True)
    delayed.end()
    return ending_status(report.status, report.cut)
