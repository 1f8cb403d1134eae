from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import packing
from fp4ref.formats import F
from fp4ref.model.quantize import quantize
from fp4ref.spec import Spec

INPUT = [0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, -1.3, 1.4, 1.5, 1.6]
X = np.array([INPUT], ml_dtypes.bfloat16)
NORMAL = [1, -2, 3, -4]


def tensor(*rows: list[float]) -> np.ndarray:
    """One block of 32 per row, the given elements repeated."""
    return np.array([np.resize(np.array(row, F), 32) for row in rows])


def seen(x: np.ndarray, name: str | Spec, row: int, amax: float | None = None) -> tuple[int, list[int]]:
    """Scale byte and first four codes of a row; the NaN of 8-bit formats without its sign (PRO-1)."""
    spec = fp4ref.profiles[name] if isinstance(name, str) else name
    q = quantize(x, spec, amax=None if amax is None else np.array([amax], F))
    codes = packing.unpack(q.data, x.shape[1], spec.element.format)[row, :4]
    scale = q.scales[row, 0] & 0x7F if spec.scale.format is fp4ref.E4M3 else q.scales[row, 0]
    return int(scale), [0x7F if code == 0xFF else code for code in codes.tolist()]


@pytest.mark.rule("BLK-3", "BLK-4", "BLK-5", "PACK-1", "GLB-2")
@pytest.mark.parametrize(
    "amax, scale, data",
    [(1.6015625, 0x7E, "9132c45565667e77"), (8.0, 0x6B, "a132c45565667e77"), (1000, 0x33, "a132c45566667f77")],
)
def test_worked_nvfp4_blocks(amax, scale, data):
    q = quantize(X, fp4ref.NVFP4, amax=np.array([amax], F))
    assert (q.scales.tolist(), q.data.tobytes().hex()) == ([[scale]], data)


@pytest.mark.rule("BLK-6", "DEQ-1")
def test_a_block_whose_scale_underflows_keeps_its_codes():
    x = np.full((1, 16), 1e-3, ml_dtypes.bfloat16)
    q = quantize(x, fp4ref.NVFP4, amax=np.array([3e4], F))
    assert (q.scales.tolist(), q.data.tobytes().hex()) == ([[0]], "77" * 8)
    x[0, ::2] = -1e-3
    assert quantize(x, fp4ref.NVFP4, amax=np.array([3e4], F)).data.tobytes().hex() == "7f" * 8
    back = fp4ref.dequantize(fp4ref.quantize(x, fp4ref.NVFP4, amax=3e4))
    assert not back.any()
    tiny = np.full((1, 16), 1e-39, F)  # times FLT_MAX it is 0.34: an element of its own
    assert quantize(tiny, fp4ref.NVFP4, amax=np.array([3e4], F)).data.tobytes().hex() == "11" * 8


@pytest.mark.rule("BLK-5", "GLB-3", "E2M1-2")
def test_a_zero_tensor_keeps_minus_zero():
    x = np.resize(F([-0.0, 0.0]), (1, 16))
    q = quantize(x, fp4ref.NVFP4)
    assert (q.amax.tolist(), q.scales.tolist(), q.data.tobytes().hex()) == ([0.0], [[0]], "08" * 8)
    assert quantize(x, fp4ref.profiles["te.python_reference"]).data.tobytes().hex() == "00" * 8


@pytest.mark.rule("GLB-3", "BLK-2", "E2M1-4", "E4M3-3")
def test_infinity_among_ones():
    x = np.ones((1, 16), F)
    x[0, 0] = np.inf
    q = quantize(x, fp4ref.NVFP4)
    assert (q.amax.tolist(), q.scales.tolist(), q.data.tobytes().hex()) == ([np.inf], [[0x7E]], "07" + "00" * 7)
    x[0, 0] = -np.inf
    assert quantize(x, fp4ref.NVFP4).data[0, 0] == 0x0F
    other = np.ones((1, 32), F)
    other[0, 0] = np.inf
    assert quantize(other, fp4ref.NVFP4).scales.tolist() == [[0x7E, 0x23]]  # S_enc is 1, so 1/6 in E4M3


@pytest.mark.rule("BLK-2", "E2M1-5")
def test_nan_leaves_the_rest_of_its_block_alone():
    x = X.copy()
    x[0, 2] = np.nan
    q, clean = quantize(x, fp4ref.NVFP4), quantize(X, fp4ref.NVFP4)
    assert np.array_equal(q.scales, clean.scales)
    expected = clean.data.copy()
    expected[0, 1] = 0x37
    assert np.array_equal(q.data, expected)
    all_nan = quantize(np.full((1, 16), -np.nan, F), fp4ref.NVFP4)
    assert (all_nan.scales.tolist(), all_nan.data.tobytes().hex()) == ([[0]], "77" * 8)


@pytest.mark.rule("GLB-2", "GLB-3")
@pytest.mark.parametrize(
    "value, scale, code",
    [(2.0**-149, 0, 0), (2.0**-127, 0x2B, 4), (7e-36, 0x7C, 7), (2.0**-116, 0x7E, 7), (3e38, 0x7E, 7)],
)
def test_tensors_of_one_tiny_or_huge_value(value, scale, code):
    got = seen(tensor([value]), "nvfp4", 0)
    encoding = min(2688 / float(F(value)), (2 - 2**-23) * 2.0**127)  # at most FLT_MAX, so the scale shrinks
    before = float(F(value)) * encoding / 6
    nearest = min(range(0x7F), key=lambda c: abs(fp4ref.NVFP4.scale.decode(np.uint8([c]))[0] - before))
    assert got == (nearest, [code] * 4) == (scale, [code] * 4)


@pytest.mark.rule("BLK-11")
def test_fused_multiply_add_loses_the_sign_of_minus_zero_but_not_of_an_underflow():
    x = tensor([-0.0, 0.0, -1e-30, 6.0])
    for name, codes in (("nvfp4", [8, 0, 8, 7]), ("nvfp4-fast", [0, 0, 8, 7]), ("te.fast_math_1d", [0, 0, 8, 7])):
        assert seen(x, name, 0) == (0x7E, codes)
    x = tensor([-0.0, 0.0, -1e-30, 448.0])
    for name, first in (("mxfp8-e4m3", 0x80), ("te.mxfp8_cast_only", 0)):
        assert seen(x, name, 0) == (127, [first, 0, 0x80, 0x7E])


@pytest.mark.rule("BLK-11")
def test_the_fast_coefficient_is_a_bfloat16():
    x = np.zeros((1, 16), F)
    x[0, :3] = 6, 0.2495, 0.2503  # S_enc / s is 2688 / 6 / 448 = 1 here
    assert quantize(x, fp4ref.NVFP4_FAST, amax=np.array([6.0], F)).data[0, :2].tolist() == [0x07, 0x01]
    rng = np.random.default_rng(10)
    noise = rng.standard_normal((64, 256)).astype(ml_dtypes.bfloat16)
    fast, default = quantize(noise, fp4ref.NVFP4_FAST), quantize(noise, fp4ref.NVFP4)
    assert np.array_equal(fast.scales, default.scales)
    assert (fast.data != default.data).any()
    clamped = tensor([1e-3, -1e-3])  # an underflowed scale: S_enc / 0, held to the largest bfloat16
    assert seen(clamped, "nvfp4-fast", 0, amax=3e4) == (0, [7, 15, 7, 15])


@pytest.mark.rule("PRO-1", "PRO-3", "BLK-2", "E2M1-6")
def test_transformer_engines_variants():
    nan, minus = tensor([np.nan, 1, 2, -4]), tensor([-0.0, -1e-30, 1, 4])
    assert seen(nan, "te.python_reference", 0) == (0x7F, [0, 0, 0, 0])
    assert seen(minus, "te.python_reference", 0) == (0x7E, [0, 8, 3, 7])
    assert seen(minus, "nvfp4", 0) == (0x7E, [8, 8, 3, 7])
    infinite = tensor(NORMAL, [np.inf, 1, 2, 3])
    assert seen(infinite, "te.rht_fused", 0) == (0, [7, 7, 7, 7])  # S_enc is 0
    assert seen(infinite, "nvfp4", 0) == (0x33, [3, 13, 6, 15])  # S_enc is 1
    underflow = tensor([1e-3, -1e-3])
    assert seen(underflow, "te.cpp_test_oracle", 0, amax=3e4) == (0, [0, 8, 0, 8])
    assert seen(underflow, "nvfp4", 0, amax=3e4) == (0, [7, 15, 7, 15])


# Blocks of zeros, blocks whose scale underflows, tensors of zeros; then one tensor with an infinity and a NaN in it.
UNDERFLOW = [4e-9, -4e-9]
ZERO, SIGNED, SATURATED = [0] * 4, [0, 8, 0, 8], [7, 15, 7, 15]
FINITE = [
    ("torchao.nvfp4_1lvl", (0x08, ZERO), (0x08, SIGNED), (0x08, ZERO)),
    ("torchao.nvfp4_2lvl", (0x08, ZERO), (0x08, SIGNED), (0x7F, [12] * 4)),
    ("modelopt.nvfp4", (0x38, ZERO), (1, SIGNED), (0x7F, [7] * 4)),
    ("modelopt.nvfp4@0.40.0", (0x38, ZERO), (0, SATURATED), (0x7F, [7] * 4)),
    ("compressed_tensors.nvfp4", (0x20, ZERO), (0x20, SIGNED), (0x20, ZERO)),
    ("fouroversix.nvfp4_static_6", (0, ZERO), (0, ZERO), (0, ZERO)),
    ("fouroversix.nvfp4_mse", (0, ZERO), (0, ZERO), (0, ZERO)),
    ("flashinfer.ref_nvfp4", (0, ZERO), (0, ZERO), (0x7F, ZERO)),
    ("flashinfer.ref_nvfp4_te", (0, ZERO), (0, SATURATED), (0, ZERO)),
    ("jax.nvfp4", (0, [8] * 4), (0, SATURATED), (0x7F, [8] * 4)),
    ("qwix.nvfp4", (0x38, ZERO), (0, SATURATED), (0x38, ZERO)),
    ("nvfp4", (0, ZERO), (0, SATURATED), (0, ZERO)),
    ("te.cpp_test_oracle", (0, ZERO), (0, SIGNED), (0, ZERO)),
    ("vllm.nvfp4_kernel", (0, ZERO), (0, SIGNED), (0x7F, [7] * 4)),
    ("flashinfer.nvfp4_kernel", (0, ZERO), (0, SATURATED), (0x7F, ZERO)),
    ("cutlass.nvfp4_epilogue", (0, ZERO), (0, SATURATED), (0x7E, ZERO)),
]
ZERO_MX = [
    *((f"torchao.mxfp4_{mode}", 0, 0) for mode in ("floor", "ceil", "even", "rceil")),
    ("modelopt.mxfp4", 0, 8),
    ("fouroversix.mxfp4_static_6", 0, 0),
    ("flashinfer.ref_mxfp4", 0, 0),
    ("jax.mxfp8", 0, 0x7F),
    ("qwix.mxfp4", 127, 0),
    ("qwix.mxfp8", 127, 0),
    ("deepgemm.mxfp4_ue8m0", 112, 0),
    ("deepgemm.mxfp8_ue8m0", 105, 0),
    ("gfloat.mxfp4", 0, 0),
    ("microxcaling.mxfp4_nearest", 0, 0),
]
POISONED = [
    *((f"torchao.mxfp4_{mode}", (255, [3] * 4), (255, [3] * 4)) for mode in ("floor", "ceil", "even", "rceil")),
    ("torchao.mxfp8_e4m3_rceil", (255, [0x7F] * 4), (255, [0x7F] * 4)),
    ("torchao.nvfp4_1lvl", (0x7E, [7, 8, 0, 8]), (0x7F, [4] * 4)),
    ("torchao.nvfp4_2lvl", (0x7F, [3] * 4), (0x7F, [3] * 4)),
    ("modelopt.nvfp4", (0x7F, [7] * 4), (0x7F, [7] * 4)),
    ("modelopt.mxfp4", (0, [8] * 4), (0, [8] * 4)),
    ("compressed_tensors.nvfp4", (0x7E, [7, 8, 0, 8]), (0x7F, ZERO)),
    ("fouroversix.nvfp4_static_6", (0x7F, [3] * 4), (0x7F, [3] * 4)),
    ("flashinfer.ref_nvfp4", (0x7F, ZERO), (0x7F, ZERO)),
    ("deepgemm.mxfp4_ue8m0", (254, [7, 0, 0, 0]), (254, ZERO)),
    ("qwix.mxfp8", (255, [0x7F, 0x80, 0, 0x80]), (255, [0x7F] * 4)),
    ("jax.mxfp8", (255, [0x7F, 0x80, 0, 0x80]), (255, [0x7F] * 4)),
    ("microxcaling.mxfp4_nearest", (255, [7] * 4), (255, [7] * 4)),
]


@pytest.mark.rule("PRO-1", "PRO-3")
@pytest.mark.parametrize("name, zero_block, underflow, zero_tensor", FINITE)
def test_zeros_and_underflow_of_two_level_profiles(name, zero_block, underflow, zero_tensor):
    x = tensor(NORMAL, [0], UNDERFLOW)
    assert seen(x, name, 1) == zero_block
    assert seen(x, name, 2) == underflow
    assert seen(tensor([0]), name, 0) == zero_tensor


@pytest.mark.rule("PRO-1", "PRO-3", "MXS-5")
@pytest.mark.parametrize("name, scale, code", ZERO_MX)
def test_zero_blocks_of_mx_profiles(name, scale, code):
    assert seen(tensor(NORMAL, [0]), name, 1) == (scale, [code] * 4)


@pytest.mark.rule("PRO-1", "PRO-3", "MXS-5", "E2M1-6")
@pytest.mark.parametrize("name, infinite, nan", POISONED)
def test_infinity_and_nan_in_profiles(name, infinite, nan):
    x = tensor(NORMAL, [np.inf, -2, 3, -4], [np.nan, -2, 3, -4])
    for row, (scale, codes) in ((1, infinite), (2, nan)):
        got = seen(x, name, row)
        assert got[0] == scale
        sign = 0b0111 if set(codes) <= {3, 4} else 0xFF  # what torchao's bits make of a NaN has its sign
        assert [code & sign for code in got[1]] == [code & sign for code in codes]
