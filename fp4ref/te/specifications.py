"""From a quantizer's settings to the specification that says its bytes."""

from __future__ import annotations

import os
from functools import lru_cache

from fp4ref.arithmetic import TE_FAST
from fp4ref.formats import STOCHASTIC_E2M1
from fp4ref.four_over_six import dequantized, scaled_units_float16
from fp4ref.spec import FourOverSix, Granularity, Hadamard, Metric, Spec
from fp4ref.specs import MXFP8_2D, MXFP8_E4M3, MXFP8_E5M2, NVFP4, NVFP4_2D, NVFP4_4OVER6
from fp4ref.te.dtypes import DType

# Codes times block scales, without the global scale: what a block-scaled matrix product multiplies, exact in bfloat16.
NVFP4_OPERAND = NVFP4.replace(name="te.nvfp4-operand", global_scale=Granularity.NONE)
METRICS = {"MAE": Metric.ABSOLUTE, "MSE": Metric.SQUARED}


@lru_cache
def nvfp4(
    *,
    signs: int | None = None,
    tiles: bool = False,
    stochastic: bool = False,
    row_scaled: bool = False,
    e4m3_max: int | None = None,
    error_mode: str = "MAE",
    float16_errors: bool = False,
    fast: bool = False,
) -> Spec:
    """Return the specification of an NVFP4 quantizer.

    signs: the mask of the Hadamard transform, None without one. e4m3_max: None without 4over6, else 448 or 256.

    Rules: TEL-3. Certificates: quantizer-bytes.
    """
    spec = NVFP4_2D if tiles else NVFP4
    if e4m3_max is not None:
        search = FourOverSix(
            metric=METRICS[error_mode],
            scale_max=float(e4m3_max),
            difference=scaled_units_float16 if float16_errors else dequantized,
        )
        spec = spec.replace(arithmetic=NVFP4_4OVER6.arithmetic, four_over_six=search)
    elif fast:
        spec = spec.replace(arithmetic=TE_FAST)
    if row_scaled:
        spec = spec.replace(global_scale=Granularity.ROW)
    if signs is not None:
        spec = spec.replace(hadamard=Hadamard(signs))
    if stochastic:
        spec = spec.replace(element=STOCHASTIC_E2M1)
    return spec


@lru_cache
def stored_nvfp4(row_scaled: bool, e4m3_max: int | None) -> Spec:
    """Return the specification by which stored bytes are read: what does not change their values is left out."""
    return nvfp4(row_scaled=row_scaled, e4m3_max=e4m3_max)


@lru_cache
def mxfp8(dtype: DType, tiles: bool = False) -> Spec:
    """Return the specification of an MXFP8 quantizer. Rules: TEL-3."""
    spec = MXFP8_E5M2 if dtype is DType.kFloat8E5M2 else MXFP8_E4M3
    return spec.replace(block=MXFP8_2D.block) if tiles else spec


def environment_flag(name: str) -> bool:
    """Return True if an environment variable that selects other arithmetic is set to 1 now."""
    held = getattr(os.environ, "_data", None)  # read for every tensor, in a tenth of the time
    if held is None:
        return os.environ.get(name, "0") == "1"
    return bool(held.get(_encoded(name)) == _ONE)


_encoded = lru_cache(getattr(os.environ, "encodekey", str))
_ONE = getattr(os.environ, "encodevalue", str)("1")
