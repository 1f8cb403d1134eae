"""The report on a dump: a verdict, and the comparisons that it rests on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fp4ref.conformance.diagnosis.explanations import Diagnosis, verdict
from fp4ref.conformance.dumps.cases import CaseID
from fp4ref.conformance.judge.comparison import ROWS_WITH_SPARE, Comparison, Difference
from fp4ref.conformance.judge.coverage import Coverage, Extent
from fp4ref.conformance.judge.excuses import Excuse
from fp4ref.conformance.judge.isolation import InternalError, unexplained
from fp4ref.conformance.judge.unchecked import INTERNAL_STATUS, Unchecked
from fp4ref.quantized import matrix_shape
from fp4ref.spec import Granularity, Spec


def untried_text(count: int) -> str:
    """Return the end of a headline if the time limit left cases untried. Rules: CNF-38."""
    return f"; stopped by the time limit, at least {count} cases were not tried" if count else ""


def others(count: int) -> str:
    """Name the cases that have a result, where some have none."""
    return "the other case" if count == 1 else f"the other {count} cases"


@dataclass
class Cell:
    """The numbers of tests of a rule or family that a subject passed, and of all."""

    passed: int = 0
    total: int = 0


def count_test(cells: dict[Any, Cell], key: Any, *, passed: bool) -> None:
    """Add one test to a cell."""
    cell = cells.setdefault(key, Cell())
    cell.total += 1
    cell.passed += passed


def profiles_text(names: Sequence[str]) -> str:
    """Return the names of profiles for a headline, the first ones if there are many."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")


class Verdict(StrEnum):
    """The verdicts, best first. Rules: CNF-2, CNF-23."""

    CONFORMS = "conforms"
    INCOMPLETE = "incomplete"
    UNCHECKED = "not judged in whole"
    EXCEPT = "wrong on special input only"
    PROFILE = "is a profile"
    WRONG = "wrong"

    @property
    def status(self) -> int:
        """The exit status of a command. Rules: CNF-130."""
        return {Verdict.CONFORMS: 0, Verdict.INCOMPLETE: 2, Verdict.UNCHECKED: INTERNAL_STATUS}.get(self, 1)


class KernelVerdict:
    """The properties that reports on kernels share; a report has the fields, and a verdict of its own.

    lost: exceptions inside the diagnosis, which cost nothing but the diagnosis.
    """

    unchecked: Unchecked
    lost: Sequence[InternalError]

    @property
    def kind(self) -> Verdict:
        """The verdict."""
        raise NotImplementedError

    @property
    def ok(self) -> bool:
        """True if nothing is wrong, and all was tried that was required."""
        return self.kind is Verdict.CONFORMS

    @property
    def errors(self) -> list[InternalError]:
        """Exceptions inside this program: in checks of results, then in the diagnosis. Rules: CNF-10."""
        return [*self.unchecked.errors, *self.lost]

    @property
    def status(self) -> int:
        """The exit status of a command. Rules: CNF-68, CNF-130."""
        return self.unchecked.status(self.kind.status)


@dataclass(frozen=True)
class Result:
    """The comparison of one direction of a tensor."""

    name: str
    spec: Spec
    dtype: str
    shape: tuple[int, ...]
    scale_layout: str
    compared: Comparison

    def case(self, difference: Difference) -> CaseID:
        """Return the name of a differing block."""
        return CaseID(self.name, self.compared.direction, difference.row, difference.block)


@dataclass(frozen=True)
class DumpReport:
    """The verdict on one file, and the comparisons that it rests on.

    profiles: those that equal all of it. diagnosis: of the first tensors that differ. errors: parts that failed.
    amax_given: the bytes were judged by the amax in the file.
    """

    path: str
    kind: Verdict
    profiles: tuple[str, ...]
    results: tuple[Result, ...]
    diagnosis: Diagnosis | None = None
    errors: tuple[InternalError, ...] = ()
    amax_given: bool = False

    @property
    def ok(self) -> bool:
        """True if every byte is right."""
        return self.kind is Verdict.CONFORMS

    @property
    def excused(self) -> tuple[Excuse, ...]:
        """Classes of input on which the file differs."""
        return tuple(e for e in Excuse if any(result.compared.excused[e] for result in self.results))

    @property
    def headline(self) -> str:
        """The verdict in a line."""
        specs = ", ".join(dict.fromkeys(result.spec.name for result in self.results))
        names = profiles_text(self.profiles)
        tolerated = sum(result.compared.tolerated for result in self.results)
        match self.kind:
            case Verdict.CONFORMS:
                orders = f" ({tolerated:,} by the bound of HAD-7)" if tolerated else ""
                return f"conforms to {specs}{orders}"
            case Verdict.EXCEPT:
                profile = f"; is profile {names}" if names else ""
                special = ", ".join(self.excused)
                return f"wrong on {special} only; conforms to {specs} elsewhere{profile}{self._mistake()}"
            case Verdict.PROFILE:
                return f"is profile {names}, not {specs}: {self._counts()} differ{self._mistake()}"
            case _:
                undiagnosed = unexplained(self.errors) or "not explained"
                cause = undiagnosed if self.diagnosis is None else verdict(self.diagnosis)
                return f"wrong: {cause}; differs from {specs} in {self._counts()}"

    @property
    def coverage(self) -> Coverage:
        """The basis of the verdict. Rules: CNF-22."""
        extent, seen = Extent(), set()
        for result in self.results:
            if result.name not in seen:
                extent.add(result.dtype, *matrix_shape(result.shape))
            seen.add(result.name)
        scaled = any(result.spec.global_scale is not Granularity.NONE for result in self.results)
        amax = {"amax": "taken from the file"} if self.amax_given and scaled else {}
        return Coverage(extent, "tensor", not_judged={**amax, "other inputs": "a file shows its own only"})

    def _mistake(self) -> str:
        """Return the known mistake that makes the bytes, where there is one beside the profiles."""
        found = () if self.diagnosis is None else self.diagnosis.explanations
        told = next((explanation.text for explanation in found if explanation.profile is None), "")
        return f"; known mistake: {told}" if told else ""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "path": self.path,
            "verdict": self.kind.value,
            "headline": self.headline,
            "differs_on": [excuse.value for excuse in self.excused],
            "profiles": list(self.profiles),
            "coverage": self.coverage.to_json(),
            "diagnosis": None if self.diagnosis is None else self.diagnosis.to_json(),
            "tensors": [result_json(result) for result in self.results],
            "internal_errors": [error.to_json() for error in self.errors],
        }

    def _counts(self) -> str:
        total: Counter[str] = Counter()
        for result in self.results:
            total.update(counts(result.compared))
        words = [f"{count:,} {what if count > 1 else SINGULAR.get(what, what)}" for what, count in total.items()]
        return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def incomplete(right: str, missing: Mapping[str, str]) -> str:
    """Return the verdict on a subject of which nothing is wrong, but not all was tried that was required.

    right: what was seen. missing: required families, with the reasons why no case of them was compared.

    Rules: CNF-23.
    """
    name, reason = next(iter(missing.items()))
    more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"incomplete: the required family {name} was not tried ({reason}){more}; {right}"


KINDS = ("code", "scale", "spare nibble", "padding byte")
SINGULAR = {f"{what}s": what for what in KINDS} | {ROWS_WITH_SPARE: "row with spare bits that are set"}


def counts(compared: Comparison) -> dict[str, int]:
    """Differences by kind, where there are any."""
    found = {
        "codes": compared.codes,
        "scales": compared.scales,
        "amax": compared.amax,
        compared.spare_counted: compared.spare,
        "padding bytes": compared.padding,
    }
    return {what: count for what, count in found.items() if count}


def result_json(result: Result) -> dict[str, Any]:
    """Return one direction of a tensor as JSON data."""
    compared = result.compared
    places = {
        "amax": compared.first_amax,
        compared.spare_counted: compared.first_spare,
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
