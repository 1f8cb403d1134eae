"""Quantize and dequantize tensors: allocation, in-place updates, counts, and scales for the matrix product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp4ref.te import debug
from fp4ref.te.dtypes import DType, torch_dtype
from fp4ref.te.swizzle import swizzle_in_place


def quantize(tensor: Tensor, quantizer: Any, output: Any = None, noop: Tensor | None = None) -> Any:
    """Quantize [..., K] by a quantizer's settings, into `output` if given.

    The result has its scales in the GEMM layout if the quantizer asks for it (`optimize_for_gemm`), else compact.
    noop: where noop[0] is 1, the bytes of `output` stay as they are.

    Rules: TEL-3, TEL-4, TEL-5, TEL-7.
    """
    x = tensor.detach()
    shape = tuple(x.shape)
    quantizer.require(shape, x.dtype)
    if output is None:
        output = quantizer.allocate(shape, x.dtype, x.device)
    else:
        quantizer.prepare(output, shape, x.device)
    kept = None if noop is None else [buffer.clone() for buffer in output.buffers()]
    debug.count("quantize", quantizer.role)
    quantizer.fill(x.contiguous(), output)
    directions = int(quantizer.rowwise_usage) + int(quantizer.columnwise_usage)
    swizzled = getattr(output, "_with_gemm_swizzled_scales", None)  # None: there are no block scales
    if swizzled:
        debug.count("swizzle_in_quantize", quantizer.role, directions)
    elif quantizer.optimize_for_gemm and swizzled is not None:
        swizzle_in_place(output, quantizer.role)
    if noop is not None and kept is not None:
        skip = noop.reshape(-1)[0] == 1
        for buffer, old in zip(output.buffers(), kept, strict=True):
            buffer.copy_(torch.where(skip, old, buffer))
    return output


def dequantize(tensor: Any, otype: DType | torch.dtype) -> Tensor:
    """Values of a quantized tensor, rounded once to a high-precision type. Rules: DEQ-1, DEQ-2, DEQ-3."""
    values: Tensor = tensor.decode(torch_dtype(otype))
    return values
