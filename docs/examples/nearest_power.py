"""An implementation of MXFP4 in plain NumPy, and two profiles of it: a first guess, and the right one.

Its scale is the power of two nearest to amax / 4 by the bits, ties up, and an element on a tie takes the smaller value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import fp4ref
from fp4ref.arithmetic import exponent_field, finite, half_carry, power_of_two
from fp4ref.formats import Floats

MIDPOINTS = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def quantize(x: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return data and scales of x [rows, columns]: the implementation, which does not call fp4ref."""
    rows, columns = x.shape
    across = -(-columns // 32)
    padded = np.zeros((rows, across * 32), np.float32)
    padded[:, :columns] = x
    blocks = padded.reshape(rows, across, 32)
    amax = np.fmax.reduce(np.abs(blocks), axis=2)
    field = (amax.view(np.uint32).astype(np.int64) + (1 << 22)) >> 23
    byte = np.where(np.isfinite(amax), np.clip(field - 2, 0, 254), 255)
    with np.errstate(invalid="ignore"):
        scaled = blocks / np.where(byte == 255, np.nan, np.ldexp(1.0, byte - 127)).astype(np.float32)[..., None]
        code = np.searchsorted(MIDPOINTS, np.abs(scaled), side="left") | np.signbit(scaled) << 3
    code = np.where(np.isnan(scaled), 7, code).reshape(rows, -1)
    code[:, columns:] = 0
    packed = code[:, 0::2] | code[:, 1::2] << 4
    return packed[:, : -(-columns // 2)].astype(np.uint8), byte.astype(np.uint8)


def nearest_power(amax: Floats, g: Floats, k: fp4ref.arithmetic.Constants) -> Floats:
    """Return the power of two nearest to amax / 2^emax; NaN for an infinity."""
    return finite(amax, power_of_two(exponent_field(amax, half_carry(0)), k))


ARITHMETIC = fp4ref.register_arithmetic("example.nearest-power", nearest_power)
GUESS = fp4ref.register(
    fp4ref.MXFP4.replace(name="example.guess", arithmetic=ARITHMETIC), source="read from nearest_power.py"
)
DOWN = fp4ref.Codec(format=fp4ref.E2M1, rounding="down", nan=(7, 7))
RIGHT = fp4ref.register(GUESS.replace(name="example.mxfp4", element=DOWN), source="executed")
