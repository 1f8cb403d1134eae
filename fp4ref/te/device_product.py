"""Products by a backend that decodes, multiplies, scales and rounds on the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from fp4ref import plans, registry
from fp4ref.layout import layout
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.spec import Spec
from fp4ref.stored import Stored
from fp4ref.te.float8_block_tensor import Float8BlockwiseQTensorStorage
from fp4ref.te.float8_tensor import Float8TensorStorage
from fp4ref.te.one_pass import overlap, server
from fp4ref.te.per_tensor import values_server
from fp4ref.te.product import BLOCK_SCALED, count_moved
from fp4ref.te.storage import QuantizedTensorStorage
from fp4ref.te.swizzle import COMPACT, GEMM

WIDE = torch.bfloat16
PLAIN = {torch.Tensor, torch.nn.Parameter}  # a subclass may keep its elements elsewhere
LIES = {False: COMPACT, True: GEMM}  # the layout of scales, by the flag of a tensor


def device_product(
    a: Any,
    a_direction: str,
    b: Any,
    b_direction: str,
    factors: Sequence[Any],
    bias: Tensor | None,
    out: Tensor | None,
    device: torch.device,
) -> Tensor | None:
    """Return op(B) @ op(A) in bfloat16, times a factor, plus a bias [N], rounded once; None if no backend does that.

    factors: as for `finished`. out: a tensor of as many elements; its matrix is returned, unless that cannot be filled
    as operands are read. device: that of the operands.

    Rules: TEL-11, TEL-12, TEL-31, TEL-32.
    """
    if bias is not None and not _is_plain(bias):
        return None
    left, right = _stored(b, b_direction, device), _stored(a, a_direction, device)
    if left is None or right is None:
        return None
    found = server("multiply", device, (left[1], right[1]), source=WIDE, to=WIDE)
    if found is None:
        return None
    call, multiply = found
    target = None
    if out is not None and _can_be_filled(out, device, (left[0], right[0]), bias):
        target = out.view(left[1], right[1])
    product: Tensor | None = multiply(call, left[0], right[0], factors, bias, target)
    if product is None:
        return None
    if target is not None:
        increment_version(target)  # as after torch's own operations
    count_moved(b)
    count_moved(a)
    return product


def _is_plain(x: Tensor) -> bool:
    """Return True for a bfloat16 tensor whose elements are in memory as they are, one after the other."""
    return type(x) in PLAIN and x.dtype is WIDE and x.is_contiguous() and not x.is_neg()


def _can_be_filled(out: Tensor, device: torch.device, operands: Sequence[Stored], bias: Tensor | None) -> bool:
    """Return True for a plain tensor on a device that shares no memory with what is read while it is written."""
    if not _is_plain(out) or out.device != device or out.requires_grad:
        return False
    read = [each.arrays[0] for each in operands if each.decode is None] + ([] if bias is None else [bias])
    return not any(overlap(out, each) for each in read)


def _stored(x: Any, direction: str, device: torch.device) -> tuple[Stored, int] | None:
    """Return an operand as it is stored, and its rows; None for what the operation does not read."""
    if isinstance(x, BLOCK_SCALED):
        of, lie = x.matrix(direction), LIES[x._with_gemm_swizzled_scales]
        decode = _decoding(of.spec, of.shape, lie, device.type, registry.registered())
        return Stored((of.codes, of.scales, None), decode), of.shape[0]
    if isinstance(x, Float8BlockwiseQTensorStorage):
        served = x.values_server(direction, WIDE)
        if served is None:
            return None
        (call, _), codes, scales = served
        return Stored((codes, scales), call, squares=x._is_2D_scaled), codes.shape[0]
    if isinstance(x, Float8TensorStorage):
        codes = x.code_matrix()
        found = values_server(codes, x._fp8_dtype, WIDE)
        return None if found is None else _turned(Stored((codes,), found[0]), codes, direction)
    if isinstance(x, QuantizedTensorStorage) or x.dtype is not WIDE:
        return None
    matrix = x.detach().reshape(-1, x.shape[-1])
    return _turned(Stored((matrix,)), matrix, direction) if _is_plain(matrix) else None


@lru_cache(maxsize=4096)
def _decoding(spec: Spec, shape: tuple[int, int], lie: str, device: str, registered: Same) -> Call:
    """Return the call that decodes a matrix of codes."""
    return plans.to_dequantize(
        spec, "float32", shape, "row", layout(lie), device, None, "bfloat16", False, False, registered
    )[0]


def _turned(stored: Stored, matrix: Tensor, direction: str) -> tuple[Stored, int]:
    column = direction == "column"
    return stored._replace(transposed=column), matrix.shape[int(column)]
