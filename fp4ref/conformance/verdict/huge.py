"""A quantizer on inputs past 2^31 bytes, 2^31 elements and 2^32 elements, and its outcome."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fp4ref.conformance.judge.coverage import Coverage, Extent, not_judged
from fp4ref.conformance.run.ending import STOPPED, Ending, words
from fp4ref.conformance.run.huge_call import attempt
from fp4ref.conformance.run.huge_tile import PARTS, SIZES, WIDTH, HugePlan, Size, plan
from fp4ref.conformance.run.long_calls import caller
from fp4ref.conformance.run.run_options import DEFAULT, RunOptions
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind
from fp4ref.conformance.subjects.subject import Declaration, Subject
from fp4ref.conformance.verdict.dump_report import Verdict
from fp4ref.spec import Spec

BUILDING = 1 << 26  # elements that may take a second more, to be built and compared


@dataclass(frozen=True)
class HugeCase:
    """A huge call: the sizes that it passes, rows and columns of x, and its outcome.

    skipped: why the call was not made. finding: what went wrong instead of results. results: by name, as `Difference`
    has them, with the row of x and the element where each begins and ends to differ.
    """

    size: Size
    dtype: str
    rows: int
    columns: int
    skipped: str = ""
    finding: Finding | None = None
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the case, as `huge/element-2^31/bf16`."""
        return f"huge/{self.size.name.replace(' ', '-')}/{self.dtype}"

    @property
    def differing(self) -> dict[str, dict[str, Any]]:
        """The results of which bytes differ."""
        return {name: found for name, found in self.results.items() if found["differing"]}

    @property
    def wrong(self) -> bool:
        """True if a byte differs or something else was found."""
        return self.finding is not None or bool(self.differing)

    @property
    def tried(self) -> bool:
        """True if the kernel was called."""
        return not self.skipped

    @property
    def said(self) -> str:
        """The finding, or the result that differs, in a few words."""
        if self.finding is not None:
            return f"{self.finding.kind}: {self.finding.text}"
        return _where(*next(iter(self.differing.items())))

    @property
    def lines(self) -> list[str]:
        """The case as text."""
        start = f"{self.name}, {self.rows:,} x {self.columns:,}:"
        if self.skipped:
            return [f"{start} not tried, {self.skipped}"]
        if self.finding is not None:
            return [f"{start} {self.said}"]
        if not self.differing:
            compared = sum(found["size"] for found in self.results.values())
            samples = {part for found in self.results.values() for part in found["samples"]}
            return [f"{start} no byte of {compared:,} differs; {len(samples)} samples of rows agree"]
        return [f"{start} {_said(name, found)}" for name, found in self.differing.items()]

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON data."""
        return {
            "case": self.name,
            "dtype": self.dtype,
            "rows": self.rows,
            "columns": self.columns,
            "elements": self.rows * self.columns,
            "skipped": self.skipped,
            "finding": None if self.finding is None else {"kind": self.finding.kind.value, **self.finding.to_json()},
            "results": self.results,
        }


def _said(name: str, found: dict[str, Any]) -> str:
    """Return a result that differs, in a line."""
    amount = f"{found['differing']:,} of {found['size']:,} bytes"
    first = f"the first is 0x{found['got']:02x}, expected 0x{found['expected']:02x}"
    last = f", the last in the tile that ends with row {found['last_row']:,}" if "row" in found else ""
    return f"{_where(name, found)}: {amount}{last}; {first}"


def _where(name: str, found: dict[str, Any]) -> str:
    """Return where a result begins to differ. Rules: CNF-124."""
    place = f" from row {found['row']:,} on ({found['place']})" if "row" in found else ""
    return f"differs in {name}{place}"


@dataclass(frozen=True)
class HugeReport:
    """The outcome of all huge calls of a kernel. cut: the signal that ended the run."""

    subject: str
    spec: Spec
    declaration: Declaration
    cases: tuple[HugeCase, ...]
    cut: Ending | None = None

    @property
    def kind(self) -> Verdict:
        """The verdict; incomplete if no size could be tried. Rules: CNF-2, CNF-125."""
        if any(case.wrong for case in self.cases):
            return Verdict.WRONG
        return Verdict.CONFORMS if any(case.tried for case in self.cases) else Verdict.INCOMPLETE

    @property
    def headline(self) -> str:
        """The verdict in a line, and whether the run was cut. Rules: CNF-2, CNF-48."""
        return self._verdict + words(self.cut)

    @property
    def _verdict(self) -> str:
        tried, spec = [case for case in self.cases if case.tried], self.spec.name
        failed = [case for case in tried if case.wrong]
        left = f", {len(self.cases) - len(tried)} not tried" if len(tried) < len(self.cases) else ""
        if not tried:
            return f"incomplete: no huge case of {spec} could be tried"
        if not failed:
            return f"conforms to {spec}: no byte differs in {len(tried)} huge case{'s' * (len(tried) > 1)}{left}"
        return f"wrong: {failed[0].said}; {len(failed)} of {len(tried)} huge cases of {spec} fail{left}"

    @property
    def coverage(self) -> Coverage:
        """The basis of the verdict. Rules: CNF-22."""
        extent = Extent()
        for case in self.cases:
            if case.tried:
                extent.add(case.dtype, case.rows, case.columns)
        amax = any("amax" in case.results for case in self.cases)
        left = not_judged(self.spec, self.declaration, amax=amax, piped=False)
        left["repeatability"] = "huge inputs are quantized once"
        return Coverage(extent, "huge case", not_judged=left, stopped="" if self.cut is None else STOPPED)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "subject": self.subject,
            "spec": self.spec.name,
            "verdict": self.kind.value,
            "headline": self.headline,
            "coverage": self.coverage.to_json(),
            "cases": [case.to_json() for case in self.cases],
        }


def check(
    subject: Subject,
    spec: Spec,
    options: RunOptions = DEFAULT,
    tell: Callable[[str], None] = lambda text: None,
    *,
    sizes: tuple[Size, ...] = SIZES,
    width: int = WIDTH,
    memory: int | None = None,
) -> HugeReport:
    """Call a quantizer on inputs that pass each of the sizes, and compare all bytes.

    After a kernel's process broke down, no larger size is tried, nor after a signal of `options.ends`. memory: bytes
    that may be used, None for those free.

    Errors: DomainError for a kernel that this does not apply to.

    Rules: CNF-48, CNF-51, CNF-53.
    """
    planned, cases, cut = plan(spec, subject.declaration, width), list[HugeCase](), None
    with contextlib.ExitStack() as stack:
        call = caller(subject, options, stack, attempt, {"skipped": "the time of the run was over in this call"})
        broken = ""
        for size in sizes:
            case = HugeCase(size, planned.body.x.dtype.name, planned.rows * planned.count(size), planned.columns)
            tell(case.name)
            if broken or options.left <= 0:
                record = {"skipped": broken or "the time of the run is over"}
            else:
                try:
                    record = call(planned.trial(size, sizes, memory), case.rows * case.columns / BUILDING)
                except options.ends as ending:
                    if not any(case.tried for case in cases):
                        raise
                    cut, broken = Ending.of(ending), STOPPED
                    record = {"skipped": broken}
            cases.append(_completed(case, record, planned, sizes))
            finding = cases[-1].finding
            if finding is not None and finding.kind in {FindingKind.CRASHED, FindingKind.HUNG, FindingKind.CUDA}:
                broken = f"the kernel broke down before ({finding.kind})"
    return HugeReport(subject.name, spec, subject.declaration, tuple(cases), cut)


def _completed(case: HugeCase, record: dict[str, Any], planned: HugePlan, sizes: tuple[Size, ...]) -> HugeCase:
    """Return a case with the outcome of its call."""
    results = {name: _placed(name, found, case, planned, sizes) for name, found in record.get("results", {}).items()}
    return replace(case, skipped=record.get("skipped", ""), finding=record.get("finding"), results=results)


def _placed(
    name: str, found: dict[str, Any], case: HugeCase, planned: HugePlan, sizes: tuple[Size, ...]
) -> dict[str, Any]:
    """Return a difference with rows of x in place of repetitions of a tile."""
    tile, part = planned.rows, planned.rows // PARTS
    first, last, ranges, samples = (found[key] for key in ("first", "last", "ranges", "samples"))
    placed = {key: found[key] for key in ("size", "differing", "got", "expected", "total", "expected_total")}
    placed["samples"] = {f"{at * part}:{(at + 1) * part}": wrong for at, wrong in samples.items()}
    row = None if first is None else planned.row_of(name, first[1])
    if row is None:
        return placed
    row += first[0] * tile
    element = row * case.columns
    return placed | {
        "row": row,
        "element": element,
        "place": _place(element, planned, sizes),
        "last_row": (last + 1) * tile - 1,
        "row_ranges": [[start * tile, stop * tile] for start, stop in ranges],
    }


def _place(element: int, planned: HugePlan, sizes: tuple[Size, ...]) -> str:
    """Return an element of x in words, by the largest size that comes before it."""
    before = [(size.elements(planned.body.x.itemsize), size.name) for size in sizes]
    start, name = max((pair for pair in before if pair[0] <= element), default=(0, ""))
    if not name:
        return f"element {element:,}"
    return name if start == element else f"element {element:,}, past {name}"
