"""The profiles of MLX's Metal kernel against the kernel's steps, one thread after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fp4ref
from fp4ref.packing import unpack

F = np.float32
UPPER = [(0.25, 0), (0.75, 1), (1.25, 0), (1.75, 1), (2.5, 0), (3.5, 1), (5.0, 0)]  # a tie goes up where 1 stands


def e2m1(x: F) -> int:
    if np.isnan(x):
        return 7
    magnitude = abs(float(x))
    return sum(magnitude >= bound if up else magnitude > bound for bound, up in UPPER) | 8 * bool(np.signbit(x))


def e4m3(x: F) -> int:
    bits = int(np.asarray(x, F).view(np.uint32))
    sign, bits = bits & 0x80000000, bits & 0x7FFFFFFF
    if bits >= 543 << 21:
        code = 0x7E
    elif bits < 121 << 23:
        moved = np.uint32(bits).view(F) + np.uint32(141 << 23).view(F)
        code = int(moved.view(np.uint32)) - (141 << 23)
    else:
        code = (bits - (120 << 23) + 0x7FFFF + (bits >> 20 & 1)) >> 20 & 0xFF
    return code | sign >> 24


def e8m0(x: F) -> int:
    """The power of two that rounded log2 gives, then one more if that is below x."""
    if not np.isfinite(x):
        return 0xFF
    power = -127 if x == 0 else min(max(math.floor(math.log2(float(x)) + 0.5), -127), 127)
    return power + 127 + (math.ldexp(1.0, power) < float(x))


def e4m3_value(code: int) -> F:
    exponent, mantissa = code >> 3 & 15, code & 7
    return F(math.ldexp(mantissa + 8 * (exponent > 0), max(exponent, 1) - 10))


@np.errstate(all="ignore")
def kernel(x: np.ndarray, group: int, bits: int, amax: F | None) -> tuple[np.ndarray, np.ndarray]:
    encode = F(1) if amax is None else F(2688) / amax
    codes, scales = np.zeros(x.shape, np.uint8), np.zeros((len(x), x.shape[1] // group), np.uint8)
    for row, start in np.ndindex(scales.shape):
        block = x[row, start * group : (start + 1) * group]
        scale = np.abs(block).max() / F(6 if bits == 4 else 448)
        if amax is not None:
            scale *= encode
        byte = e8m0(scale) if group == 32 else e4m3(scale)
        value = e4m3_value(byte) if group == 16 else F(np.inf) if byte == 0xFF else F(2.0 ** (byte - 127))
        factor = F(0) if value == 0 else encode / value
        scales[row, start] = byte
        encoder = e2m1 if bits == 4 else e4m3
        codes[row, start * group : (start + 1) * group] = [encoder(element * factor) for element in block]
    return codes, scales


def inputs(group: int) -> np.ndarray:
    random = np.random.default_rng(14)
    x = random.standard_normal((12, 2 * group)).astype(F)
    x *= F(2) ** random.integers(-12, 12, (12, 1)).astype(F)
    x[0] = 0
    x[1, ::2] = -0.0
    x[2] = random.choice(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -2.5, 448, -1], F), 2 * group)
    x[3] *= F(2.0**-126)
    x[4, 0] = np.finfo(F).max
    x[5, :4] = [6 * 1.4142135, 0, 0, 0]
    x[6, group] = np.inf
    x[7, : group + 1] = F(6) * np.nextafter(F(1), F(2))
    return x


@pytest.mark.rule("PRO-3")
@pytest.mark.parametrize(
    "name, group, bits",
    [("mxfp4_metal", 32, 4), ("mxfp8_metal", 32, 8), ("nvfp4_metal", 16, 4), ("nvfp4_global_metal", 16, 4)],
)
def test_the_steps_of_the_metal_kernel(name, group, bits):
    x = inputs(group)
    if "global" in name:
        x[6, group] = 3  # an infinite maximum leaves every factor 0 or NaN
    amax = np.abs(x).max() if "global" in name else None
    codes, scales = kernel(x, group, bits, amax)
    spec = fp4ref.profiles[f"mlx.{name}"]
    q = fp4ref.quantize(x, spec).row
    assert q.scales.tobytes() == scales.tobytes()
    assert unpack(q.data, x.shape[1], spec.element.format).tobytes() == codes.tobytes()


@pytest.mark.rule("PRO-2", "PRO-12")
def test_it_promises_nothing_that_was_not_executed():
    for name in ("mxfp4", "mxfp8", "nvfp4", "nvfp4_global"):
        promise = fp4ref.catalogue.PROMISES[f"mlx.{name}_metal"]
        assert promise.source.startswith("read from source: 0.32.4")
        assert not any(claim.holds for claim in promise.claims.values())
