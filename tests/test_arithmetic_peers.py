from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref import four_over_six as fos
from fp4ref import packing
from fp4ref.conformance.oracle import rationals as r
from fp4ref.formats import F
from fp4ref.model import quantize as model
from fp4ref.reciprocal import reciprocal_approx

SIXTH = r.over(1.0, 6.0)


def rcp(x: float) -> float:
    return float(reciprocal_approx(np.array([x], F))[0])


def narrow(x: float) -> float:
    return r.narrowed(x, r.BFLOAT16)


def once(x: float) -> float:
    return r.over(1.0, x)


# Each formula of the profiles' table, read aloud: amax, or x and s, with the global scale g of the same profile.
GLOBAL = {
    "torchao.nvfp4_2lvl": lambda a: r.over(a, 2688.0),
    "modelopt.nvfp4": lambda a: r.over(a, 2688.0),
    "jax.nvfp4": lambda a: r.over(a, 2688.0),
    "compressed_tensors.nvfp4": lambda a: narrow(r.times(narrow(once(a)), 2688.0)),
    "fouroversix.nvfp4_static_6": lambda a: r.over(2688.0, a),
    "fouroversix.nvfp4_static_4": lambda a: r.over(1792.0, a),
    "flashinfer.ref_nvfp4": lambda a: r.times(once(a), 2688.0),
    "flashinfer.ref_nvfp4_te": lambda a: r.over(2688.0, a),
    "flashinfer.trace_nvfp4": lambda a: r.times(once(a), 2688.0),
    "vllm.nvfp4_kernel": lambda a: r.times(once(a), 2688.0),
    "flashinfer.nvfp4_kernel": lambda a: r.times(once(a), 2688.0),
    "cutlass.nvfp4_epilogue": lambda a: r.over(2688.0, a),
}
BLOCK = {
    "torchao.nvfp4_2lvl": lambda a, g: min(max(r.over(r.over(a, 6.0), g), 2.0**-6), 448.0),
    "modelopt.nvfp4": lambda a, g: r.over(a, r.times(6.0, g)),
    "jax.nvfp4": lambda a, g: min(r.times(r.times(a, once(g)), SIXTH), 448.0),
    "compressed_tensors.nvfp4": lambda a, g: min(r.times(g, narrow(r.over(a, 6.0))), 448.0),
    "fouroversix.nvfp4_static_6": lambda a, g: r.times(r.over(a, 6.0), g),
    "fouroversix.nvfp4_static_4": lambda a, g: r.times(r.over(a, 4.0), g),
    "flashinfer.ref_nvfp4": lambda a, g: r.times(g, r.times(a, SIXTH)),
    "flashinfer.ref_nvfp4_te": lambda a, g: r.times(a, r.times(g, SIXTH)),
    "flashinfer.trace_nvfp4": lambda a, g: r.times(r.over(a, 6.0), g),
    "vllm.nvfp4_kernel": lambda a, g: r.times(g, r.times(a, SIXTH)),
    "flashinfer.nvfp4_kernel": lambda a, g: r.times(g, r.times(a, SIXTH)),
    "cutlass.nvfp4_epilogue": lambda a, g: r.times(a, r.times(g, SIXTH)),
}
SCALED = {
    "torchao.nvfp4_2lvl": lambda x, s, g: r.times(x, r.over(once(g), s)),
    "modelopt.nvfp4": lambda x, s, g: r.over(x, r.times(s, g)),
    "jax.nvfp4": lambda x, s, g: r.times(r.times(x, once(g)), once(s)),
    "compressed_tensors.nvfp4": lambda x, s, g: r.over(x, r.over(s, g)),
    "fouroversix.nvfp4_static_6": lambda x, s, g: r.times(x, once(r.times(once(g), s))),
    "fouroversix.nvfp4_static_4": lambda x, s, g: r.times(x, once(r.times(once(g), s))),
    "flashinfer.ref_nvfp4": lambda x, s, g: r.times(x, once(r.times(s, once(g)))),
    "flashinfer.ref_nvfp4_te": lambda x, s, g: r.times(x, once(r.times(s, once(g)))),
    "flashinfer.trace_nvfp4": lambda x, s, g: r.over(r.times(x, g), s),
    "vllm.nvfp4_kernel": lambda x, s, g: r.times(x, rcp(r.times(s, rcp(g)))),
    "flashinfer.nvfp4_kernel": lambda x, s, g: r.times(x, rcp(r.times(s, rcp(g)))),
    "cutlass.nvfp4_epilogue": lambda x, s, g: r.times(x, r.times(g, rcp(s))),
}


@pytest.mark.rule("PRO-3", "APX-1", "NUM-1")
@pytest.mark.parametrize("name", GLOBAL)
def test_every_order_of_operations_is_its_formula(name):
    spec, rng = fp4ref.profiles[name], np.random.default_rng(11)
    k = model.constants(spec, np.dtype(ml_dtypes.bfloat16))
    amax = rng.random(300, F) * F(9) + F(0.01)
    block, x = amax * rng.random(300, F), rng.standard_normal(300).astype(F)
    byte = rng.integers(1, 0x7F, 300, dtype=np.uint8)
    s = fp4ref.NVFP4.scale.decode(byte)
    g = spec.arithmetic.global_scale(amax, k)
    before = spec.arithmetic.block_scale(block, g, k)
    y = spec.arithmetic.scaled(x[:, None, None], s[:, None, None], g[:, None, None], k).ravel()
    numbers = list(zip(amax.tolist(), block.tolist(), g.tolist(), x.tolist(), s.tolist(), strict=True))
    assert g.tolist() == [GLOBAL[name](a) for a, *_ in numbers]
    assert before.tolist() == [BLOCK[name](b, g) for _, b, g, _, _ in numbers]
    assert y.tolist() == [SCALED[name](x, s, g) for _, _, g, x, s in numbers]


@pytest.mark.rule("PRO-3")
def test_each_formula_is_told_from_every_other():
    rng = np.random.default_rng(12)
    a, b, x = (rng.random(3000, F).tolist() for _ in range(3))
    for formulas in (
        [lambda a, b, x: r.times(r.over(a, 6.0), b), lambda a, b, x: r.times(a, r.times(b, SIXTH))],
        [lambda a, b, x: r.times(b, r.times(a, SIXTH)), lambda a, b, x: r.times(a, r.times(b, SIXTH))],
        [lambda a, b, x: r.times(x, once(r.times(a, once(b)))), lambda a, b, x: r.over(x, r.over(a, b))],
        [lambda a, b, x: r.times(x, once(r.times(a, once(b)))), lambda a, b, x: r.times(x, rcp(r.times(a, rcp(b))))],
    ):
        one, other = ([f(*v) for v in zip(a, b, x, strict=True)] for f in formulas)
        assert one != other


@pytest.mark.rule("PRO-3")
def test_which_total_and_difference_each_4over6_profile_has():
    for name, spec in fp4ref.profiles.items():
        search = spec.four_over_six
        if search is None or name == "nvfp4-4over6":
            continue
        if name.startswith("fouroversix."):
            total = fos.lanes if "_2d_" in name else fos.halves
            assert (search.total, search.difference, search.scale_max) == (total, fos.dequantized, 256)
        elif name.startswith("te."):
            metric, top = name.removesuffix("_2d").removesuffix("_row").split("_")[-2:]
            assert (search.total, search.difference) == (fos.sequential, fos.dequantized)
            assert (search.metric, search.scale_max) == (metric, float(top))
        else:
            *_, metric, top, kind = name.split("_")
            difference = {"strict": fos.dequantized_by_reciprocal, "fast": fos.scaled_units}[kind]
            assert (search.total, search.difference) == (fos.sequential, difference)
            assert (search.metric, search.scale_max) == (metric, float(top))


def codes(x: np.ndarray, name: str) -> tuple[int, list[int]]:
    spec = fp4ref.profiles[name]
    q = model.quantize(x, spec)
    return int(q.scales[0, 0]), packing.unpack(q.data, x.shape[1], spec.element.format)[0, :4].tolist()


def row(*values: float) -> np.ndarray:
    return np.resize(np.array(values, F), (1, 32))


@pytest.mark.rule("PRO-3")
def test_thresholds_and_clamps_of_the_profiles():
    below = float(np.nextafter(F(6 * 2.0**-63), F(0)))
    assert codes(row(6 * 2.0**-63), "qwix.nvfp4")[0] == 0
    assert codes(row(below), "qwix.nvfp4")[0] == 0x38
    assert codes(row(448 * 2.0**-63), "qwix.mxfp8")[0] == 127 - 63
    assert codes(row(float(np.nextafter(F(448 * 2.0**-63), F(0)))), "qwix.mxfp8")[0] == 127
    assert codes(row(1e-4 * 2**-20), "deepgemm.mxfp8_ue8m0")[0] == codes(row(1e-4), "deepgemm.mxfp8_ue8m0")[0] == 105
    assert codes(row(0, 1, 2, -4), "flashinfer.nvfp4_kernel") == (0x7E, [0, 3, 5, 15])
    assert codes(row(1, 2, 4, -4.2), "torchao.nvfp4_1lvl")[0] == 0x33
    assert codes(row(2.0**-127, 2.0**-126, 2.0**-126, 0), "flashinfer.mxfp4_kernel") == (0, [0, 0, 0, 0])
    assert codes(row(2.0**-127, -(2.0**-126)), "mxfp4")[1][:2] == [2, 0xC]
    assert codes(row(2.0**-127, 1e-40), "flashinfer.mxfp8_kernel") == (0, [0, 0, 0, 0])
    assert (
        codes(row(2.0**-140, 0), "flashinfer.ref_mxfp4")[0] == codes(row(2.0**-140, 0), "fouroversix.mxfp4_static_6")[0]
    )


@pytest.mark.rule("PRO-3")
def test_a_subnormal_quotient_becomes_the_smallest_normal_in_some_profiles():
    x = row(6 * 2.0**-128)  # a quotient of 2^-128: byte 0 by the hardware's rule, byte 1 by theirs
    got = {name: codes(x, name)[0] for name in ("mxfp4", "flashinfer.ref_mxfp4", "fouroversix.mxfp4_static_6")}
    assert got == {"mxfp4": 0, "flashinfer.ref_mxfp4": 1, "fouroversix.mxfp4_static_6": 1}


@pytest.mark.rule("PRO-3")
@pytest.mark.parametrize("name, constant", [("qwix.mxfp4", 12 / 7), ("qwix.mxfp8", 60 / 31)])
def test_qwix_lets_outliers_saturate(name, constant):
    largest = 6.0 if name.endswith("4") else 448.0
    amaxes = (np.random.default_rng(13).random(200) * 8 + 0.1).astype(ml_dtypes.bfloat16)
    for amax in amaxes:
        scaled = narrow(r.times(narrow(r.over(float(amax), largest)), narrow(constant)))
        x = np.zeros((1, 32), ml_dtypes.bfloat16)
        x[0, 7] = amax
        assert codes(x, name)[0] == math.floor(math.log2(scaled)) + 127, amax
    assert codes(row(largest * 1.03), name) == (127, [7 if largest == 6 else 0x7E] * 4)


@pytest.mark.rule("PRO-3", "BLK-2")
def test_nan_reaches_every_block_of_the_profiles_that_propagate_it():
    x = np.stack([row(1, -2, 3, -4)[0], row(np.nan, 1)[0]])
    assert codes(x, "te.python_reference") == (0x7F, [0, 0, 0, 0])
    assert codes(x, "te.rht_fused")[0] == 0x7E
    assert codes(x, "nvfp4") == (0x7E, [3, 13, 6, 15])
