from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref.conformance.families.strategies import float32s, matrices, near_midpoints, near_values, shapes
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.conformance.oracle import rationals
from fp4ref.errors import DomainError, DTypeError, ShapeError
from fp4ref.formats import CUDA_E2M1, E2M1, STOCHASTIC_E2M1, F
from fp4ref.model.quantize import quantize

SPEC = fp4ref.NVFP4.replace(name="stochastic", element=STOCHASTIC_E2M1)


@pytest.mark.rule("SR-2", "E2M1-6")
@pytest.mark.parametrize(
    "sign, codes",
    [("bit", [8, 8, 0, 15]), ("negative", [0, 8, 0, 15]), ("not-positive", [8, 8, 8, 15]), ("nonzero", [0, 0, 0, 15])],
)
def test_the_sign_of_a_stochastic_codec_is_the_one_that_it_picks(sign, codes):
    codec = replace(STOCHASTIC_E2M1, sign=sign)
    assert codec.encode(np.float32([-0.0, -0.1, 0, -7]), np.zeros(4, np.uint8)).tolist() == codes


BYTES = np.arange(256, dtype=np.uint8)


def encode_with_every_byte(value: float) -> np.ndarray:
    return STOCHASTIC_E2M1.encode(np.full(256, value, F), BYTES)


@pytest.mark.rule("SR-2")
@pytest.mark.parametrize(
    "value, first_byte_away, below, above",
    [(0.3, 103, 0, 1), (1.9, 52, 3, 4), (2.4, 154, 4, 5), (4.5, 192, 6, 7), (5.9, 13, 6, 7)],
)
def test_thresholds_of_the_worked_examples(value, first_byte_away, below, above):
    expected = [below] * first_byte_away + [above] * (256 - first_byte_away)
    assert encode_with_every_byte(value).tolist() == expected
    assert encode_with_every_byte(-value).tolist() == [8 | code for code in expected]


@pytest.mark.rule("SR-2", "SR-3", "NUM-1")
@given(
    values=st.lists(
        near_values(E2M1) | near_midpoints(E2M1) | st.floats(-8, 8, width=32) | float32s(), min_size=1, max_size=8
    ),
    byte=st.integers(0, 255) | st.sampled_from([0, 1, 255]),
)
def test_encode_is_the_oracles(values, byte):
    got = STOCHASTIC_E2M1.encode(np.array(values, F), np.full(len(values), byte, np.uint8))
    assert got.tolist() == [rationals.encode(float(v), STOCHASTIC_E2M1, byte) for v in np.array(values, F).tolist()]


@pytest.mark.rule("SR-2")
@given(lower=st.sampled_from([0, 0.5, 1, 1.5, 2, 3, 4]), byte=st.integers(0, 255), ulps=st.integers(-2, 2))
def test_the_sum_is_rounded_once_before_it_is_cut_off(lower, byte, ulps):
    step = 2 if lower >= 4 else 1 if lower >= 2 else 0.5
    threshold = F(lower + step * (1 - byte / 256))  # the first value that this byte carries over
    value = (threshold.view(np.int32) + np.int32(ulps)).view(F)
    got = STOCHASTIC_E2M1.encode(np.array([value], F), np.uint8([byte]))
    assert got.tolist() == [rationals.encode(float(value), STOCHASTIC_E2M1, byte)]


@pytest.mark.rule("SR-2")
def test_a_rounded_sum_reaches_the_next_value_where_the_true_sum_does_not():
    value = np.nextafter(F(0.5), F(0))  # 0.5 - 2^-25
    true = Fraction(float(value)) + Fraction(1, 2) * Fraction(128, 256)
    assert true < Fraction(3, 4)
    below = np.nextafter(F(4), F(0))  # with 1 * 0 it stays below; no byte of zero moves anything
    assert STOCHASTIC_E2M1.encode(np.array([below, value], F), np.uint8([0, 0])).tolist() == [5, 0]
    odd = np.nextafter(F(2.0**-9), F(0))  # 255 / 512 + this rounds to 0.5
    assert Fraction(float(odd)) + Fraction(255, 512) < Fraction(1, 2)
    assert STOCHASTIC_E2M1.encode(np.array([odd], F), np.uint8([255])).tolist() == [1]


@pytest.mark.rule("SR-2", "SR-3")
def test_a_byte_of_zero_truncates_and_values_stay():
    values = CUDA_E2M1.decode(np.arange(16, dtype=np.uint8))
    for byte in (0, 1, 128, 255):
        got = STOCHASTIC_E2M1.encode(values, np.full(16, byte, np.uint8))
        assert got.tolist() == list(range(16)), byte
    between = np.nextafter(values[1:8], F(0))
    assert STOCHASTIC_E2M1.encode(between, np.zeros(7, np.uint8)).tolist() == list(range(7))


@pytest.mark.rule("SR-3")
def test_saturation_infinity_nan_and_minus_zero():
    values = np.float32([7, -1e38, np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 6.0000005])
    for byte in (0, 255):
        got = STOCHASTIC_E2M1.encode(values, np.full(len(values), byte, np.uint8))
        assert got.tolist() == [7, 15, 7, 15, 7, 7, 0, 8, 7]


@pytest.mark.rule("SR-4")
@given(value=st.floats(2.0**-13, 6, width=32))
def test_the_mean_is_the_value_or_nearer_to_zero_by_less_than_a_256th_of_a_step(value):
    exact = Fraction(value)
    step = 2 if value >= 4 else 1 if value >= 2 else Fraction(1, 2)
    mean = sum((Fraction(float(v)) for v in CUDA_E2M1.decode(encode_with_every_byte(value))), Fraction(0)) / 256
    one_rounding = Fraction(1, 2**22)
    assert -one_rounding * step * 256 <= exact - mean < step / Fraction(256)
    away = int((encode_with_every_byte(value) != encode_with_every_byte(value)[0]).sum())
    fraction = exact / step - exact // step if value < 6 else Fraction(0)
    assert away - int(256 * fraction) in {0, 1}
    assert away == int(256 * fraction) or 256 * fraction - int(256 * fraction) > 1 - Fraction(1, 2**10)


@pytest.mark.rule("SR-4")
def test_the_mean_is_above_the_value_for_576_magnitudes():
    """256 * frac is 512 a below 0.25: below the integer n by at most 2^-17 is between n / 512 - 2^-26 and n / 512."""
    ends = np.arange(1, 129) / 512
    first, last = ((ends + least).astype(F).view(np.uint32) for least in (-(2.0**-26), 0))
    values = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)]).astype(np.uint32).view(F)
    values = values[np.ceil(512 * values.astype(np.float64)) - 512 * values.astype(np.float64) <= 2.0**-17]
    assert len(values) == 576
    above = STOCHASTIC_E2M1.expectation(values) - values
    assert (above > 0).all()
    assert above.max() == 2.0**-26
    below = np.nextafter(first.view(F), F(0))
    assert (STOCHASTIC_E2M1.expectation(below) < below).all()


@pytest.mark.sampled(2)
@pytest.mark.rule("SR-4")
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_the_expectation_of_every_16_bit_input_exactly(dtype):
    """Everything here is a multiple of 2^-133 below 8, or a small multiple of 1/512: float64 holds it exactly."""
    values = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    values = values[np.isfinite(values.astype(F))].astype(F)
    magnitude = np.abs(values.astype(np.float64))
    step = np.where(magnitude >= 4, 2, np.where(magnitude >= 2, 1, 0.5))
    lower = np.floor(magnitude / step) * step
    frac = (magnitude - lower) / step
    mean = STOCHASTIC_E2M1.expectation(values)
    inside = magnitude <= 6
    expected = np.where(inside, lower + np.floor(256 * frac) / 256 * step, 6)
    assert np.array_equal(mean, np.copysign(expected, values))
    whole = inside & (256 * frac == np.floor(256 * frac))
    assert np.array_equal(mean[whole], values[whole])
    short = magnitude - np.abs(mean)
    others = inside & ~whole
    assert others.any()
    assert ((short[others] > 0) & (short[others] < step[others] / 256)).all()


@pytest.mark.rule("SR-4", "SR-3")
def test_the_expectation_of_what_saturates_and_of_nan():
    got = STOCHASTIC_E2M1.expectation(np.float32([[7, -1e30, np.inf], [np.nan, -6, -0.0]]))
    assert got.tolist() == [[6, -6, 6], [6, -6, 0]]


@pytest.mark.rule("SR-5", "GLB-5", "FOS-7")
@pytest.mark.parametrize(
    "base, settings_named, rule",
    [
        (fp4ref.NVFP4_ROW_SCALED, ("global_scale row", "stochastic rounding"), "GLB-5"),
        (fp4ref.NVFP4_4OVER6, ("four_over_six", "stochastic rounding"), "FOS-7"),
        (fp4ref.MXFP4, ("stochastic rounding", "scale e8m0"), "SR-5"),
        (fp4ref.MXFP4_2D, ("stochastic rounding", "scale e8m0"), "SR-5"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_illegal_combinations_name_both_settings_and_the_rule(base, settings_named, rule):
    with pytest.raises(DomainError) as raised:
        base.replace(element=STOCHASTIC_E2M1)
    assert all(name in str(raised.value) for name in settings_named)
    assert raised.value.rule == rule


@pytest.mark.rule("SR-5")
@pytest.mark.parametrize("base", [fp4ref.NVFP4, fp4ref.NVFP4_2D, fp4ref.NVFP4_RHT, fp4ref.NVFP4_FAST])
def test_legal_combinations(base):
    assert base.replace(element=STOCHASTIC_E2M1).stochastic


@pytest.mark.rule("SR-4")
def test_a_fraction_below_a_256th_is_never_rounded_up():
    assert not encode_with_every_byte(2.0**-10).any()
    assert encode_with_every_byte(2.0**-9).tolist() == [0] * 255 + [1]


@pytest.mark.rule("SR-1", "SR-2")
@settings(max_examples=50)
@given(
    x=matrices(shape=shapes(3, 33) | shapes(33, 3), finite=False),
    direction=st.sampled_from(["row", "column"]),
    seed=st.integers(0, 2**32 - 1),
    base=st.sampled_from([fp4ref.NVFP4, fp4ref.NVFP4_2D, fp4ref.NVFP4_FAST]),
)
def test_tensors_are_the_oracles(x, direction, seed, base):
    spec = base.replace(element=STOCHASTIC_E2M1)
    shape = x.shape if direction == "row" else x.shape[::-1]
    bits = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    got = quantize(x, spec, direction, random_bits=bits)
    assert not oracle.differences(got, oracle.quantize(x, spec, direction, random_bits=bits))


@pytest.mark.rule("SR-1")
def test_every_element_has_the_byte_at_its_own_place():
    x, amax = np.full((3, 33), 0.25, F), np.array([2688.0], F)
    x[:, ::16] = 6  # the scale is 1 and every 0.25 halfway
    bits = np.random.default_rng(1).integers(0, 256, x.shape, dtype=np.uint8)
    q = quantize(x, SPEC, amax=amax, random_bits=bits)
    codes = fp4ref.packing.unpack(q.data, 33, E2M1)
    assert np.array_equal(codes, np.where(x == 6, 7, bits >= 128))


@pytest.mark.rule("SR-1")
def test_bits_are_required_and_only_then_allowed():
    x = np.ones((2, 16), F)
    with pytest.raises(DomainError, match="SR-1"):
        fp4ref.quantize(x, SPEC)
    with pytest.raises(DomainError, match="SR-1"):
        fp4ref.quantize(x, fp4ref.NVFP4, random_bits=np.zeros((2, 16), np.uint8))
    with pytest.raises(ShapeError, match="SR-1"):
        fp4ref.quantize(x, SPEC, random_bits=np.zeros((2, 15), np.uint8))
    with pytest.raises(ShapeError, match="SR-1"):
        fp4ref.quantize(x, SPEC, "column", random_bits=np.zeros((2, 16), np.uint8))
    with pytest.raises(ShapeError, match="SR-1"):
        fp4ref.quantize(x, SPEC, "both", random_bits=np.zeros((2, 16), np.uint8))
    for dtype in (np.int8, np.uint16, np.float32, bool):
        with pytest.raises(DTypeError, match=f"{np.dtype(dtype).name}.*SR-1"):
            fp4ref.quantize(x, SPEC, random_bits=np.zeros((2, 16), dtype))
    with pytest.raises(DomainError, match="SR-1"):
        STOCHASTIC_E2M1.encode(x)


@pytest.mark.rule("SR-12", "SR-5")
def test_the_stochastic_specs_of_the_standard_have_names():
    accepted = {}
    for name, spec in fp4ref.profiles.items():
        if "." in name or spec.stochastic:
            continue
        try:
            accepted[f"{name}-sr"] = spec.replace(name="twin", element=STOCHASTIC_E2M1)
        except DomainError:
            continue
    accepted = {name: spec for name, spec in accepted.items() if spec.scale.format.name == "e4m3"}
    assert {name for name in fp4ref.profiles if name.endswith("-sr")} == set(accepted)
    assert set(accepted) == {"nvfp4-sr", "nvfp4-2d-sr", "nvfp4-rht-sr", "nvfp4-fast-sr"}
    for name, spec in accepted.items():
        assert fp4ref.profiles[name] == spec
        assert fp4ref.from_json(spec.to_json()) == fp4ref.profiles[name]
