"""Arithmetics of other implementations' kernels on the cpu backend: aimed and exhaustive inputs, byte for byte."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
import fp4ref_numerics
from compiled import together
from fp4ref import registry
from fp4ref.formats import F
from fp4ref.reciprocal import TABLE, reciprocal_approx
from fp4ref.registry import Call
from same_bytes import same_by

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
KERNELS = (
    "vllm.nvfp4_kernel",
    "flashinfer.nvfp4_kernel",
    "cutlass.nvfp4_epilogue",
    "flashinfer.mxfp4_kernel",
    "flashinfer.mxfp8_kernel",
)
TE = "te.python_reference", "te.rht_fused"
SCALED = [fp4ref.profiles[name] for name in (*KERNELS[:3], *TE)]
ROW_SCALED = [spec.replace(name=f"{spec.name} by row", global_scale="row", hadamard=None) for spec in SCALED]
EVERY = [fp4ref.profiles[name].replace(hadamard=None) for name in (*KERNELS, *TE)]
EXPONENTS = (0, 1, 2, 126, 127, 128, 252, 253, 254, 255)
LOOP = """#include <fp4ref/fp4ref.h>
extern "C" __attribute__((visibility("default"))) void reciprocals(const float* x, float* y, long n)
{
    for (long i = 0; i < n; ++i) y[i] = fp4ref::approximate_reciprocal(x[i]);
}
"""


same = partial(same_by, "cpu")


@pytest.fixture(autouse=True, scope="module")
def backend():
    assert dict(registry.available()).get("cpu", "not registered") is None


@pytest.fixture(autouse=True, scope="module")
def compiled_for_this_file(request, backend):
    """Compile what the selected tests call."""
    mine = [
        item.callspec.params
        for item in request.session.items
        if getattr(item, "module", None) is request.module and hasattr(item, "callspec")
    ]
    specs = [values["spec"] if "spec" in values else fp4ref.profiles.get(values.get("name")) for values in mine]
    tall = (spec.replace(name="tall", block=(2, 16)) for spec in EVERY[:3])
    calls = [Call("quantize", spec, "bfloat16") for spec in specs if spec is not None]
    calls += [replace(call, direction="column") for call in calls if call.spec.hadamard]
    together([*calls, *(Call("quantize", spec, "float32") for spec in (*EVERY[:3], *tall))])


def native_reciprocal(x: np.ndarray) -> np.ndarray:
    from fp4ref_cpu.build import library

    y = np.empty_like(x)
    library(LOOP).reciprocals(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size))
    return y


@pytest.mark.rule("APX-1")
def test_the_headers_reciprocal_is_the_measured_table():
    """Every mantissa: the nearest reciprocal, made in float64, moved by the file's distance."""
    x = (np.arange(1 << 23, dtype=np.uint32) | np.uint32(0x3F800000)).view(F)
    nearest = (1 / x.astype(np.float64)).astype(F)
    with np.load(TABLE) as archive:
        expected = nearest.view(np.int32) + archive["d"]
    assert np.array_equal(native_reciprocal(x).view(np.int32), expected)


@pytest.mark.rule("APX-1")
@pytest.mark.parametrize("sign", [0, 1])
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_the_headers_reciprocal_at_every_kind_of_exponent(exponent, sign):
    mantissas = np.append(np.arange(0, 1 << 23, 1009, dtype=np.uint32), np.uint32([1, 2, 0x7FFFFE, 0x7FFFFF]))
    x = (mantissas | np.uint32(sign << 31 | exponent << 23)).view(F)
    with np.errstate(invalid="ignore"):
        expected = reciprocal_approx(x)
    got, number = native_reciprocal(x), ~np.isnan(expected)
    assert np.array_equal(got.view(np.uint32)[number], expected.view(np.uint32)[number])
    assert np.isnan(got[~number]).all()


@pytest.mark.sampled(3)
@pytest.mark.rule("PRO-3", "APX-1", "GLB-5")
@pytest.mark.parametrize("spec", ROW_SCALED, ids=lambda spec: spec.name)
def test_every_bfloat16_global_maximum(spec):
    """One row each: blocks at the maximum, below it, tiny, and zero. A NaN cannot be given, but found."""
    amax = np.arange(1 << 15, dtype=np.uint16).view(BFLOAT16).astype(F)
    rows = np.repeat(amax[:, None], 64, axis=1)
    rng = np.random.default_rng(3)
    with np.errstate(all="ignore"):
        rows[:, 1:16] *= rng.standard_normal((1 << 15, 15), F) / F(4)
        rows[:, 16:32] *= rng.random((1 << 15, 1), F) * rng.standard_normal((1 << 15, 16), F)
        rows[:, 32:48] *= F(2.0**-12) * rng.random((1 << 15, 16), F)
        rows[:, 48:] *= F(0)
        x = rows.astype(BFLOAT16)
    same(x, spec)
    numbers = ~np.isnan(amax)
    same(x[numbers], spec, amax=amax[numbers])


@pytest.mark.sampled(3)
@pytest.mark.rule("PRO-3", "APX-1", "BLK-2")
@pytest.mark.parametrize("spec", EVERY, ids=lambda spec: spec.name)
def test_every_bfloat16_block_maximum(spec):
    """Under a global maximum in the middle of the range: most blocks are far above or below it."""
    amax = np.arange(1 << 15, dtype=np.uint16).view(BFLOAT16)
    x = np.zeros((1 << 15, spec.block.columns), BFLOAT16)
    x[:, 0] = amax
    with np.errstate(all="ignore"):
        for column, part in enumerate((-0.9, 0.77, -0.5, 0.3, 0.1, -0.03, 0.001), 1):
            x[:, column] = (amax.astype(F) * F(part)).astype(BFLOAT16)
    x[:, 8] = -0.0
    for given_amax in (None,) if spec.global_scale == "none" else (F(1), F(3e-30), F(3e30)):
        same(x, spec, amax=given_amax)


@pytest.mark.rule("PRO-3", "APX-1")
@pytest.mark.parametrize("amax", [0.0, 1e-45, 1e-39, 1.0, 3e38, np.inf])
@pytest.mark.parametrize("spec", EVERY[:3], ids=lambda spec: spec.name)
def test_what_is_zero_in_a_kernel(spec, amax):
    """Blocks of zeros, of zeros and NaN, whose scale underflows, of an infinity: each with zeros of both signs."""
    blocks = [[0.0], [np.nan], [1e-45], [2e-45, np.nan], [1e-30], [np.inf], [np.inf, np.nan], [1e-38, -1.0]]
    x = np.zeros((len(blocks), 16), F)
    x[:, 3::4] = -0.0
    for row, some in zip(x, blocks, strict=True):
        row[1 : 1 + len(some)] = some
    same(x, spec, amax=F(amax))
    same(x, spec.replace(name="tall", block=(2, 16)), amax=F(amax))


@pytest.mark.rule("PRO-3")
def test_a_zero_block_is_told_by_its_maximum():
    """Elements below the smallest scale: `kernel-approx` makes them zero, `by-amax` multiplies by an infinity."""
    x = np.zeros((1, 16), F)
    x[0, :3] = 1e-30, -1e-30, 0.0
    by_scale, by_amax = (fp4ref.quantize(x, fp4ref.profiles[name], amax=F(1), backend="cpu") for name in KERNELS[:2])
    assert by_scale.row.scales[0, 0] == by_amax.row.scales[0, 0] == 0
    assert by_scale.row.data[0, :2].tolist() == [0x80, 0x00]
    assert by_amax.row.data[0, :2].tolist() == [0xF7, 0x77]  # 6, -6, and 0 * Inf


@pytest.mark.sampled(3)
@pytest.mark.rule("PRO-3", "APX-1", "BLK-8")
@pytest.mark.parametrize("name", [*KERNELS, *TE])
@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 32), spread=st.sampled_from([0.5, 4.0, 40.0]), rows=st.sampled_from([16, 48]))
def test_values_of_every_size(name, seed, spread, rows):
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        x = (rng.standard_normal((rows, 96)) * np.exp(spread * rng.standard_normal((rows, 96)))).astype(BFLOAT16)
    x[rng.random(x.shape) < 0.01] = np.nan if seed % 2 else 0.0
    same(x, fp4ref.profiles[name], "both")


@pytest.mark.rule("PRO-1")
def test_zero_blocks_by_maximum_need_one_without_nan():
    spec = fp4ref.profiles["flashinfer.nvfp4_kernel"]
    assert not fp4ref_numerics.unsupported(Call("quantize", spec))
    assert (
        "maximum that keeps NaN" in fp4ref_numerics.unsupported(Call("quantize", spec.replace(amax="propagate-nan")))[0]
    )
    search = fp4ref.NVFP4_4OVER6.four_over_six
    assert "4over6" in fp4ref_numerics.unsupported(Call("quantize", spec.replace(four_over_six=search)))[0]


LOGARITHM = """#include <fp4ref/fp4ref.h>
extern "C" __attribute__((visibility("default"))) void floors(const float* x, int* y, long n)
{
    for (long i = 0; i < n; ++i) y[i] = fp4ref::arithmetic::log2_floor_in<fp4ref::%s>(x[i]);
}
"""


def floors(x: np.ndarray, dtype: str) -> np.ndarray:
    from fp4ref_cpu.build import library

    y = np.empty(x.size, np.int32)
    library(LOGARITHM % dtype).floors(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), x.size)
    return y


@pytest.mark.rule("PRO-3")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_floor_of_a_rounded_logarithm(dtype):
    """All positive numbers of a 16-bit type; of float32, those around every power of two."""
    if dtype == "float32":
        powers = (np.arange(1, 255, dtype=np.int64) << 23)[:, None] + np.arange(-70, 70)
        small = np.arange(1, 4096)
        x = np.append(powers.ravel(), small).astype(np.uint32).view(F)
        kind = np.dtype(F)
    else:
        kind = BFLOAT16 if dtype == "bfloat16" else np.dtype(np.float16)
        x = np.arange(1, 1 << 15, dtype=np.uint16).view(kind).astype(F)
        x = x[np.isfinite(x)]
    rounded = np.log2(x.astype(np.float64)).astype(F).astype(kind).astype(F)
    assert np.array_equal(floors(x, dtype), np.floor(rounded).astype(np.int32))


FLUSHED = ("jax.nvfp4", "jax.mxfp8", "qwix.nvfp4", "qwix.mxfp8", "qwix.mxfp4")
ROUNDED = tuple(name for name in fp4ref.profiles if name.startswith("microxcaling."))


@pytest.mark.sampled(6)
@pytest.mark.rule("PRO-3", "NUM-5")
@pytest.mark.parametrize("name", [*FLUSHED, *ROUNDED])
def test_every_bfloat16_in_blocks_of_its_neighbours_and_of_others(name):
    every = np.arange(1 << 16, dtype=np.uint16)
    for order in (every, np.random.default_rng(8).permutation(every), every.reshape(64, -1).T.ravel()):
        same(order.view(BFLOAT16).reshape(-1, 64), fp4ref.profiles[name])


@pytest.mark.heavy  # compiles six functions that no other test calls
@pytest.mark.rule("NUM-5", "HAD-4")
def test_subnormals_are_flushed_after_the_transform_and_before_every_maximum():
    spec = fp4ref.NVFP4_RHT.replace(name="flushing", subnormals="flush")
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((48, 64)) * 2.0 ** rng.integers(-134, -122, (48, 64))).astype(BFLOAT16)
    q = same(x, spec, "both")
    kept = fp4ref.quantize(x, fp4ref.NVFP4_RHT, "both", backend="numpy")
    assert not np.array_equal(q.column.data, kept.column.data)
    same(np.full((16, 32), 1e-40, F), fp4ref.MXFP8_E4M3.replace(name="flushing", subnormals="flush"))
