"""The 16-point Hadamard transform with signs, along the last axis, in the order that the rules fix."""

from __future__ import annotations

import torch
from torch import Tensor

from fp4ref.errors import ShapeError
from fp4ref_torch import exact

POINTS = 16


def transform(values: Tensor, signs: int) -> Tensor:
    """Transform groups of 16 of bfloat16 values, held as float32 [rows, 16 n].

    Rules: HAD-1, HAD-2, HAD-3. Certificates: hadamard-signs, hadamard-order, hadamard-zeros, hadamard-masks.
    """
    return exact.rounded_bfloat16(_butterfly(_signed(values, signs)))


def inverse(values: Tensor, signs: int) -> Tensor:
    """Undo `transform` up to its roundings, float32 [rows, 16 n].

    Rules: HAD-6. Certificates: hadamard-inverse, hadamard-zeros-inverse, hadamard-masks-inverse.
    """
    if values.shape[1] % POINTS:
        got = f"hadamard of {values.shape[1]} rows"
        raise ShapeError("dequantize", got, f"a multiple of {POINTS}", "HAD-9")
    return _signed(_butterfly(values), signs)


def _signed(values: Tensor, signs: int) -> Tensor:
    """Negate element i of each group where bit i of the mask is set. Rules: HAD-1."""
    point = torch.arange(values.shape[1], device=values.device, dtype=torch.int32) % POINTS
    flip = exact.choose((signs >> point & 1) != 0, exact.SIGN)
    return exact.floats(exact.bits(values) ^ flip)


def _butterfly(values: Tensor) -> Tensor:
    """Return a quarter of each value, then sums and differences with strides 1, 2, 4, 8; an exact zero is +0.

    Rules: HAD-2, HAD-3.
    """
    shape = values.shape
    sums = exact.mul(values, exact.constant(values, 0.25).view(1, 1))
    stride = 1
    while stride < POINTS:
        pairs = sums.reshape(shape[0], -1, 2, stride)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        sums = torch.stack([exact.add(low, high), exact.sub(low, high)], dim=2)
        stride *= 2
    sums = sums.reshape(shape)
    return torch.where(exact.is_zero(sums), 0.0, sums)
