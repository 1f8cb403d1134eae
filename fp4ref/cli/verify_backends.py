"""`fp4ref verify` without a path: the verdict on the installed backends."""

from __future__ import annotations

import json
from functools import partial

import click

from fp4ref.cli.common import console, progress
from fp4ref.cli.verify_choice import Reporting
from fp4ref.cli.verify_pages import Delayed
from fp4ref.conformance.reports.view import of_backends
from fp4ref.conformance.selfcheck import implementations as selfcheck


def check_backends(backends: tuple[str, ...], choice: Reporting) -> int:
    """Check every installed backend, or the named ones; return the exit status. Rules: CNF-5."""
    with progress(None, "verify") as step:
        report = selfcheck.run(list(backends) or None, step, note=partial(click.echo, err=True))
    delayed = Delayed()
    if choice.statement is not None:
        with delayed.attempt():
            choice.statement.write_backends(report)
    if choice.pages:
        with delayed.attempt():
            choice.pages.write([of_backends(report)])
    if choice.as_json:
        click.echo(json.dumps(report.to_json(), indent=1))
    else:
        report.render(console())
    delayed.end()
    return 0 if report.ok else 1
