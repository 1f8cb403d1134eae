"""Codes and scales of block-scaled FP8 tensors, made in the CPU's memory as others of their kind were."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fp4ref import api
from fp4ref.quantized import DirectionChoice
from fp4ref.te.cast import turned
from fp4ref.te.dtypes import DType
from fp4ref.te.float8_block_tensor import BLOCK, scale_shape
from fp4ref.te.specifications import fp8_blocks


def blocks_again(
    tensor: Tensor, dtype: DType, directions: DirectionChoice, tiles: bool
) -> Callable[[Tensor], dict[str, Tensor | None]] | None:
    """Return the function that makes buffers of tensors of a kind, by attribute, with scales that are powers of two.

    Rules: TEL-48, TEL-49, TEL-50.
    """
    shape, width = tensor.shape, tensor.shape[-1] if tensor.dim() else 1
    x, spec = tensor.reshape(-1, width), fp8_blocks(dtype, tiles)
    repeat = api.quantize_again(x, spec, "row" if tiles else directions, "linear")
    if repeat is None:
        return None
    its, flat = (*shape[-1:], *shape[:-1]), tensor.dim() == 2
    padded = [scale_shape(tuple(shape), tiles=tiles, columnwise=columnwise) for columnwise in (False, True)]

    def of_blocks(x: Tensor) -> dict[str, Tensor | None]:
        row, column = repeat(x if flat else x.reshape(-1, width))
        return {
            "_rowwise_data": None if row is None else row.data if flat else row.data.view(shape),
            "_columnwise_data": None if column is None else column.data if flat else column.data.view(its),
            "_rowwise_scale_inv": None if row is None else _scales(row.scales.numpy().T, padded[0]),
            "_columnwise_scale_inv": None if column is None else _scales(column.scales.numpy().T, padded[1]),
        }

    def of_tiles(x: Tensor) -> dict[str, Tensor | None]:
        row, _ = repeat(x if flat else x.reshape(-1, width))
        scales = row.scales.numpy()[::BLOCK]
        made: dict[str, Tensor | None] = dict.fromkeys(
            ("_rowwise_data", "_columnwise_data", "_rowwise_scale_inv", "_columnwise_scale_inv")
        )
        if directions != "column":
            made["_rowwise_data"], made["_rowwise_scale_inv"] = row.data.view(shape), _scales(scales, padded[0])
        if directions != "row":
            made["_columnwise_data"] = turned(row.data).view(its)
            made["_columnwise_scale_inv"] = _scales(scales.T, padded[1])
        return made

    return of_tiles if tiles else of_blocks


def _scales(codes: NDArray[np.uint8], padded: tuple[int, int]) -> Tensor:
    """Return the values of E8M0 bytes, with zeros after the last column."""
    values = _table().take(codes)
    if padded != codes.shape:
        made = np.zeros(padded, np.float32)
        made[:, : codes.shape[1]] = values
        values = made
    return torch.from_numpy(values)


@cache
def _table() -> NDArray[Any]:
    return powers_of_two(torch.arange(256)).numpy()


def powers_of_two(codes: Tensor) -> Tensor:
    """Return the values of E8M0 bytes; none is NaN here. Rules: E8M0-1."""
    bits = (codes.to(torch.int32) << 23).masked_fill_(codes == 0, 0x400000)  # 2^-127 is subnormal
    return bits.view(torch.float32)
