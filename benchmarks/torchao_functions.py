"""torchao's quantizers of the formats that this library has, compiled: what the benchmarks measure beside their own.

Errors: ImportError without torchao.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale


def nvfp4(x: Any) -> Any:
    """Return codes and swizzled scales of rows, under the tensor's own global scale."""
    q = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().max()), is_swizzled_scales=True)
    return q.qdata, q.scale


def mx(x: Any) -> Any:
    """Return rows in MXFP8, as torchao's tensor."""
    return MXTensor.to_mx(x, torch.float8_e4m3fn, 32)


def mxfp8(x: Any) -> Any:
    """Return codes and scales of rows in MXFP8."""
    q = mx(x)
    return q.qdata, q.scale


def dequantize(q: Any) -> Any:
    """Return the values of torchao's tensor in bfloat16."""
    return q.dequantize(torch.bfloat16)


def compiled(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function compiled for the shapes that it meets."""
    return torch.compile(function, dynamic=False)
