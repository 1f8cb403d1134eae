"""Products by a backend that decodes, multiplies, scales and rounds on the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fp4ref import plans, registry
from fp4ref.layout import layout
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.spec import Spec
from fp4ref.stored import Stored
from fp4ref.te.float8_tensor import Float8TensorStorage
from fp4ref.te.one_pass import server
from fp4ref.te.per_tensor import values_server
from fp4ref.te.product import BLOCK_SCALED, count_moved
from fp4ref.te.storage import QuantizedTensorStorage
from fp4ref.te.swizzle import COMPACT, GEMM

WIDE = torch.bfloat16
LIES = {False: COMPACT, True: GEMM}  # the layout of scales, by the flag of a tensor


def device_product(
    a: Any,
    a_direction: str,
    b: Any,
    b_direction: str,
    factors: Sequence[Any],
    bias: Tensor | None,
    out: Tensor | None = None,
) -> Tensor | None:
    """Return op(B) @ op(A) in bfloat16, times a factor, plus a bias [N], rounded once; None if no backend does that.

    factors: as for `finished`. out: a tensor of as many elements that may be filled, whose matrix is then returned.

    Rules: TEL-11, TEL-12, TEL-31, TEL-32.
    """
    if bias is not None and (bias.dtype is not WIDE or not bias.is_contiguous()):
        return None
    left, right = _stored(b, b_direction), _stored(a, a_direction)
    if left is None or right is None:
        return None
    found = server("multiply", b.device, (left[1], right[1]), source=WIDE, to=WIDE)
    if found is None:
        return None
    call, multiply = found
    fits = out is not None and out.dtype is WIDE and out.is_contiguous()
    target = out.view(left[1], right[1]) if fits and out is not None else None
    product: Tensor | None = multiply(call, left[0], right[0], factors, bias, target)
    if product is not None:
        count_moved(b)
        count_moved(a)
    return product


def _stored(x: Any, direction: str) -> tuple[Stored, int] | None:
    """Return an operand as it is stored, and its rows; None for what the operation does not read."""
    if isinstance(x, BLOCK_SCALED):
        of, lie = x.matrix(direction), LIES[x._with_gemm_swizzled_scales]
        decode = _decoding(of.spec, of.shape, lie, of.codes.device.type, registry.registered())
        return Stored((of.codes, of.scales, None), decode), of.shape[0]
    if isinstance(x, Float8TensorStorage):
        codes = x.code_matrix()
        found = values_server(codes, x._fp8_dtype, WIDE)
        return None if found is None else _turned(Stored((codes,), found[0]), codes, direction)
    if isinstance(x, QuantizedTensorStorage) or x.dtype is not WIDE:
        return None
    matrix = x.detach().reshape(-1, x.shape[-1])
    return _turned(Stored((matrix,)), matrix, direction) if matrix.is_contiguous() else None


@lru_cache(maxsize=4096)
def _decoding(spec: Spec, shape: tuple[int, int], lie: str, device: str, registered: Same) -> Call:
    """Return the call that decodes a matrix of codes."""
    return plans.to_dequantize(
        spec, "float32", shape, "row", layout(lie), device, None, "bfloat16", False, False, registered
    )[0]


def _turned(stored: Stored, matrix: Tensor, direction: str) -> tuple[Stored, int]:
    column = direction == "column"
    return stored._replace(transposed=column), matrix.shape[int(column)]
