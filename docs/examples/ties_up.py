"""An NVFP4 quantizer with one mistake: ties go away from zero, and the kit says so.

fp4ref verify --kernel ties_up.py:quantize --spec nvfp4
"""

from typing import Any

import ml_dtypes
import numpy as np

import fp4ref

HALFWAY = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])  # between neighbouring values of E2M1
F32 = np.float32


@fp4ref.kernel(dtypes=("float32",), multiple=(1, 16), leading=False, empty=False)
def quantize(x: Any) -> tuple[Any, Any, Any]:
    """[M, K] to packed codes [M, K/2], scales [M, K/16] and the amax [1]."""
    with np.errstate(all="ignore"):
        blocks = x.reshape(len(x), -1, 16)
        top = np.fmax.reduce(np.abs(blocks), axis=2, initial=0)
        amax = np.fmax.reduce(top, axis=None, keepdims=True, initial=0).reshape(1)
        g = np.fmin(F32(2688) / amax, np.finfo(F32).max)
        g = np.where((amax == 0) | (g == 0), F32(1), g)
        t = np.fmin(top * (g * F32(1 / 6)), F32(448))
        scales = t.astype(ml_dtypes.float8_e4m3fn)
        encode = np.fmin(1 / (scales.astype(F32) * (1 / g)), np.finfo(F32).max)
        y = blocks * encode[:, :, None]
    codes = np.searchsorted(HALFWAY, np.abs(y), side="right").astype(np.uint8)  # "right" is the mistake
    codes = np.where(np.isnan(y), np.uint8(7), codes | np.signbit(y).astype(np.uint8) << 3).reshape(x.shape)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales.view(np.uint8), amax
