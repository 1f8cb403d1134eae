"""The global scale of a product of two NVFP4 tensors: one number, or one per row of either."""

from __future__ import annotations

import torch
from torch import Tensor

from fp4ref.te.errors import SettingError
from fp4ref.te.nvfp4_tensor import NVFP4TensorStorage


def global_factor(
    a: NVFP4TensorStorage, a_direction: str, b: NVFP4TensorStorage, b_direction: str, alpha: float
) -> Tensor:
    """Return ((alpha * amax_A) * amax_B) * (1 / (36 * scale_max_A * scale_max_B)), float32 [] or [1]. Rules: TEL-12."""
    amax_a, amax_b = _amax(a, a_direction), _amax(b, b_direction)
    return ((_constant(alpha, amax_a) * amax_a) * amax_b) * _inverse(a, b, amax_a)


def globally_scaled(
    result: Tensor, a: NVFP4TensorStorage, a_direction: str, b: NVFP4TensorStorage, b_direction: str, alpha: float
) -> Tensor:
    """Multiply the product by its global scale, in place.

    Amaxes per row are left out of the factor and multiplied afterwards: by their product with the scalar of the other
    side, if it has one, else first B's, then A's.

    Rules: TEL-12, TEL-33.
    """
    if not (a._row_scaled_nvfp4 or b._row_scaled_nvfp4):
        return result.mul_(global_factor(a, a_direction, b, b_direction, alpha))
    amax_a, amax_b = _amax(a, a_direction), _amax(b, b_direction)
    result *= _constant(alpha, result) * _inverse(a, b, result)
    if not a._row_scaled_nvfp4:
        return result.mul_((amax_b * amax_a).unsqueeze(1))
    if not b._row_scaled_nvfp4:
        return result.mul_((amax_a * amax_b).unsqueeze(0))
    return result.mul_(amax_b.unsqueeze(1)).mul_(amax_a.unsqueeze(0))


def _inverse(a: NVFP4TensorStorage, b: NVFP4TensorStorage, like: Tensor) -> Tensor:
    """Return 1 / (36 * scale_max_A * scale_max_B), rounded to float32."""
    factor = 1.0 / torch.tensor(36.0 * a._nvfp4_e4m3_max * b._nvfp4_e4m3_max, dtype=torch.float32).item()
    return _constant(factor, like)


def _constant(value: float, like: Tensor) -> Tensor:
    """Return a float32 number on a tensor's device, made without a copy, so that a graph records it."""
    return torch.full((), value, dtype=torch.float32, device=like.device)


def _amax(x: NVFP4TensorStorage, direction: str) -> Tensor:
    amax = x.global_amax(direction)
    if amax is None:
        got = f"an NVFP4 tensor without the amax of its {direction} direction"
        raise SettingError("general_gemm", got, "both", "TEL-12")
    return amax
