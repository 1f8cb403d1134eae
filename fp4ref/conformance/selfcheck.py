"""The installed implementations against the standard.

Every vector runs on the golden model and on every backend; every backend is compared with the golden model on aimed
tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api, registry
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance import vectors
from fp4ref.conformance.aimed_cases import Case, cases
from fp4ref.conformance.compare import compare
from fp4ref.conformance.machine import require_no_flush
from fp4ref.conformance.vector_subjects import ApiSubject, GoldenSubject
from fp4ref.conformance.vector_text import Mismatch, mismatched_words, pattern_words
from fp4ref.conformance.vectors import VectorFile
from fp4ref.layout import layout
from fp4ref.model import dequantize as model_dequantize
from fp4ref.model import quantize as model_quantize
from fp4ref.quantized import DirectionData, Quantized

if TYPE_CHECKING:
    from rich.console import Console

KEPT = 20  # mismatching tests that are described, per subject
POISON = 0x7F  # NaN as an E4M3 scale: what padding holds when bytes are dequantized
GOLDEN = GoldenSubject().name


@dataclass
class Cell:
    """How many tests of a rule a subject passed."""

    passed: int = 0
    total: int = 0


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
class Report:
    """A matrix of rules and subjects, and the first failures.

    cells: by rule, then subject. tests, failed: counts by subject. unsupported: by subject, how many tests did not
    apply for which reason. unavailable: backends that nobody asked for and that cannot run, with their reasons.
    """

    subjects: list[str] = field(default_factory=list)
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)
    tests: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    unsupported: dict[str, Counter[str]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every subject ran and passed every test. Rules: CNF-2."""
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
            cell = self.cells.setdefault(rule, {}).setdefault(subject, Cell())
            cell.total += 1
            cell.passed += not found or bool(blamed and rule not in blamed)
        if found:
            self.failed[subject] += 1
            if self.failed[subject] <= KEPT:
                self.failures.append(Failure(subject, test, tuple(blamed or rules), len(found), found[0]))

    def render(self, console: Console) -> None:
        """Print the verdict, the first failures, the matrix, and what did not run."""
        from rich.table import Table

        console.print(self.headline, style="bold green" if self.ok else "bold red", markup=False)
        for failure in self.failures:
            console.print(str(failure), markup=False)
        table = Table("rule", *self.subjects, box=None, pad_edge=False)
        for rule in sorted(self.cells, key=_order):
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
            "subjects": self.subjects,
            "tests": {
                name: {"passed": self.tests[name] - self.failed[name], "total": self.tests[name]}
                for name in self.subjects
            },
            "rules": {
                rule: {name: asdict(cell) for name, cell in self.cells[rule].items()}
                for rule in sorted(self.cells, key=_order)
            },
            "failures": [asdict(failure) for failure in self.failures],
            "unsupported": {name: dict(reasons) for name, reasons in self.unsupported.items()},
            "unavailable": self.unavailable,
        }


def _order(rule: str) -> tuple[int, str, int]:
    prefix, _, number = rule.rpartition("-")
    chapters = ("NUM", "E2M1", "E4M3", "E5M2", "E8M0", "MXS", "PACK", "BLK", "GLB", "HAD", "LAY", "SR", "FOS", "DEQ")
    return chapters.index(prefix) if prefix in chapters else len(chapters), prefix, int(number)


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    mark = "" if cell.passed == cell.total else "[red]"
    return f"{mark}{cell.passed}/{cell.total}"


def run(
    backends: list[str] | None = None,
    progress: Callable[[str], None] | None = None,
    directory: Path | None = None,
) -> Report:
    """Check the golden model with the vectors, and backends with the vectors and with the golden model.

    backends: names; None is every one that can run. progress: is told what comes next. directory: of other vectors.

    Errors: BackendError for a named backend that cannot run; DomainError if this machine flushes subnormals.

    Rules: CNF-1, CNF-3, CNF-4, CNF-5.
    """
    tell = progress or (lambda name: None)
    tell("vectors")
    require_no_flush("verify")
    report = Report()
    names = _chosen(backends, report)
    files = vectors.load(directory)
    for subject in (GoldenSubject(), *map(ApiSubject, names)):
        report.subjects.append(subject.name)
        for file in files:
            tell(f"{subject.name}: {file.name}")
            _run_vectors(report, subject, file)
    for case, expected in _with_golden(tell, wanted=bool(names)):
        for name in names:
            _run_case(report, name, case, expected)
    return report


def _chosen(backends: list[str] | None, report: Report) -> list[str]:
    """Names of the backends to check. Rules: CNF-5."""
    if backends is not None:
        for name in backends:
            registry.get(name)
        return list(dict.fromkeys(backends))
    report.unavailable = {name: reason for name, reason in registry.available() if reason is not None}
    return [name for name, reason in registry.available() if reason is None]


def blamed(rules: Sequence[str], found: Sequence[Mismatch]) -> tuple[str, ...]:
    """Those of a test's rules that speak of what differs; none if all may be."""
    elements = tuple(rule for rule in rules if not rule.startswith(("LAY-", "GLB-", "MXS-", "E8M0-", "BLK-3")))
    about = {
        "amax": ("GLB-1", "GLB-5", "HAD-4", "NUM-1", "BLK-2"),
        "padding": ("LAY-5",),
        "spare": ("PACK-2",),
        "code": elements,
        "data": elements,
    }
    named = {rule for what in {mismatch.field for mismatch in found} for rule in about.get(what, rules)}
    return tuple(rule for rule in rules if rule in named)


def _run_vectors(report: Report, subject: ApiSubject, file: VectorFile) -> None:
    for test in file.tests:
        reasons = subject.reasons(test)
        if reasons:
            report.unsupported.setdefault(subject.name, Counter())[reasons[0]] += 1
        else:
            found = _guarded(partial(vectors.run, test, subject))
            report.add(subject.name, test.id, test.rules, found, blamed(test.rules, found))


def _guarded(check: Callable[[], list[Mismatch]]) -> list[Mismatch]:
    """What a check finds; an error of any kind in what is checked is a mismatch."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the code on trial may raise anything
        return [Mismatch("error", (), "", "a result", f"{type(error).__name__}: {error}".splitlines()[0])]


# Aimed cases


@dataclass(frozen=True)
class Expected:
    """The golden model's bytes of a case, and the values that they stand for."""

    data: DirectionData
    values: NDArray[Any]


def _with_golden(tell: Callable[[str], None], wanted: bool) -> Iterator[tuple[Case, Expected]]:
    """Every aimed case with what the golden model makes of it."""
    last = ""
    for case in cases() if wanted else ():
        if case.spec.name != last:
            last = case.spec.name
            tell(f"aimed cases: {last}")
        data = model_quantize.quantize(case.x, case.spec, case.direction, None, case.random_bits)
        values = model_dequantize.dequantize(data, case.matrix, case.spec, INPUT_DTYPES[case.to], case.x.dtype)
        yield case, Expected(data, values)


def _run_case(report: Report, name: str, case: Case, expected: Expected) -> None:
    backend = registry.backends()[name]
    reasons = backend.unsupported(case.spec)
    if reasons:
        report.unsupported.setdefault(name, Counter())[reasons[0]] += 1
        return
    if "quantize" in backend.operations:
        found = _guarded(lambda: _quantized(name, case, expected.data))
        report.add(name, case.id, case.rules, found, blamed(case.rules, found))
    if "dequantize" in backend.operations:
        scale = "DEQ-2" if expected.data.amax is None else "DEQ-1" if case.spec.arithmetic.name == "te" else "DEQ-5"
        rules = (scale, "DEQ-3", "LAY-6", *(("DEQ-4",) if case.direction == "column" else ()))
        report.add(name, f"{case.id}/{case.to}", rules, _guarded(lambda: _dequantized(name, case, expected)))


def _quantized(name: str, case: Case, expected: DirectionData) -> list[Mismatch]:
    """Where a backend's bytes differ from the golden model's. Rules: CNF-1, CNF-3."""
    q = api.quantize(case.x, case.spec, case.direction, case.scale_layout, None, case.random_bits, name)
    got = q.direction(case.direction)[0]
    if _same(got, expected._replace(scales=layout(case.scale_layout).from_linear(expected.scales))):
        return []
    found = compare(case.x, case.spec, case.direction, case.scale_layout, got, expected, keep=1)
    if found.equal:  # the same numbers in another type, or NaN of another sign where that is free
        types = [str(np.asarray(part).dtype) for part in got if part is not None]
        wanted = [str(part.dtype) for part in expected if part is not None]
        return [] if types == wanted else [Mismatch("type", (), "", " ".join(wanted), " ".join(types))]
    for difference in found.differences:
        place, value = (difference.row, difference.column), f"{difference.bits} ({difference.value:.9g})"
        if difference.got is not None and difference.expected is not None:
            return [Mismatch("code", place, value, f"{difference.expected:02x}", f"{difference.got:02x}")] * found.codes
        scales = f"{difference.expected_scale:02x}", f"{difference.got_scale:02x}"
        return [Mismatch("scale", (difference.row, difference.block), value, *scales)] * found.scales
    others = (("amax", found.first_amax), ("spare", found.first_spare), ("padding", found.first_padding))
    return [
        Mismatch(what, (place.index,), "", place.expected, place.got) for what, place in others if place is not None
    ]


def _same(got: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether all arrays are the same in every byte, so that nothing needs to be explained. Rules: CNF-1."""
    return all(_bytes(a) == _bytes(b) for a, b in zip(got, expected, strict=True))


def _bytes(array: Any) -> tuple[tuple[int, ...], Any, bytes] | None:
    """Shape, type and bytes of an array, if there is one."""
    if array is None:
        return None
    host = np.asarray(array)
    return host.shape, host.dtype, host.tobytes()


def _dequantized(name: str, case: Case, expected: Expected) -> list[Mismatch]:
    """Where a backend's values of the golden model's bytes differ; the padding is poisoned. Rules: CNF-1, LAY-6."""
    order = layout(case.scale_layout)
    linear = expected.data.scales
    scales = np.where(order.valid(*linear.shape), order.from_linear(linear), np.uint8(POISON))
    part = expected.data._replace(scales=scales)
    pair = (part, None) if case.direction == "row" else (None, part)
    q = Quantized(case.spec, case.x.shape, case.x.dtype.name, case.scale_layout, *pair)
    values = np.asarray(api.dequantize(q, case.to, case.direction, backend=name))
    wanted = expected.values.reshape(values.shape)
    return [] if _same([values], [wanted]) else mismatched_words("values", values, pattern_words(wanted))
