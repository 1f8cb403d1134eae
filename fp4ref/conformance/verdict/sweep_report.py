"""The outcome of a quantizer on every value of a type under every scale byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.judge.coverage import Coverage, Extent, not_judged
from fp4ref.conformance.run.ending import Ending
from fp4ref.conformance.run.sweep_trial import Sweep
from fp4ref.conformance.subjects.outcomes import Finding
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.conformance.verdict.dump_report import Verdict
from fp4ref.conformance.verdict.statement import NamedSubject, found_of
from fp4ref.spec import Granularity, Spec

KINDS = ("codes", "nan", "scales", "amax")
PLURALS = {"codes": "codes", "nan": "codes of NaN", "scales": "scales", "amax": "amaxes"}
SINGULARS = {"codes": "code", "nan": "code of NaN", "scales": "scale", "amax": "amax"}


@dataclass
class SweepReport:
    """The outcome of a sweep.

    maxima: global maxima that were tried, of `planned`. matrix: rows and columns of the largest call. patterns: those
    that were compared, beside the maxima of blocks. bytes_tried: scale bytes under any of them. counts: results
    that differ, by kind, those that are 0 left out; NaN apart. first: the first that differs, in words, by kind.
    stopped: why the sweep ended early. cut: the signal that ended it.
    """

    subject: str
    spec: Spec
    declaration: Declaration
    dtype: str
    planned: int = 1
    maxima: int = 0
    calls: int = 0
    patterns: int = 0
    bytes_tried: set[int] = field(default_factory=set)
    matrix: tuple[int, int] = (0, 0)
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    finding: Finding | None = None
    stopped: str = ""
    cut: Ending | None = None

    def add(self, sweep: Sweep, record: dict[str, Any]) -> None:
        """Count the outcome of one call."""
        if "stopped" in record:
            self.stopped = record["stopped"]
            return
        self.calls += 1
        self.finding = record.get("finding")
        if self.finding is not None:
            return
        self.patterns += sweep.patterns
        self.matrix = max(self.matrix, (record["rows"], record["columns"]))
        self.bytes_tried |= {steps.byte for steps in sweep.steps}
        for kind in KINDS:
            if record.get(kind):
                self.counts[kind] = self.counts.get(kind, 0) + record[kind]
        if "first" in record:
            pattern, maximum, byte, got, want = record["first"]
            where = (
                f"{self._shown(pattern)} beside the block maximum {self._shown(maximum)} under scale byte {byte:02X}"
            )
            kind = "codes" if record["codes"] else "nan"
            self.first.setdefault(kind, f"{where}: code {got:X}, expected {want:X}")
        if "first_scale" in record:
            maximum, byte, got = record["first_scale"]
            self.first.setdefault(
                "scales", f"block maximum {self._shown(maximum)}: byte {got:02X}, expected {byte:02X}"
            )

    def kept(self) -> dict[str, Any]:
        """Return the progress of a sweep as JSON data from which `restore` goes on: maxima, patterns, counts."""
        return {
            "maxima": self.maxima,
            "calls": self.calls,
            "patterns": self.patterns,
            "bytes_tried": sorted(self.bytes_tried),
            "matrix": [*self.matrix],
            "counts": {**self.counts},
            "first": {**self.first},
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Take over what another run compared."""
        for name, value in kept.items():
            setattr(self, name, type(getattr(self, name))(value))

    def _shown(self, pattern: int) -> str:
        kind = INPUT_DTYPES[self.dtype]
        value = np.array(pattern, f"u{kind.itemsize}").view(kind)
        return f"0x{pattern:0{2 * kind.itemsize}X} ({float(value):.9g})"

    @property
    def kind(self) -> Verdict:
        """The verdict. Rules: CNF-2, CNF-46, CNF-57."""
        if self.finding is not None or self.counts.keys() - {"nan"}:
            return Verdict.WRONG
        if self.stopped or not self.patterns:
            return Verdict.INCOMPLETE
        return Verdict.EXCEPT if self.counts else Verdict.CONFORMS

    @property
    def ok(self) -> bool:
        """True if nothing differs and nothing was left out."""
        return self.kind is Verdict.CONFORMS

    @property
    def extent(self) -> str:
        """The domain that was compared, in words. Rules: CNF-56."""
        under = f" and {self.maxima} global maxim{'um' if self.maxima == 1 else 'a'}" if self.has_global_scale else ""
        return f"every {self.dtype} under {len(self.bytes_tried)} scale bytes{under}, {self.patterns:,} elements"

    @property
    def has_global_scale(self) -> bool:
        """True if there is a global scale."""
        return self.spec.global_scale is not Granularity.NONE

    @property
    def headline(self) -> str:
        """The verdict in a line."""
        name = self.spec.name
        if self.finding is not None:
            return f"wrong: {self.finding.kind}: {self.finding.text}"
        if self.kind is Verdict.WRONG:
            found = ", ".join(
                f"{count:,} {PLURALS[kind]} differ" if count > 1 else f"1 {SINGULARS[kind]} differs"
                for kind, count in self._wrong()
            )
            seen = f"{self.stopped} after {self.patterns:,} elements" if self.stopped else f"compared {self.extent}"
            return f"wrong: {found} from {name}; {seen}"
        if self.kind is Verdict.INCOMPLETE:
            why = self.stopped or "nothing was compared"
            return f"incomplete: {why}; nothing differs from {name} in {self.patterns:,} elements"
        start = "" if self.ok else f"wrong on NaN only ({self.counts['nan']:,} codes differ), elsewhere "
        return f"{start}conforms to {name}: {self.extent}"

    def _wrong(self) -> list[tuple[str, int]]:
        return [(kind, self.counts[kind]) for kind in KINDS if kind in self.counts]

    @property
    def coverage(self) -> Coverage:
        """The basis of the verdict. Rules: CNF-22."""
        rows, columns = self.matrix
        extent = Extent(self.calls, rows, columns, 0, rows * columns, self.patterns, [self.dtype])
        left = not_judged(self.spec, self.declaration, amax="amax" in self.declaration.outputs)
        left |= {
            "infinities": "no block maximum is infinite",
            "shapes, alignment, padding": "a sweep is about values; run the aimed cases too",
        }
        return Coverage(extent, "call", not_judged=left, stopped=self.stopped)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "subject": self.subject,
            "spec": self.spec.name,
            "verdict": self.kind.value,
            "headline": self.headline,
            "sweep": self.swept,
            "counts": self.counts,
            "first": self.first,
            "finding": None if self.finding is None else {"kind": self.finding.kind.value, **self.finding.to_json()},
            "coverage": self.coverage.to_json(),
        }

    @property
    def swept(self) -> dict[str, Any]:
        """The domain as JSON data."""
        return {
            "dtype": self.dtype,
            "elements": self.patterns,
            "scale_bytes": len(self.bytes_tried),
            "global_maxima": self.maxima if self.has_global_scale else 0,
        }

    def statement(self, subject: NamedSubject) -> dict[str, Any]:
        """Return the trial and the findings of a sweep, for a statement. Rules: CNF-17, CNF-56."""
        finding = [] if self.finding is None else [{"kind": self.finding.kind.value, "count": 1, "first": "exhaustive"}]
        return found_of(
            self,
            subject,
            [self.spec],
            self.declaration,
            [] if self.ok else [f"exhaustive/{self.dtype}"],
            cases=self.calls,
            counts=dict(sorted(self.counts.items())),
            differs_on=["nan"] if "nan" in self.counts else [],
            findings=finding,
            sweep=self.swept,
        )
