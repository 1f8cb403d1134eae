from __future__ import annotations

import dataclasses
import io
import itertools
import json
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from rich.console import Console

from covering import few
from fp4ref import registry
from fp4ref.conformance.selfcheck import implementations as selfcheck
from fp4ref.conformance.selfcheck.report import KEPT, SelfCheckReport
from fp4ref.conformance.selfcheck.trials import BackendTrial, trials
from fp4ref.conformance.vectors import files as vectors
from fp4ref.errors import BackendError, DomainError, Fp4Error
from fp4ref.formats import E2M1, Codec, Rounding
from fp4ref.layout import LINEAR, TILED_128X4
from fp4ref.model import BACKEND, backend, quantize
from fp4ref.registry import Backend
from fp4ref.specs import MXFP4, NVFP4, NVFP4_RHT

pytestmark = pytest.mark.slow
GOLDEN = selfcheck.GOLDEN


class Seen(NamedTuple):
    """A trial that was made: its request, and a hash of its tensor."""

    id: str
    spec: str
    dtype: str
    direction: str
    scale_layout: str
    x: int


def seen_in(made: Iterator[BackendTrial], seen: list[Seen]) -> Iterator[BackendTrial]:
    for trial in made:
        case = trial.case
        place = case.spec.name, case.x.dtype.name, case.direction, trial.scale_layout
        seen.append(Seen(trial.id, *place, hash(case.x.tobytes())))
        yield trial


@pytest.fixture(scope="module", params=[11, pytest.param(1, marks=pytest.mark.release)])
def reported(request):
    """The report of all vectors and of every so many trials, and all trials: they are made once.

    CI runs `fp4ref verify`, which is all of them.
    """
    seen: list[Seen] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(selfcheck, "trials", lambda: itertools.islice(seen_in(trials(), seen), 0, None, request.param))
        return selfcheck.run(["numpy"]), seen


@pytest.fixture
def report(reported):
    return reported[0]


@pytest.fixture
def few_cases(monkeypatch):
    """A fifth of the trials of three specifications, all vectors of products and every ninth of the others."""
    whole = vectors.load()
    few = [dataclasses.replace(f, tests=f.tests[:: 1 if f.operation == "gemm" else 9]) for f in whole]
    monkeypatch.setattr("fp4ref.conformance.selfcheck.trials.specs", lambda: [NVFP4, NVFP4_RHT, MXFP4])
    monkeypatch.setattr("fp4ref.conformance.selfcheck.trials.OFTEN", ())
    monkeypatch.setattr(vectors, "load", lambda directory=None: few)
    monkeypatch.setattr(selfcheck, "trials", lambda: itertools.islice(trials(), 0, None, 5))  # layouts take turns of 4


EXPECTED: list = []


@pytest.fixture
def golden_once(few_cases, monkeypatch):
    """The golden model's bytes of the few cases, which the first test makes for all whose golden model is right."""
    if not EXPECTED:
        EXPECTED.extend(selfcheck._with_golden(lambda name: None, wanted=True))
    monkeypatch.setattr(selfcheck, "_with_golden", lambda tell, wanted: iter(EXPECTED))


def register(monkeypatch, **operations):
    """A backend named `broken`: the golden model's operations but for those given."""
    module = SimpleNamespace(**{"quantize": backend.quantize, "dequantize": backend.dequantize, **operations})
    broken = Backend(name="broken", load=lambda: module, operations=tuple(vars(module)))
    use(monkeypatch, broken)


def use(monkeypatch, *others: Backend):
    registry._loaded.cache_clear()
    known = {one.name: one for one in (BACKEND, *others)}
    monkeypatch.setattr(registry, "backends", lambda: known)


def failing(report, subject) -> set[str]:
    cells = {rule: row[subject] for rule, row in report.cells.items() if subject in row}
    return {rule for rule, cell in cells.items() if cell.passed < cell.total}


def text(report) -> str:
    stream = io.StringIO()
    report.render(Console(file=stream, width=200))
    return stream.getvalue()


# What is right


@pytest.mark.rule("CNF-1", "CNF-2")
def test_everything_passes(report):
    assert report.ok, text(report)
    assert report.subjects == [GOLDEN, "numpy"]
    assert report.tests["numpy"] > report.tests[GOLDEN] > 1000
    assert report.headline.startswith("conforms")


def test_every_standard_rule_of_bytes_has_a_row(report):
    for subject in report.subjects:
        rows = {rule for rule, row in report.cells.items() if subject in row}
        assert {"E2M1-3", "E4M3-2", "E5M2-2", "E8M0-2", "MXS-1", "PACK-1", "BLK-3", "BLK-4", "GLB-2"} <= rows
        assert {"HAD-2", "LAY-3", "LAY-4", "LAY-5", "SR-2", "FOS-6", "DEQ-1", "DEQ-2"} <= rows


def test_aimed_cases_cover_types_directions_layouts_and_are_the_same_every_time(reported):
    _, once = reported
    again: list[Seen] = []
    for _ in itertools.islice(seen_in(trials(), again), len(once) // 3):  # of some specifications, in all families
        pass
    assert {trial.dtype for trial in once} == {"float32", "bfloat16", "float16"}
    assert {(trial.direction, trial.scale_layout) for trial in once} == {
        (direction, layout) for direction in ("row", "column") for layout in selfcheck_layouts()
    }
    assert len({trial.id for trial in once}) == len(once)
    assert again == once[: len(again)]
    assert len({trial.spec for trial in again}) > 1


def selfcheck_layouts() -> set[str]:
    return {"linear", "linear_padded", "tiled_128x4", "tiled_8x4"}


def test_report_prints_and_serializes(report):
    shown = text(report)
    assert shown.splitlines()[0] == report.headline
    assert "E2M1-3" in shown
    data = json.loads(json.dumps(report.to_json()))
    assert data["ok"] is True
    assert data["rules"]["E2M1-3"]["numpy"]["passed"] == data["rules"]["E2M1-3"]["numpy"]["total"] > 0
    assert list(data["rules"])[:2] == ["NUM-1", "NUM-3"]


def test_rows_are_in_the_order_of_the_standard_and_rules_of_others_come_last():
    report = SelfCheckReport()
    report.add("numpy", "ours", ("DEQ-1", "ACME-1", "BLK-10", "UE4M3-1", "BLK-2", "E2M1-3", "INT8-1"), [])
    assert list(report.to_json()["rules"]) == ["E2M1-3", "INT8-1", "UE4M3-1", "BLK-2", "BLK-10", "DEQ-1", "ACME-1"]


def test_progress_is_told_before_the_work_begins():
    told: list[str] = []
    started = time.perf_counter()
    seconds: list[float] = []
    selfcheck.run([], lambda name: (told.append(name), seconds.append(time.perf_counter() - started)))
    assert seconds[0] < 1
    assert told[0] == "vectors"
    assert any("encode" in name for name in told)


# Golden functions that are wrong


def away(codec: Codec) -> Codec:
    return dataclasses.replace(codec, rounding=Rounding.AWAY)


def ties_away(encode):
    def wrong(self, values, random_bits=None):
        even = self.format is E2M1 and self.rounding is Rounding.EVEN
        return encode(away(self) if even else self, values, random_bits)

    return wrong


@pytest.fixture(scope="module")
def with_ties_away():
    """The report of a golden model whose ties go away from zero."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Codec, "encode", ties_away(Codec.encode))
        return selfcheck.run([])


@pytest.mark.rule("E2M1-3")
def test_a_wrong_tie_rule_is_seen_in_the_right_row(with_ties_away):
    found = with_ties_away
    assert not found.ok
    assert "E2M1-3" in failing(found, GOLDEN)
    assert {"E4M3-2", "E8M0-2", "PACK-1", "LAY-3", "DEQ-1"} & failing(found, GOLDEN) == set()
    assert any("3e800000 (0.25)" in str(failure) for failure in found.failures)
    assert found.headline.startswith(f"wrong: {GOLDEN} fails")


@pytest.mark.rule("BLK-3")
def test_another_order_of_operations_is_seen(monkeypatch):
    def wrong(block_amax, g, spec, k):
        divided = block_amax / np.float32(6) * g
        return divided if spec.arithmetic.name == "te" else right(block_amax, g, spec, k)

    right = quantize.block_scale
    monkeypatch.setattr(quantize, "block_scale", wrong)
    found = selfcheck.run([])
    assert "BLK-3" in failing(found, GOLDEN)
    assert not {"MXS-1", "E2M1-3", "DEQ-1"} & failing(found, GOLDEN)


def test_failures_name_input_expected_and_got(with_ties_away):
    failure = next(f for f in with_ties_away.failures if f.id.startswith("encode:"))
    assert failure.subject == GOLDEN
    assert failure.first.input == "3e800000 (0.25)"
    assert (failure.first.expected, failure.first.got) == ("00", "01")


# Backends that are wrong


def changed(change):
    """The golden quantizer with its result changed."""

    def wrong(call, x, *operands):
        return change(x, call.spec, backend.quantize(call, x, *operands), call.layout.name)

    return {"quantize": wrong}


def swapped_nibbles(x, spec, result, scale_layout):
    four = spec.element.format is E2M1
    return result._replace(data=result.data << 4 | result.data >> 4) if four else result


def dirty_padding(x, spec, result, scale_layout):
    scales = result.scales.copy()
    if scale_layout == "tiled_128x4" and scales.size:
        scales.flat[-1] |= 1
    return result._replace(scales=scales)


def dirty_unspecified_padding(x, spec, result, scale_layout):
    rows = result.data.shape[0]
    scales = result.scales.copy()
    if scale_layout == "linear_padded":
        scales[rows:] = 0xAA
    return result._replace(scales=scales)


def lost_minus_zero(x, spec, result, scale_layout):
    if spec.element.format is not E2M1:
        return result
    low, high = result.data & 0xF, result.data >> 4
    return result._replace(data=np.where(low == 8, 0, low) | np.where(high == 8, 0, high) << 4)


def wrong_amax(x, spec, result, scale_layout):
    return result if result.amax is None else result._replace(amax=np.nextafter(result.amax, np.float32(np.inf)))


def wrong_shape(x, spec, result, scale_layout):
    return result._replace(data=result.data[:, :-1])


def wrong_type(x, spec, result, scale_layout):
    return result._replace(data=result.data.astype(np.int16))


def crash(x, spec, result, scale_layout):
    raise ZeroDivisionError("in the kernel")


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("golden_once")
@pytest.mark.parametrize(
    ("operations", "rules", "spared"),
    few(
        [
            (changed(swapped_nibbles), {"PACK-1", "BLK-5"}, {"LAY-7", "MXS-1", "PACK-3", "DEQ-1"}),
            (changed(dirty_padding), {"LAY-5"}, {"LAY-1", "BLK-10", "E2M1-3", "DEQ-1"}),
            (changed(lost_minus_zero), {"E2M1-2"}, {"E5M2-2", "MXS-1", "E8M0-2", "DEQ-1"}),
            (changed(wrong_amax), {"GLB-1"}, {"BLK-10", "MXS-1", "DEQ-1"}),
            (changed(wrong_shape), {"PACK-1"}, {"DEQ-1"}),
            (changed(wrong_type), {"PACK-1", "BLK-3"}, {"DEQ-1"}),
            (changed(crash), {"BLK-3", "PACK-1"}, {"DEQ-1"}),
            (
                {"random_bits": lambda *arguments: backend.random_bits(*arguments) ^ np.uint8(1)},
                {"SR-7", "SR-8"},
                {"SR-2", "GEM-2", "DEQ-1"},
            ),
            (
                {"gemm_exact": backend.gemm_blockwise},
                {"GEM-2"},
                {"GEM-3", "GEM-9", "SR-7", "DEQ-1"},
            ),
            (
                {"gemm_blockwise": backend.gemm_exact},
                {"GEM-4"},
                {"GEM-9", "SR-7", "DEQ-1"},
            ),
            (
                {"gemm_fast": lambda *arguments: backend.gemm_fast(*arguments).astype(np.float16).astype(np.float32)},
                {"GEM-11"},
                {"GEM-2", "GEM-4", "SR-7", "DEQ-1"},
            ),
            (
                {"dequantize": lambda *arguments: backend.dequantize(*arguments) * 2},
                {"DEQ-1", "DEQ-2"},
                {"BLK-3", "E2M1-3", "LAY-3"},
            ),
        ],
        7,
    ),
    ids="nibbles padding minus_zero amax shape type crash bits exact blockwise fast dequantize".split(),
)
@pytest.mark.rule("CNF-1", "CNF-3")
def test_a_broken_backend_fails_the_right_rules(monkeypatch, operations, rules, spared):
    register(monkeypatch, **operations)
    found = selfcheck.run(["broken"])
    assert not found.ok
    assert found.failed[GOLDEN] == 0
    assert rules <= failing(found, "broken")
    assert spared & failing(found, "broken") == set()
    assert "broken fails" in found.headline
    assert 0 < len(found.failures) <= KEPT
    assert text(found)


@pytest.mark.usefixtures("golden_once")
@pytest.mark.rule("CNF-3")
def test_unspecified_padding_may_hold_anything(monkeypatch):
    register(monkeypatch, **changed(dirty_unspecified_padding))
    assert selfcheck.run(["broken"]).ok


# Backends that do not run


def absent(name: str) -> Backend:
    def load() -> ModuleType:
        raise ImportError("no driver here")

    return Backend(name=name, load=load, operations=("quantize",))


@pytest.mark.rule("CNF-5")
def test_a_named_backend_that_cannot_run_is_an_error(monkeypatch):
    use(monkeypatch, absent("cuda"))
    with pytest.raises(BackendError, match="no driver here"):
        selfcheck.run(["cuda"])
    with pytest.raises(BackendError, match="unknown name"):
        selfcheck.run(["nothing"])


@pytest.mark.usefixtures("golden_once")
@pytest.mark.rule("CNF-5")
def test_other_backends_that_cannot_run_are_listed(monkeypatch):
    use(monkeypatch, absent("cuda"))
    found = selfcheck.run()
    assert found.ok
    assert found.subjects == [GOLDEN, "numpy"]
    assert found.unavailable == {"cuda": "no driver here"}
    assert "cuda: not available: no driver here" in text(found)


@pytest.mark.usefixtures("golden_once")
def test_what_a_backend_does_not_serve_is_counted_apart(monkeypatch):
    part = SimpleNamespace(quantize=backend.quantize)
    only = Backend(
        name="part",
        load=lambda: part,
        operations=("quantize",),
        unsupported=lambda call: [] if call.spec == NVFP4 else ["only nvfp4"],
    )
    use(monkeypatch, only)
    found = selfcheck.run(["part"])
    assert found.ok
    assert found.unsupported["part"]["only nvfp4"] > 100
    assert "DEQ-1" not in {rule for rule, row in found.cells.items() if "part" in row}
    assert "tests do not apply: only nvfp4" in text(found)


@pytest.mark.rule("CNF-1", "CNF-5")
@pytest.mark.usefixtures("golden_once")
def test_layouts_types_and_operations_that_a_backend_refuses_are_counted_apart(monkeypatch):
    def refused(call):
        narrow = call.operation == "dequantize" and call.to != "float32"
        return ["no narrow results"] if narrow else ["no columns"] if call.direction == "column" else []

    module = SimpleNamespace(quantize=backend.quantize, dequantize=backend.dequantize)
    declared = {"operations": tuple(vars(module)), "layouts": (LINEAR, TILED_128X4), "unsupported": refused}
    use(monkeypatch, Backend(name="part", load=lambda: module, **declared))
    found = selfcheck.run(["part"])
    assert found.ok, text(found)
    reasons = found.unsupported["part"]
    assert reasons["no columns"] > reasons["no narrow results"] > 20
    assert reasons["layout tiled_8x4, not one of linear, tiled_128x4"] > 20
    assert found.tests["part"] > 200


@pytest.mark.usefixtures("golden_once")
def test_a_backend_that_compiles_sees_all_calls_once_in_a_rehearsal(monkeypatch):
    seen, said, rehearsing = {True: [], False: []}, [], [False]

    def quantize(call, x, *rest):
        seen[rehearsing[0]].append((call.spec.name, x.shape, x.dtype.name, call.direction, call.layout.name))
        return backend.quantize(call, x, *rest)

    def dequantize(call, data, out):
        seen[rehearsing[0]].append((call.spec.name, call.encoded, call.to, "back", call.layout.name))
        if rehearsing[0]:
            raise ZeroDivisionError("what a rehearsal meets does not matter")
        return backend.dequantize(call, data, out)

    def rehearse(act, tell):
        rehearsing[0] = True
        act()
        rehearsing[0] = False
        tell("compiled")

    module = SimpleNamespace(quantize=quantize, dequantize=dequantize, rehearse=rehearse)
    use(monkeypatch, Backend(name="slow", load=lambda: module, operations=("quantize", "dequantize")))
    assert selfcheck.run(["slow"], note=said.append).ok
    assert said == ["compiled"]
    assert seen[True]
    assert set(seen[True]) == set(seen[False])


@pytest.mark.usefixtures("golden_once")
def test_a_backend_that_serves_nothing_does_not_pass(monkeypatch):
    nothing = Backend(name="nothing", load=SimpleNamespace, operations=(), unsupported=lambda call: ["nothing"])
    use(monkeypatch, nothing)
    found = selfcheck.run(["nothing"])
    assert not found.ok or found.tests["nothing"]


@pytest.mark.rule("CNF-4")
def test_a_machine_that_flushes_is_refused(monkeypatch):
    def refuse(operation: str) -> None:
        raise DomainError(operation, "subnormals are flushed", rule="CNF-4")

    monkeypatch.setattr(selfcheck, "require_no_flush", refuse)
    with pytest.raises(Fp4Error, match="CNF-4"):
        selfcheck.run([])
