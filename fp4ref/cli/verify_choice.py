"""The options of `fp4ref verify` as records: how to report, and what each of its jobs is asked to judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from fp4ref.cli.verify_pages import Delayed, Pages
from fp4ref.cli.verify_statement import Statement

if TYPE_CHECKING:
    from fp4ref.conformance.reports.view import View


@dataclass(frozen=True, kw_only=True)
class Reporting:
    """The ways in which a job reports its verdict.

    case: the name of a case, or of a block of one, to show alone. save_case: a file for that block, or for the first
    that differs. limit: the number of mismatches to show. seconds: of processor time for a diagnosis; None for the
    default, 0 for no diagnosis. given: the options on the command line, each as `--seed`.
    """

    case: str | None = None
    save_case: Path | None = None
    as_json: bool = False
    limit: int = 10
    pages: Pages = Pages()  # noqa: RUF009 - it is frozen
    seconds: float | None = None
    statement: Statement | None = None
    given: frozenset[str] = frozenset()

    @classmethod
    def of(cls, options: Mapping[str, Any], **more: Any) -> Self:
        """Return a record with the options of the names of its fields."""
        return cls(**{each.name: options[each.name] for each in fields(cls) if each.name in options} | more)

    def deliver(
        self,
        report: Any,
        show: Callable[[], None],
        view: Callable[[Any], View],
        state: Callable[[Statement, Any], None] | None = None,
    ) -> None:
        """Write the wanted files of a report, then print it as JSON or by `show`.

        view: makes what pages show of it. state: writes the statement; None for a run that was cut.

        Rules: CNF-110.
        """
        delayed = Delayed()
        if self.statement is not None and state is not None:
            with delayed.attempt():
                state(self.statement, report)
        if self.pages:
            with delayed.attempt():
                self.pages.write([view(report)])
        if self.as_json:
            click.echo(json.dumps(report.to_json(), indent=1, allow_nan=False))
        else:
            show()
        delayed.end()


@dataclass(frozen=True, kw_only=True)
class DumpChoice(Reporting):
    """Dumps to judge. profile: instead of their own specification; patterns: names of tensors."""

    spec: str | None = None
    profile: str | None = None
    scale_layout: str | None = None
    dtype: str | None = None
    packing: str | None = None
    inputs: Path | None = None
    patterns: tuple[str, ...] = ()
    amax: str | None = None


@dataclass(frozen=True, kw_only=True)
class Choice(Reporting):
    """A stream or a kernel to judge on aimed cases. require: families that must be tried, or "all"."""

    spec: str | None = None
    scale_layout: str | None = None
    nibbles: str | None = None
    packing: str | None = None
    require: tuple[str, ...] = ()

    @property
    def changes(self) -> dict[str, Any]:
        """Fields of a declaration that options set."""
        given = {"scale_layout": self.scale_layout, "nibble_order": self.nibbles, "packing": self.packing}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class CaseChoice:
    """The cases that a kernel is run on. families: names, None for all; weights: a model whose tensors are cases."""

    level: int = 2
    seed: int = 0
    families: tuple[str, ...] | None = None
    weights: Path | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the record of the options."""
        level, seed, weights = options["level"], options["seed"], options["weights"]
        return cls(level=level, seed=seed, families=options["families"] or None, weights=weights)


@dataclass(frozen=True, kw_only=True)
class KernelChoice(Choice):
    """A kernel that the command calls.

    target: MODULE:FUNCTION, or LIB:FUNCTION with the name or file of its signature. forever: go on with the next seed
    until something fails or the run is interrupted. huge: inputs past 2^31 bytes instead of the cases. exhaustive: a
    type, every value of which is tried instead of the cases. resume: a file with the progress of that.
    """

    target: str
    signature: str | None = None
    direction: str | None = None
    device: str | None = None
    forever: bool = False
    huge: bool = False
    exhaustive: str | None = None
    resume: Path | None = None
    cases: CaseChoice = field(default_factory=CaseChoice)

    @property
    def changes(self) -> dict[str, Any]:
        """Fields of a declaration that options set."""
        given = {"direction": self.direction, "device": self.device or None}
        return super().changes | {name: value for name, value in given.items() if value is not None}
