"""The steps of per-tensor FP8, by a backend that does each of them in one pass where there is one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fp4ref import registry
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.specs import NVFP4
from fp4ref.te import specifications
from fp4ref.te.dtypes import DType, torch_dtype

MANTISSA_DROPPED = 0x7F800000


def largest_magnitude(tensor: Tensor) -> Tensor:
    """Return the largest magnitude, NaN ignored; 0 without elements: float32 [1]. Rules: GLB-1."""
    if not tensor.numel():
        return torch.zeros(1, dtype=torch.float32, device=tensor.device)
    found = _server("amax", None, _name(tensor.dtype), "float32", tensor.device.type, (1, 1), registry.registered())
    if found is not None:
        rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)
        made: Tensor = found[1](rows, NVFP4)  # every specification with one maximum finds the same
        return made
    magnitudes = tensor.abs()
    if tensor.device.type == "cpu":
        amax = magnitudes.amax().to(torch.float32)
        if not amax.isnan():  # the usual case, without a copy
            return amax.reshape(1)
    return torch.nan_to_num(magnitudes, nan=0.0, posinf=torch.inf).amax().to(torch.float32).reshape(1)


def current_scale(
    amax: Tensor, kind: DType, source: torch.dtype, least: float, power_of_two: bool
) -> tuple[Tensor, Tensor]:
    """Return the scale of a tensor of a type by its amax, float32 [1], and 1 over the scale. Rules: TEL-21."""
    found = _server("tensor_scale", kind, _name(source), "float32", amax.device.type, (1, 1), registry.registered())
    if found is not None:
        both: Tensor = found[1](found[0], amax, least, power_of_two)
        return both[:1], both[1:]
    amax = amax.clamp(min=least)
    scale = torch.full_like(amax, torch.finfo(torch_dtype(kind)).max) / amax  # a float / tensor would round twice
    scale = torch.where(torch.isinf(scale), torch.finfo(source).max, scale)
    scale = torch.where((amax == 0) | torch.isinf(amax), 1.0, scale)
    if power_of_two:
        scale = (scale.view(torch.int32) & MANTISSA_DROPPED).view(torch.float32)
    return scale, torch.ones_like(scale) / scale


def codes_in_one_pass(x: Tensor, scale: Tensor, kind: DType) -> Tensor | None:
    """Return the codes of x * scale, of x's shape; None without a backend that does it in one pass. Rules: TEL-21."""
    matrix = _matrix(x)
    found = _server("tensor_codes", kind, _name(x.dtype), "float32", x.device.type, matrix, registry.registered())
    if found is None:
        return None
    codes: Tensor = found[1](found[0], x.contiguous().view(matrix), scale.reshape(1))
    return codes.view(x.shape)


def values_in_one_pass(codes: Tensor, kind: DType, dtype: torch.dtype) -> Tensor | None:
    """Return what codes mean in a type of 16 bits; None for others, and without a backend that does it in one pass."""
    if dtype.itemsize != 2:
        return None
    matrix = _matrix(codes)
    found = _server("tensor_values", kind, "float32", _name(dtype), codes.device.type, matrix, registry.registered())
    if found is None:
        return None
    values: Tensor = found[1](found[0], codes.contiguous().view(matrix))
    return values.view(codes.shape)


def _matrix(x: Tensor) -> tuple[int, int]:
    return (x.shape[0], x.shape[1]) if x.dim() == 2 else (1, x.numel())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@lru_cache(maxsize=4096)
def _server(
    operation: str, kind: DType | None, source: str, to: str, device: str, shape: tuple[int, int], registered: Same
) -> tuple[Call, Callable[..., Any]] | None:
    """Return the call of a backend on a device, and the function that serves it; None without one."""
    spec = NVFP4 if kind is None else specifications.mxfp8(kind)
    call = Call(operation, spec, source, to=to, device=device, shape=shape)
    return (call, registry.choose(call, None)) if registry.offers(call, None) else None
