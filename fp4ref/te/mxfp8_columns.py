"""Values of MXFP8 tensors that have columns alone, by a backend that reads them where they lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from fp4ref import registry
from fp4ref.layout import layout
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.te import specifications
from fp4ref.te.dtypes import FLOATS, DType, dtype_name
from fp4ref.te.swizzle import COMPACT, GEMM

Decode = Callable[[Tensor, Tensor], Tensor]


def values(codes: Tensor, scales: Tensor | None, of: DType, swizzled: bool, dtype: torch.dtype) -> Tensor | None:
    """Return the values of codes [..., K] under the scales of their columns; None where no backend reads them there.

    swizzled: the scales are in the GEMM layout. Rules: DEQ-2, DEQ-3, TEL-8.
    """
    if scales is None or torch.compiler.is_compiling() or not (_is_plain(codes) and _is_plain(scales)):
        return None
    if scales.device != codes.device:
        return None
    decode = _decoder(codes.shape, scales.shape, codes.device, of, swizzled, dtype, registry.registered())
    if decode is None:
        return None
    if codes.dim() == 2:
        return decode(codes, scales)
    return decode(codes.view(-1, codes.shape[-1]), scales).view(codes.shape)


def _is_plain(buffer: Tensor) -> bool:
    return buffer.dtype is torch.uint8 and buffer.is_contiguous() and not buffer.is_neg()


@lru_cache(maxsize=4096)
def _decoder(
    shape: tuple[int, ...],
    of_scales: tuple[int, ...],
    device: torch.device,
    of: DType,
    swizzled: bool,
    dtype: torch.dtype,
    registered: Same,
) -> Decode | None:
    """Return the function that decodes tensors of a kind; None without a backend that has one."""
    matrix, spec, form = (
        (math.prod(shape[:-1]), shape[-1]),
        specifications.mxfp8(of),
        layout(GEMM if swizzled else COMPACT),
    )
    padded = form.padded_shape(matrix[1], -(-matrix[0] // spec.block.columns))
    if dtype not in FLOATS or of_scales != padded[::-1]:  # scales of the GEMM layout have that shape, too
        return None
    call = Call("column_values", spec, to=dtype_name(dtype), layout=form, device=device.type, shape=matrix)
    if not registry.offers(call, None):
        return None
    codes, scales = (torch.empty(each, dtype=torch.uint8, device=device) for each in (matrix, padded))
    if not swizzled:
        scales = scales.view(padded[::-1])
    bind = registry.binder(call, None)
    bound: Decode | None = bind(call, codes, scales, not swizzled) if bind else None
    decode = bound or partial(_served, registry.choose(call, None), call, not swizzled)
    return (lambda codes, scales: decode(codes, scales.view(padded))) if swizzled else decode


def _served(function: Callable[..., Any], call: Call, across: bool, codes: Tensor, scales: Tensor) -> Tensor:
    values: Tensor = function(call, codes, scales, across)
    return values
