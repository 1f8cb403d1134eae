from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref import four_over_six as fos
from fp4ref.arithmetic import Constants
from fp4ref.conformance.families.strategies import matrices, shapes
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.errors import DomainError
from fp4ref.formats import E2M1, STOCHASTIC_E2M1, F
from fp4ref.model.quantize import quantize
from fp4ref.spec import FourOverSix, Spec

DIFFERENCES = (fos.dequantized, fos.dequantized_by_reciprocal, fos.scaled_units, fos.scaled_units_float16)
TOTALS = (fos.sequential, fos.halves, fos.rows_by_tree)
ROW = np.array([0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, -1.3, 1.4, 1.5, 1.6], ml_dtypes.bfloat16)
SECOND = np.array([4, 3, 2.9, 3.1, -4, 1, 1, 2, 0.9, 3, 3, -3, 2.1, 2, 1, 0.5], ml_dtypes.bfloat16)


def searching(base: Spec = fp4ref.NVFP4_4OVER6, **fields) -> Spec:
    return base.replace(name="searching", four_over_six=FourOverSix(**fields))


@pytest.mark.rule("FOS-1", "FOS-2", "FOS-3", "FOS-5", "FOS-6")
@pytest.mark.parametrize(
    "metric, scale_max, data, scales",
    [
        ("mae", 256, ("9132c45565667e77", "56552e4252d54412"), [0x6D, 0x7C]),
        ("mse", 256, ("9021b24344555d66", "56552e4252d54412"), [0x72, 0x7C]),
        ("mae", 448, ("9122b34454556d66", "67663f5363e65523"), [0x78, 0x7E]),
    ],
)
def test_worked_examples(metric, scale_max, data, scales):
    q = quantize(np.stack([ROW, SECOND]), searching(metric=metric, scale_max=scale_max))
    assert [row.tobytes().hex() for row in q.data] == list(data)
    assert (q.scales.ravel().tolist(), q.amax.tolist()) == (scales, [4.0])


@pytest.mark.rule("FOS-1")
def test_plain_nvfp4_differs():
    q = quantize(np.stack([ROW, SECOND]), fp4ref.NVFP4)
    assert (q.data[0].tobytes().hex(), q.scales[0].tolist()) == ("a132c45565667e77", [0x73])


@pytest.mark.sampled(3)
@pytest.mark.rule("FOS-1", "FOS-2", "FOS-3", "FOS-4", "FOS-5", "FOS-6", "NUM-1")
@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("scale_max", [448, 256])
@settings(max_examples=8)
@given(
    x=matrices(shape=shapes(2, 33), finite=False),
    metric=st.sampled_from(["mae", "mse", "max"]),
    total=st.sampled_from(TOTALS),
    direction=st.sampled_from(["row", "column"]),
)
def test_every_combination_is_the_oracles(difference, scale_max, x, metric, total, direction):
    spec = searching(metric=metric, scale_max=scale_max, difference=difference, total=total)
    assert not oracle.differences(quantize(x, spec, direction), oracle.quantize(x, spec, direction))


@pytest.mark.rule("FOS-8")
@pytest.mark.parametrize("total", TOTALS, ids=lambda f: f.__name__)
@settings(max_examples=8)
@given(x=matrices((16, 16), shape=shapes(17, 17)), direction=st.sampled_from(["row", "column"]))
def test_2d_is_the_oracles(total, x, direction):
    spec = searching(fp4ref.NVFP4_2D.replace(arithmetic=fp4ref.NVFP4_4OVER6.arithmetic), total=total)
    assert not oracle.differences(quantize(x, spec, direction), oracle.quantize(x, spec, direction))


@pytest.mark.rule("FOS-3", "GLB-5")
@settings(max_examples=40)
@given(x=matrices(shape=shapes(3, 33)))
def test_row_scaled_is_the_oracles(x):
    spec = searching(fp4ref.NVFP4_4OVER6.replace(global_scale="row"), metric="mse", scale_max=256)
    assert not oracle.differences(quantize(x, spec), oracle.quantize(x, spec))


def near_ties() -> np.ndarray:
    parts = [np.random.default_rng(seed) for seed in (0, 1)]
    return np.concatenate([rng.integers(0, 40, (8192, 16)) * (rng.random((8192, 16)) < 0.3) for rng in parts]).astype(F)


@pytest.mark.rule("FOS-8")
@pytest.mark.parametrize("first, second", list(itertools.combinations(TOTALS, 2)), ids=lambda f: f.__name__)
def test_the_order_of_additions_decides_some_blocks(first, second):
    x, amax = near_ties(), np.array([320.0], F)
    base = fp4ref.NVFP4_2D.replace(arithmetic=fp4ref.NVFP4_4OVER6.arithmetic)
    got, other = (quantize(x, searching(base, scale_max=256, total=total), amax=amax) for total in (first, second))
    found = np.argwhere(got.scales != other.scales)
    assert len(found), "no witness"
    tile = slice(found[0][0] // 16 * 16, found[0][0] // 16 * 16 + 16)
    for total, q in ((first, got), (second, other)):
        expected = oracle.quantize(x[tile], searching(base, scale_max=256, total=total), amax=amax.tolist())
        assert expected.scales.tolist() == q.scales[tile].tolist()


@pytest.mark.rule("FOS-8")
def test_one_row_by_tree_is_in_order():
    x, amax = near_ties(), np.array([320.0], F)
    results = {total: quantize(x, searching(scale_max=256, total=total), amax=amax) for total in TOTALS}
    assert not oracle.differences(results[fos.rows_by_tree], results[fos.sequential])
    assert (results[fos.halves].scales != results[fos.sequential].scales).any()


@pytest.mark.rule("FOS-8")
@pytest.mark.parametrize("total", TOTALS, ids=lambda f: f.__name__)
def test_one_witness_separates_the_three_orders(total):
    errors = np.zeros((16, 16), np.float32)
    tiny = 0.75 * 2.0**-24  # beside 1 one is lost, two together count as 2^-23
    errors[0, [0, 1, 9]] = 1, tiny, tiny
    errors[[1, 9, 2, 10], 0] = tiny
    sums = {
        "sequential": 1,  # all are lost in turn
        "halves": 1 + 2.0**-23,  # elements 1 and 9 meet first
        "rows_by_tree": 1 + 2.0**-22,  # rows 1 and 9 meet first, and rows 2 and 10
    }
    assert float(total(errors)) == oracle.TOTALS[total.__name__](errors.tolist()) == sums[total.__name__]


@pytest.mark.rule("FOS-8")
@pytest.mark.parametrize("total", TOTALS, ids=lambda f: f.__name__)
def test_totals_are_the_oracles(total):
    for seed, rows in enumerate((1, 1, 2, 4, 16, 16, 16)):
        errors = np.random.default_rng(seed).random((rows, 16), F)
        assert F(oracle.TOTALS[total.__name__](errors.tolist())).tobytes() == total(errors).tobytes()


@pytest.mark.rule("FOS-3", "FOS-4", "NUM-1")
@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda f: f.__name__)
def test_differences_are_the_oracles(difference):
    rng, scale_max = np.random.default_rng(14), 448.0
    q, s = fp4ref.NVFP4.element.decode(rng.integers(0, 16, 500, np.uint8)), rng.choice(positive_scales(), 500)
    amax = rng.random(500, F) * F(100)
    x = amax * rng.standard_normal(500).astype(F)
    g = np.array([oracle.encoding_scale(a, 6 * scale_max) for a in amax.tolist()], F)
    k = Constants(E2M1, fp4ref.NVFP4.scale, F(6), F(scale_max), lambda v: v)
    numbers = zip(*(v.tolist() for v in (q, s, g, amax, x)), strict=True)
    expected = [oracle.difference(*each, difference.__name__, 6 * scale_max) for each in numbers]
    assert difference(q, s, g, amax, x, k).tolist() == expected


@pytest.mark.rule("FOS-6")
def test_a_tie_and_a_nan_keep_the_first_candidate():
    x = np.zeros((3, 16), np.float32)
    x[0] = 6  # the second scale saturates as well
    x[1, :2] = 1, np.nan
    x[1, 2:] = 4 * 2.0**-4  # of itself better with the second candidate
    without = x[1:2].copy()
    without[0, 1] = 0
    spec, amax = searching(scale_max=448), np.array([6.0], F)
    q = quantize(x, spec, amax=amax)
    first = quantize(x, fp4ref.NVFP4.replace(arithmetic=spec.arithmetic), amax=amax)
    assert not oracle.differences(q, first)


@pytest.mark.rule("FOS-6")
def test_a_strictly_smaller_error_takes_the_second_candidate():
    x = np.zeros((1, 16), np.float32)
    x[0, :4] = 4, 3, 2, 1  # exact with 4 on the element 4, not with 4 on the element 6
    spec = searching(scale_max=256)
    q = quantize(x, spec, amax=np.array([1536.0], F))  # S_enc is 1
    assert (q.scales.tolist(), q.data[0, :2].tolist()) == ([[0x38]], [0x56, 0x24])
    zero = quantize(np.zeros((1, 16), F), spec)
    assert (zero.scales.tolist(), zero.data.any()) == ([[0]], False)


@pytest.mark.rule("FOS-1")
def test_the_first_candidate_divides_before_it_multiplies():
    spec = searching(scale_max=448, difference=fos.scaled_units)
    x = np.zeros((1, 16), np.float32)
    x[0, 0] = 4.5
    for tensor, block, byte in ((12, 4.5, 0x72), (15.75, 11.8125, 0x7A)):
        x[0, :4] = block, block / 6, block / 12, block / 3  # exact on the first candidate's grid
        assert quantize(x, spec, amax=np.array([tensor], F)).scales.tolist() == [[byte]]


@pytest.mark.rule("FOS-1")
def test_the_second_scale_is_a_half_more_before_both_are_rounded():
    x = np.zeros((1, 16), np.float32)
    x[0, :6] = 672, 480, -480, 320, 480, 160  # 160 times the elements
    q = quantize(x, searching(scale_max=256), amax=np.array([1536.0], F))  # S_enc is 1
    assert q.scales.tolist() == [[0x72]]  # 112 * 1.5 lies halfway between 160 and 176
    x[0, :6] = 692, 528, -528, 352, 528, 176  # 115.3 is stored as 112, but times 1.5 it is 173, stored as 176
    assert quantize(x, searching(scale_max=256), amax=np.array([1536.0], F)).scales.tolist() == [[0x73]]


@pytest.mark.rule("BLK-1", "FOS-6")
@pytest.mark.parametrize("columns", [5, 16])
def test_padding_adds_no_error(columns):
    x = np.zeros((1, columns), np.float32)
    x[0, :5] = 96, 72, 48, 24, 8  # a scale of 16 misses 72 by 8, one of 24 misses 8 by 4
    q = quantize(x, searching(scale_max=256), amax=np.array([1536.0], F))
    assert (q.scales.tolist(), q.data[0, :2].tolist()) == ([[0x5C]], [0x56, 0x24])
    x[0, 5:] = 8
    if columns > 5:
        assert quantize(x, searching(scale_max=256), amax=np.array([1536.0], F)).scales.tolist() == [[0x58]]


@pytest.mark.rule("FOS-2", "GLB-2", "DEQ-1")
def test_scale_max_enters_the_encoding_scale_and_the_decoding():
    x = np.zeros((1, 16), np.float32)
    x[0, 0] = 6
    for top, byte in ((448, 0x7E), (256, 0x78)):
        q = quantize(x, searching(scale_max=top))
        assert q.scales.tolist() == [[byte]]
        back = fp4ref.dequantize(fp4ref.quantize(x, searching(scale_max=top)))
        assert np.isclose(back[0, 0], 6)
    with pytest.raises(DomainError, match="FOS-2"):
        FourOverSix(scale_max=449)


@pytest.mark.rule("FOS-3", "FOS-4")
def test_the_units_of_the_error_decide_some_blocks():
    x = np.random.default_rng(2).standard_normal((16384, 16)).astype(ml_dtypes.bfloat16)
    scales = [quantize(x, searching(scale_max=256, difference=difference)).scales for difference in DIFFERENCES[:3]]
    for one, other in itertools.combinations(range(3), 2):
        assert (scales[one] != scales[other]).any(), (DIFFERENCES[one].__name__, DIFFERENCES[other].__name__)


@pytest.mark.rule("FOS-4")
def test_a_product_of_element_and_scale_is_exact_in_float16():
    q, s = np.meshgrid(fp4ref.NVFP4.element.decode(np.arange(16, dtype=np.uint8)), positive_scales())
    one = np.float32(1)
    narrow, wide = (f(q, s, one, one, one, None) for f in (fos.scaled_units_float16, fos.scaled_units))
    assert narrow.tobytes() == wide.tobytes()


def positive_scales() -> np.ndarray:
    return fp4ref.NVFP4.scale.decode(np.arange(0x7F, dtype=np.uint8))


@pytest.mark.rule("FOS-7")
@pytest.mark.parametrize(
    "changes",
    [
        {"element": fp4ref.MXFP8_E4M3.element},
        {"scale": fp4ref.MXFP4.scale, "global_scale": "none"},
        {"global_scale": "none"},
        {"element": STOCHASTIC_E2M1},
        {"hadamard": fp4ref.Hadamard()},
    ],
    ids=str,
)
def test_what_it_cannot_be_combined_with(changes):
    with pytest.raises(DomainError, match="FOS-7"):
        fp4ref.NVFP4_4OVER6.replace(name="illegal", **changes)
