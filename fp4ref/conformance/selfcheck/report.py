"""The report on the installed implementations: a matrix of rules and subjects, and the first failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fp4ref.conformance.families import FAMILIES
from fp4ref.conformance.judge.coverage import Coverage, Extent, untried
from fp4ref.conformance.vectors.text import Mismatch
from fp4ref.conformance.verdict.dump_report import Cell, count_test
from fp4ref.rules import known

if TYPE_CHECKING:
    from rich.console import Console

LEFT_OUT = "left out of the check of backends"
KEPT = 20  # mismatching tests that are described, per subject


@dataclass(frozen=True)
class Failure:
    """A test that a subject failed, and its first mismatch. id: of a vector or of an aimed case."""

    subject: str
    id: str
    rules: tuple[str, ...]
    mismatches: int
    first: Mismatch

    def __str__(self) -> str:
        more = f" (and {self.mismatches - 1} more)" if self.mismatches > 1 else ""
        return f"{self.subject}: {self.id} [{', '.join(self.rules)}] {self.first}{more}"


@dataclass
class SelfCheckReport:
    """A matrix of rules and subjects, and the first failures.

    failing: all tests that failed, each as `SUBJECT: ID`.
    cells: by rule, then subject. tests, failed: counts by subject. unsupported: by subject, how many tests did not
    apply for which reason. unavailable: backends that nobody asked for and that cannot run, with their reasons.
    extent, families: of the aimed tensors that backends were compared on.
    """

    subjects: list[str] = field(default_factory=list)
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)
    tests: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    failing: list[str] = field(default_factory=list)
    unsupported: dict[str, Counter[str]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    extent: Extent = field(default_factory=Extent)
    families: Counter[str] = field(default_factory=Counter)

    @property
    def coverage(self) -> Coverage:
        """The basis of the verdict: the aimed tensors. Rules: CNF-22."""
        not_judged = {name: f"not available: {reason}" for name, reason in self.unavailable.items()}
        missing = untried(FAMILIES, self.families, lambda name: LEFT_OUT, "") if self.families else {}
        return Coverage(self.extent, "aimed tensor", dict(self.families), missing, not_judged)

    @property
    def ok(self) -> bool:
        """True if every subject ran and passed every test. Rules: CNF-2."""
        return bool(self.subjects) and all(self.tests[name] and not self.failed[name] for name in self.subjects)

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.ok:
            counts = ", ".join(f"{name} {self.tests[name]}" for name in self.subjects)
            return f"conforms: no byte differs in any test ({counts})"
        wrong = [name for name in self.subjects if self.failed[name] or not self.tests[name]]
        counts = ", ".join(f"{name} fails {self.failed[name]} of {self.tests[name]} tests" for name in wrong)
        return f"wrong: {counts}" if wrong else "wrong: nothing was checked"

    def add(
        self, subject: str, test: str, rules: Sequence[str], found: list[Mismatch], blamed: Sequence[str] = ()
    ) -> None:
        """Count one test; blamed: the rules that a mismatch speaks against, if not all."""
        self.tests[subject] += 1
        for rule in dict.fromkeys(rules):
            passed = not found or bool(blamed and rule not in blamed)
            count_test(self.cells.setdefault(rule, {}), subject, passed=passed)
        if found:
            self.failed[subject] += 1
            self.failing.append(f"{subject}: {test}")
            if self.failed[subject] <= KEPT:
                self.failures.append(Failure(subject, test, tuple(blamed or rules), len(found), found[0]))

    @property
    def _rules(self) -> list[str]:
        """The rules of the tests in the order of the standard, then those that only somebody's vectors name."""
        return [*(rule for rule in known() if rule in self.cells), *sorted(self.cells.keys() - known().keys())]

    def render(self, console: Console) -> None:
        """Print the verdict, the first failures, the matrix, and what did not run."""
        from rich.table import Table

        console.print(self.headline, style="bold green" if self.ok else "bold red", markup=False)
        for line in self.coverage.lines:
            console.print(line, markup=False)
        for failure in self.failures:
            console.print(str(failure), markup=False)
        table = Table("rule", *self.subjects, box=None, pad_edge=False)
        for rule in self._rules:
            table.add_row(rule, *(_shown(self.cells[rule].get(name)) for name in self.subjects))
        console.print(table)
        for name, reasons in self.unsupported.items():
            for reason, count in reasons.items():
                console.print(f"{name}: {count} tests do not apply: {reason}", markup=False)
        for name, reason in self.unavailable.items():
            console.print(f"{name}: not available: {reason}", markup=False)

    def to_json(self) -> dict[str, Any]:
        """Everything, as data."""
        return {
            "ok": self.ok,
            "headline": self.headline,
            "coverage": self.coverage.to_json(),
            "subjects": self.subjects,
            "tests": {
                name: {"passed": self.tests[name] - self.failed[name], "total": self.tests[name]}
                for name in self.subjects
            },
            "rules": {rule: {name: asdict(cell) for name, cell in self.cells[rule].items()} for rule in self._rules},
            "failures": [asdict(failure) for failure in self.failures],
            "unsupported": {name: dict(reasons) for name, reasons in self.unsupported.items()},
            "unavailable": self.unavailable,
        }


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    mark = "" if cell.passed == cell.total else "[red]"
    return f"{mark}{cell.passed}/{cell.total}"
