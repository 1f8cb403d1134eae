"""The statement on the installed backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fp4ref.conformance.selfcheck.report import SelfCheckReport
from fp4ref.conformance.selfcheck.trials import specs
from fp4ref.conformance.verdict.dump_report import Cell
from fp4ref.conformance.verdict.statement import NamedSubject, found_of


def of_backends(report: SelfCheckReport, subject: NamedSubject) -> dict[str, Any]:
    """Return the trial and the findings of backends, for a statement.

    Its cases are tests of one backend each. The reason why a backend could not run is a fact of the machine.

    Rules: CNF-17, CNF-41, CNF-63.
    """
    absent = dict.fromkeys(report.unavailable, "not available")
    named = ((f"{name}: {reason}", n) for name, found in report.unsupported.items() for reason, n in found.items())
    return found_of(
        report,
        subject,
        specs(),
        failing=list(dict.fromkeys(report.failing)),
        rules={rule: _sum(by_subject) for rule, by_subject in report.cells.items()},
        skipped=dict(named),
        cases=report.tests.total(),
        coverage=replace(report.coverage, not_judged=absent).to_json(),
    )


def _sum(by_subject: Mapping[str, Cell]) -> Cell:
    found = by_subject.values()
    return Cell(sum(cell.passed for cell in found), sum(cell.total for cell in found))
