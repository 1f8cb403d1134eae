"""The settings of an NVFP4 quantizer, and which of them, of shapes and of types fit each other."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from fp4ref.quantized import DirectionChoice
from fp4ref.spec import Spec
from fp4ref.te import specifications
from fp4ref.te.dtypes import FLOATS, DType
from fp4ref.te.dtypes import NVFP4_BLOCK_SCALING_SIZE as BLOCK
from fp4ref.te.errors import SettingError, TensorDTypeError, TensorShapeError

DIRECTIONS_OF: dict[tuple[bool, bool], DirectionChoice | None] = {
    (True, True): "both",
    (True, False): "row",
    (False, True): "column",
    (False, False): None,
}


class NVFP4Settings(NamedTuple):
    """The settings of a quantizer that have to fit each other and its tensors."""

    dtype: DType
    rowwise_usage: bool
    columnwise_usage: bool
    with_rht: bool
    with_post_rht_amax: bool
    with_2d_quantization: bool
    stochastic_rounding: bool
    row_scaled_nvfp4: bool
    with_amax_reduction: bool
    nvfp4_use_4over6: bool
    nvfp4_e4m3_max: int
    nvfp4_4over6_err_mode: str


def fast_choices(q: Any) -> tuple[bool, bool]:
    """Return whether the process asks for fast arithmetic, and for errors in float16, where a quantizer has them."""
    search = q.nvfp4_use_4over6
    plain = not (q.with_rht or q.with_2d_quantization or search)
    flag = specifications.environment_flag
    return plain and flag("NVTE_USE_FAST_MATH"), search and flag("NVTE_NVFP4_4OVER6_ERR_USE_FAST_MATH")


def specification(q: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Spec:
    """Return the specification of the bytes that a quantizer makes of a tensor of this type and shape. Rules: TEL-3."""
    search = q.nvfp4_use_4over6
    fast, float16_errors = fast_choices(q)
    aligned = not (math.prod(shape[:-1]) % 32 or shape[-1] % 32)
    return specifications.nvfp4(
        signs=q.rht_matrix_random_sign_mask_t if q.with_rht else None,
        tiles=q.with_2d_quantization,
        stochastic=q.stochastic_rounding,
        row_scaled=q.row_scaled_nvfp4,
        e4m3_max=q.nvfp4_e4m3_max if search else None,
        error_mode=q.nvfp4_4over6_err_mode if search else "MAE",
        float16_errors=float16_errors,
        fast=fast and dtype is torch.bfloat16 and aligned,
    )


@lru_cache(maxsize=4096)
def require_settings(settings: tuple[Any, ...], shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
    """Raise unless the settings fit each other, and a tensor's shape and dtype; remembered where they do.

    settings: in the order of `NVFP4Settings`.

    Rules: TEL-3, TEL-23, TEL-34, TEL-87.
    """
    q = NVFP4Settings._make(settings)
    _require_agreement(q)
    if not shape or shape[-1] % BLOCK or math.prod(shape[:-1]) % BLOCK:
        got = f"shape {list(shape)}"
        raise TensorShapeError("NVFP4Quantizer", got, f"both matrix dimensions divisible by {BLOCK}", "TEL-23")
    if dtype is None:
        return
    if dtype not in FLOATS:
        raise TensorDTypeError("NVFP4Quantizer", f"dtype {dtype}", "float32, bfloat16 or float16", "TEL-3")
    if q.with_rht and dtype is not torch.bfloat16:
        raise TensorDTypeError("NVFP4Quantizer", f"with_rht of {dtype}", "bfloat16", "HAD-5")
    if q.row_scaled_nvfp4 and q.columnwise_usage:
        if dtype is not torch.bfloat16:
            raise TensorDTypeError("NVFP4Quantizer", f"row-scaled columnwise of {dtype}", "bfloat16", "TEL-87")
        if math.prod(shape[:-1]) % 32 or shape[-1] % 32:
            got = f"row-scaled columnwise of shape {list(shape)}"
            raise TensorShapeError("NVFP4Quantizer", got, "both matrix dimensions divisible by 32", "TEL-87")


def _require_agreement(q: NVFP4Settings) -> None:
    """Refuse combinations that the kernels do not have. Rules: TEL-3, TEL-34, FOS-7, GLB-5."""
    row, search = q.row_scaled_nvfp4, q.nvfp4_use_4over6
    for bad, got, needed, rule in (
        (q.dtype != DType.kFloat4E2M1, f"fp4_dtype {q.dtype!r}", "DType.kFloat4E2M1", "TEL-3"),
        (q.with_rht and not q.with_post_rht_amax, "with_rht without with_post_rht_amax", "both", "TEL-3"),
        (row and not q.rowwise_usage, "row_scaled_nvfp4 without rowwise", "rowwise=True", "TEL-34"),
        (row and q.with_rht, "row_scaled_nvfp4 with with_rht", "one of them", "TEL-34"),
        (row and q.with_2d_quantization, "row_scaled_nvfp4 with with_2d_quantization", "one of them", "TEL-34"),
        (row and q.stochastic_rounding, "row_scaled_nvfp4 with stochastic_rounding", "one of them", "TEL-34"),
        (row and q.with_amax_reduction, "row_scaled_nvfp4 with with_amax_reduction", "one of them", "TEL-34"),
        (
            row and search and q.columnwise_usage,
            "row_scaled_nvfp4 with 4over6 and columnwise",
            "rowwise only",
            "TEL-34",
        ),
        (search and q.with_rht, "nvfp4_use_4over6 with with_rht", "one of them", "FOS-7"),
        (search and q.stochastic_rounding, "nvfp4_use_4over6 with stochastic_rounding", "one of them", "FOS-7"),
        (
            search and q.with_2d_quantization and not q.rowwise_usage,
            "nvfp4_use_4over6 with with_2d_quantization, columnwise only",
            "rowwise=True",
            "FOS-7",
        ),
        (q.nvfp4_e4m3_max not in {448, 256}, f"nvfp4_e4m3_max {q.nvfp4_e4m3_max}", "448 or 256", "FOS-2"),
        (not search and q.nvfp4_e4m3_max != 448, "nvfp4_e4m3_max 256 without nvfp4_use_4over6", "448", "FOS-2"),
        (
            q.nvfp4_4over6_err_mode not in specifications.METRICS,
            f"nvfp4_4over6_err_mode {q.nvfp4_4over6_err_mode!r}",
            "MAE or MSE",
            "FOS-5",
        ),
    ):
        if bad:
            raise SettingError("NVFP4Quantizer", got, needed, rule)
