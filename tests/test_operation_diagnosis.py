import re
import runpy
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from collected import collected
from covering import few
from fp4ref import hadamard
from fp4ref.catalogue import PROFILES
from fp4ref.conformance import families
from fp4ref.conformance.diagnosis.operations import diagnose_operation
from fp4ref.conformance.diagnosis.padding import paddings
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import runner
from fp4ref.conformance.subjects.subject import Subject, expected_values, golden
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.kernels import Declaration
from fp4ref.layout import layout

KERNELS, MORE = (
    runpy.run_path(str(Path(__file__).parent / "mutants" / name)) for name in ("conversions.py", "dequantizers.py")
)
F, TILED = np.float32, layout("tiled_128x4")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F)


def report(kernel, spec="nvfp4", seconds=None, **declared):
    spec = PROFILES[spec]
    subject = Subject(kernel.__name__, Declaration(**declared), kernel)
    chosen = ["normal", "positions", "layout", "ragged", "hadamard", "subnormal", "zero-blocks", "scale-underflow"]
    cases = families.cases(spec, directions=("row",), dtypes=("bfloat16",))
    runs = runner.run(subject, [case for case in cases if case.family in chosen and case.x.size <= 1 << 16])
    judged = (judge(run.case, run.outcome, subject.declaration, run.expected) for run in runs)
    return collected(KernelReport(kernel.__name__, spec, subject.declaration), judged, seconds)


def dequantizer(low=0, missing=False, inverted=False, linear=False, abs_=False):
    """NVFP4 from tiled scales, with one mistake."""

    def kernel(data, scales, amax, rows, columns):
        blocks = -(-columns // 16)
        order = layout("linear_padded" if linear else "tiled_128x4")
        place = order.offset(np.arange(rows)[:, None], np.arange(blocks)[None], blocks)
        s = scales.reshape(-1)[place].view(ml_dtypes.float8_e4m3fn).astype(F)
        nibbles = np.stack([data >> 4 * low & 15, data >> 4 * (1 - low) & 15], axis=2)
        q = E2M1[nibbles.reshape(rows, 2 * data.shape[1])[:, :columns]]
        q = np.abs(q) if abs_ else q
        with np.errstate(all="ignore"):
            g = F(2688) / amax[0] if inverted else amax[0] / F(2688)
        return q * (np.repeat(s, 16, axis=1)[:, :columns] * (F(1) if missing else g))

    return kernel


DEQUANTIZE = {
    "operation": "dequantize",
    "inputs": ("data", "scales", "amax", "rows", "columns"),
    "outputs": ("values",),
    "scale_layout": "tiled_128x4",
    "empty": False,
}


@pytest.mark.sampled(4)
@pytest.mark.rule("CNF-2", "DEQ-1")
@pytest.mark.parametrize(
    "wrong, name",
    [
        ({"low": 1}, "nibbles"),
        ({"missing": True}, "global-missing"),
        ({"linear": True}, "layout-linear_padded"),
        ({"abs_": True}, "sign-lost"),
    ],
)
def test_wrong_dequantizers_are_named(wrong, name):
    assert report(dequantizer(**wrong), "modelopt.nvfp4", **DEQUANTIZE).diagnosis.explanations[0].names == (name,)


def e8m0(zero):
    def kernel(data, scales, rows, columns):
        s = np.where(zero & (scales == 0), F(0), np.ldexp(F(1), scales.astype(int) - 127).astype(F))
        q = E2M1[np.stack([data & 15, data >> 4], axis=2).reshape(rows, 2 * data.shape[1])[:, :columns]]
        return q * np.repeat(s, 32, axis=1)[:, :columns]

    return kernel


@pytest.mark.rule("CNF-2", "E8M0-1")
def test_a_scale_byte_zero_that_is_taken_for_zero():
    how = DEQUANTIZE | {"inputs": ("data", "scales", "rows", "columns"), "scale_layout": "linear"}
    assert report(e8m0(zero=False), "mxfp4", **how).ok
    assert report(e8m0(zero=True), "mxfp4", **how).diagnosis.explanations[0].names == ("byte-0-zero",)


@pytest.mark.rule("CNF-2", "LAY-5")
@pytest.mark.parametrize(
    "made, name",
    [
        (lambda s: layout("tiled_8x4").from_linear(s), "layout-tiled_8x4"),
        (
            lambda s: np.where(layout("tiled_128x4").valid(*s.shape), layout("tiled_128x4").from_linear(s), 0x7F),
            "padding-7f",
        ),
    ],
)
def test_wrong_conversions_are_named(made, name):
    def kernel(scales, rows, columns):
        whole = layout("tiled_128x4").padded_shape(*scales.shape)
        out = np.zeros(whole, np.uint8)
        result = np.asarray(made(scales), np.uint8).reshape(-1)
        out.reshape(-1)[: result.size] = result[: out.size]
        return out

    how = {"operation": "to_layout", "inputs": ("scales", "rows", "columns"), "outputs": ("scales",)}
    found = report(kernel, scale_layout="tiled_128x4", empty=False, **how).diagnosis
    assert found.explanations[0].names == (name,)


@pytest.mark.rule("CNF-2", "HAD-1", "HAD-2")
@pytest.mark.parametrize(
    "wrong, name",
    [
        (lambda x, mask: hadamard.transform(x, int(f"{mask:016b}"[::-1], 2)), "hadamard-signs-reversed"),
        (lambda x, mask: hadamard.transform(x * F(4), mask), "hadamard-no-quarter"),
        (lambda x, mask: x, "hadamard-missing"),
    ],
)
def test_wrong_transforms_are_named(wrong, name):
    mask = fp4ref.NVFP4_RHT.hadamard.signs

    def kernel(x):
        return wrong(x.astype(F), mask).astype(ml_dtypes.bfloat16)

    found = report(kernel, operation="hadamard", inputs=("x",), outputs=("values",), empty=False).diagnosis
    assert name in [names for item in found.explanations for names in item.names]


def made_anew(kernel):
    """Return a function that makes a kernel for each call."""

    def called(*given):
        return kernel()(*given)

    return called


@pytest.mark.rule("CNF-1")
@pytest.mark.parametrize("kernel", KERNELS["RIGHT"].values(), ids=KERNELS["RIGHT"])
def test_right_kernels_conform(kernel):
    assert report(made_anew(kernel), kernel.spec, **KERNELS["declared"](kernel)).ok


@pytest.mark.sampled(3)
@pytest.mark.slow  # pairs of mistakes
@pytest.mark.rule("CNF-2")
@pytest.mark.parametrize("kernel, names", few([*KERNELS["OPERATIONS"].values()], 6), ids=KERNELS["OPERATIONS"])
def test_wrong_kernels_are_named_first(kernel, names):
    found = report(made_anew(kernel), kernel.spec, **KERNELS["declared"](kernel))
    assert not found.ok
    first = found.diagnosis.explanations[0].names
    assert len(first) == len(names)
    assert all(any(name.startswith(wanted) for name in first) for wanted in names)


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.rule("CNF-2", "CNF-28")
@pytest.mark.parametrize("kernel, names, says", few([*MORE["OPERATIONS"].values()], 7), ids=MORE["OPERATIONS"])
def test_wrong_dequantizers_are_said(kernel, names, says):
    found = report(made_anew(kernel), kernel.spec, **MORE["declared"](kernel))
    first = found.diagnosis.explanations[0].names
    assert re.search(says, found.headline), found.headline
    assert [name.startswith(wanted) for name, wanted in zip(first, names, strict=True)] == [True] * len(names)


@pytest.mark.rule("CNF-1")
@pytest.mark.parametrize("kernel", MORE["RIGHT"].values(), ids=MORE["RIGHT"])
def test_right_dequantizers_conform(kernel):
    assert report(made_anew(kernel), kernel.spec, **MORE["declared"](kernel)).ok


@pytest.mark.heavy  # tries all mistakes, as the next one does
@pytest.mark.rule("CNF-2")
def test_what_nothing_explains_is_not_guessed():
    right = KERNELS["RIGHT"]["Dequantizer"]

    def called(data, scales, amax, rows, columns):
        values = right()(data, scales, amax, rows, columns)
        return values * (1 + np.arange(rows)[:, None] * np.arange(columns) % 7).astype(F)

    found = report(called, right.spec, **KERNELS["declared"](right)).diagnosis
    assert not found.explanations
    assert found.first_stage == "values"


@pytest.mark.heavy
@pytest.mark.rule("CNF-26")
def test_where_a_dequantizer_is_wrong_is_said_though_nothing_explains_it():
    right = KERNELS["RIGHT"]["Dequantizer"]

    def kernel(data, scales, amax, rows, columns):
        values = right()(data, scales, amax, rows, columns)
        lane = np.arange(rows) % 32 == 31
        values[lane] += np.random.default_rng(columns).uniform(1, 9, (lane.sum(), columns)).astype(values.dtype)
        return values

    found = report(kernel, right.spec, seconds=1, **KERNELS["declared"](right))
    assert not found.diagnosis.explanations
    assert found.diagnosis.place == "where row % 32 == 31"
    assert "not explained, where row % 32 == 31: " in found.headline


@pytest.mark.heavy
@pytest.mark.rule("CNF-26")
def test_an_unexplained_dequantizer_costs_no_more_processor_time_than_it_may():
    spec, declared = PROFILES["nvfp4"], Declaration(**DEQUANTIZE, dtypes=("bfloat16",))
    results = []
    for case in families.cases(spec, level=2, dtypes=("bfloat16",), families=["normal", "ragged", "sizes", "large"]):
        values = expected_values(case, declared, golden(case))
        results.append((case, values * np.random.default_rng(case.x.size).uniform(1, 2, values.shape).astype(F)))
    assert sum(got.size for _, got in results) > 1 << 24
    start = time.thread_time()
    found = diagnose_operation(declared, results)
    assert time.thread_time() - start < 12
    assert not found.explanations


def test_padding_of_every_content_has_a_name_of_its_own():
    found = list(paddings((0x01, 0x7F)))
    assert len({one.name for one in found}) == len({one.text + str(one.corner) for one in found}) == len(found)
