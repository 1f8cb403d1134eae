"""Failures that are known and accepted: a file outside the suite, a line each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fp4ref.catalogue import resolve
from fp4ref.conformance.families import FAMILIES, family_of
from fp4ref.errors import FileError


class ExpectedFailure(NamedTuple):
    """A line of a file: a case that is known to fail, and the reason."""

    kernel: str
    spec: str
    case: str
    reason: str
    place: str

    @property
    def family(self) -> str:
        """The family of the case, or of the cases."""
        return family_of(self.case)

    def matches(self, case: str) -> bool:
        """Return True if it is about a case, or about all cases of its family."""
        return family_of(case) == self.family if self.case == f"{self.family}/*" else case == self.case


@dataclass(frozen=True)
class ExpectedFailures:
    """The lines of a file."""

    lines: tuple[ExpectedFailure, ...] = ()

    def of(self, kernel: str, spec: str) -> tuple[ExpectedFailure, ...]:
        """Return those of a kernel under a specification."""
        return tuple(line for line in self.lines if line.kernel in {kernel, "*"} and line.spec == spec)


def read_expected_failures(path: str | os.PathLike[str]) -> ExpectedFailures:
    """Read a file of expected failures.

    Errors: FileError for a line without a reason, for an unknown family and for a case that is listed twice;
    DomainError for an unknown specification.

    Rules: CNF-7.
    """
    lines: dict[tuple[str, ...], ExpectedFailure] = {}
    for number, text in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        place, parts = f"{os.fspath(path)}:{number}", text.split(None, 3)
        if len(parts) < 4:
            raise FileError(place, f"{len(parts)} words", "KERNEL SPEC CASE REASON", "CNF-7")
        line = ExpectedFailure(parts[0], resolve(parts[1]).name, parts[2], parts[3], place)
        if line.family not in FAMILIES or line.family == line.case:
            raise FileError(place, f"unknown case {line.case!r}", "the name of a case, or FAMILY/*", "CNF-7")
        if lines.setdefault(line[:3], line) is not line:
            raise FileError(place, f"{line.case} again", f"it once, as in {lines[line[:3]].place}", "CNF-7")
    return ExpectedFailures(tuple(lines.values()))
