"""Quantize the pieces of one tensor, each by its own quantizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.cast import quantize
from fp4ref.te.errors import SettingError, TensorShapeError
from fp4ref.te.grouped_tensor import GroupedTensor
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer
from fp4ref.te.swizzle import hadamard_fusion_eligible

MEMBER = 128  # where one kernel serves a whole group, the rows of each member and K are multiples of this
# What one launch for all members cannot vary.
COMMON = ("optimize_for_gemm", "rowwise_usage", "columnwise_usage", "dtype", "with_rht", "with_2d_quantization")


def require_agreement(quantizers: Sequence[Any]) -> None:
    """Raise unless all members of a group have the settings that they share; the error names the first that does not.

    Rules: TEL-13.
    """
    for index, quantizer in enumerate(quantizers):
        if type(quantizer) is not type(quantizers[0]):
            got = f"{type(quantizer).__name__} at index {index}"
            raise SettingError("group", got, f"{type(quantizers[0]).__name__}, as at index 0", "TEL-13")
        for name in COMMON:
            first, mine = getattr(quantizers[0], name, None), getattr(quantizer, name, None)
            if mine != first:
                raise SettingError("group", f"{name}={mine} at index {index}", f"{first}, as at index 0", "TEL-13")


def split_quantize(
    tensor: Tensor,
    split_sections: Sequence[int],
    quantizer_list: Sequence[Any],
    disable_bulk_allocation: bool = False,
    drawn: Sequence[Any] | None = None,
) -> list[Any]:
    """Quantize the row ranges of a tensor [..., K], one quantizer each; ranges without rows give empty tensors.

    disable_bulk_allocation: quantize NVFP4 ranges as if each were a tensor of its own, not a member of a group. drawn:
    what each quantizer's `draw` returned for its range; None draws now.

    Errors: SettingError for quantizers that disagree, and for what no kernel of a whole group does; TensorShapeError
    for ranges that do not add up.

    Rules: TEL-13, TEL-42, TEL-41.
    """
    rows = tensor.reshape(-1, tensor.shape[-1])
    sections = [int(size) for size in split_sections]
    if len(sections) != len(quantizer_list):
        got = f"{len(sections)} sections and {len(quantizer_list)} quantizers"
        raise SettingError("split_quantize", got, "as many of each", "TEL-13")
    if sum(sections) != rows.shape[0]:
        got = f"sections of {sum(sections)} rows in all"
        raise TensorShapeError("split_quantize", got, f"{rows.shape[0]}", "TEL-13")
    require_agreement(quantizer_list)
    pieces = torch.split(rows, sections)
    each = list(zip(quantizer_list, pieces, drawn or [None] * len(sections), strict=True))
    if not each or disable_bulk_allocation or not isinstance(quantizer_list[0], NVFP4Quantizer):
        return [_quantized(*member) for member in each]
    _require_one_kernel(rows, quantizer_list[0])
    swizzled = all(map(_eligible, quantizer_list, pieces))
    return [_as_member(*member, swizzled) for member in each]


def _quantized(quantizer: Any, piece: Tensor, drawn: Any) -> Any:
    return quantizer(piece) if drawn is None else quantize(piece, quantizer, drawn=drawn)


def _require_one_kernel(rows: Tensor, quantizer: NVFP4Quantizer) -> None:
    """Refuse what the kernels of a whole group lack; other tensors are quantized range by range. Rules: TEL-41."""
    if not rows.numel() or rows.shape[-1] % MEMBER or quantizer.row_scaled_nvfp4:
        return
    for name in ("with_2d_quantization", "with_amax_reduction"):
        if getattr(quantizer, name):
            got = f"{name}=True with K {rows.shape[-1]}"
            raise SettingError("split_quantize", got, f"False where K is a multiple of {MEMBER}", "TEL-41")


def _eligible(quantizer: NVFP4Quantizer, piece: Tensor) -> bool:
    """Return True if the kernel of a group writes a member's scales in the GEMM layout. Rules: TEL-42."""
    asked = quantizer.optimize_for_gemm and quantizer.with_rht
    return asked and piece.shape[0] % MEMBER == 0 and hadamard_fusion_eligible(*piece.shape)


def _as_member(quantizer: NVFP4Quantizer, piece: Tensor, drawn: Any, swizzled: bool) -> Any:
    """Quantize a member with the layout of scales that the whole group has. Rules: TEL-42."""
    asked, quantizer.optimize_for_gemm = quantizer.optimize_for_gemm, swizzled
    try:
        made = _quantized(quantizer, piece, drawn)
    finally:
        quantizer.optimize_for_gemm = asked
    made._quantizer.optimize_for_gemm = asked
    return made


def group_quantize(tensor: Tensor, quantizer: Any, num_tensors: int, first_dims: Tensor | None = None) -> GroupedTensor:
    """Quantize consecutive row ranges of a tensor [..., K] with one quantizer's settings.

    first_dims: integers [num_tensors], rows per range, which may leave rows at the end; None for equal ranges.

    Errors: SettingError for NVFP4 in tiles, with 4over6, or row-scaled with columns; TensorShapeError for unfit ranges.

    Rules: TEL-13, TEL-36.
    """
    if isinstance(quantizer, NVFP4Quantizer):
        for name in ("with_2d_quantization", "nvfp4_use_4over6"):
            if getattr(quantizer, name):
                raise SettingError("group_quantize", f"{name}=True", "False", "TEL-36")
        if quantizer.row_scaled_nvfp4 and quantizer.columnwise_usage:
            raise SettingError("group_quantize", "row_scaled_nvfp4 with columnwise", "rowwise only", "TEL-36")
    rows = tensor.reshape(-1, tensor.shape[-1])
    if first_dims is None:
        if rows.shape[0] % num_tensors:
            got = f"{rows.shape[0]} rows in {num_tensors} equal ranges"
            raise TensorShapeError("group_quantize", got, "a multiple", "TEL-13")
        first_dims = torch.full((num_tensors,), rows.shape[0] // num_tensors, device=rows.device)
    sections = [int(size) for size in first_dims.tolist()]
    if len(sections) != num_tensors or sum(sections) > rows.shape[0]:
        got = f"{len(sections)} ranges of {sum(sections)} rows in all"
        raise TensorShapeError("group_quantize", got, f"{num_tensors} ranges of at most {rows.shape[0]}", "TEL-13")
    pieces = split_quantize(rows[: sum(sections)], sections, [quantizer] * num_tensors)
    return GroupedTensor((rows.shape[0], rows.shape[1]), quantizer, first_dims, pieces)
