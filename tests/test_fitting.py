"""Cases for kernels that take only multiples of rows and columns."""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import pytest

import fp4ref
from fp4ref.conformance import families
from fp4ref.conformance.families.fitting import fitted
from fp4ref.conformance.families.products import cases as products
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import runner, stream
from fp4ref.conformance.subjects.products import reasons as reasons_of_product
from fp4ref.conformance.subjects.subject import Declaration, Subject, cases_of, golden, reasons
from fp4ref.conformance.subjects.turned_products import padded
from fp4ref.errors import DomainError
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.specs import STANDARD

NVFP4 = fp4ref.NVFP4
STOCHASTIC = NVFP4.replace(name="stochastic", element=STOCHASTIC_E2M1)
MULTIPLES = ((1, 16), (16, 16), (32, 32), (64, 64), (128, 128))
INPUTS = ("x", "amax", "random_bits")


def tried(spec, multiple, direction="row", dtypes=("bfloat16",)):
    """Count the cases of each family that apply, with the reasons why others do not."""
    declared = Declaration(inputs=INPUTS, multiple=multiple, direction=direction, dtypes=dtypes)
    applying, left = Counter(), {}
    for case in cases_of(declared, spec):
        if reason := reasons(case, declared):
            left[case.id] = reason
        else:
            applying[case.family] += 1
    return applying, left


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.rule("CNF-19", "CNF-104")
@pytest.mark.parametrize(  # by default, each specification in one direction
    "spec, direction",
    [
        pytest.param(spec, name, marks=pytest.mark.heavy if (i + j) % 2 else (), id=f"{spec.name}-{name}")
        for i, spec in enumerate([*STANDARD, STOCHASTIC])
        for j, name in enumerate(("row", "column"))
    ],
)
def test_every_family_applies_at_every_multiple(spec, direction):
    """At every multiple for NVFP4; for the others at one, rows at the largest, columns at a small one."""
    every, _ = tried(spec, (1, 1), direction)
    for multiple in MULTIPLES[1 + 3 * (direction == "row") :][:1] if spec in STANDARD[1:] else (*MULTIPLES, (48, 80)):
        some, left = tried(spec, multiple, direction)
        assert set(some) == set(every)
        assert {name.split("/")[1] for name in left} <= {"1"}, left  # the vector, which has one row
        assert all(some[name] == every[name] for name in every if name not in {"ragged", "axes", "layout"})


def numbered(shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def one(x, direction="row", spec=NVFP4, **more):
    return families.Case("a/b/f32/row", "a", "", (), x, spec, direction, **more)


@pytest.mark.rule("CNF-19")
def test_rows_and_columns_follow_again():
    x = numbered((7, 88))
    found = fitted(one(x, random_bits=x.astype(np.uint8)), (16, 16))
    assert found.x.shape == (16, 96)
    assert np.array_equal(found.x, np.pad(x, ((0, 9), (0, 8)), mode="wrap"))
    assert np.array_equal(found.random_bits, found.x.astype(np.uint8))
    across = fitted(one(x, "column"), (16, 32))
    assert (across.x.shape, across.matrix) == ((32, 96), (96, 32))
    assert np.array_equal(across.x, np.pad(x, ((0, 25), (0, 8)), mode="wrap"))
    whole = one(numbered((32, 32)))
    assert fitted(whole, (16, 16)) is whole


@pytest.mark.rule("CNF-19", "NUM-4")
def test_leading_dimensions_and_empty_tensors_are_padded():
    x = numbered((2, 8, 20))
    assert np.array_equal(fitted(one(x), (16, 16)).x, np.pad(x, ((0, 0), (0, 0), (0, 12)), mode="wrap"))
    grown = fitted(one(x), (128, 32)).x
    assert np.array_equal(grown, np.pad(x, ((0, 14), (0, 0), (0, 12)), mode="wrap"))
    assert fitted(one(numbered((3, 5, 4)), "column"), (8, 20)).x.shape == (4, 5, 8)
    assert fitted(one(np.zeros((0, 16), np.float32)), (128, 128)).x.shape == (0, 128)
    vector = one(numbered(83))
    assert fitted(vector, (1, 16)).x.shape == (96,)
    assert reasons(fitted(vector, (16, 16)), Declaration(multiple=(16, 16))) == "takes multiples of 16 x 16"


@pytest.mark.rule("CNF-19")
@pytest.mark.parametrize("spec", [NVFP4, fp4ref.NVFP4_2D, fp4ref.NVFP4_ROW_SCALED, STOCHASTIC], ids=lambda s: s.name)
@pytest.mark.parametrize("direction", ["row", "column"])
def test_a_copy_of_a_block_has_its_bytes(spec, direction):
    names = ("element-ties", "overflow", "random-bits", "rows")
    plain = families.cases(spec, directions=(direction,), dtypes=("bfloat16",), families=names)
    for case in plain:
        rows, columns = case.matrix
        if rows % spec.block.rows or columns % spec.block.columns:
            continue
        before, after = golden(case), golden(fitted(case, (48, 160)))
        data = np.pad(before.data, ((0, -rows % 48), (0, -columns % 160 // 2)), mode="wrap")
        assert after.data.tobytes() == data.tobytes()
        blocks = columns // spec.block.columns
        across = (columns + -columns % 160) // spec.block.columns - blocks
        scales = np.pad(before.scales, ((0, -rows % 48), (0, across)), mode="wrap")
        assert after.scales.tobytes() == scales.tobytes()


@pytest.mark.parametrize("multiple", [(1, 1), *MULTIPLES])
@pytest.mark.parametrize("direction", ["row", "column"])
def test_a_maximum_is_only_in_the_last_row_column_or_block(multiple, direction):
    made = families.cases(NVFP4, directions=(direction,), families=["amax-places"], multiple=multiple)
    places = set()
    for case in (case for case in made if "/rising-" not in case.id):
        x = np.abs((case.x if direction == "row" else case.x.T).astype(np.float32))
        ((row, column),) = np.argwhere(x == x.max())
        last = x.shape[0] - 1, (x.shape[1] - 1) // 16
        places.add((row == last[0], column == x.shape[1] - 1, (row, column // 16) == last))
    assert {(True, False, False), (False, True, False), (True, True, True), (True, False, True)} <= places


@pytest.mark.rule("LAY-7")
@pytest.mark.parametrize("multiple", [(16, 16), (128, 128)])
def test_scale_patterns_stay_injective(multiple):
    for spec in STANDARD:
        cases = families.cases(spec, dtypes=("bfloat16",), families=["layout"], multiple=multiple)
        scales = [golden(case).scales[:: spec.block.rows].ravel() for case in cases]
        assert len({*zip(*map(np.ndarray.tolist, scales), strict=True)}) == scales[0].size


def model(x):
    q = fp4ref.quantize(x, NVFP4, backend="numpy")
    return q.row.data, q.row.scales, q.row.amax


@pytest.mark.rule("CNF-8", "CNF-19")
def test_a_tie_is_seen_at_every_multiple():
    def up(x):
        more = np.nextafter(np.abs(x.astype(np.float32)), np.float32(np.inf))
        return model(np.copysign(more, x.astype(np.float32)).astype(np.float32))

    for multiple in MULTIPLES:
        for function, right in ((model, True), (up, False)):
            subject = Subject.of(function, multiple=multiple, dtypes=("bfloat16",), outputs=("data", "scales", "amax"))
            made = cases_of(subject.declaration, NVFP4, families=["element-ties", "axes"])
            found = [judge(r.case, r.outcome, subject.declaration, r.expected) for r in runner.run(subject, made)]
            assert found
            assert all(j.equal for j in found) == right


@pytest.mark.rule("CNF-19", "HAD-4")
def test_a_hadamard_kernel_gets_every_case_in_whole_groups():
    declared = Declaration(operation="hadamard", outputs=("values",), dtypes=("bfloat16",), leading=False)
    left = Counter(reason for case in cases_of(declared, NVFP4) if (reason := reasons(case, declared)))
    assert set(left) <= {"takes matrices only", "is not defined on NaN and Inf"} | {"takes no amax"}


@pytest.mark.rule("CNF-6", "CNF-19")
def test_a_stream_is_padded_as_well():
    plan = stream.StreamPlan(NVFP4, dtypes=("bfloat16",), multiple=(128, 128))
    made = list(plan.cases())
    assert {case.family for case in made} == set(tried(NVFP4, (1, 1))[0])
    assert all(size % 128 == 0 for case in made for size in case.matrix)
    text = io.BytesIO()
    assert stream.write(text, stream.StreamPlan(NVFP4, families=("nan",), multiple=(64, 64))) == 12


def test_a_multiple_has_a_bound():
    with pytest.raises(DomainError, match=r"multiple \(2048, 1024\), need a product of at most 2\^20"):
        Declaration(multiple=(2048, 1024))


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.rule("CNF-19", "GEM-13")
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "nvfp4-row-scaled"])
def test_products_are_padded_and_keep_their_sums(name):
    spec = fp4ref.profiles[name]
    for case in products.cases(spec, ("powers", "width", "dense", "ragged", "alpha", "bias")):
        grown, (m, n, _) = padded(case, (16, 128)), case.shape
        assert [size % of for size, of in zip(grown.shape, (16, 16, 128), strict=True)] == [0, 0, 0]
        assert (
            reasons_of_product(
                grown, Declaration(operation="gemm", inputs=("a_data", "bias"), multiple=(16, 128), outputs=("values",))
            )
            == ""
        )
        before, after = (fp4ref.gemm(made.a, made.b, bias=made.bias, backend="numpy") for made in (case, grown))
        assert np.array_equal(after, np.pad(before, ((0, -m % 16), (0, -n % 16)), mode="wrap"))
