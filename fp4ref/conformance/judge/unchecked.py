"""Cases whose check failed inside this program: nothing is known of the kernel there, and the other cases stand."""

from __future__ import annotations

from dataclasses import dataclass, field

from fp4ref.conformance.judge.isolation import InternalError
from fp4ref.conformance.subjects.outcomes import Finding

INTERNAL_STATUS = 3  # of a command whose own check failed, whatever the other cases say


@dataclass
class Unchecked:
    """The cases by error. found: by the error's text, the finding and the names of its cases; families: of these."""

    found: dict[str, tuple[Finding, list[str]]] = field(default_factory=dict)
    families: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.found)

    def add(self, case: str, family: str, finding: Finding) -> None:
        """Note one case. Rules: CNF-68."""
        self.found.setdefault(finding.text, (finding, []))[1].append(case)
        self.families.add(family)

    @property
    def cases(self) -> list[str]:
        """The names of the cases."""
        return [case for _, names in self.found.values() for case in names]

    @property
    def errors(self) -> list[InternalError]:
        """An internal error for each text. Rules: CNF-69."""
        return [_error(finding, names) for finding, names in self.found.values()]

    @property
    def not_judged(self) -> dict[str, str]:
        """The cases among what was not judged, with the reason. Rules: CNF-22."""
        return {_named(names): f"internal error, {finding.text}" for finding, names in self.found.values()}

    @property
    def words(self) -> str:
        """The end of a headline; empty if every check ended."""
        return f"; an internal error left {_named(self.cases)} unjudged" if self else ""

    def status(self, of_verdict: int) -> int:
        """Return the exit status, given that of the verdict on the other cases. Rules: CNF-68."""
        return INTERNAL_STATUS if self else of_verdict


def _named(names: list[str], end: str = ",") -> str:
    return f"{len(names)} cases, first {names[0]}{end}" if len(names) > 1 else f"case {names[0]}"


def _error(finding: Finding, names: list[str]) -> InternalError:
    parts = finding.error
    assert parts is not None, "a finding of the kind INTERNAL"
    return InternalError(f"check of {_named(names, '')}", *parts, finding.trace)
