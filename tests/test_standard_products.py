"""Examples of the chapter on products on trial, computed."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref.conformance.families.products.additions import SIDE
from fp4ref.conformance.families.products.cases import FAMILIES, cases
from fp4ref.conformance.judge.products import interval, operand
from fp4ref.conformance.subjects.products import job_of
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.subjects.turned_products import fitted
from fp4ref.conformance.verdict.dump_report import Verdict
from fp4ref.conformance.verdict.product_runs import check
from fp4ref.packing import unpack
from fp4ref.standard import formulas
from standard_rules import integers, rows_of, text_of

F = np.float32
NVFP4 = fp4ref.NVFP4


def decoded(operand):
    """Elements times scales, in float64."""
    spec, (rows, depth) = operand.spec, operand.shape
    codes = unpack(operand.data.data, depth, spec.element.format)
    scales = spec.scale.decode(operand.data.scales).astype(np.float64)
    return spec.element.decode(codes) * np.repeat(scales, spec.block.columns, axis=1)[:rows, :depth]


def units(product):
    """The positive and the negative parts of sums [..., K], in units of the smallest bit of their products."""
    mantissa, exponent = np.frexp(product)
    whole = (mantissa * 2.0**53).astype(np.int64)
    lowest = np.where(whole == 0, 10**6, exponent - 53 + np.log2(np.maximum(whole & -whole, 1)).astype(np.int64))
    unit = np.ldexp(1.0, lowest.min(axis=-1, keepdims=True).clip(max=0))
    return (np.abs(product * (product * sign > 0) / unit).sum(-1) for sign in (1, -1))


@pytest.mark.rule("GEM-13", "GEM-18")
@pytest.mark.example("GEM-13")
def test_aimed_operands():
    limit = formulas.value(re.search(r"less than (2\^24) units", text_of("GEM-13"))[1])
    names = tuple(name for name, family in FAMILIES.items() if family.rules in {("GEM-1", "GEM-13"), ("GEM-13",)})
    for case in cases(NVFP4, names):
        a, b = (decoded(operand)[:24] for operand in case.operands)
        for part in units(a[:, None] * b[None]):
            assert part.max() < limit, case.id
    (first, _), (second, _), (third, _), (fourth, _) = rows_of("GEM-13")
    found = {case.name: case for case in cases(NVFP4, ("powers", "width"))}
    a, b = (decoded(operand) for operand in found["up"].operands)
    whole = a[0] * b[0]
    for block in range(len(whole) // 16):  # a bit is missing, or the next one is set instead
        without = whole.sum() - whole[16 * block : 16 * block + 16].sum()
        assert without != whole.sum() != 2 * whole.sum() - without
    assert first.startswith("a block left out, added twice")
    a, b = (decoded(operand) for operand in found["large-first"].operands)
    bits = int(re.search(r"p < (\d+) significant bits", second)[1])
    for p in range(2, bits):
        sums = b @ a[0]
        step = np.exp2(np.floor(np.log2(sums)) + 1 - p)
        wrong = np.flatnonzero(np.rint(sums / step) * step != sums)
        assert wrong[0] == p
    assert third.startswith("the scales of rows or layouts")
    assert fourth.startswith("an amax")


@pytest.mark.rule("GEM-18")
@pytest.mark.example("GEM-18")
def test_families_of_aimed_operands():
    (_, block), (_, width), (_, random), (_, orders) = rows_of("GEM-18")
    assert block == "block k contributes 2^k"
    (case,) = (case for case in cases(NVFP4, ("powers",)) if case.name == "up")
    a, b = (decoded(operand) for operand in case.operands)
    parts = (a[0] * b[0]).reshape(-1, 16).sum(1)
    assert (parts / parts[0]).tolist() == [2.0**k for k in range(len(parts))]
    count = integers(re.search(r"n below \d+", width)[0])[0]
    (case,) = (case for case in cases(NVFP4, ("width",)) if case.name == "large-first")
    a, b = (decoded(operand) for operand in case.operands)
    assert (b @ a[0]).tolist() == [2.0**n + 1 for n in range(count)]
    rows = integers(random)[0]
    case = next(case for case in cases(NVFP4, ("dense",)))
    assert min(case.shape[:2]) > rows
    assert len(np.unique(case.a.row.scales)) > 5
    assert "each other order" in orders
    assert {case.a.row.amax.item() for case in cases(NVFP4, ("alpha",)) if "order" in case.name} > {2688.0}


@pytest.mark.rule("GEM-14")
@pytest.mark.example("GEM-14")
def test_the_bound_of_additions():
    for depth, gamma in rows_of("GEM-14"):
        ones = np.ones((1, int(depth)), F)
        signs = np.resize(F([1, -1]), ones.shape)  # their sum is 0, around which float32 is fine enough
        q, other = (fp4ref.quantize(x, "mxfp4", backend="numpy") for x in (ones, signs))
        low, high = interval(operand(q), operand(other))
        assert -low == high
        assert f"{float(high[0, 0]) / int(depth):.4e}".replace("e-0", "e-") == gamma


TABLE = {
    "m": np.arange(SIDE)[:, None],
    "n": np.arange(SIDE)[None],
}
TABLE |= {
    "i": TABLE["m"] % 4 + 0 * TABLE["n"],
    "j": (3 * TABLE["m"] + 5 * TABLE["n"]) % 16,
    "k": TABLE["n"] % 14 + 0 * TABLE["m"],
    "l": (3 * TABLE["m"] + 5 * TABLE["n"]) % 4,
}


def computed(cell):
    """A formula of the table over m and n, as integers."""
    if not cell:
        return 0 * TABLE["m"] * TABLE["n"]
    text = re.sub(r"(\d) (?=[a-z(])", r"\1 * ", cell)
    names = {name: np.broadcast_to(values, (SIDE, SIDE)).astype(F) for name, values in TABLE.items()}
    return np.broadcast_to(formulas.value(text, names), (SIDE, SIDE)).astype(np.int64)


@pytest.mark.rule("GEM-15")
@pytest.mark.example("GEM-15")
def test_what_is_added():
    assert f"below {SIDE}" in text_of("GEM-15")
    found = {case.id: case for case in cases(NVFP4, ("bias", "accumulate", "bias-accumulate"))}
    for cell, *formula in rows_of("GEM-15"):
        case = found[cell.strip("`")]
        m, n, _ = case.shape
        product, bias, c, result = (computed(each)[: min(m, SIDE), : min(n, SIDE)] for each in formula)
        sums = fp4ref.gemm(case.a, case.b, backend="numpy")[:SIDE, :SIDE]
        assert np.array_equal(sums, product)
        for given, wanted in ((case.bias, bias), (case.accumulate, c)):
            got = 0 * sums if given is None else np.broadcast_to(given, case.shape[:2])[:SIDE, :SIDE]
            assert np.array_equal(got, wanted)
        assert np.array_equal(product + bias + c, result)
        assert max(np.abs(part).max() for part in (product, bias, c)) < 2**24
        for kind in (np.float16, ml_dtypes.bfloat16):
            assert np.array_equal(result.astype(F).astype(kind).astype(np.int64), result)
    bf16 = lambda value: int(F(value).astype(ml_dtypes.bfloat16))  # noqa: E731
    product, bias, c = (int(computed(cell)[0, 0]) for cell in (rows_of("GEM-15")[0][1], rows_of("GEM-15")[0][2], ""))
    longer, added = (int(computed(cell)[0, 0]) for cell in (rows_of("GEM-15")[1][1], rows_of("GEM-15")[1][3]))
    mistakes = [
        [product, product + 2 * bias, 8 * (product // 8 + bias)],
        [product + bf16(bias)],
        [longer, longer + 8 * added],
        [bf16(longer) + added],
    ]
    for (_, said), made in zip(rows_of("GEM-15", 1), mistakes, strict=True):
        assert [int(number) for number in re.findall(r"-?\d+", said)] == made


@pytest.mark.rule("GEM-53")
@pytest.mark.example("GEM-53")
def test_a_bias_in_the_last_tile():
    ((words, found),) = rows_of("GEM-53")
    tile, columns = integers(words)[0], integers(found)[0]
    names = ("a_data", "a_scales", "b_data", "b_scales", "bias", "rows", "columns", "depth")

    def kernel(a_data, a_scales, b_data, b_scales, bias, rows, columns, depth):
        a, b = (
            fp4ref.Quantized(
                fp4ref.MXFP4, (count, depth), "float32", "linear", fp4ref.DirectionData(data, scales, None)
            )
            for data, scales, count in ((a_data, a_scales, rows), (b_data, b_scales, columns))
        )
        added = np.where(np.arange(columns) < columns // tile * tile, bias, 0)
        return fp4ref.gemm(a, b, bias=added.astype(F), backend="numpy")

    kernel = fp4ref.kernel(operation="gemm", inputs=names, outputs=("values",))(kernel)
    report = check(Subject.of(kernel), fp4ref.MXFP4, ("bias",))
    failing = {each.case.shape[1] for each in report.failed}
    assert columns in failing
    assert all(size % tile for size in failing)


@pytest.mark.rule("GEM-16")
@pytest.mark.example("GEM-16")
def test_directions_of_products():
    sizes = {"M": 32, "N": 48, "K": 64}
    random = np.random.default_rng(16)
    made = {
        name: fp4ref.quantize(random.standard_normal((sizes[a], sizes[b])).astype(F), "mxfp8-e4m3", "both")
        for name, (a, b) in {"x": "MK", "w": "NK", "dy": "MN"}.items()
    }
    for product, one, other, directions in rows_of("GEM-16"):
        used = directions.split(", ")
        sides = []
        for cell, direction in zip((one, other), used, strict=True):
            q = made[cell.split()[0].rstrip(",")]
            assert ("by columns" in cell) == (direction == "column")
            shape = [sizes[name] for name in re.search(r"\[(\w), (\w)\]", cell).groups()]
            assert [*q.direction(direction)[1]] == shape
            values = fp4ref.dequantize(q, direction=direction, backend="numpy")
            sides.append((q, values if list(values.shape) == shape else values.T))
        y = fp4ref.gemm(sides[0][0], sides[1][0], directions=tuple(used), backend="numpy")
        assert np.allclose(y, sides[0][1].astype(np.float64) @ sides[1][1].T.astype(np.float64), rtol=1e-5, atol=1e-4)
        names = {"y": "MN", "dx": "MK", "dw": "NK"}[product.split()[0]]
        assert [*y.shape] == [sizes[name] for name in names]


def operands_of(spec, **settings):
    """The arguments that a kernel gets for a case of the family dense, and the case."""
    kernel = fp4ref.kernel(
        operation="gemm",
        inputs=("a_data", "a_scales", "b_data", "b_scales"),
        outputs=("values",),
        **settings,
    )(lambda *given: given)
    declared = Subject.of(kernel).declaration
    case = next(case for case in cases(spec, ("dense",)) if case.name == "square")
    case = fitted(case, declared)
    return job_of(case, declared).arguments, case


@pytest.mark.rule("GEM-55")
@pytest.mark.example("GEM-55")
def test_columns_that_are_not_transposed():
    operand = integers(re.search(r"operand (\[.*?\]) of MXFP8", text_of("GEM-55"))[1])
    ((_, shape),) = rows_of("GEM-55")
    assert integers(shape) == operand[::-1]
    settings = {"directions": ("column", "column")}
    given, case = operands_of(fp4ref.MXFP8_E4M3, transposed=True, **settings)
    plain, _ = operands_of(fp4ref.MXFP8_E4M3, **settings)
    m, _, depth = case.shape
    assert (plain["a_data"].shape, given["a_data"].shape) == ((m, depth), (depth, m))
    for name in ("a_data", "a_scales", "b_data", "b_scales"):
        assert np.array_equal(given[name].T, plain[name])


@pytest.mark.rule("GEM-17")
@pytest.mark.example("GEM-17")
def test_cases_with_nan_and_infinities():
    specs = {"nan-element": fp4ref.MXFP8_E5M2, "inf-element": fp4ref.MXFP8_E5M2, "second-zero": None}
    assert "UE4M3" in {name: words for name, words, _ in rows_of("GEM-17")}["`second-zero`"]
    ggml = next(spec for spec in fp4ref.profiles.values() if spec.scale.format.second_zero)
    for cell, words, _ in rows_of("GEM-17"):
        name = cell.strip("`")
        spec = specs.get(name, NVFP4) or ggml
        given = [
            case
            for case in cases(spec, ("special", "special-tails", "second-zero"))
            if name in (case.name, case.family)
        ]
        assert given, name
        for case in given:
            a, b = (decoded(operand) for operand in case.operands)
            found = np.isnan(a).any(1) | np.isinf(a).any(1)
            if name == "second-zero":
                assert not found.any()
                assert {case.a.row.scales[3, 1], case.b.row.scales[5, 1]} == {spec.scale.format.codes}
                continue
            y = fp4ref.gemm(case.a, case.b, backend="numpy")
            other = np.isnan(b).any(1) | np.isinf(b).any(1)
            assert 0 < found.sum() <= 8
            wrong = ~np.isfinite(y)
            assert wrong.any()
            assert not wrong[~found][:, ~other].any()
            if "a NaN scale in a row of A and a row of B" in words:
                assert (found.sum(), other.sum()) == (1, 1)
            if "blocks whose elements are 0" in words:
                rows = np.flatnonzero(found)
                assert not unpack(case.a.row.data, case.shape[2], spec.element.format)[rows].any()


@pytest.mark.rule("CNF-9", "CNF-118")
def test_products_with_a_finding_are_wrong():
    def kernel(a_data, a_scales, b_data, b_scales):
        raise ValueError("no")

    names = ("a_data", "a_scales", "b_data", "b_scales")
    kernel = fp4ref.kernel(operation="gemm", inputs=names, outputs=("values",))(kernel)
    report = check(Subject.of(kernel), fp4ref.MXFP4, ("powers",))
    assert report.kind is Verdict.WRONG
