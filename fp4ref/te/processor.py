"""Products in bfloat16 by the processor: a sum in float32, its scale and its bias, rounded once to bfloat16.

A processor with instructions for bfloat16 multiplies several times faster than in float32. These instructions read
subnormal numbers as 0, so operands that have some are left to float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.finishing import combined
from fp4ref.te.float8_block_tensor import Float8BlockwiseQTensorStorage
from fp4ref.te.mxfp8_tensor import MXFP8TensorStorage
from fp4ref.te.product import operand
from fp4ref.te.storage import QuantizedTensorStorage

LEAST_WORK = 1 << 21  # multiplications from which the library takes every shape
LEAST_SIZE = 32  # of each dimension
SAFE_BYTE = 17  # of E8M0: from here on code * scale is a normal number, for every FP8 code but 0
MANTISSA = 0x7FFFFF  # of a float32


def rounded_product(
    a: Any, a_direction: str, b: Any, b_direction: str, factors: Sequence[Any], bias: Tensor | None
) -> Tensor | None:
    """Return op(B) @ op(A) in bfloat16, times a factor, plus a bias [N], rounded once.

    Return None if it has to be computed in float32. factors: as for `finished`.

    Rules: TEL-31, TEL-32, TEL-77.
    """
    if not _has_instructions() or not torch.backends.mkldnn.enabled:
        return None
    (rows, depth), (columns, _) = _matrix_shape(b, b_direction), _matrix_shape(a, a_direction)
    if min(rows, columns, depth) < LEAST_SIZE or rows * columns * depth < LEAST_WORK:
        return None
    alpha = float(combined(factors)) if factors else 1.0
    if alpha == 0 or not math.isfinite(alpha) or (bias is not None and bias.dtype is not torch.bfloat16):
        return None
    left = _exact(b, b_direction)
    right = None if left is None else _exact(a, a_direction)
    if left is None or right is None:
        return None
    if bias is None and alpha == 1.0:
        return torch.mm(left, right.t())
    added = left.new_zeros(1) if bias is None else bias
    return torch.addmm(added, left, right.t(), beta=0 if bias is None else 1, alpha=alpha)


def _matrix_shape(x: Any, direction: str) -> tuple[int, int]:
    shape = tuple(x.shape)
    matrix = math.prod(shape[:-1]), shape[-1]
    return matrix if direction == "row" else matrix[::-1]


def _exact(x: Any, direction: str) -> Tensor | None:
    """Return an operand in bfloat16, None if a value would change there, or is subnormal."""
    if not isinstance(x, QuantizedTensorStorage):
        fits = x.dtype is torch.bfloat16 and not _has_subnormals(x)
        return operand(x, direction) if fits else None
    values = operand(x, direction, torch.bfloat16)
    if _is_safe(x, direction):
        return values
    wide = operand(x, direction, torch.float32)
    return values if not _has_subnormals(wide) and torch.equal(wide, values.to(torch.float32)) else None


def _is_safe(x: QuantizedTensorStorage, direction: str) -> bool:
    """Return True if the scales alone show that every code * scale is 0, or normal and exact in bfloat16."""
    if isinstance(x, MXFP8TensorStorage):
        return int(x.scales_buffer(direction).min()) >= SAFE_BYTE
    if isinstance(x, Float8BlockwiseQTensorStorage):
        scales = x.scales_buffer(direction)
        powers_of_two = not bool((scales.view(torch.int32) & MANTISSA).any())
        return powers_of_two and float(scales.min()) >= 2.0 ** (SAFE_BYTE - 127)
    return True  # codes of NVFP4 with E4M3 scales, and codes alone, are far from the limits


def _has_subnormals(values: Tensor) -> bool:
    """Return True if a number is neither 0 nor normal."""
    integers, mantissa = (torch.int16, 7) if values.dtype is torch.bfloat16 else (torch.int32, 23)
    limits = torch.iinfo(integers)
    keys = (values.view(integers) << 1).add_(limits.max)  # wraps: 0 becomes the largest key, subnormals the least ones
    return bool(keys.numel()) and int(keys.amin()) < limits.min + (2 << mantissa) - 1


@cache
def _has_instructions() -> bool:
    """Return True on x86 processors with AVX512_BF16, as far as torch can tell."""
    known: Any = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return known is not None and bool(known())
