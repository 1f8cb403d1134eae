"""Native scales of peers next to powers of two, where rounded logarithms and carries decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fp4ref
from compiled import together
from fp4ref import registry
from fp4ref.registry import Call

NAMES = [
    "compressed_tensors.mxfp4",
    "compressed_tensors.mxfp8",
    "deepgemm.mxfp4_ue8m0",
    "deepgemm.mxfp8_ue8m0",
    "flashinfer.ref_mxfp4",
    "flashinfer.trace_mxfp4",
    "flashinfer.trace_mxfp8",
    "flashinfer.trace_nvfp4",
    "fouroversix.mxfp4_static_4",
    "fouroversix.mxfp4_static_6",
    "modelopt.mxfp4",
    "torchao.mxfp4_rceil@0.18.0",
    "torchao.mxfp8_e4m3_even@0.18.0",
]
STEPS = np.r_[-70:71, -(1 << 21) - 2 : -(1 << 21) + 3, (1 << 21) - 2 : (1 << 21) + 3]


def near_powers(factor: float) -> NDArray[np.float32]:
    """A block for every float32 within 70 steps of factor * 2^k, and around 1.75 * 2^k; the largest stays finite."""
    powers = [factor * 2.0**k for k in range(-149, 117)]
    bits = np.float32(powers).view(np.int32)[:, None] + STEPS
    values = bits[(bits > 0) & (bits < 0x7F800000)].astype(np.int32).view(np.float32)
    x = np.zeros((len(values), 32), np.float32)
    x[:, 7] = -values
    x[:, 8] = values / 3
    return x


@pytest.fixture(params=["cpu", "numpy"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu" and (reason := dict(registry.available())["cpu"]):
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def compiled_for_this_file() -> None:
    together(Call("quantize", fp4ref.profiles[name], "float32") for name in NAMES)


@pytest.mark.slow  # thirteen functions
@pytest.mark.usefixtures("compiled_for_this_file")
@pytest.mark.parametrize("name", NAMES)
def test_native_scales_next_to_powers_of_two(name: str) -> None:
    if reason := dict(registry.available())["cpu"]:
        pytest.skip(reason)
    spec = fp4ref.profiles[name]
    for factor in (1.0, spec.element.format.max):
        x = near_powers(factor)
        x[0, 0], x[1, 0], x[2, :3] = np.nan, np.inf, [np.inf, -np.inf, np.nan]
        with np.errstate(all="ignore"):
            ours, theirs = (fp4ref.quantize(x, spec, backend=name) for name in ("numpy", "cpu"))
            assert same(ours.row, theirs.row)


def same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a.scales, b.scales) and np.array_equal(a.data, b.data))


def test_logarithms_round_to_integers_on_both_sides(backend: str) -> None:
    # log2(2^100 (1 + m / 2^23)) = 100 + 1.72e-7 m, and floats at 100 are 7.6e-6 apart: it rounds to 100 up to m = 22.
    above = np.zeros((2, 32), np.float32)
    above[:, 0] = 6 * (2.0**100 * (1 + np.array([22, 23]) / 2**23))
    assert fp4ref.quantize(above, "modelopt.mxfp4", backend=backend).row.scales.ravel().tolist() == [227, 228]
    # Below 2^100 a step is half as large: 44 steps of 2^-24.
    below = np.zeros((2, 32), np.float32)
    below[:, 0] = 6 * (2.0**100 * (1 - np.array([44, 45]) / 2**24))
    found = fp4ref.quantize(below, "flashinfer.trace_mxfp4", backend=backend)
    assert found.row.scales.ravel().tolist() == [227, 226]
