"""The report on a dump: a verdict, and the comparisons that it rests on."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fp4ref.conformance.cases import CaseID
from fp4ref.conformance.compare import Comparison, Difference
from fp4ref.conformance.diagnose import Diagnosis, verdict
from fp4ref.conformance.excuses import Excuse
from fp4ref.conformance.isolation import InternalError, unexplained
from fp4ref.spec import Spec


@dataclass
class Cell:
    """How many tests of a rule, or of a family, a subject passed."""

    passed: int = 0
    total: int = 0


class Kind(StrEnum):
    """The verdicts, best first. Rules: CNF-2."""

    CONFORMS = "conforms"
    FINITE = "conforms on finite input"
    PROFILE = "equals a profile"
    WRONG = "wrong"


@dataclass(frozen=True)
class Result:
    """One direction of one tensor, compared."""

    name: str
    spec: Spec
    dtype: str
    shape: tuple[int, ...]
    scale_layout: str
    compared: Comparison

    def case(self, difference: Difference) -> CaseID:
        """The name of a differing block."""
        return CaseID(self.name, self.compared.direction, difference.row, difference.block)


@dataclass(frozen=True)
class Report:
    """The verdict on one file, and the comparisons that it rests on.

    profiles: those that equal all of it. diagnosis: of the first tensors that differ. errors: parts that failed.
    """

    path: str
    kind: Kind
    profiles: tuple[str, ...]
    results: tuple[Result, ...]
    diagnosis: Diagnosis | None = None
    errors: tuple[InternalError, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every byte is right."""
        return self.kind is Kind.CONFORMS

    @property
    def excused(self) -> tuple[Excuse, ...]:
        """Classes of input on which the file differs."""
        return tuple(e for e in Excuse if any(result.compared.excused[e] for result in self.results))

    @property
    def headline(self) -> str:
        """The verdict in a line."""
        specs = ", ".join(dict.fromkeys(result.spec.name for result in self.results))
        names = ", ".join(self.profiles[:3]) + (f" and {len(self.profiles) - 3} more" if self.profiles[3:] else "")
        tolerated = sum(result.compared.tolerated for result in self.results)
        match self.kind:
            case Kind.CONFORMS:
                orders = f" ({tolerated:,} by the bound of HAD-7)" if tolerated else ""
                return f"conforms to {specs}{orders}"
            case Kind.FINITE:
                equals = f"; equals profile {names}" if names else ""
                special = ", ".join(self.excused)
                return f"conforms to {specs} on finite input, differs on {special}{equals}{self._mistake()}"
            case Kind.PROFILE:
                return f"equals profile {names}, not {specs}: {self._counts()} differ{self._mistake()}"
            case _:
                undiagnosed = unexplained(self.errors) or "not explained"
                cause = undiagnosed if self.diagnosis is None else verdict(self.diagnosis)
                return f"wrong: {cause}; differs from {specs} in {self._counts()}"

    def _mistake(self) -> str:
        """The known mistake that makes the bytes, where there is one beside the profiles."""
        found = () if self.diagnosis is None else self.diagnosis.explanations
        told = next((explanation.text for explanation in found if explanation.profile is None), "")
        return f"; known mistake: {told}" if told else ""

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "path": self.path,
            "verdict": self.kind.value,
            "headline": self.headline,
            "differs_on": [excuse.value for excuse in self.excused],
            "profiles": list(self.profiles),
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_json(),
            "tensors": [result_json(result) for result in self.results],
            "internal_errors": [error.to_json() for error in self.errors],
        }

    def _counts(self) -> str:
        total: Counter[str] = Counter()
        for result in self.results:
            total.update(counts(result.compared))
        words = [f"{count:,} {what if count > 1 else what.removesuffix('s')}" for what, count in total.items()]
        return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def counts(compared: Comparison) -> dict[str, int]:
    """Differences by kind, where there are any."""
    found = {
        "codes": compared.codes,
        "scales": compared.scales,
        "amax": compared.amax,
        "spare nibbles": compared.spare,
        "padding bytes": compared.padding,
    }
    return {what: count for what, count in found.items() if count}


def result_json(result: Result) -> dict[str, Any]:
    """One direction of a tensor as JSON data."""
    compared = result.compared
    places = {
        "amax": compared.first_amax,
        "spare nibbles": compared.first_spare,
        "padding bytes": compared.first_padding,
    }
    return {
        "tensor": result.name,
        "direction": compared.direction,
        "spec": result.spec.name,
        "dtype": result.dtype,
        "shape": list(result.shape),
        "scale_layout": result.scale_layout,
        "equal": compared.equal,
        "counts": counts(compared),
        "tolerated": compared.tolerated,
        "excused": {excuse.value: count for excuse, count in compared.excused.items()},
        "first": {what: vars(place) for what, place in places.items() if place},
        "differences": [
            vars(found)
            | {"case": str(result.case(found)), "value": found.value if math.isfinite(found.value) else None}
            for found in compared.differences
        ],
    }
