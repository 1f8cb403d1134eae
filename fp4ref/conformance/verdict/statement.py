"""Statements: what was tried on a subject and what was found, under a digest that another machine can reproduce."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fp4ref
from fp4ref.conformance.judge.excuses import Excuse
from fp4ref.conformance.verdict.dump_report import Cell, DumpReport, counts
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.levels import cited
from fp4ref.conformance.verdict.products import ProductReport
from fp4ref.conformance.verdict.stochastic import StochasticReport
from fp4ref.kernels import Declaration
from fp4ref.spec import SPEC_VERSION, Spec

VERSION = 1
SCHEMA = "statement.schema.json"
PREFIX = "sha256:"
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class NamedSubject:
    """A subject as a statement names it.

    kind: kernel, library, stream, dump or backends. name: without a folder, so that it is the same on every machine.
    version: as its author states it. sha256: of a dump's file, which is the subject itself. signature: of a C function.
    """

    kind: str
    name: str
    version: str = ""
    sha256: str = ""
    signature: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON data; what a subject has not is left out."""
        return {name: value for name, value in vars(self).items() if value or name in {"kind", "name"}}


def digest(found: Mapping[str, Any]) -> str:
    """Return the SHA-256 of canonical JSON: sorted keys, no spaces, UTF-8.

    >>> digest({"b": 1, "a": "x"})[:18]
    'sha256:cdab067e9f3'

    Rules: CNF-41.
    """
    text = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()


def statement(found: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return a statement. found: what the digest is over; beside: facts of the machine and of the moment.

    Rules: CNF-17, CNF-63.
    """
    return {"fp4ref_statement": VERSION, "digest": digest(found), "found": dict(found), "beside": dict(beside)}


def found_of(
    report: Any,
    subject: NamedSubject,
    specs: Sequence[Spec],
    declared: Declaration | None = None,
    failing: Sequence[str] = (),
    known: Mapping[str, str] = NOTHING,
    rules: Mapping[str, Cell] = NOTHING,
    skipped: Mapping[str, int] = NOTHING,
    **more: Any,
) -> dict[str, Any]:
    """Return the trial and the findings of a subject, for a statement, with the same fields for every kind of subject.

    report: of any kind, with `ok` and `coverage`. failing: names of cases. known: reasons of known failures, by case.
    more: other fields; those that are None are left out.

    Rules: CNF-17, RES-3, CNF-62.
    """
    found = {
        "standard": SPEC_VERSION,
        "kit": fp4ref.__version__,
        "subject": subject.to_json(),
        "conforms": report.ok,
        "coverage": report.coverage.to_json(),
        "failing": list(failing),
        "known_failures": [{"case": case, "reason": known[case]} for case in failing if case in known],
        "specs": {spec.name: json.loads(spec.to_json()) for spec in specs},
        "declaration": {} if declared is None else json.loads(json.dumps(declared.to_json())),
        "levels": None if declared is None else cited(specs[0], declared) if report.ok else {},
        "cases": 0,
        "families": {},
        "rules": cells(rules),
        "counts": {},
        "differs_on": [],
        "seed": None,
        "seeds": None,
        "findings": [],
        "skipped": dict(sorted(skipped.items())),
    }
    return {name: value for name, value in (found | more).items() if value is not None}


def of_kernel(report: KernelReport, subject: NamedSubject, known: Mapping[str, str]) -> dict[str, Any]:
    """Return the trial and the findings of a kernel, for a statement. Rules: CNF-17."""
    first = {kind: case for kind, (case, _) in report.first.items()}
    return found_of(
        report,
        subject,
        [report.spec],
        report.declaration,
        report.failing,
        known,
        report.rules,
        report.skipped,
        cases=report.cases,
        families=cells(report.families),
        counts=dict(sorted(report.differing.items())),
        differs_on=[excuse.value for excuse in Excuse if report.excused[excuse]],
        seed=report.settings.reach.seed,
        seeds=report.seeds,
        findings=[{"kind": k.value, "count": report.findings[k], "first": first[k]} for k in sorted(first)],
    )


def of_product(report: ProductReport, subject: NamedSubject, known: Mapping[str, str]) -> dict[str, Any]:
    """Return the trial and the findings of a GEMM, for a statement. Rules: CNF-17."""
    families = report.families()
    judged = {judgement.case.id for judgement in report.judgements}
    for case in (case for case, _ in report.findings if case.id not in judged):
        families.setdefault(case.family, Cell()).total += 1
    kinds: dict[str, list[str]] = {}
    for case, finding in report.findings:
        kinds.setdefault(finding.kind.value, []).append(case.id)
    return found_of(
        report,
        subject,
        [report.spec],
        report.declaration,
        list(dict.fromkeys(report.failing)),
        known,
        report.rules(),
        report.skipped,
        cases=sum(cell.total for cell in families.values()),
        families=cells(families),
        counts={"results": len(report.failed)} if report.failed else {},
        seed=report.seed,
        seeds=report.seeds,
        findings=[{"kind": kind, "count": len(kinds[kind]), "first": kinds[kind][0]} for kind in sorted(kinds)],
    )


def of_dump(report: DumpReport, subject: NamedSubject) -> dict[str, Any]:
    """Return the comparison of a dump, for a statement; each direction of a tensor is a case. Rules: CNF-17."""
    total: Counter[str] = Counter()
    for result in report.results:
        total.update(counts(result.compared))
    return found_of(
        report,
        subject,
        [result.spec for result in report.results],
        failing=[f"{r.name}:{r.compared.direction}" for r in report.results if not r.compared.equal],
        cases=len(report.results),
        counts=dict(sorted(total.items())),
        differs_on=[excuse.value for excuse in report.excused],
    )


def of_drawing(report: StochasticReport, declared: Declaration, subject: NamedSubject) -> dict[str, Any]:
    """Return the trial and the findings of a kernel that draws its own random bits, for a statement.

    The finding is which counts are plausible; the counts themselves, and causes that cite them, differ from run to run.

    Rules: CNF-17, CNF-41, CNF-63.
    """
    plausible: dict[str, bool] = {}
    for test in report.tests:
        plausible[test.name] = test.passed and plausible.get(test.name, True)
    randomness = {
        "level": report.level.value,
        "map": report.map or "",
        "seed": report.seed,
        "seeds": report.seeds,
        "tests": dict(sorted(plausible.items())),
        "wrong": list(report.wrong),
    }
    return found_of(report, subject, [report.spec], declared, cases=report.coverage.extent.count, randomness=randomness)


def cells(counted: Mapping[str, Cell]) -> dict[str, dict[str, int]]:
    """Return tests passed and made, by name."""
    return {name: {"passed": cell.passed, "total": cell.total} for name, cell in sorted(counted.items())}


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
