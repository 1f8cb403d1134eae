"""The basis of a verdict: how much was compared, and what was not judged. One record for every kind of subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fp4ref.errors import DomainError
from fp4ref.kernels import SPECIALS, Declaration
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity, Spec

ALL = "all"  # as a required family: every one that has a case for the specification
NOT_RUN = "no case of it was run"
LISTED = 12  # families of one reason that a line of text names
NOT_ASKED = "not asked for"
ONCE = {"state between calls": "no --repeat"}  # among the things that are not judged
UNCHECKED = "a check of this program failed in all of its cases"
BROKE = "the kernel broke down in all of its cases"


@dataclass
class Extent:
    """A count of what was compared, and its largest sizes.

    largest, elements: elements of the largest one, and of all. depth: of the largest product, 0 where there are none.
    scale_bytes: those that were given to a kernel which reads them.
    """

    count: int = 0
    rows: int = 0
    columns: int = 0
    depth: int = 0
    largest: int = 0
    elements: int = 0
    dtypes: list[str] = field(default_factory=list)
    scale_bytes: set[int] = field(default_factory=set)

    def add(self, dtype: str, rows: int, columns: int, depth: int = 0) -> None:
        """Count one tensor or case."""
        self.count += 1
        self.rows, self.columns = max(self.rows, rows), max(self.columns, columns)
        self.depth = max(self.depth, depth)
        self.largest = max(self.largest, rows * columns)
        self.elements += rows * columns
        if dtype not in self.dtypes:
            self.dtypes.append(dtype)

    def add_bytes(self, given: DirectionData | None) -> None:
        """Count the scale bytes of a tensor that was given as bytes. Rules: CNF-72."""
        if given is not None:
            self.scale_bytes.update(np.unique(given.scales).tolist())


@dataclass(frozen=True)
class Coverage:
    """The basis of a verdict.

    unit: the name of one thing that was compared. tried: compared cases by family. untried: families that have cases
    for the specification, of which none was compared, with the reasons. not_judged: other things, with the reasons.
    stopped: why the run ended early. For a subject without families, as a dump, `tried` and `untried` are empty.

    Rules: CNF-22.
    """

    extent: Extent
    unit: str = "case"
    tried: Mapping[str, int] = field(default_factory=dict)
    untried: Mapping[str, str] = field(default_factory=dict)
    not_judged: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""

    def missing(self, required: Sequence[str]) -> dict[str, str]:
        """Return the required families of which no case was compared, with the reasons. Rules: CNF-23."""
        names = {*self.tried, *self.untried} if ALL in required else set()
        names |= set(required) - {ALL}
        return {
            name: self.untried.get(name, "it has no case for the specification")
            for name in sorted(names)
            if name not in self.tried
        }

    @property
    def lines(self) -> list[str]:
        """The basis as text: what was compared, then what was not."""
        found = [f"rests on {self._amount()}"]
        found += [f"the run ended early: {self.stopped}"] if self.stopped else []
        if self.not_judged:
            said = ", ".join(f"{what} ({why})" for what, why in self.not_judged.items())
            found.append(f"not judged: {said}")
        if self.untried:
            by_reason: dict[str, list[str]] = {}
            for name, reason in self.untried.items():
                by_reason.setdefault(reason, []).append(name)
            others = len(by_reason.pop(NOT_ASKED, ()))  # the user's own choice needs no list
            groups = [f"{_listed(names)} ({reason})" for reason, names in by_reason.items()]
            groups += [f"{others} that were {NOT_ASKED}"] if others else []
            found.append(f"families not tried: {'; '.join(groups)}")
        return found

    def _amount(self) -> str:
        extent = self.extent
        units = f"{extent.count:,} {self.unit}{'' if extent.count == 1 else 's'}"
        if not extent.count:
            return units
        known = len(self.tried) + len(self.untried)
        families = f" of {len(self.tried)} of {known} families" if known else ""
        depth = f", depth {extent.depth:,}" if extent.depth else ""
        sizes = f"up to {extent.rows:,} rows, {extent.columns:,} columns{depth}, {extent.largest:,} elements"
        given = f", {len(extent.scale_bytes)} scale bytes given" if extent.scale_bytes else ""
        return f"{units}{families}, {' '.join(extent.dtypes)}, {sizes}{given}"

    def to_json(self) -> dict[str, Any]:
        """Return the basis as JSON data."""
        extent = self.extent
        return {
            f"{self.unit.replace(' ', '_')}s": extent.count,
            "elements": extent.elements,
            "dtypes": extent.dtypes,
            "largest": {
                "rows": extent.rows,
                "columns": extent.columns,
                **({"depth": extent.depth} if extent.depth else {}),
                "elements": extent.largest,
            },
            **({"scale_bytes": len(extent.scale_bytes)} if extent.scale_bytes else {}),
            "families": {
                "tried": dict(self.tried),
                "known": len(self.tried) + len(self.untried),
                "not_tried": dict(self.untried),
            },
            "not_judged": dict(self.not_judged),
            "stopped": self.stopped,
        }


def _listed(names: Sequence[str]) -> str:
    """Return names for a line of text; JSON has all of them."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def untried(
    known: Iterable[str], tried: Mapping[str, int], reason: Callable[[str], str | None], stopped: str
) -> dict[str, str]:
    """Return the known families without a compared case, with the reasons.

    reason: why a family had no case, empty if it had some; None if it has none for the specification at all.
    stopped: why the run ended early.
    """
    found = {name: reason(name) for name in known if name not in tried}
    return {name: said or stopped or NOT_RUN for name, said in found.items() if said is not None}


def required(names: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the families of `--require`, split at commas.

    Errors: DomainError for an unknown name.

    Rules: CNF-23.
    """
    found = tuple(dict.fromkeys(name.strip() for text in names for name in text.split(",")))
    families = tuple(known)
    for name in found:
        if name != ALL and name not in families:
            raise DomainError(
                "verify", f"required family {name!r}", f"{ALL}, or one of {', '.join(families)}", "CNF-23"
            )
    return found


def not_judged(
    spec: Spec, declared: Declaration, *, amax: bool, piped: bool = False, repeated: bool = False
) -> dict[str, str]:
    """Return properties of a quantizer or a similar kernel that no case can show, each with its reason.

    amax: at least one amax was returned. piped: a program reads cases from a pipe and is not called. repeated: cases
    are run again, in another order.

    Rules: CNF-22.
    """
    found = {}
    if (
        declared.operation == "quantize"
        and spec.global_scale is not Granularity.NONE
        and (declared.told_amax or not amax)
    ):
        found["amax"] = "given to the kernel" if declared.told_amax else "not returned"
    if declared.operation == "dequantize" and set(SPECIALS) - set(declared.specials):
        left = " and ".join(sorted(set(SPECIALS) - set(declared.specials)))
        found[f"bytes that are {left}"] = "the kernel is declared without them"
    if not declared.strided:
        found["strides"] = "x is always contiguous"
    if piped:
        found["writes past the results, changed inputs, repeatability"] = "a program behind a pipe"
        return found
    if not declared.out_buffers:
        found["writes past the results"] = "no out= buffers"
    return found if repeated else found | ONCE
