from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import fp4ref
from fp4ref import hadamard, testing
from fp4ref.conformance.families import Case
from fp4ref.conformance.families.strategies import float32s, matrices, near, shapes
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.judge.hadamard_stages import within_bound
from fp4ref.conformance.oracle import hadamard as hadamard_bound
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.conformance.oracle import rationals
from fp4ref.conformance.subjects.outcomes import Outcome
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.errors import DomainError, DTypeError, ShapeError
from fp4ref.formats import E2M1, grid
from fp4ref.model.quantize import global_amax, quantize

MASK = 0xD7E8
SIGNS = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]


def bfloat16(values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def transform(group: np.ndarray, mask: int = MASK) -> np.ndarray:
    with np.errstate(all="ignore"):
        return hadamard.transform(np.asarray(group, np.float32), mask)


ELEMENTS = near(grid(E2M1)[:-1]) | float32s(finite=True)
GROUPS = st.lists(ELEMENTS, min_size=16, max_size=16).map(bfloat16).filter(lambda g: bool(np.isfinite(g).all()))
NARROW = st.lists(
    st.integers(-255, 255).flatmap(lambda m: st.integers(0, 4).map(lambda e: m * 2.0**e)), min_size=16, max_size=16
)
SPREAD = st.lists(
    st.builds(lambda m, e: m * 2.0**e, st.integers(-255, 255), st.integers(-20, 20)), min_size=16, max_size=16
)


@pytest.mark.rule("HAD-1")
def test_signs_by_hand():
    assert hadamard.sign_vector(MASK).tolist() == SIGNS
    assert fp4ref.NVFP4_RHT.hadamard.signs == MASK
    assert hadamard.sign_vector(0).tolist() == [1] * 16


@pytest.mark.rule("HAD-1", "HAD-2")
def test_every_unit_vector_gives_a_row_of_the_sylvester_matrix():
    for i in range(16):
        row = [SIGNS[i] * (-1) ** (i & j).bit_count() for j in range(16)]
        assert (transform(np.eye(16)[i] * 4)).tolist() == row


@pytest.mark.rule("HAD-1", "HAD-2", "HAD-3")
def test_transformer_engines_worked_examples():
    only_third = [-1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1]
    assert transform(np.eye(16)[3] * 4).tolist() == only_third
    counting = [-15.5, -7.5, 7.5, -0.5, 7.5, -0.5, -15.5, 8.5, 8.5, 16.5, 1.5, 1.5, 1.5, -2.5, 10.5, -17.5]
    assert transform(np.arange(1, 17)).tolist() == counting
    x = np.arange(1, 17).reshape(16, 1).astype(ml_dtypes.bfloat16)
    column = quantize(x, fp4ref.NVFP4_RHT, "column")
    assert (column.amax.tolist(), column.scales.tolist()) == ([17.5], [[0x7E]])
    assert column.data.tobytes().hex() == "df85855f7511a1f6"


@pytest.mark.rule("HAD-1", "HAD-2", "HAD-3", "NUM-1")
@given(group=GROUPS, mask=st.sampled_from([MASK, 0, 0xFFFF, 1]))
def test_transform_is_the_oracles(group, mask):
    expected = np.float32(hadamard_bound.transform(group.tolist(), mask))
    got = transform(group, mask)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    assert got[~nan].tobytes() == expected[~nan].tobytes()


@pytest.mark.rule("HAD-2")
def test_order_of_additions_has_witnesses():
    group = np.zeros(16, np.float32)
    group[[0, 1, 2]] = [2.0**26, 2.0**26, -1.0]
    group[8:11] = [-(2.0**26), -(2.0**26), 4.0]
    signed = (bfloat16(group) * np.float32(SIGNS) / 4).astype(np.float32)
    orders = {}
    for strides in [(1, 2, 4, 8), (8, 4, 2, 1)]:
        values = signed.copy()
        for stride in strides:
            pairs = values.reshape(-1, 2, stride)
            values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).ravel()
        orders[strides] = bfloat16(values + np.float32(0)).tolist()
    assert orders[1, 2, 4, 8] != orders[8, 4, 2, 1]
    assert transform(group).tolist() == orders[1, 2, 4, 8]


@pytest.mark.rule("HAD-2")
def test_signs_and_quarter_come_first():
    group = np.full(16, bfloat16(np.float32(3e38)))
    assert transform(group, 0)[0] == math.inf  # 16 * 3e38 / 4
    alternating = group * np.float32([1, -1] * 8)
    got = transform(alternating, 0)
    assert (got[1], got[0]) == (math.inf, 0)  # the plain sums of two neighbours would have overflowed
    two = np.zeros(16, np.float32)
    two[:2] = group[:2]
    assert transform(two, 0)[0] == bfloat16(np.float32(1.5e38))


@pytest.mark.rule("HAD-3")
def test_an_exact_zero_is_positive():
    for value in (0.0, -0.0, 1.0, -3.0):
        got = transform(np.full(16, value, np.float32), 0)
        assert not np.signbit(got[1:]).any()
    assert not np.signbit(transform(np.full(16, -0.0, np.float32))).any()


@pytest.mark.rule("HAD-3")
def test_the_result_is_rounded_to_bfloat16_ties_to_even():
    group = np.zeros(16, np.float32)
    group[:2] = [4 * 256, 4]  # 257 and 255: the first is a tie of bfloat16
    assert transform(group, 0)[:2].tolist() == [256, 255]


@pytest.mark.rule("HAD-4")
@given(x=matrices((1, 16), dtype=ml_dtypes.bfloat16, shape=shapes(3, 33).map(lambda s: (16 * s[0], s[1]))))
def test_only_the_column_direction_is_transformed_and_has_its_own_amax(x):
    row, column = (quantize(x, fp4ref.NVFP4_RHT, direction) for direction in ("row", "column"))
    assert not oracle.differences(row, quantize(x, fp4ref.NVFP4, "row"))
    transposed = np.ascontiguousarray(x.T.astype(np.float32))
    transformed = transform(transposed).astype(ml_dtypes.bfloat16)
    assert not oracle.differences(column, quantize(transformed, fp4ref.NVFP4, "row"))
    assert global_amax(x, fp4ref.NVFP4_RHT, "column").tolist() == global_amax(transformed, fp4ref.NVFP4).tolist()


@pytest.mark.rule("HAD-4", "BLK-8")
@given(x=matrices((1, 16), dtype=ml_dtypes.bfloat16, shape=st.sampled_from([(16, 1), (32, 3)])))
def test_column_direction_is_the_oracles(x):
    expected = oracle.quantize(x, fp4ref.NVFP4_RHT, "column")
    assert not oracle.differences(quantize(x, fp4ref.NVFP4_RHT, "column"), expected)


@pytest.mark.rule("HAD-5")
def test_other_types_and_truncated_groups_are_refused():
    for dtype in (np.float32, np.float16):
        with pytest.raises(DTypeError, match=r"hadamard of float\d\d, need bfloat16 \[HAD-5\]"):
            fp4ref.quantize(np.zeros((16, 16), dtype), fp4ref.NVFP4_RHT, "column")
    with pytest.raises(ShapeError, match=r"hadamard of 24 rows, need a multiple of 16 \[HAD-5\]"):
        fp4ref.quantize(np.zeros((24, 16), ml_dtypes.bfloat16), fp4ref.NVFP4_RHT, "both")
    assert fp4ref.quantize(np.zeros((24, 16), np.float16), fp4ref.NVFP4_RHT, "row").row.data.shape == (24, 8)
    with pytest.raises(DomainError, match="HAD-5"):
        fp4ref.NVFP4_RHT.replace(block=(1, 8))


@pytest.mark.rule("HAD-6")
@given(group=st.lists(st.integers(-15, 15), min_size=16, max_size=16), mask=st.sampled_from([MASK, 0, 0x8001]))
def test_inverse_undoes_an_exact_transform(group, mask):
    transformed = transform(group, mask)  # quarters up to 60: bfloat16 holds them
    assert transformed.tolist() == hadamard_bound.exact_sums(group, mask)
    assert hadamard.inverse(transformed, mask).tolist() == group


@pytest.mark.rule("HAD-6")
@given(group=st.lists(float32s(finite=True).map(lambda v: v / np.float32(16)), min_size=16, max_size=16))
def test_inverse_is_the_oracles_and_stays_float32(group):
    got = hadamard.inverse(np.float32(group), MASK)
    assert got.tobytes() == np.float32(hadamard_bound.inverse([float(v) for v in group], MASK)).tobytes()


@pytest.mark.rule("HAD-7")
@given(group=NARROW | SPREAD, order=st.permutations(range(16)))
def test_any_order_of_additions_lies_in_the_interval(group, order):
    group = bfloat16(np.float32(group))
    signed = group * np.float32(SIGNS) / np.float32(4)
    interval = hadamard_bound.interval(group.tolist(), MASK)
    for j, (low, high) in enumerate(interval):
        total = np.float32(0)
        for i in order:
            total += signed[i] if (i & j).bit_count() % 2 == 0 else -signed[i]
        assert low <= bfloat16(total) <= high
        assert low <= transform(group)[j] <= high


@pytest.mark.heavy
@pytest.mark.rule("HAD-7")
@given(group=NARROW | SPREAD | GROUPS, data=st.data())
def test_many_groups_are_judged_as_each_alone(group, data):
    group = bfloat16(np.float32(group))
    low, high = np.float32(hadamard_bound.interval(group.tolist(), MASK)).T
    below, above = (np.nextafter(bfloat16(end), np.float32(way)) for end, way in ((low, -np.inf), (high, np.inf)))
    for values in (low, high, bfloat16((low + high) / 2), below, above, -low, transform(group)):
        expected = (low < high) & (low <= values) & (values <= high)
        groups = np.stack([np.full(16, np.nan, np.float32), group, group])
        found = within_bound(groups, MASK, np.stack([values] * 3))
        assert found.tolist() == [[False] * 16, expected.tolist(), expected.tolist()]


@pytest.mark.rule("HAD-7", "CNF-1")
@pytest.mark.parametrize("wrong", [None, 0, 70, 299])
def test_every_group_of_another_order_is_judged(wrong):
    spread = [-18944, 4.696846e-05, -6.914139e-05, 0.00022888, 1.8998981e-06, -0.00026893616, -0.003479, -0.01672363]
    spread += [-19968, -876, -0.0194091796875, -0.00019550323, 1.1641532e-07, 0.00029754639, 6.556511e-06, -4.215e-05]
    x = np.repeat(np.array(spread, ml_dtypes.bfloat16)[:, None], 300, axis=1)
    values = np.stack([transform(x[:, 0])] * 300)
    low, high = np.float32(hadamard_bound.interval(x[:, 0].astype(float).tolist(), MASK)).T
    assert (low < high).any()
    values[:] = np.where(values == low, high, low)
    if wrong is not None:
        values[wrong, 3] = 2 * high[3] + 1
    declared = Declaration(operation="hadamard", inputs=("x",), outputs=("values",), dtypes=("bfloat16",))
    case = Case("a/b", "a", "", (), x, fp4ref.NVFP4_RHT, "column")
    judged = judge(case, Outcome(values=values.astype(ml_dtypes.bfloat16)), declared)
    assert [mismatch.index for mismatch in judged.mismatches] == ([] if wrong is None else [(wrong, 3)])


@pytest.mark.rule("HAD-1", "HAD-6")
@pytest.mark.parametrize("shape", [(0, 16), (2, 0), (0, 0), (3, 0, 32)])
def test_a_transform_of_nothing_is_nothing(shape):
    nothing = np.zeros(shape, np.float32)
    for result in (hadamard.transform(nothing, MASK), hadamard.inverse(nothing, MASK)):
        assert (result.shape, result.dtype) == (shape, np.float32)


@pytest.mark.rule("HAD-2", "HAD-6")
def test_sums_overflow_without_a_warning():
    most = np.full((1, 16), 3e38, np.float32)
    for result in (hadamard.transform(most, 0), hadamard.inverse(most, 0)):
        assert result[0, :8].tolist() == [math.inf] + [0.0] * 7
        assert math.isnan(result[0, 8])  # of two infinities


@pytest.mark.rule("CNF-1", "HAD-1")
def test_a_transform_of_the_user_that_takes_empty_tensors_is_verified():
    @fp4ref.kernel(operation="hadamard", inputs=("x", "hadamard_signs"), outputs=("values",), empty=True)
    def kernel(x, signs):
        with np.errstate(all="ignore"):
            sums = x.astype(np.float32).reshape(-1, 16) * signs * np.float32(0.25)
            for stride in (1, 2, 4, 8):
                pairs = sums.reshape(-1, 8 // stride, 2, stride)
                low, high = pairs[:, :, 0], pairs[:, :, 1]
                sums = np.stack([low + high, low - high], axis=2).reshape(-1, 16)
            return (sums + np.float32(0)).astype(ml_dtypes.bfloat16).reshape(x.shape)

    testing.assert_conforms(kernel, "nvfp4", families=("empty", "largest"), require=("empty", "largest"))


@pytest.mark.rule("HAD-7")
@given(group=NARROW)
def test_exponents_close_together_leave_one_answer(group):
    group = bfloat16(np.float32(group))
    exponents = [math.frexp(v)[1] for v in group if v]
    assume(exponents)
    assume(max(exponents) - min(exponents) <= 12)
    interval = hadamard_bound.interval(group.tolist(), MASK)
    exact = [rationals.rounded(s, rationals.BFLOAT16) for s in hadamard_bound.exact_sums(group.tolist(), MASK)]
    assert interval == [(y, y) for y in exact] == [(y, y) for y in transform(group).tolist()]


@pytest.mark.rule("HAD-7")
def test_a_spread_of_thirteen_leaves_an_interval():
    group = [float(2**13), *[0.0] * 14, 1.0]
    (low, high), *_ = hadamard_bound.interval(group, 0)
    slack = Fraction(15, 2**23) * (2**13 + 1) / 4
    total = Fraction(2**13 + 1, 4)
    assert (low, high) == tuple(rationals.rounded(total + s, rationals.BFLOAT16) for s in (-slack, slack))
    assert len(set(hadamard_bound.interval([float(2**12), *[0.0] * 14, 1.0], 0)[0])) == 1
