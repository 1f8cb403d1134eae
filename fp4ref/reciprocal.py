"""rcp.approx.ftz.f32, as measured on SM90: its distance from the nearest reciprocal, in ulp, for every mantissa."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import F, Floats

TABLE = Path(__file__).parent / "data" / "rcp_approx_ftz_sm90.npz"
MANTISSA_MASK = np.uint32(0x7FFFFF)
ONE = np.uint32(0x3F800000)


@lru_cache
def _distances() -> NDArray[np.int8]:
    with np.load(TABLE) as archive:
        return np.asarray(archive["d"])


def reciprocal_approx(x: Floats) -> Floats:
    """1 / x as the approximate instruction gives it: independent of the exponent, subnormals flushed.

    A subnormal or zero x gives an infinity, a subnormal result is zero, NaN stays NaN.

    Rules: APX-1. Certificates: reciprocal.
    """
    bits = np.asarray(x, F).view(np.uint32)
    mantissa, exponent = bits & MANTISSA_MASK, (bits >> 23 & 0xFF).astype(np.int32)
    nearest = F(1) / (mantissa | ONE).view(F)  # of 1.mantissa, so in (0.5, 1]
    result = (nearest.view(np.int32) + _distances()[mantissa]).view(F).astype(np.float64)
    result = np.ldexp(result, 127 - exponent)
    result = np.where(result < np.finfo(F).tiny, 0.0, result)
    result = np.where(exponent == 0, np.inf, result)
    result = np.where(exponent == 255, np.where(mantissa == 0, 0.0, np.nan), result)
    return np.copysign(result, x).astype(F)
