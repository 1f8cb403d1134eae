"""Matrix products of exact operands: code times block scale in a wide type, accumulated in float32.

A code times its block scale has at most six significant bits, so bfloat16 holds it exactly. The order of additions is
the matrix library's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp4ref import api
from fp4ref.te import debug
from fp4ref.te.cast import fp8_values
from fp4ref.te.errors import SettingError
from fp4ref.te.float8_block_tensor import BLOCK, Float8BlockwiseQTensorStorage
from fp4ref.te.float8_tensor import Float8TensorStorage
from fp4ref.te.mxfp8_tensor import MXFP8TensorStorage
from fp4ref.te.nvfp4_storage import NVFP4TensorStorage
from fp4ref.te.storage import QuantizedTensorStorage
from fp4ref.te.swizzle import role_of

BLOCK_SCALED = (NVFP4TensorStorage, MXFP8TensorStorage)


def operand(x: Any, direction: str, wide: torch.dtype | None = None) -> Tensor:
    """Return one operand as a matrix [rows, K] to contract along its last axis, with block scales only.

    x: quantized, or a high-precision tensor [..., K]. direction: "row" for x, "column" for its transpose. wide: the
    type of a quantized operand, by default that of its device; a tensor keeps its type. Scales in the compact layout
    count as moved to the GEMM layout; their values are read where they lie, which are the same.

    Rules: TEL-7, TEL-11, TEL-31, TEL-96, DEQ-2.
    """
    wide = wide or wide_dtype(x.device)
    if isinstance(x, BLOCK_SCALED):
        count_moved(x)
        values: Tensor = api.dequantize(x.record(direction), wide)
        return values
    matrix: Tensor
    if isinstance(x, Float8BlockwiseQTensorStorage):
        matrix = x.matrix_values(direction, wide)
        return matrix
    if isinstance(x, Float8TensorStorage):
        matrix = x.code_values(wide)
    elif isinstance(x, QuantizedTensorStorage) or not isinstance(x, Tensor):
        raise SettingError("general_gemm", f"operand {type(x).__name__}", "NVFP4, MXFP8 or FP8", "TEL-96")
    else:
        matrix = x.reshape(-1, x.shape[-1])
    return matrix if direction == "row" else matrix.t()


def require_operand(x: Any) -> Any:
    """Return an operand, or raise for what is no tensor. Rules: TEL-96."""
    if not isinstance(x, (Tensor, QuantizedTensorStorage)):
        raise SettingError("general_gemm", f"operand {type(x).__name__}", "a tensor, NVFP4, MXFP8 or FP8 one", "TEL-96")
    return x


def count_moved(x: Any) -> None:
    """Count the scales of one direction as moved to the GEMM layout, if they are compact. Rules: TEL-7."""
    if isinstance(x, BLOCK_SCALED) and not x._with_gemm_swizzled_scales:
        debug.count("swizzle_standalone", role_of(x))


def block_scaled_product(a: Any, a_direction: str, b: Any, b_direction: str) -> Tensor:
    """Multiply two block-scaled FP8 tensors, each sum over 128 codes by the product of its scales, then add those sums.

    Rules: TEL-51.
    """
    left, right = (
        fp8_values(x.code_bytes(way), x._fp8_dtype, torch.float32) for x, way in ((a, a_direction), (b, b_direction))
    )
    total: Tensor = left.new_zeros(left.shape[0], right.shape[0])
    scales = a.block_scales(a_direction).t(), b.block_scales(b_direction).t()
    for k, (s, t) in enumerate(zip(*scales, strict=True)):
        block = slice(k * BLOCK, (k + 1) * BLOCK)
        total += multiply(left[:, block], right[:, block]) * (s[:, None] * t[None, :])
    return total


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the type of exact operands on a device: float32 on a CPU, bfloat16 elsewhere. Rules: TEL-31."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a [M, K] by the transpose of b [N, K], accumulated and returned in float32 [M, N]. Rules: TEL-77."""
    if a.device.type == "cpu" or torch.float32 in {a.dtype, b.dtype}:
        return _in_float32(a.to(torch.float32), b.to(torch.float32))
    b = b.to(a.dtype)
    return torch.mm(a, b.t(), out_dtype=torch.float32)


def _in_float32(a: Tensor, b: Tensor) -> Tensor:
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return torch.mm(a, b.t())
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
