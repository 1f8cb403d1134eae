"""Kernels that add, that read columns, and that meet NaN and infinities, on trial."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from accepted_once import accepted_once
from covering import few
from fp4ref.cli import main
from fp4ref.conformance.families.products.additions import SIDE
from fp4ref.conformance.families.products.cases import cases
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.subjects.turned_products import turned
from fp4ref.conformance.verdict.product_runs import check
from standard_rules import rows_of

F = np.float32
KERNELS = runpy.run_path(str(Path(__file__).parent / "mutants" / "products.py"))
RAGGED = runpy.run_path(str(Path(__file__).parent / "mutants" / "products_ragged.py"))["RAGGED"]
DEPTHS = runpy.run_path(str(Path(__file__).parent / "mutants" / "depths.py"))["DEPTHS"]
FEW = ("ragged", "powers", "alpha", "bias", "accumulate", "bias-accumulate", "special")
DIRECTED = ("ragged", "dense")
STAGED = ("width", "ragged", "alpha", "bias", "special")
product, right = KERNELS["product"], KERNELS["right"]


once = accepted_once()


def named(kernels):
    return [pytest.param(*value, id=name) for name, value in kernels.items()]


def verdict(function, families=FEW, spec=None):
    return check(Subject.of(function), fp4ref.profiles[spec or spec_of(function)], families)


def spec_of(function):
    """The specification that a kernel was made for."""
    names = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    return names["spec"].cell_contents


@pytest.mark.slow  # each mutant is called on every case
@pytest.mark.rule("GEM-8", "GEM-15", "CNF-2")
@pytest.mark.parametrize(("function", "text"), few(named(KERNELS["ADDED"]), 0, every=2))
def test_wrong_additions_are_caught_and_named(function, text):
    report = verdict(function)
    assert not report.ok
    assert re.search(re.escape(text), report.headline), report.headline


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.rule("GEM-5", "GEM-8", "GEM-15", "GEM-17", "GEM-18", "CNF-2")
@pytest.mark.parametrize(("function", "text"), few([*named(RAGGED)][::2] + [*named(RAGGED)][1::2], 3, every=4))
def test_what_is_wrong_in_a_tail_or_by_one_bit_is_caught_and_named(function, text):
    report = verdict(function, None)
    assert not report.ok
    assert re.search(text, report.headline), report.headline


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.rule("GEM-1", "GEM-13", "CNF-2")
@pytest.mark.parametrize(("function", "text"), few([*named(DEPTHS)], 8))
def test_wrong_depths_are_caught_and_named(function, text):
    report = verdict(function, ("deep", "ragged", "powers"))
    assert not report.ok
    assert f"wrong: {text}" in report.headline, report.headline


@pytest.mark.rule("GEM-13", "GEM-18")
@pytest.mark.parametrize("spec", ["nvfp4", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2"])
def test_deep_sums_are_exact_in_every_order(spec):
    for case in cases(fp4ref.profiles[spec], ("deep",)):
        a, b = (np.abs(decoded(operand)) for operand in case.operands)
        assert (a @ b.T).max() < 2**24 / 4  # units are quarters: two halves of elements
        assert case.shape[2] > 1024


def decoded(operand):
    spec, (rows, depth) = operand.spec, operand.shape
    codes = fp4ref.packing.unpack(operand.data.data, depth, spec.element.format)
    scales = spec.scale.decode(operand.data.scales).astype(np.float64)
    return spec.element.decode(codes) * np.repeat(scales, spec.block.columns, axis=1)[:rows, :depth]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.rule("GEM-8", "GEM-14", "GEM-15", "GEM-52")
@pytest.mark.parametrize("name", few([*KERNELS["ADD_RIGHT"]][::2] + [*KERNELS["ADD_RIGHT"]][1::2], 3))
def test_right_additions_conform_in_any_order(name):
    report = verdict(KERNELS["ADD_RIGHT"][name])
    assert report.ok, report.headline
    assert {"bias", "accumulate", "bias-accumulate"} & set(report.families())


def without_last_block(q, s):
    s = s.copy()
    s[:, -1] = 0
    return q, s


def truncated(y, alpha, bias=None, c=None, to=F):
    y = np.asarray(y * alpha if bias is None else y * alpha + bias, F)
    return (y.view(np.uint32) & np.uint32(0xFFFF0000)).view(F)


def in_bfloat16(y, alpha, **of):
    return y.astype(ml_dtypes.bfloat16).astype(F) * alpha


def one_amax(of):
    return {**of, "b_amax": np.ones_like(of["b_amax"])}


STAGES = {  # a kernel, and the rules that fail
    "last block": (product("nvfp4", fix=without_last_block), "GEM-1 GEM-13"),
    "last block, bfloat16": (product("nvfp4", fix=without_last_block, to="bfloat16"), "GEM-1 GEM-13"),
    "last block, bias": (product("mxfp4", right, fix=without_last_block, more=("bias",)), "GEM-1 GEM-13"),
    "last block, amaxes of rows": (product("nvfp4-row-scaled", fix=without_last_block), "GEM-1 GEM-13"),
    "amax of B": (product("nvfp4", pick=one_amax), "GEM-5"),
    "amaxes of rows of B": (product("nvfp4-row-scaled", pick=one_amax), "GEM-7"),
    "amax of B and last block": (product("nvfp4", fix=without_last_block, pick=one_amax), "GEM-1 GEM-13 GEM-5"),
    "bias": (product("nvfp4", more=("bias",)), "GEM-8 GEM-15"),
    "bias and last block": (product("nvfp4", more=("bias",), fix=without_last_block), "GEM-1 GEM-13 GEM-8 GEM-15"),
    "cast": (product("mxfp8-e4m3", truncated, to="bfloat16"), "GEM-8"),
    "cast, bias": (product("nvfp4", truncated, to="bfloat16", more=("bias",)), "GEM-8"),
    "precision": (product("nvfp4", in_bfloat16), "GEM-13"),
    "NaN": (product("nvfp4", fix=KERNELS["nan_scales"](0)), "GEM-3 GEM-17"),
    "a zero is added": (product("nvfp4", lambda y, s, **_: y * s + F(0)), "GEM-8"),
}


@pytest.mark.sampled(7)
@pytest.mark.example("CNF-79")
@pytest.mark.slow  # each kernel is called on fifty small cases
@pytest.mark.rule("GEM-1", "GEM-5", "GEM-8", "CNF-79")
@pytest.mark.parametrize("name", STAGES)
def test_a_rule_fails_only_for_the_stage_that_it_decides(name):
    function, broken = STAGES[name]
    report = check(Subject.of(function), fp4ref.profiles[spec_of(function)], STAGED, seconds=0)
    cells = report.rules()
    assert {rule for rule, cell in cells.items() if cell.passed < cell.total} == {*broken.split()}
    shown = {"last block": "skips the last block", "amax of B": "without the amax of B", "bias": "adds no bias"}
    for kernel, fails, does_not in rows_of("CNF-79", 1) if name in shown else ():
        if kernel.endswith(shown[name]):
            assert {*fails.split(", ")} == {*broken.split()}
            assert not {*does_not.split(", ")} & {*broken.split()}
    assert len(rows_of("CNF-79", 1)) == len(shown)
    assert {"GEM-1", "GEM-13", "GEM-3", "GEM-17"} <= set(cells)
    assert ("GEM-7" in cells, "GEM-5" in cells) == {
        "nvfp4": (False, True),
        "nvfp4-row-scaled": (True, False),
    }.get(report.spec.name, (False, False))


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.rule("GEM-16", "CNF-2")
@pytest.mark.parametrize(("function", "text"), named(KERNELS["TURNED"]))
def test_the_other_direction_is_caught_and_named(function, text):
    report = verdict(function, DIRECTED)
    assert not report.ok
    assert re.search(re.escape(text), report.headline), report.headline


@pytest.mark.slow
@pytest.mark.rule("GEM-16", "GEM-55")
@pytest.mark.parametrize("name", KERNELS["TURNED_RIGHT"])
def test_gradients_conform(name):
    report = verdict(KERNELS["TURNED_RIGHT"][name], (*DIRECTED, "special"))
    assert report.ok, report.headline


@pytest.mark.slow
@pytest.mark.rule("GEM-3", "GEM-17", "CNF-2")
@pytest.mark.parametrize(("function", "text"), named(KERNELS["SPECIAL"]))
def test_lost_nan_and_infinities_are_caught_and_named(function, text):
    report = verdict(function, ("ragged", "special"))
    assert not report.ok
    assert re.search(re.escape(text), report.headline), report.headline


@pytest.mark.rule("GEM-3", "GEM-17")
@pytest.mark.parametrize("spec", ["nvfp4", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2"])
def test_special_cases_hold_what_they_say(spec):
    spec = fp4ref.profiles[spec]
    for case in cases(spec, ("special",)):
        values = [
            spec.element.decode(fp4ref.packing.unpack(q.row.data, q.shape[1], spec.element.format))
            for q in (case.a, case.b)
        ]
        scales = [spec.scale.decode(q.row.scales) for q in (case.a, case.b)]
        assert case.specials == (("inf",) if case.name.startswith("inf") else ("nan",))
        of = scales if "scale" in case.name else values
        assert all(np.isinf(part).any() if "inf" in case.specials else np.isnan(part).any() for part in of)
    names = [case.name for case in cases(spec, ("special",))]
    wanted = ["nan-scale", "nan-scale-of-zeros", "nan-scale-of-ones"]
    wanted += ["nan-element"] * (spec.element.format.bits == 8) + ["inf-element"] * (spec.element.format.name == "e5m2")
    assert names == wanted


@pytest.mark.sampled(4)
@pytest.mark.rule("GEM-15")
@pytest.mark.parametrize("spec", ["nvfp4", "nvfp4-4over6", "mxfp4", "mxfp8-e4m3", "mxfp8-e5m2"])
@pytest.mark.parametrize("to", ["float32", "bfloat16", "float16"])
def test_additions_are_exact_in_every_order(spec, to):
    m = np.indices((SIDE, SIDE))[0]
    kind = {"float32": F, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[to]
    made = {case.family: case for case in cases(fp4ref.profiles[spec], FEW) if case.name == "cancels"}
    sums = {"bias": -1024 + 8 * m, "accumulate": 8 * (2049 + 2 * (m % 4)), "bias-accumulate": -1024 + 8 * m}
    for family, case in made.items():
        y = fp4ref.gemm(case.a, case.b)
        assert y.tolist() == sums[family].tolist()
        bias = 0 if case.bias is None else case.bias
        c = 0 if case.accumulate is None else case.accumulate
        assert (c == np.asarray(c).astype(kind).astype(F)).all()
        first, second = (y + c) + bias, y + (c + bias)
        assert first.tobytes() == second.tobytes()
        assert (first.astype(kind).astype(F) == first).all()
    assert len(made) == 3


@pytest.mark.rule("GEM-18", "GEM-53", "GEM-51")
@pytest.mark.parametrize("spec", ["nvfp4", "nvfp4-row-scaled", "mxfp4", "mxfp8-e4m3"])
def test_something_is_added_to_results_of_every_tail(spec):
    spec = fp4ref.profiles[spec]
    for family in ("bias", "accumulate", "bias-accumulate"):
        shapes = [case.shape for case in cases(spec, (family,)) if case.plain]
        depths = {depth % spec.block.columns == 0 for *_, depth in shapes}
        for sizes in zip(*shapes, strict=True):
            if sizes != tuple(depth for *_, depth in shapes):
                assert {size % 8 for size in sizes} == {*range(8)}
                assert {1} < {*sizes}
                for tile in (16, 32, 64, 128):  # past a tile, by less than 8
                    assert any(size > tile and 0 < size % tile < 8 for size in sizes), (family, tile)
                assert any(size % 64 > 32 for size in sizes)
        assert depths == {True, False}


ORDERS = {  # of float32 operations, with the factor f and its root h
    "reciprocal": lambda a, b, f, h: a * b * (F(1) / f),
    "division": lambda a, b, f, h: a * b / f,
    "a first": lambda a, b, f, h: a * (F(1) / f) * b,
    "b first": lambda a, b, f, h: b * (F(1) / f) * a,
    "a divided": lambda a, b, f, h: a / f * b,
    "b divided": lambda a, b, f, h: b / f * a,
    "each": lambda a, b, f, h: a / h * (b / h),
    "each by reciprocal": lambda a, b, f, h: a * (F(1) / h) * (b * (F(1) / h)),
    "one each": lambda a, b, f, h: a / h * (b * (F(1) / h)),
    "a, b, root": lambda a, b, f, h: a / h * b / h,
    "reciprocal of quotient": lambda a, b, f, h: F(1) / (f / (a * b)),
    "reciprocal of product": lambda a, b, f, h: F(1) / (h / a * (h / b)),
    "product of reciprocals": lambda a, b, f, h: F(1) / (h / a) * (F(1) / (h / b)),
    "quotient by b": lambda a, b, f, h: a / (f / b),
    "once": lambda a, b, f, h: (np.float64(a) * np.float64(b) / np.float64(f)).astype(F),
}


@pytest.mark.rule("GEM-5", "GEM-6", "GEM-18")
@pytest.mark.parametrize("to", [F, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("spec", ["nvfp4", "nvfp4-row-scaled", "te.python_reference_4over6_mae_256"])
def test_each_order_of_the_amaxes_and_the_factor_shows(spec, to):
    spec = fp4ref.profiles[spec]
    given = [case for case in cases(spec, ("alpha",)) if case.name.startswith("order-")]
    a, b = np.array([[q.row.amax[0] for q in (case.a, case.b)] for case in given], F).T
    root = F(6 * (256 if "256" in spec.name else 448))
    made = {name: order(a, b, root * root, root).astype(to).tolist() for name, order in ORDERS.items()}
    right = {"a first"} if spec.global_scale == "row" else {"reciprocal", "division"}
    same = {(one, other) for one in right for other in {*made} - right if made[one] == made[other]}
    assert not same
    for case in given:  # results are powers of two times alpha, so that a bit of alpha is one of a result
        sums = np.abs(
            fp4ref.gemm(*(replace(q, row=q.row._replace(amax=q.row.amax * 0 + root)) for q in (case.a, case.b)))
        )
        assert (np.frexp(sums)[0] == 0.5).all()


@pytest.mark.rule("GEM-3", "GEM-17")
@pytest.mark.parametrize("spec", ["nvfp4", "mxfp8-e5m2"])
def test_nan_in_tails(spec):
    for case in cases(fp4ref.profiles[spec], ("special-tails",)):
        m, n, _ = case.shape
        y = fp4ref.gemm(case.a, case.b)
        row, column = np.ogrid[:m, :n]
        assert (np.isnan(y) == ((row == m - 1) | (column == max(n - 2, 0)))).all()


@pytest.mark.rule("GEM-16")
def test_a_turned_tensor_has_the_matrix_in_its_column_direction():
    case = next(case for case in cases(fp4ref.NVFP4, ("dense",)))
    q = turned(case.b, "column")
    assert q.shape == case.b.shape[::-1]
    assert q.direction("column")[1] == case.b.shape
    assert q.column is case.b.row
    assert q.row.data.shape == (q.shape[0], q.shape[1] // 2)
    same = fp4ref.gemm(case.a, q, directions=("row", "column"))
    assert same.tobytes() == fp4ref.gemm(case.a, case.b).tobytes()
    assert fp4ref.gemm(case.a, turned(case.b, "row")).tobytes() == same.tobytes()


@pytest.mark.rule("GEM-15", "GEM-16", "GEM-56", "CNF-102")
def test_what_a_kernel_does_not_take_does_not_apply():
    report = verdict(
        KERNELS["product"]("mxfp8-e5m2", specials=()), ("special", "bias", "accumulate", "bias-accumulate")
    )
    assert dict(report.skipped) == {
        "is not defined on nan": 4,
        "is not defined on inf": 1,
        "takes no bias": 54,
        "takes nothing to accumulate to": 25,
    }
    with pytest.raises(fp4ref.DomainError, match=r"transposed data of mxfp4, need elements of 8 bits \[GEM-16\]"):
        verdict(KERNELS["product"]("mxfp4", transposed=True))
    for settings, message in (
        ({"directions": ("row", "up")}, "directions"),
        ({"specials": ("zero",)}, "specials"),
        ({"in_place": True}, "in_place, need a gemm with out_buffers and without the input accumulate"),
    ):
        with pytest.raises(fp4ref.DomainError, match=message):
            fp4ref.kernel(operation="gemm", inputs=("a_data",), outputs=("values",), **settings)


SOURCE = """
import numpy as np
import fp4ref

NAMES = ("a_data", "a_scales", "b_data", "b_scales", "bias", "rows", "columns", "depth")

@fp4ref.kernel(operation="gemm", inputs=NAMES, outputs=("values",), out_buffers=True, in_place=True)
def gemm(a_data, a_scales, b_data, b_scales, bias, rows, columns, depth, out):
    a, b = (
        fp4ref.Quantized(fp4ref.MXFP4, (count, depth), "float32", "linear", fp4ref.DirectionData(data, scales, None))
        for data, scales, count in ((a_data, a_scales, rows), (b_data, b_scales, columns))
    )
    out[0][...] = fp4ref.gemm(a, b, bias=bias, accumulate=out[0].copy(), backend="numpy")
"""


@pytest.mark.slow  # a process of its own
@pytest.mark.rule("CNF-9", "GEM-51", "GEM-62")
def test_the_command_sends_what_a_buffer_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(SOURCE)
    line = ["verify", "--kernel", "kernel.py:gemm", "--spec", "mxfp4", "--json"]
    for family in ("bias", "accumulate", "bias-accumulate", "ragged"):
        line += ["--family", family]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output[result.output.index("{") :])
    assert found["families"]["accumulate"]["passed"] == 25
