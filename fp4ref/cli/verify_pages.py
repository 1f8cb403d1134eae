"""The files that `fp4ref verify` writes beside what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fp4ref.errors import FileError

if TYPE_CHECKING:
    from fp4ref.conformance.reports.view import View


@dataclass(frozen=True)
class Pages:
    """Where JUnit XML and a page are wanted; false if nowhere."""

    junit: Path | None = None
    html: Path | None = None

    def __bool__(self) -> bool:
        return self.junit is not None or self.html is not None

    def require_whole(self, case_id: str | None, save_case: Path | None) -> None:
        """Refuse to write a report on one block, or where there is no folder."""
        if self and (case_id or save_case):
            raise click.UsageError("--junit and --html are for whole reports, not for --case and --save-case")
        for path in filter(None, (self.junit, self.html)):
            if not path.absolute().parent.is_dir() or path.is_dir():
                raise FileError(f"verify: cannot write {path}", "no such folder, or a folder itself", "a file's name")

    def require_one(self, files: int) -> None:
        """Refuse to show several files on one page."""
        if self.html is not None and files > 1:
            raise click.UsageError("--html takes one file")

    def write(self, views: Sequence[View]) -> None:
        """Write what is wanted, and say where it is; the page shows one view."""
        if self.junit is not None:
            from fp4ref.conformance.reports import junit

            junit.write(self.junit, views)
            click.echo(f"wrote {self.junit}", err=True)
        if self.html is not None and views:
            from fp4ref.conformance.reports import html

            html.write(self.html, views[0])
            click.echo(f"wrote {self.html}", err=True)
