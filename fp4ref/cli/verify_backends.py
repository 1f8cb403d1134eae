"""`fp4ref verify` without a path: the verdict on the installed backends."""

from __future__ import annotations

from functools import partial

import click

from fp4ref import processors
from fp4ref.cli.common import console, progress
from fp4ref.cli.verify_choice import Reporting
from fp4ref.cli.verify_statement import Statement
from fp4ref.conformance.reports.view import of_backends
from fp4ref.conformance.selfcheck import implementations as selfcheck


def check_backends(backends: tuple[str, ...], choice: Reporting) -> int:
    """Check every installed backend, or the named ones; return the exit status. Rules: CNF-5."""
    with processors.uncollected(), progress(None, "verify") as step:  # a tenth of the time, for ten megabytes of cycles
        report = selfcheck.run(list(backends) or None, step, note=partial(click.echo, err=True))
    choice.deliver(report, lambda: report.render(console()), of_backends, Statement.write_backends)
    return 0 if report.ok else 1
