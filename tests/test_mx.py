from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref.arithmetic import OCP_CEIL, OCP_EVEN, OCP_FLOOR, OCP_RCEIL, RCEIL_CAST_ONLY
from fp4ref.conformance.families.strategies import amax_at_powers_of_two, float32s, matrices, near, shapes
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.model.quantize import quantize

ELEMENTS = (fp4ref.MXFP4, fp4ref.MXFP8_E4M3, fp4ref.MXFP8_E5M2)
OCP = {"floor": OCP_FLOOR, "ceil": OCP_CEIL, "even": OCP_EVEN, "rceil": OCP_RCEIL}
SMALL = shapes(3, 33) | shapes(33, 3)


def scale_of(amax: float, spec: fp4ref.Spec) -> int:
    return int(quantize(np.array([[0, amax]], np.float32), spec).scales[0, 0])


@pytest.mark.rule("MXS-1", "BLK-1", "BLK-10", "E8M0-2", "NUM-1")
@pytest.mark.parametrize("spec", ELEMENTS, ids=lambda s: s.name)
@settings(max_examples=40)
@given(data=st.data(), direction=st.sampled_from(["row", "column"]))
def test_mx_is_the_oracles(spec, data, direction):
    x = data.draw(matrices((1, 32), spec.element.format, shape=SMALL, finite=False))
    assert not oracle.differences(quantize(x, spec, direction), oracle.quantize(x, spec, direction))


@pytest.mark.rule("BLK-7", "MXS-1")
@pytest.mark.parametrize("spec", [fp4ref.MXFP4_2D, fp4ref.MXFP8_2D], ids=lambda s: s.name)
@settings(max_examples=25)
@given(data=st.data(), direction=st.sampled_from(["row", "column"]))
def test_mx_2d_is_the_oracles(spec, data, direction):
    x = data.draw(matrices((32, 32), spec.element.format, shape=shapes(33, 33), finite=False))
    assert not oracle.differences(quantize(x, spec, direction), oracle.quantize(x, spec, direction))


@pytest.mark.sampled(3)
@pytest.mark.rule("MXS-1", "MXS-2", "MXS-3", "MXS-4", "MXS-5")
@pytest.mark.parametrize("mode", OCP)
@pytest.mark.parametrize("spec", ELEMENTS, ids=lambda s: s.name)
@given(data=st.data())
def test_a_blocks_scale_is_the_oracles_in_every_mode(spec, mode, data):
    top = np.ldexp([1.5, 1.75, 1.875, 448 / 256, 57344 / 2**15], data.draw(st.integers(-149, 127)))
    amax = data.draw(amax_at_powers_of_two() | near(top, 1).map(abs) | float32s())
    x = np.zeros((1, 32), np.float32)
    x[0, 5] = amax
    x[0, 9] = np.float32(amax) / np.float32(3) if np.isfinite(amax) else 1
    changed = spec.replace(arithmetic=OCP[mode], amax=data.draw(st.sampled_from(["ignore-nan", "propagate-nan"])))
    assert not oracle.differences(quantize(x, changed), oracle.quantize(x, changed))


@pytest.mark.rule("BLK-11")
@settings(max_examples=50)
@given(x=matrices((1, 32), fp4ref.E4M3, shape=SMALL, finite=False))
def test_cast_only_kernels_are_the_oracles(x):
    spec = fp4ref.MXFP8_E4M3.replace(arithmetic=RCEIL_CAST_ONLY)
    assert not oracle.differences(quantize(x, spec), oracle.quantize(x, spec))


@pytest.mark.rule("MXS-1", "E8M0-3", "BLK-10")
@pytest.mark.parametrize(
    "amax, scale, code",
    [
        (448, 127, 0x7E), (450, 128, 0x76), (1.0, 119, 0x78), (3.5, 120, 0x7E), (0.875, 118, 0x7E), (7, 121, 0x7E),
        (1e-40, 0, 0x09), (3e38, 247, 0x76), (np.inf, 254, 0x7E), (np.nan, 0, 0x7F), (0, 0, 0),
    ],
)  # fmt: skip
def test_mxfp8_worked_examples(amax, scale, code):
    q = quantize(np.full((1, 32), amax, np.float32), fp4ref.MXFP8_E4M3)
    assert (q.scales.tolist(), q.data.tolist(), q.amax) == ([[scale]], [[code] * 32], None)


@pytest.mark.rule("MXS-1", "MXS-2", "MXS-3", "MXS-4")
@pytest.mark.parametrize(
    "amax, rceil, floor, ceil, even",
    [
        (1.0, 125, 125, 125, 125),
        (1.5, 125, 125, 126, 125),
        (1.5000001, 126, 125, 126, 125),
        (1.7499999, 126, 125, 126, 125),
        (1.75, 126, 125, 126, 126),
        (1.9999999, 126, 125, 126, 126),
        (2.0, 126, 126, 126, 126),
        (0.0, 0, 0, 0, 0),
        (2.0**-149, 0, 0, 0, 0),
        (2.0**-126, 0, 0, 0, 0),
        (2.0**-124, 1, 1, 1, 1),
        (3.4028235e38, 253, 252, 253, 253),
    ],
)
def test_modes_by_hand_for_mxfp4(amax, rceil, floor, ceil, even):
    assert scale_of(amax, fp4ref.MXFP4) == rceil
    got = [scale_of(amax, fp4ref.MXFP4.replace(arithmetic=OCP[mode])) for mode in ("floor", "ceil", "even", "rceil")]
    assert got == [floor, ceil, even, rceil]


@pytest.mark.rule("MXS-4")
@pytest.mark.parametrize("spec, carries", [(ELEMENTS[0], 1.75), (ELEMENTS[1], 1.9375), (ELEMENTS[2], 1.875)], ids=str)
def test_even_carries_half_a_step_below_the_next_power(spec, carries):
    below = float(np.nextafter(np.float32(carries), np.float32(0)))
    even = spec.replace(arithmetic=OCP_EVEN)
    assert scale_of(carries, even) == scale_of(below, even) + 1 == scale_of(2.0, even)


@pytest.mark.rule("MXS-5")
@pytest.mark.parametrize("mode", OCP)
def test_an_infinite_block_gets_the_nan_scale_in_the_ocp_modes(mode):
    x = np.float32([[1, np.inf, 2] + [0] * 29, [1, np.nan, 2] + [0] * 29])
    for rule, nan_scale in (("ignore-nan", 126), ("propagate-nan", 255)):
        spec = fp4ref.MXFP4.replace(arithmetic=OCP[mode], amax=rule)
        q = quantize(x, spec)
        assert q.scales.tolist() == [[255], [nan_scale]]
        assert q.data[0].tolist() == [0x77] * 16  # every element over NaN
    assert quantize(x, fp4ref.MXFP4).scales.tolist() == [[254], [126]]  # the default saturates


@pytest.mark.rule("BLK-10")
def test_elements_saturate_where_the_scale_does():
    x = np.full((1, 32), np.inf, np.float32)
    x[0, 1] = -3e38
    q = quantize(x, fp4ref.MXFP8_E4M3)
    assert (q.scales.tolist(), q.data[0, :2].tolist()) == ([[254]], [0x7E, 0xBE])
