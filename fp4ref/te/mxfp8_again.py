"""MXFP8 tensors filled by a backend of their device, with nothing decided again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fp4ref import api
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.te import steps
from fp4ref.te.dtypes import dtype_name


def fill(quantizer: Any, x: Tensor, kept: Sequence[Any], held: Sequence[Any], word: Tensor | None) -> None:
    """Fill the buffers of a tensor, those that `buffers` returns, by operations of backends alone.

    word: unless it is 0 on the device, nothing is written.
    """
    asked = quantizer.asked(x)
    (spec, directions, lie), (row, row_scales, column, column_scales) = asked, held
    x = x.view(-1, x.shape[-1])
    turns = not quantizer.internal, not quantizer.optimize_for_gemm  # the columns' codes, and their scales
    if column is None or not any(turns):
        parts = (
            None if row is None else DirectionData(row, row_scales, None),
            None if column is None else DirectionData(column, column_scales.view(column_scales.shape[::-1]), None),
        )
        out = Quantized(spec, (x.shape[0], x.shape[1]), dtype_name(x.dtype), lie, *parts)
        api.quantize(x, spec, directions, lie, out=out, noop=word)
        return
    q = api.quantize(x, *asked)
    if q.row is not None:
        steps.written(q.row.data, row, word)
        steps.written(q.row.scales, row_scales, word)
    made = q.column
    assert made is not None, "a buffer for columns that are not quantized"
    steps.written(made.data, column, word, turns=turns[0])
    scales = made.scales if turns[1] else made.scales.view(column_scales.shape)
    steps.written(scales, column_scales, word, turns=turns[1])


def buffers(internal: bool, width: int, dst: Any) -> list[Any]:
    """Return a tensor's buffers, codes as matrices of the shape in which they lie."""
    held = dst.__dict__
    row, column = held["_rowwise_data"], held["_columnwise_data"]
    if row is not None and row.dim() != 2:
        row = row.view(-1, width)
    if column is not None:
        column = column.movedim(-1, 0).view(width, -1) if internal else column.view(-1, width)
    return [row, held["_rowwise_scale_inv"], column, held["_columnwise_scale_inv"]]
