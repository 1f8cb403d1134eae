"""The global scale of a product of two NVFP4 tensors: one number, or one per row of either."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fp4ref.te.errors import SettingError
from fp4ref.te.finishing import combined
from fp4ref.te.nvfp4_storage import NVFP4TensorStorage


def global_factors(
    a: NVFP4TensorStorage, a_direction: str, b: NVFP4TensorStorage, b_direction: str, alpha: float
) -> tuple[Any, ...]:
    """Return alpha unless it is 1, amax_A, amax_B and 1 / (36 * scale_max_A * scale_max_B).

    They are multiplied in this order, in float32: numbers, and tensors of one float32.

    Rules: TEL-12.
    """
    amaxes = _amax(a, a_direction), _amax(b, b_direction)
    return (*(() if alpha == 1.0 else (float(alpha),)), *amaxes, _inverse(a, b))


def globally_scaled(
    result: Tensor, a: NVFP4TensorStorage, a_direction: str, b: NVFP4TensorStorage, b_direction: str, alpha: float
) -> Tensor:
    """Multiply the product by its global scale, in place.

    Amaxes per row are left out of the factor and multiplied afterwards: by their product with the scalar of the other
    side, if it has one, else first B's, then A's.

    Rules: TEL-12, TEL-33.
    """
    if not (a._row_scaled_nvfp4 or b._row_scaled_nvfp4):
        return result.mul_(combined(global_factors(a, a_direction, b, b_direction, alpha)))
    amax_a, amax_b = _amax(a, a_direction), _amax(b, b_direction)
    result *= _constant(alpha, result) * _inverse(a, b)
    if not a._row_scaled_nvfp4:
        return result.mul_((amax_b * amax_a).unsqueeze(1))
    if not b._row_scaled_nvfp4:
        return result.mul_((amax_a * amax_b).unsqueeze(0))
    return result.mul_(amax_b.unsqueeze(1)).mul_(amax_a.unsqueeze(0))


def _inverse(a: NVFP4TensorStorage, b: NVFP4TensorStorage) -> float:
    """Return 1 / (36 * scale_max_A * scale_max_B), rounded to float32."""
    return _inverse_of(a._nvfp4_e4m3_max, b._nvfp4_e4m3_max)


@cache
def _inverse_of(scale_max_a: int, scale_max_b: int) -> float:
    return float(np.float32(1.0 / float(np.float32(36.0 * scale_max_a * scale_max_b))))


def _constant(value: float, like: Tensor) -> Tensor:
    """Return a float32 number on a tensor's device, made without a copy, so that a graph records it."""
    return torch.full((), value, dtype=torch.float32, device=like.device)


def _amax(x: NVFP4TensorStorage, direction: str) -> Tensor:
    amax = x._amax_rowwise if direction == "row" else x._amax_columnwise
    if amax is None:
        got = f"an NVFP4 tensor without the amax of its {direction} direction"
        raise SettingError("general_gemm", got, "both", "TEL-12")
    return amax
