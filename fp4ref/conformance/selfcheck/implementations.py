"""The installed implementations against the standard.

Every vector runs on the golden model and on every backend; every backend is compared with the golden model on aimed
tensors.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api, registry
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.families import FAMILIES, Case, case_of, members
from fp4ref.conformance.families.variants import Topic
from fp4ref.conformance.judge.compare import compare
from fp4ref.conformance.judge.coverage import Coverage, Extent, untried
from fp4ref.conformance.run.machine import require_no_flush
from fp4ref.conformance.selfcheck import others as selfcheck_others
from fp4ref.conformance.vectors import files as vectors
from fp4ref.conformance.vectors.files import VectorFile
from fp4ref.conformance.vectors.placing import fetched, placed, placed_result
from fp4ref.conformance.vectors.subjects import ApiSubject, GoldenSubject
from fp4ref.conformance.vectors.text import Mismatch, mismatched_words, pattern_words
from fp4ref.conformance.verdict.dump_report import Cell
from fp4ref.layout import layout, scale_layouts
from fp4ref.model import dequantize as model_dequantize
from fp4ref.model import quantize as model_quantize
from fp4ref.quantized import DIRECTIONS, DirectionData, Quantized
from fp4ref.registry import Call
from fp4ref.spec import Spec
from fp4ref.specs import MXFP4, NVFP4, STANDARD, STOCHASTIC

if TYPE_CHECKING:
    from rich.console import Console

LEFT_OUT = "left out of the check of backends"
KEPT = 20  # mismatching tests that are described, per subject
POISON = 0x7F  # NaN as an E4M3 scale: what padding holds when bytes are dequantized
GOLDEN = GoldenSubject().name


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
            cell = self.cells.setdefault(rule, {}).setdefault(subject, Cell())
            cell.total += 1
            cell.passed += not found or bool(blamed and rule not in blamed)
        if found:
            self.failed[subject] += 1
            self.failing.append(f"{subject}: {test}")
            if self.failed[subject] <= KEPT:
                self.failures.append(Failure(subject, test, tuple(blamed or rules), len(found), found[0]))

    def render(self, console: Console) -> None:
        """Print the verdict, the first failures, the matrix, and what did not run."""
        from rich.table import Table

        console.print(self.headline, style="bold green" if self.ok else "bold red", markup=False)
        for line in self.coverage.lines:
            console.print(line, markup=False)
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
            "coverage": self.coverage.to_json(),
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
    chapters = (
        "NUM",
        "E2M1",
        "E4M3",
        "E5M2",
        "E8M0",
        "MXS",
        "PACK",
        "BLK",
        "GLB",
        "HAD",
        "LAY",
        "SR",
        "FOS",
        "DEQ",
        "GEM",
    )
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
    note: Callable[[str], None] = lambda line: None,
) -> SelfCheckReport:
    """Check the golden model with the vectors, and backends with the vectors and with the golden model.

    backends: names; None is every one that can run. progress: is told what comes next. directory: of other vectors.
    note: is told in a line what takes a while before the first result.

    Errors: BackendError for a named backend that cannot run; DomainError if this machine flushes subnormals.

    Rules: CNF-1, CNF-3, CNF-4, CNF-5.
    """
    tell = progress or (lambda name: None)
    tell("vectors")
    require_no_flush("verify")
    report = SelfCheckReport()
    names = _chosen(backends, report)
    files = vectors.load(directory)
    for name in names:
        _prefetch(name, files, note)
    for subject in (GoldenSubject(), *map(ApiSubject, names)):
        report.subjects.append(subject.name)
        for file in files:
            tell(f"{subject.name}: {file.name}")
            _run_vectors(report, subject, file)
    for trial, expected in _with_golden(tell, wanted=bool(names)):
        report.extent.add(trial.case.x.dtype.name, *trial.case.matrix)
        report.families[trial.case.family] += 1
        for name in names:
            _run_trial(report, name, trial, expected)
    for name in names:
        tell(f"{name}: random bytes and products")
        for check in selfcheck_others.checks(name):
            report.add(name, check.id, check.rules, _guarded(check.run))
    return report


def _prefetch(name: str, files: Sequence[VectorFile], note: Callable[[str], None]) -> None:
    """Tell a backend that compiles what it will be asked for, by name or in a rehearsal."""
    backend = registry.backends()[name]
    rehearse = getattr(registry.get(name), "rehearse", None)
    if rehearse is not None:
        rehearse(partial(_run_without_looking, name, files), note)
    prefetch = getattr(registry.get(name), "prefetch", None)
    if prefetch is not None:
        subject = ApiSubject(name)
        told = itertools.chain(*(subject.calls(test) for file in files for test in file.tests), _calls())
        calls = dict.fromkeys(told)
        prefetch([call for call in calls if not backend.unserved(call)], note)


def _run_without_looking(name: str, files: Sequence[VectorFile]) -> None:
    """Everything that a backend will be asked for, whatever comes of it."""
    backend = registry.backends()[name]
    for file in files:
        _run_vectors(SelfCheckReport(), ApiSubject(name), file)
    for trial in trials():
        if not backend.unserved(Call("quantize", trial.case.spec)):
            with suppress(Exception):
                api.dequantize(_result(name, trial), trial.to, trial.case.direction, backend=name)
    for check in selfcheck_others.checks(name):
        _guarded(check.run)


def _chosen(backends: list[str] | None, report: SelfCheckReport) -> list[str]:
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


def _run_vectors(report: SelfCheckReport, subject: ApiSubject, file: VectorFile) -> None:
    for test in file.tests:
        reasons = subject.reasons(test)
        if reasons:
            report.unsupported.setdefault(subject.name, Counter())[reasons[0]] += 1
        else:
            found = _guarded(partial(vectors.run, test, subject))
            report.add(subject.name, test.id, test.rules, found, blamed(test.rules, found))


def _guarded(check: Callable[[], list[Mismatch]]) -> list[Mismatch]:
    """Return what a check finds; an error of any kind in what is checked is a mismatch."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the code on trial may raise anything
        return [Mismatch("error", (), "", "a result", f"{type(error).__name__}: {error}".splitlines()[0])]


# Aimed cases


PEERS = (
    "torchao.nvfp4_2lvl",
    "torchao.nvfp4_1lvl",
    "torchao.mxfp4_floor",
    "torchao.mxfp8_e5m2_even",
    "modelopt.nvfp4",
    "modelopt.mxfp4",
    "compressed_tensors.nvfp4",
    "deepgemm.mxfp4_ue8m0",
    "fouroversix.nvfp4_mse",
    "fouroversix.nvfp4_static_4",
    "flashinfer.ref_nvfp4_te_pertoken",
    "flashinfer.ref_4over6_mae_448_fast",
    "jax.nvfp4",
    "microxcaling.mxfp8_e4m3_even",
    "te.fast_math_1d",
    "te.mxfp8_cast_only",
    "vllm.nvfp4_kernel",
)
OFTEN = (NVFP4, MXFP4)  # specifications whose cases include large tensors
LARGE = ("large", "layout", "everywhere", "sizes")
SHAPES = ("ragged", "axes", "empty")  # which a profile does not change
WITNESSES = frozenset(Topic)  # searched for in one type, for the standard's own specifications


@dataclass(frozen=True)
class BackendTrial:
    """An aimed case, where its scales are to lie, and the type that its bytes are dequantized to."""

    case: Case
    scale_layout: str
    to: str

    @property
    def id(self) -> str:
        """The trial's distinguishing settings."""
        return f"{self.case.spec.name}/{self.case.id}/{self.scale_layout}"

    @property
    def rules(self) -> tuple[str, ...]:
        """Those of the case and of the layout."""
        return *self.case.rules, *layout(self.scale_layout).rules


@dataclass(frozen=True)
class Expected:
    """The golden model's bytes of a case, and the values that they stand for."""

    data: DirectionData
    values: NDArray[Any]


def specs() -> list[Spec]:
    """Return the standard's specifications, stochastic ones, and some of every kind of profile."""
    return [*STANDARD, *STOCHASTIC[:2], *(PROFILES[name] for name in PEERS)]


def trials() -> Iterator[BackendTrial]:
    """Yield the families under every specification; directions, types and layouts take turns."""
    turn, number = itertools.count(), itertools.count()
    for index, spec in enumerate(specs()):
        for family in FAMILIES.values():
            searched = family.name in WITNESSES
            if family.name in LARGE and spec not in OFTEN:
                continue
            if (searched or family.name in SHAPES) and spec not in STANDARD:
                continue
            some = DIRECTIONS if spec in STANDARD and not searched else DIRECTIONS[next(turn) % 2 :][:1]
            for direction in some:
                dtypes = _dtypes(index, spec)
                dtype = dtypes[0 if searched else next(turn) % len(dtypes)]
                transformed = spec.hadamard and direction == "column"
                for member in members(family, spec, "bfloat16" if transformed else dtype, direction):
                    count = next(number)
                    orders = scale_layouts()
                    places = orders[count % len(orders)].name, dtypes[count % 7 % len(dtypes)]
                    yield BackendTrial(case_of(family, member, spec, direction), *places)


def _dtypes(index: int, spec: Spec) -> list[str]:
    """Return the types that the trials of a specification have: one, or all in turn for the standard's own."""
    names = [*INPUT_DTYPES]
    start = index % len(names)
    return [*names[start:], *names[:start]] if spec in STANDARD else names[start : start + 1]


def _calls() -> Iterator[Call]:
    """Yield what the trials will ask of a backend."""
    for index, spec in enumerate(specs()):
        for source in _dtypes(index, spec):
            yield Call("quantize", spec, source)
            yield from (Call("dequantize", spec, source, to=to) for to in _dtypes(index, spec))
        if spec.hadamard:
            yield Call("quantize", spec, "bfloat16", "column")


def _with_golden(tell: Callable[[str], None], wanted: bool) -> Iterator[tuple[BackendTrial, Expected]]:
    """Every trial with what the golden model makes of its case."""
    last = ""
    for trial in trials() if wanted else ():
        case = trial.case
        if case.spec.name != last:
            last = case.spec.name
            tell(f"aimed cases: {last}")
        data = model_quantize.quantize(case.x, case.spec, case.direction, case.amax, case.random_bits)
        values = model_dequantize.dequantize(data, case.matrix, case.spec, INPUT_DTYPES[trial.to], case.x.dtype)
        yield trial, Expected(data, values)


def _run_trial(report: SelfCheckReport, name: str, trial: BackendTrial, expected: Expected) -> None:
    backend, case = registry.backends()[name], trial.case
    reasons = backend.unserved(Call("quantize", case.spec))
    if reasons:
        report.unsupported.setdefault(name, Counter())[reasons[0]] += 1
        return
    if "quantize" in backend.operations:
        found = _guarded(lambda: _quantized(name, trial, expected.data))
        report.add(name, trial.id, trial.rules, found, blamed(trial.rules, found))
    if "dequantize" in backend.operations:
        scale = "DEQ-2" if expected.data.amax is None else "DEQ-1" if case.spec.arithmetic.name == "te" else "DEQ-5"
        rules = (scale, "DEQ-3", "LAY-6", *(("DEQ-4",) if case.direction == "column" else ()))
        report.add(name, f"{trial.id}/{trial.to}", rules, _guarded(lambda: _dequantized(name, trial, expected)))


def _result(name: str, trial: BackendTrial) -> Quantized:
    """Return what a backend makes of a trial's case."""
    case = trial.case
    x, bits = placed(case.x, name), placed(case.random_bits, name)
    return api.quantize(x, case.spec, case.direction, trial.scale_layout, case.amax, bits, name)


def _quantized(name: str, trial: BackendTrial, expected: DirectionData) -> list[Mismatch]:
    """Where a backend's bytes differ from the golden model's. Rules: CNF-1, CNF-3."""
    case, q = trial.case, _result(name, trial)
    got = DirectionData(*(None if part is None else fetched(part) for part in q.direction(case.direction)[0]))
    if _same(got, expected._replace(scales=layout(trial.scale_layout).from_linear(expected.scales))):
        return []
    found = compare(case.x, case.spec, case.direction, trial.scale_layout, got, expected, keep=1)
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
    """Return True if all arrays are the same in every byte, so that nothing needs to be explained. Rules: CNF-1."""
    return all(_bytes(a) == _bytes(b) for a, b in zip(got, expected, strict=True))


def _bytes(array: Any) -> tuple[tuple[int, ...], Any, bytes] | None:
    """Shape, type and bytes of an array, if there is one."""
    if array is None:
        return None
    host = np.asarray(array)
    return host.shape, host.dtype, host.tobytes()


def _dequantized(name: str, trial: BackendTrial, expected: Expected) -> list[Mismatch]:
    """Where a backend's values of the golden model's bytes differ; the padding is poisoned. Rules: CNF-1, LAY-6."""
    case, order = trial.case, layout(trial.scale_layout)
    linear = expected.data.scales
    scales = np.where(order.valid(*linear.shape), order.from_linear(linear), np.uint8(POISON))
    part = expected.data._replace(scales=scales)
    pair = (part, None) if case.direction == "row" else (None, part)
    q = Quantized(case.spec, case.x.shape, case.x.dtype.name, trial.scale_layout, *pair)
    values = fetched(api.dequantize(placed_result(q, name), trial.to, case.direction, backend=name))
    wanted = expected.values.reshape(values.shape)
    return [] if _same([values], [wanted]) else mismatched_words("values", values, pattern_words(wanted))
