"""Quantize the pieces of one tensor, each by its own quantizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.errors import SettingError, TensorShapeError

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
    tensor: Tensor, split_sections: Sequence[int], quantizer_list: Sequence[Any], disable_bulk_allocation: bool = False
) -> list[Any]:
    """Quantize the row ranges of a tensor [..., K], one quantizer each; ranges without rows give empty tensors.

    Errors: SettingError for quantizers that disagree, TensorShapeError for ranges that do not add up.

    Rules: TEL-13.
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
    return [quantizer(piece) for quantizer, piece in zip(quantizer_list, pieces, strict=True)]
