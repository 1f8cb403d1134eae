"""Quantize the pieces of one tensor, each by its own quantizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.cast import quantize
from fp4ref.te.errors import SettingError, TensorShapeError
from fp4ref.te.grouped_tensor import GroupedTensor
from fp4ref.te.hybrid_quantizer import HybridQuantizer, IdentityQuantizer
from fp4ref.te.hybrid_tensor import HybridQuantizedTensorStorage
from fp4ref.te.nvfp4_quantizer import NVFP4Quantizer
from fp4ref.te.swizzle import hadamard_fusion_eligible

MEMBER = 128  # where one kernel serves a whole group, the rows of each member and K are multiples of this
# What one launch for all members cannot vary.
COMMON = ("optimize_for_gemm", "rowwise_usage", "columnwise_usage", "dtype", "with_rht", "with_2d_quantization")
# What the operands of one product have alike.
FORMATS = (
    *("dtype", "block_scaling_dim", "force_pow_2_scales", "amax_epsilon", "with_rht", "with_2d_quantization"),
    *("stochastic_rounding", "row_scaled_nvfp4", "nvfp4_use_4over6"),
)


def require_agreement(quantizers: Sequence[Any]) -> None:
    """Raise unless all members of a group have the settings that they share; the error names the first that does not.

    Rules: TEL-13.
    """
    validate_grouped_quantizer_list(quantizers, names=COMMON)


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

    Rules: TEL-13, TEL-42, TEL-41, TEL-79.
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
    if sections and isinstance(quantizer_list[0], HybridQuantizer):
        return _split_by_parts(rows, sections, quantizer_list, disable_bulk_allocation)
    pieces = torch.split(rows, sections)
    each = list(zip(quantizer_list, pieces, drawn or [None] * len(sections), strict=True))
    if not each or disable_bulk_allocation or not isinstance(quantizer_list[0], NVFP4Quantizer):
        return [_quantized(*member) for member in each]
    _require_one_kernel(rows, quantizer_list[0])
    swizzled = all(map(_eligible, quantizer_list, pieces))
    return [_as_member(*member, swizzled) for member in each]


def _split_by_parts(
    rows: Tensor, sections: list[int], quantizers: Sequence[HybridQuantizer], disable_bulk_allocation: bool
) -> list[Any]:
    """Quantize the rows of all ranges as a group of their own, and so the columns. Rules: TEL-13, TEL-56."""
    first = quantizers[0]
    own = first.columnwise_source == "rowwise_dequantized"
    none: list[Any] = [None] * len(sections)
    made, columns, source = none, none, rows
    if first.rowwise_usage or (first.columnwise_usage and own):
        each = [quantizer.rowwise_quantizer for quantizer in quantizers]
        made = split_quantize(rows, sections, each, disable_bulk_allocation)
    if first.columnwise_usage:
        if own:
            source = torch.cat([part.dequantize(dtype=rows.dtype) for part in made])
        each = [quantizer.columnwise_quantizer for quantizer in quantizers]
        columns = split_quantize(source, sections, each, disable_bulk_allocation)
    return [
        HybridQuantizedTensorStorage(
            rowwise_storage=part if first.rowwise_usage else None,
            columnwise_storage=column,
            quantizer=quantizer,
            fake_dtype=rows.dtype,
        )
        for part, column, quantizer in zip(made, columns, quantizers, strict=True)
    ]


def validate_grouped_quantizer_list(
    quantizers: Sequence[Any], *, operand_name: str = "operand", names: Sequence[str] = FORMATS
) -> None:
    """Raise unless the members of a group are quantized alike in each direction.

    names: the attributes that all members have alike.

    Errors: SettingError that names the first member that is not.

    Rules: TEL-13, TEL-56.
    """
    what = f"GroupedLinear {operand_name} quantizers"
    for index, quantizer in enumerate(quantizers):
        first = quantizers[0]
        kinds = (
            ("mix None and concrete quantizers", lambda each: each is None),
            ("mix HybridQuantizer and non-hybrid quantizers", lambda each: isinstance(each, HybridQuantizer)),
            ("mix Identity-backed and quantized directions", _exact_directions),
        )
        for mixed, kind in kinds:
            if kind(first) != kind(quantizer):
                got = f"{what} {mixed}: {type(quantizer).__name__} at index {index}"
                raise SettingError("group", got, f"{type(first).__name__}, as at index 0", "TEL-13")
        if not isinstance(first, HybridQuantizer):
            _require_equal(first, quantizer, f"{what} use incompatible plain", index, names)
            continue
        for direction in ("rowwise", "columnwise"):
            one, other = (getattr(each, f"{direction}_quantizer") for each in (first, quantizer))
            _require_equal(one, other, f"{what} use incompatible {direction}", index, names)
        if first.columnwise_source != quantizer.columnwise_source:
            got = f"{what} have mixed columnwise source policies: {quantizer.columnwise_source!r} at index {index}"
            raise SettingError("group", got, f"{first.columnwise_source!r}, as at index 0", "TEL-13")


def _exact_directions(quantizer: Any) -> tuple[bool, ...]:
    """Return which directions stay in high precision."""
    both = (quantizer, quantizer)
    if isinstance(quantizer, HybridQuantizer):
        both = (quantizer.rowwise_quantizer, quantizer.columnwise_quantizer)
    return tuple(isinstance(part, IdentityQuantizer) for part in both)


def _require_equal(first: Any, other: Any, what: str, index: int, names: Sequence[str]) -> None:
    if type(first) is not type(other):
        got = f"{what} backend families: {type(other).__name__} at index {index}"
        raise SettingError("group", got, f"{type(first).__name__}, as at index 0", "TEL-13")
    for name in names:
        mine, theirs = getattr(other, name, None), getattr(first, name, None)
        if mine != theirs:
            got = f"{what} backend configurations: {name}={mine} at index {index}"
            raise SettingError("group", got, f"{theirs}, as at index 0", "TEL-13")


def _split_quantize(
    tensor: Tensor,
    split_sizes: Sequence[int],
    quantizers: Sequence[Any] | None,
    activation_dtype: torch.dtype,
    *,
    with_quantized_output: bool = True,
    compute_dbias: bool = False,
    disable_bulk_allocation: bool = False,
) -> tuple[Sequence[Any], list[Tensor] | None]:
    """Return the row ranges of a tensor, quantized if there are quantizers, and the sums of their rows if asked for."""
    pieces = torch.split(tensor, list(split_sizes))
    sums = [piece.sum(dim=0) for piece in pieces] if compute_dbias else None
    first = quantizers[0] if with_quantized_output and quantizers else None
    if quantizers is not None and len(quantizers) != len(split_sizes):
        got = f"quantizer count does not match the number of tensor splits, {len(quantizers)}"
        raise SettingError("split_quantize", got, f"{len(split_sizes)}", "TEL-13")
    if first is None or (type(first) is IdentityQuantizer and first.dtype in {None, activation_dtype}):
        return torch.split(tensor.to(activation_dtype), list(split_sizes)), sums
    assert quantizers is not None
    return split_quantize(tensor, split_sizes, quantizers, disable_bulk_allocation), sums


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
