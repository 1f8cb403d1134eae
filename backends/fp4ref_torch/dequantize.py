"""Dequantizing: bytes to values, in plain torch; compiles with `torch.compile(fullgraph=True)`."""

from __future__ import annotations

import torch
from torch import Tensor

from fp4ref.spec import Spec
from fp4ref_torch import arithmetic, codecs, exact, hadamard, layouts
from fp4ref_torch.known import Known
from fp4ref_torch.quantize import joined, part_of, pieces


def dequantize_tensor(
    data: Tensor,
    scales: Tensor,
    amax: Tensor | None,
    shape: tuple[int, int],
    spec: Spec,
    scale_layout: str = "linear",
    dtype: torch.dtype = torch.float32,
    source: torch.dtype = torch.float32,
    inverse_hadamard: bool = False,
) -> Tensor:
    """Compute the values [rows, columns] of one direction, rounded once to `dtype`.

    source: the type of the tensor that was quantized, to which some orders of operations round.

    Rules: DEQ-1, DEQ-2, DEQ-3, DEQ-4, DEQ-5, HAD-6, LAY-6.
    """
    rows, columns = shape
    if not rows * columns:
        return torch.empty(shape, dtype=dtype, device=data.device)
    linear = layouts.to_linear(scales, rows, -(-columns // spec.block.columns), scale_layout)
    parts = []
    for rows_of in pieces(data, columns, 1):
        values = _values(data[rows_of], linear[rows_of], part_of(amax, rows_of), columns, spec, source)
        if inverse_hadamard and spec.hadamard:
            values = hadamard.inverse(values, spec.hadamard.signs)
        parts.append(_narrowed(values, dtype))
    return joined(parts)


def _values(data: Tensor, scales: Tensor, amax: Tensor | None, columns: int, spec: Spec, source: torch.dtype) -> Tensor:
    """float32 values [rows, columns]. Rules: DEQ-1, DEQ-2."""
    rows, across = scales.shape
    codes = codecs.unpack(data, columns, spec.element.format)
    codes = torch.nn.functional.pad(codes, (0, -columns % spec.block.columns))
    q = codecs.decode(codes.reshape(rows, 1, across, spec.block.columns), spec.element.format)
    s = codecs.decode(scales.reshape(rows, 1, across, 1), spec.scale.format)
    k = Known(spec, source, q)
    given = None if amax is None else amax.view(-1, 1, 1, 1)
    return arithmetic.values(q, s, given, k).reshape(rows, across * spec.block.columns)[:, :columns]


def _narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round once to a type. Rules: DEQ-3."""
    if dtype is torch.bfloat16:
        return exact.to_bfloat16(values)
    return exact.to_float16(values) if dtype is torch.float16 else values
