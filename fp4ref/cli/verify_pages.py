"""The files that `fp4ref verify` writes beside what it prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fp4ref.errors import FileError, Fp4Error
from fp4ref.files import kinds
from fp4ref.files.targets import require_target

if TYPE_CHECKING:
    from fp4ref.conformance.reports.view import View


class Delayed:
    """Attempts to write files, whose first failure is raised when the verdict has been printed. Rules: CNF-110."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Note a failure to write instead of raising it."""
        try:
            yield
        except (Fp4Error, OSError) as error:
            self._error = self._error or error

    def end(self) -> None:
        """Raise the first failure, if there was one."""
        if self._error is not None:
            raise self._error


@dataclass(frozen=True)
class Pages:
    """The places of JUnit XML and of a page, as far as they are wanted; false if neither is.

    sources: files that the command reads. force: replace files of another kind.
    """

    junit: Path | None = None
    html: Path | None = None
    sources: tuple[Path, ...] = ()
    force: bool = False

    def __bool__(self) -> bool:
        return self.junit is not None or self.html is not None

    def require_whole(self, case_id: str | None, save_case: Path | None) -> None:
        """Refuse to write a report on one block, or over what is read or is of another kind. Rules: FIL-6."""
        if self and (case_id or save_case):
            raise click.UsageError("--junit and --html are for whole reports, not for --case and --save-case")
        if save_case is not None:
            from fp4ref.conformance.verdict.replay import SAVED

            require_target(save_case, SAVED, self.sources, force=self.force)
        if self.junit is not None:
            require_target(self.junit, kinds.JUNIT, self.sources, force=self.force)
        if self.html is not None:
            others = () if self.junit is None else (self.junit,)
            if self.html.absolute() in [path.absolute() for path in others]:
                raise FileError("verify", f"{self.html} for both --junit and --html", "two files", "FIL-4")
            require_target(self.html, kinds.HTML, (*self.sources, *others), force=self.force)

    def require_one(self, files: int, stated: bool = False) -> None:
        """Refuse to show several files on one page, or in one statement."""
        if (self.html is not None or stated) and files > 1:
            raise click.UsageError("--html and --statement take one file")

    def write(self, views: Sequence[View]) -> None:
        """Write what is wanted, and say where it is; the page shows one view."""
        if self.junit is not None:
            from fp4ref.conformance.reports import junit

            junit.write(self.junit, views, self.sources, force=self.force)
            click.echo(f"wrote {self.junit}", err=True)
        if self.html is not None and views:
            from fp4ref.conformance.reports import html

            html.write(self.html, views[0], self.sources, force=self.force)
            click.echo(f"wrote {self.html}", err=True)
