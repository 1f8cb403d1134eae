from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref import packing
from fp4ref.arithmetic_peers import COMPRESSED_TENSORS, FLASHINFER, FOUROVERSIX, MODELOPT
from fp4ref.conformance.families.strategies import DTYPES, amax_at_powers_of_two, float32s, matrices, shapes
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.conformance.oracle import rationals
from fp4ref.formats import F
from fp4ref.model import tiles
from fp4ref.model.dequantize import dequantize
from fp4ref.model.quantize import quantize
from fp4ref.quantized import DirectionData

BINARY = dict(zip(map(str, DTYPES), (rationals.FLOAT32, rationals.BFLOAT16, rationals.FLOAT16), strict=True))
F32 = np.dtype(F)


def same_floats(got: np.ndarray, expected: list[list[float]]) -> None:
    with np.errstate(all="ignore"):
        rounded = np.array(expected, F).reshape(got.shape).astype(got.dtype)
    nan = np.isnan(rounded)
    assert np.array_equal(np.isnan(got), nan)
    assert got[~nan].tobytes() == rounded[~nan].tobytes()


def every_pair(spec: fp4ref.Spec, amax: float | None) -> DirectionData:
    """One row per scale byte, with every element code."""
    count = 1 << spec.element.format.bits
    codes = np.tile(np.resize(np.arange(count, dtype=np.uint8), max(count, spec.block.columns)), (256, 1))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], codes.shape[1] // spec.block.columns, axis=1)
    given_amax = None if amax is None else np.array([amax], F)
    return DirectionData(packing.pack(codes, spec.element.format), scales, given_amax)


ROUNDED = (1.6015625, 1e-41)  # amaxes of which the roundings to 16 bits are computed by default


@pytest.mark.sampled(3)
@pytest.mark.rule("DEQ-1", "DEQ-3", "NUM-1")
@pytest.mark.parametrize(
    ("amax", "dtype"),
    [
        pytest.param(amax, dtype, marks=() if dtype == DTYPES[0] or amax in ROUNDED else pytest.mark.heavy)
        for dtype in DTYPES
        for amax in (1.6015625, 2688.0, 1e-41, 3e38, 0.0, np.inf)
    ],
)
def test_every_scale_and_element_of_nvfp4(amax, dtype):
    data = every_pair(fp4ref.NVFP4, amax)
    got = dequantize(data, (256, 16), fp4ref.NVFP4, dtype, F32)
    same_floats(got, oracle.dequantize(data, (256, 16), fp4ref.NVFP4, BINARY[str(dtype)]))


@pytest.mark.rule("DEQ-2", "DEQ-3", "E8M0-4")
@pytest.mark.parametrize("spec", [fp4ref.MXFP4, fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2], ids=lambda s: s.name)
def test_every_scale_and_element_of_mx(spec):
    data = every_pair(spec, None)
    shape = (256, packing.unpack(data.data, 32, spec.element.format).shape[1] if spec is fp4ref.MXFP4 else 256)
    rows = slice(None, None, 1 if spec is fp4ref.MXFP4 else 5)
    part = DirectionData(data.data[rows], data.scales[rows], None)
    shape = (len(part.data), shape[1])
    for dtype in DTYPES if spec is fp4ref.MXFP4 else DTYPES[:1]:
        got = dequantize(part, shape, spec, dtype, F32)
        same_floats(got, oracle.dequantize(part, shape, spec, BINARY[str(dtype)]))


@pytest.mark.rule("DEQ-1", "DEQ-4")
@settings(max_examples=50)
@given(
    x=matrices(shape=shapes(3, 33) | shapes(33, 3), finite=False),
    name=st.sampled_from(["nvfp4", "nvfp4-2d", "nvfp4-row-scaled", "nvfp4-4over6", "mxfp4", "mxfp8-e4m3", "mxfp8-2d"]),
    direction=st.sampled_from(["row", "column"]),
)
def test_every_spec_is_the_oracles(x, name, direction):
    spec = fp4ref.profiles[name]
    shape = x.shape if direction == "row" else x.shape[::-1]
    data = quantize(x, spec, direction)
    got = dequantize(data, shape, spec, x.dtype, x.dtype)
    assert got.shape == shape
    same_floats(got, oracle.dequantize(data, shape, spec, BINARY[str(x.dtype)]))


@pytest.mark.rule("DEQ-1")
@given(
    amax=float32s(finite=True).map(abs) | amax_at_powers_of_two(), scale=st.integers(0, 0x7E), code=st.integers(0, 15)
)
def test_any_amax_is_the_oracles(amax, scale, code):
    data = DirectionData(np.uint8([[code]]), np.uint8([[scale]]), np.array([amax], F))
    got = dequantize(data, (1, 1), fp4ref.NVFP4, F32, F32)
    same_floats(got, oracle.dequantize(data, (1, 1), fp4ref.NVFP4))


@pytest.mark.rule("DEQ-1", "DEQ-3")
def test_worked_example():
    x = np.array(
        [[0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, -1.3, 1.4, 1.5, 1.6]], ml_dtypes.bfloat16
    )
    q = quantize(x, fp4ref.NVFP4, amax=np.array([8.0], F))
    final = F(88) * F(8) * (F(1) / F(2688))
    assert final.view(np.uint32) == 0x3E861862
    back = dequantize(q, (1, 16), fp4ref.NVFP4, x.dtype, x.dtype)[0].astype(F).tolist()
    assert back[:7] == [0.130859375, -0.26171875, 0.26171875, 0.392578125, 0.5234375, -0.5234375, 0.78515625]
    assert back[15] == 1.5703125


@pytest.mark.rule("DEQ-1")
def test_amax_multiplies_before_the_constant():
    data = DirectionData(np.uint8([[0x01]]), np.uint8([[0x7E]]), np.array([3e38], F))
    got = dequantize(data, (1, 2), fp4ref.NVFP4, F32, F32)
    assert got[0, 0] == np.inf  # 448 * 3e38 overflows before 1 / 2688 brings it back
    amax = np.random.default_rng(8).random(64, F)
    by_constant = F(88) * amax * (F(1) / F(2688))
    assert (by_constant != F(88) * (amax * (F(1) / F(2688)))).any()
    assert (by_constant != F(88) / (F(2688) / amax)).any()  # dividing by S_enc is another number
    data = DirectionData(np.full((64, 1), 0x02, np.uint8), np.full((64, 1), 0x6B, np.uint8), amax)
    assert dequantize(data, (64, 1), fp4ref.NVFP4_ROW_SCALED, F32, F32).tobytes() == by_constant.tobytes()


@pytest.mark.rule("DEQ-2")
def test_mx_special_scales():
    data = DirectionData(np.uint8([[0x72], [0x72], [0x70]]), np.uint8([[0], [255], [255]]), None)
    got = dequantize(data, (3, 2), fp4ref.MXFP4, F32, F32)
    assert got[0].tolist() == [2.0**-127, 6 * 2.0**-127]
    assert np.isnan(got[1:]).all()  # zero times NaN too


@pytest.mark.rule("DEQ-3")
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@given(amax=float32s(finite=True).map(abs))
def test_the_result_is_rounded_once_to_the_type(dtype, amax):
    data = DirectionData(np.uint8([[0x7D]]), np.uint8([[0x6B]]), np.array([amax], F))
    wide = dequantize(data, (1, 2), fp4ref.NVFP4, F32, F32)
    expected = [[rationals.narrowed(v, BINARY[str(dtype)]) for v in wide[0].tolist()]]
    same_floats(dequantize(data, (1, 2), fp4ref.NVFP4, dtype, F32), expected)


@pytest.mark.rule("DEQ-3")
def test_overflow_of_the_type_is_infinite():
    data = DirectionData(np.uint8([[0xF7]]), np.uint8([[0x7E]]), np.array([1e6], F))
    assert dequantize(data, (1, 2), fp4ref.NVFP4, np.dtype(np.float16), F32).tolist() == [[np.inf, -np.inf]]


@pytest.mark.rule("DEQ-4")
def test_the_column_direction_returns_the_transposes_shape():
    x = np.float32([[6, 1], [0, 2], [-3, 4]])
    back = fp4ref.dequantize(fp4ref.quantize(x, fp4ref.NVFP4, "both"), direction="column")
    assert back.shape == (2, 3)
    assert np.allclose(back, x.T, rtol=0.2)


@pytest.mark.rule("DEQ-5", "PRO-3")
@given(amax=float32s(finite=True).map(abs), scale=st.integers(0, 0x7E), code=st.integers(0, 15), wide=st.booleans())
def test_profiles_decode_in_their_own_order(amax, scale, code, wide):
    q, s = rationals.value(code, "e2m1"), rationals.value(scale, "e4m3")
    a, times, over = float(amax), rationals.times, rationals.over
    g = times(over(1.0, a), 2688.0)
    narrow = rationals.narrowed(times(rationals.narrowed(over(1.0, a), rationals.BFLOAT16), 2688.0), rationals.BFLOAT16)
    expected = {
        MODELOPT: times(q, times(s, over(a, 2688.0))),
        FOUROVERSIX: over(times(times(q, s), a), 2688.0),
        FLASHINFER: times(q, over(s, g)),
    }
    if not wide:
        expected = {COMPRESSED_TENSORS: times(q, over(s, narrow if np.isfinite(narrow) else 1.0))}
    data = DirectionData(np.uint8([[code]]), np.uint8([[scale]]), np.array([amax], F))
    source = F32 if wide else np.dtype(ml_dtypes.bfloat16)
    for arithmetic, value in expected.items():
        spec = fp4ref.NVFP4.replace(arithmetic=arithmetic)
        same_floats(dequantize(data, (1, 1), spec, F32, source), [[value]])


@pytest.mark.rule("DEQ-5")
def test_the_orders_differ_on_real_numbers():
    x = np.random.default_rng(8).standard_normal((64, 64)).astype(F)
    q = quantize(x, fp4ref.NVFP4_ROW_SCALED)
    results = [
        dequantize(q, x.shape, fp4ref.NVFP4_ROW_SCALED.replace(arithmetic=a), F32, F32).tobytes()
        for a in (fp4ref.NVFP4.arithmetic, MODELOPT, FOUROVERSIX, FLASHINFER)
    ]
    assert len(set(results)) == len(results)


@pytest.mark.rule("HAD-6", "DEQ-4")
@settings(max_examples=30)
@given(x=matrices((1, 16), dtype=ml_dtypes.bfloat16, shape=st.sampled_from([(16, 1), (32, 3)])))
def test_inverse_hadamard_is_the_oracles(x):
    spec, shape = fp4ref.NVFP4_RHT, x.shape[::-1]
    data = quantize(x, spec, "column")
    for inverse in (False, True):
        got = dequantize(data, shape, spec, F32, x.dtype, inverse)
        same_floats(got, oracle.dequantize(data, shape, spec, inverse=inverse))


@pytest.mark.rule("NUM-1", "DEQ-1")
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-2d", "nvfp4-row-scaled", "nvfp4-rht", "mxfp8-2d", "mxfp4"])
def test_results_do_not_depend_on_the_tiles(name, monkeypatch):
    spec = fp4ref.profiles[name]
    x = np.random.default_rng(9).standard_normal((544, 530)).astype(ml_dtypes.bfloat16)
    row, column = quantize(x, spec), quantize(x, spec, "column")

    def both() -> list[bytes]:
        back = dequantize(column, (530, 544), spec, x.dtype, x.dtype, spec.hadamard is not None)
        return [dequantize(row, x.shape, spec, F32, x.dtype).tobytes(), back.tobytes()]

    whole = both()
    monkeypatch.setattr(tiles, "ELEMENTS", 1)
    monkeypatch.setattr(tiles, "WIDTH", 1)
    assert both() == whole


@pytest.mark.rule("BLK-9")
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_zero_size_gives_zero_size(shape):
    for spec in (fp4ref.NVFP4, fp4ref.MXFP8_2D, fp4ref.NVFP4_ROW_SCALED):
        data = quantize(np.zeros(shape, F), spec)
        assert dequantize(data, shape, spec, F32, F32).shape == shape
