"""The rules that a wrong dequantizer, conversion or transform is said to break."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref.conformance.families.rules import dequantizing
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run.runner import run
from fp4ref.conformance.selfcheck import implementations
from fp4ref.conformance.subjects.outcomes import Outcome
from fp4ref.conformance.subjects.subject import POISON, Subject, cases_of, golden
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.kernels import Declaration
from fp4ref.layout import layout

F = np.float32
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F)
FAMILIES = ("normal", "layout", "positions")
ODD = np.where(np.arange(16) == 5, F(2.5), E2M1)


def rules_of(kernel, spec, declared, families=FAMILIES):
    """Rules that fail, and all that were counted."""
    subject = Subject("kernel", declared, kernel)
    report = KernelReport("kernel", fp4ref.profiles[spec], declared)
    chosen = [case for case in cases_of(declared, report.spec, families=families) if 0 < case.x.size < 1 << 15]
    for item in run(subject, chosen):
        report.add(judge(item.case, item.outcome, declared, item.expected))
    return {name for name, cell in report.rules.items() if cell.passed < cell.total}, set(report.rules)


def dequantizer(
    *, low=0, table=E2M1, scale=lambda s, byte: s, form=None, read="tiled_128x4", cast=lambda v: v, after=lambda v: v
):
    """NVFP4 from tiled scales, with one mistake."""

    def kernel(data, scales, amax, rows, columns):
        blocks = -(-columns // 16)
        place = layout(read).offset(np.arange(rows)[:, None], np.arange(blocks)[None], blocks)
        byte = scales.reshape(-1)[np.minimum(place, scales.size - 1)]
        s = np.repeat(scale(byte.view(ml_dtypes.float8_e4m3fn).astype(F), byte), 16, axis=1)[:, :columns]
        nibbles = np.stack([data >> 4 * low & 15, data >> 4 * (1 - low) & 15], axis=2)
        q = table[nibbles.reshape(rows, 2 * data.shape[1])[:, :columns]]
        with np.errstate(all="ignore"):
            values = q * (s * amax[0] * (F(1) / F(2688))) if form is None else form(q, s, amax[0])
            return cast(after(values))

    return kernel


def declared(to="float32", **changes):
    inputs = ("data", "scales", "amax", "rows", "columns")
    return Declaration(
        **{
            "operation": "dequantize",
            "inputs": inputs,
            "outputs": ("values",),
            "scale_layout": "tiled_128x4",
            "to": to,
            "dtypes": ("float32",),
            "empty": False,
        }
        | changes
    )


def truncated(v):
    return (v.view(np.uint32) & np.uint32(0xFFFF0000)).view(F).astype(ml_dtypes.bfloat16)


@pytest.mark.rule("CNF-78")
@pytest.mark.parametrize(
    "mistake, to, broken",
    [
        ({"low": 1}, "float32", {"PACK-1"}),
        ({"read": "linear_padded"}, "float32", {"LAY-3"}),
        ({"table": ODD}, "float32", {"E2M1-1"}),
        ({"table": np.where(E2M1 == 0, F(0), E2M1)}, "float32", {"E2M1-1"}),
        ({"scale": lambda s, byte: np.where(byte & 7 == 3, s * F(1.25), s)}, "float32", {"E4M3-1"}),
        ({"form": lambda q, s, amax: q * s * amax / F(2688)}, "float32", {"DEQ-1"}),
        ({"form": lambda q, s, amax: q * s}, "float32", {"DEQ-1"}),
        ({"cast": truncated}, "bfloat16", {"DEQ-3"}),
        ({"form": lambda q, s, amax: q * s, "cast": lambda v: v.astype(np.float16)}, "float16", {"DEQ-1"}),
    ],
)
def test_a_dequantizer_breaks_the_rules_on_what_it_does_wrong(mistake, to, broken):
    failed, counted = rules_of(dequantizer(**mistake), "nvfp4", declared(to))
    assert failed - {"LAY-6"} == broken
    assert ("LAY-6" in failed) <= ("read" in mistake)
    assert {"DEQ-1", "DEQ-3", "LAY-3", "LAY-6", "PACK-1", "E2M1-1", "E4M3-1", "NUM-1"} <= counted


@pytest.mark.rule("DEQ-1", "CNF-78")
@pytest.mark.parametrize("to", ["float32", "bfloat16", "float16"])
def test_a_right_dequantizer_breaks_no_rule(to):
    cast = {"float32": F, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[to]
    failed, counted = rules_of(dequantizer(cast=lambda v: v.astype(cast)), "nvfp4", declared(to))
    assert not failed
    assert "DEQ-1" in counted


@pytest.mark.rule("NUM-1", "CNF-78")
def test_flushed_values_break_the_rule_on_subnormals_only():
    flushed = dequantizer(after=lambda v: np.where(np.abs(v) < F(2.0**-126), np.copysign(F(0), v), v))
    failed, _ = rules_of(flushed, "nvfp4", declared(), families=("subnormals", "amax-powers", "normal"))
    assert failed == {"NUM-1"}


@pytest.mark.rule("E8M0-4", "DEQ-2", "CNF-78")
def test_wrong_results_at_nan_scales_break_the_rules_on_nan_only():
    how = declared(inputs=("data", "scales", "rows", "columns"), scale_layout="linear")
    case = next(case for case in cases_of(how, fp4ref.profiles["mxfp4"], families=("normal",)) if case.x.size > 64)
    given = golden(case)
    given.scales[0, 0] = 0xFF
    report = KernelReport("kernel", case.spec, how)
    values = fp4ref.dequantize(fp4ref.quantize(case.x, "mxfp4", backend="numpy"), backend="numpy")
    report.add(judge(case, Outcome(values=np.asarray(values).reshape(case.matrix)), how, given))
    assert {name for name, cell in report.rules.items() if cell.passed < cell.total} == {"DEQ-2", "E8M0-4"}


def converter(change=lambda out, order, scales: out, source="linear_padded", read=None, to="tiled_128x4"):
    def kernel(scales, rows, columns):
        form, order = layout(read or source), layout(to)
        place = form.offset(np.arange(rows)[:, None], np.arange(columns)[None], columns)
        linear = scales.reshape(-1)[np.minimum(place, scales.size - 1)]
        return change(order.from_linear(linear), order, scales)

    return kernel


MOVED = Declaration(
    operation="to_layout",
    inputs=("scales", "rows", "columns"),
    outputs=("scales",),
    source_layout="linear_padded",
    scale_layout="tiled_128x4",
    dtypes=("float32",),
    empty=False,
)


def padded_with(byte, rows, blocks, out):
    return np.where(layout("tiled_128x4").valid(rows, blocks), out, np.uint8(byte))


@pytest.mark.rule("LAY-5", "LAY-6", "CNF-78")
@pytest.mark.parametrize("byte, broken", [(0xFF, {"LAY-5"}), (POISON, {"LAY-5", "LAY-6"})])
def test_wrong_padding_of_a_conversion_breaks_the_rules_on_padding_only(byte, broken):
    def kernel(scales, rows, columns):
        return padded_with(byte, rows, columns, converter()(scales, rows, columns))

    failed, counted = rules_of(kernel, "nvfp4", MOVED)
    assert failed == broken
    assert {"LAY-3", "LAY-7"} <= counted


@pytest.mark.rule("LAY-3", "LAY-7", "CNF-78")
@pytest.mark.parametrize(
    "kernel, broken",
    [
        (converter(lambda out, order, scales: out.reshape(-1, 16)[:, ::-1].reshape(out.shape)), "LAY-3"),
        (converter(read="tiled_128x4"), "LAY-7"),
    ],
)
def test_a_conversion_breaks_the_rule_on_the_layout_that_it_mistakes(kernel, broken):
    failed, _ = rules_of(kernel, "nvfp4", MOVED, families=("normal",))
    assert broken in failed
    assert {"LAY-3", "LAY-7"} - {broken} - failed


TURN = Declaration(
    operation="hadamard",
    inputs=("x", "hadamard_signs"),
    outputs=("values",),
    dtypes=("bfloat16",),
    direction="column",
    empty=False,
)


def transform(x, change=lambda v: v, cast=lambda v: v.astype(ml_dtypes.bfloat16)):
    groups = x.astype(np.float64).reshape(-1, 16)
    signs = [-1 if fp4ref.profiles["nvfp4-rht"].hadamard.signs >> i & 1 else 1 for i in range(16)]
    matrix = [[sign * (-1) ** (i & j).bit_count() / 4 for j in range(16)] for i, sign in enumerate(signs)]
    return cast(change((groups @ np.array(matrix)).astype(F) + F(0))).reshape(x.shape)


@pytest.mark.rule("HAD-1", "HAD-3", "CNF-78")
@pytest.mark.parametrize(
    "wrong, broken",
    [
        ({"cast": truncated}, {"HAD-3"}),
        ({"change": lambda v: np.where(v == 0, F(-0.0), v)}, {"HAD-3"}),
        ({"change": lambda v: v * F(2)}, {"HAD-1", "HAD-2"}),
    ],
)
def test_a_transform_breaks_the_rules_on_what_it_does_wrong(wrong, broken):
    failed, counted = rules_of(
        lambda x, signs: transform(x, **wrong), "nvfp4-rht", TURN, families=("normal", "hadamard", "zero-blocks")
    )
    assert failed - {"HAD-7"} == broken
    assert {"HAD-1", "HAD-2", "HAD-3", "HAD-7"} <= counted


@pytest.mark.rule("DEQ-1", "DEQ-2", "DEQ-5")
@pytest.mark.parametrize(
    "spec, rule",
    [
        ("nvfp4", "DEQ-1"),
        ("te.fast_math_1d", "DEQ-1"),
        ("mxfp4", "DEQ-2"),
        ("modelopt.nvfp4", "DEQ-5"),
        ("compressed_tensors.nvfp4", "DEQ-5"),
    ],
)
def test_one_rule_names_the_order_of_a_specification(spec, rule):
    spec = fp4ref.profiles[spec]
    how = declared(inputs=("data", "scales", "rows", "columns"), scale_layout="linear")
    kernel = np.zeros
    for item in list(cases_of(how, spec, families=("normal",)))[:1]:
        found = judge(item, Outcome(values=kernel(item.matrix, F)), how)
        assert [name for name in found.rules if name.startswith("DEQ-")] == [rule, "DEQ-3"]
    assert dequantizing(spec, "column") == (rule, "DEQ-3", "DEQ-4", "LAY-6")
    assert implementations.dequantizing is dequantizing
