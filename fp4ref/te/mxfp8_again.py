"""MXFP8 tensors filled: by operations of backends that one program repeats, or on the CPU where the buffers are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fp4ref import api, plans
from fp4ref.arrays import viewer
from fp4ref.layout import layout
from fp4ref.quantized import DirectionData, Parts, Quantized
from fp4ref.te import in_place, steps
from fp4ref.te.cast import turner
from fp4ref.te.dtypes import dtype_name
from fp4ref.te.mxfp8_tensor import MXFP8TensorStorage

Written: TypeAlias = Callable[..., None]  # of what was made, a buffer, a flag's word, and whether it is turned

NAMES = ("_rowwise_data", "_rowwise_scale_inv", "_columnwise_data", "_columnwise_scale_inv")


def for_products(
    repeat: Callable[[Tensor], Parts], dtype: torch.dtype, like: DirectionData
) -> Callable[[Tensor, Any], Any]:
    """Return a function that makes storage as products read it, of matrices of a kind. like: columns of the first."""
    view, (columns, rows), (high, wide) = viewer(), like.data.shape, like.scales.shape

    def again(x: Tensor, quantizer: Any) -> Any:
        row, column = repeat(x)
        assert column is not None
        held = {
            "_rowwise_data": row and row.data,
            "_columnwise_data": view(column.data, (rows, columns), (1, rows), 0),
            "_rowwise_scale_inv": row and row.scales,
            "_columnwise_scale_inv": view(column.scales, (wide, high), (high, 1), 0),
            "_fp8_dtype": quantizer.dtype,
            "_with_gemm_swizzled_scales": True,
        }
        return MXFP8TensorStorage.holding(held, quantizer, dtype)

    return again


def fill(
    quantizer: Any,
    x: Tensor,
    kept: Sequence[Any],
    held: Sequence[Any],
    word: Tensor | None,
    written: Written = steps.written,
) -> None:
    """Fill the buffers of a tensor, those that `buffers` returns.

    word: unless it is 0, nothing is written. written: copies into a buffer; by default a backend does.
    """
    (spec, directions, lie), (row, row_scales, column, column_scales) = quantizer.asked(x), held
    x = x.view(-1, x.shape[-1])
    turns = _turns(quantizer)
    if column is None or not any(turns):
        out = Quantized(spec, (x.shape[0], x.shape[1]), dtype_name(x.dtype), lie, *_parts(held))
        api.quantize(x, spec, directions, lie, out=out, noop=word)
        return
    q = api.quantize(x, spec, directions, lie)
    if q.row is not None:
        written(q.row.data, row, word)
        written(q.row.scales, row_scales, word)
    made = q.column
    assert made is not None, "a buffer for columns that are not quantized"
    written(made.data, column, word, turns=turns[0])
    scales = made.scales if turns[1] else made.scales.view(column_scales.shape)
    written(scales, column_scales, word, turns=turns[1])


def filled_again(quantizer: Any, tensor: Tensor, dst: Any, flag: Tensor | None) -> steps.Filled | None:
    """Return a function that fills other tensors of a kind; None where no backend does so."""
    width = tensor.shape[-1]
    if quantizer.asked(tensor) is None or not tensor.is_contiguous():
        return None
    kind, held = ("mxfp8", quantizer.kind_of_call()), partial(buffers, quantizer.internal, width)
    by_steps = steps.filled(kind, tensor, dst, flag, held, partial(fill, quantizer.copy()))
    if by_steps or flag is not None:
        return by_steps
    made = quantizer.allocate(tuple(tensor.shape), tensor.dtype, tensor.device)
    return in_place.filled(tensor, dst, NAMES, held(dst), held(made), _into(quantizer, tensor, held(made)))


def _into(quantizer: Any, tensor: Tensor, made: Sequence[Any]) -> in_place.Into | None:
    """Return a function that fills buffers with the bytes of other tensors. made: such buffers."""
    (spec, directions, lie), turns = quantizer.asked(tensor), _turns(quantizer)
    x = tensor.view(-1, tensor.shape[-1])
    like: Quantized = api.quantize(x, spec, directions, lie)
    fill = plans.filling(x, spec, directions, layout(lie), (like.row, like.column))
    if fill is None or like.column is None or not any(turns):
        return fill and (lambda x, held: fill(x, _parts(held)))
    codes, scales, _ = like.column
    turn_codes, turn_scales = turner(codes, made[2]), turner(scales, made[3])
    if turn_codes is None or turn_scales is None:
        return None

    def into(x: Tensor, held: Sequence[Any]) -> None:
        row, row_scales, column, column_scales = held
        its_codes = torch.empty_like(codes) if turns[0] else column
        its_scales = torch.empty_like(scales) if turns[1] else column_scales
        rows = None if row is None else DirectionData(row, row_scales, None)
        fill(x, (rows, DirectionData(its_codes, its_scales, None)))
        if turns[0]:
            turn_codes(its_codes, column)
        if turns[1]:
            turn_scales(its_scales, column_scales)

    return into


def _turns(quantizer: Any) -> tuple[bool, bool]:
    """Return whether codes and scales of columns are in the order of x, not of its transpose."""
    return not quantizer.internal, not quantizer.optimize_for_gemm


def _parts(held: Sequence[Any]) -> tuple[Any, Any]:
    """Return buffers as those of both directions, of columns in the order of the transpose."""
    row, row_scales, column, column_scales = held
    return (
        None if row is None else DirectionData(row, row_scales, None),
        None if column is None else DirectionData(column, column_scales.view(column_scales.shape[::-1]), None),
    )


def buffers(internal: bool, width: int, dst: Any) -> list[Any]:
    """Return a tensor's buffers, codes as matrices of the shape in which they lie."""
    row, row_scales, column, column_scales = (dst.__dict__[name] for name in NAMES)
    if row is not None and row.dim() != 2:
        row = row.view(-1, width)
    if column is not None:
        column = column.movedim(-1, 0).view(width, -1) if internal else column.view(-1, width)
    return [row, row_scales, column, column_scales]
