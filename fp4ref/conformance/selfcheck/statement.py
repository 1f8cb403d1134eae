"""The statement on the installed backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fp4ref.conformance.selfcheck.report import SelfCheckReport
from fp4ref.conformance.selfcheck.trials import specs
from fp4ref.conformance.verdict.dump_report import Cell
from fp4ref.conformance.verdict.statement import NamedSubject, cells, common, specs_of


def of_backends(report: SelfCheckReport, subject: NamedSubject) -> dict[str, Any]:
    """Return the trial and the findings of backends, for a statement.

    Its cases are tests of one backend each. The reason why a backend could not run is a fact of the machine.

    Rules: CNF-17, CNF-41, CNF-63.
    """
    absent = dict.fromkeys(report.unavailable, "not available")
    basis = replace(report.coverage, not_judged=absent).to_json()
    rules = {rule: _sum(by_subject) for rule, by_subject in report.cells.items()}
    skipped = {
        f"{name}: {reason}": count
        for name, by_reason in report.unsupported.items()
        for reason, count in by_reason.items()
    }
    return {
        **common(subject, report.ok, basis, list(dict.fromkeys(report.failing)), {}),
        "specs": specs_of(specs()),
        "declaration": {},
        "cases": report.tests.total(),
        "families": {},
        "rules": cells(rules),
        "counts": {},
        "differs_on": [],
        "findings": [],
        "skipped": dict(sorted(skipped.items())),
    }


def _sum(by_subject: Mapping[str, Cell]) -> Cell:
    found = by_subject.values()
    return Cell(sum(cell.passed for cell in found), sum(cell.total for cell in found))
