"""Quantize packed weights from flat parts of their master values, each process the part that it has.

The processes agree on the amax of every tile, then each writes the codes of its own elements; after the codes were
gathered, the column direction is made from them. Bytes are those of quantizing the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fp4ref.api import quantize
from fp4ref.te import specifications
from fp4ref.te.distributed import get_distributed_world_size
from fp4ref.te.dtypes import NVFP4_BLOCK_SCALING_SIZE as TILE
from fp4ref.te.errors import NotSupportedError, TensorShapeError
from fp4ref.te.float8_tensor import Float8TensorStorage
from fp4ref.te.fsdp import repadded
from fp4ref.te.nvfp4_tensor import NVFP4Tensor


def quantize_master_weights(
    model_weights: Sequence[Any],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: Any = None,
    fsdp_shard_model_weights: Sequence[Any] | None = None,
    manual_post_all_gather_processing: bool = False,
) -> None:
    """Write this process's codes, and the scales and amax of the whole, into packed weights.

    model_weights: NVFP4 tensors [h, w] of 2D quantization with compact scales. master_weights: flat parts of their
    values, in the order of rows; None where this process has none. start_offsets: index of each part's first element.
    Every process of the group calls this with the same model weights. Codes of other processes stay as they are; the
    column direction is dropped, and made when it is next needed, or by `post_all_gather_processing`.

    Errors: NotSupportedError for other tensors, TensorShapeError for a part outside of its weight.

    Rules: TEM-10, TEM-26.
    """
    if fsdp_shard_model_weights is not None:
        needed = "None: whole weights, of which the process writes its part"
        raise NotSupportedError("quantize_master_weights", "fsdp_shard_model_weights", needed, "TEM-10")
    for weight, master, start in zip(model_weights, master_weights, start_offsets, strict=True):
        _require_tiles(weight)
        _quantize_part(weight, master, start or 0, group)


def post_all_gather_processing(model_weights: Sequence[Any]) -> None:
    """Make the column direction of packed weights anew, from the row direction. Rules: TEM-26, TEL-40."""
    for weight in model_weights:
        _require_tiles(weight)
        weight.update_usage(columnwise_usage=False)
        weight.update_usage(columnwise_usage=True)


def replace_raw_data(tensor: Any, new_raw_data: torch.Tensor) -> None:
    """Move the codes of a quantized tensor's row direction into other memory of the same shape and type.

    Errors: TensorShapeError.
    """
    name = "_data" if isinstance(tensor, Float8TensorStorage) else "_rowwise_data"
    old = getattr(tensor, name)
    if (old.shape, old.dtype) != (new_raw_data.shape, new_raw_data.dtype):
        got = f"{new_raw_data.dtype} {list(new_raw_data.shape)}"
        raise TensorShapeError("replace_raw_data", got, f"{old.dtype} {list(old.shape)}")
    new_raw_data.detach().copy_(old)
    setattr(tensor, name, new_raw_data)


cast_master_weights_to_fp8 = quantize_master_weights  # its former name


def _quantize_part(weight: Any, master: torch.Tensor | None, start: int, group: Any) -> None:
    rows, columns = weight.shape
    values = torch.zeros(rows * columns, dtype=torch.float32, device=weight.device)
    mine = torch.zeros(rows * columns, dtype=torch.bool, device=weight.device)
    if master is not None:
        stop = start + master.numel()
        if start < 0 or stop > values.numel():
            got = f"elements {start} to {stop} of a weight of {values.numel()}"
            raise TensorShapeError("quantize_master_weights", got, "a part of it", "TEM-10")
        values[start:stop] = master.detach().flatten().to(torch.float32)
        mine[start:stop] = True
    matrix, owned = _tiles(values, rows, columns), _tiles(mine, rows, columns)
    amax = matrix.abs().amax(-1)
    if get_distributed_world_size(group) > 1:
        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
    # An element of somebody else stands in for the tile's maximum, so that the tile has the amax of the whole.
    foreign = (~owned).to(torch.uint8).argmax(-1, keepdim=True)
    standing_in = torch.where(owned.all(-1), matrix.gather(-1, foreign)[..., 0], amax)
    matrix.scatter_(-1, foreign, standing_in[..., None])
    whole = amax.amax().reshape(1)
    result = quantize(_matrix(matrix, rows, columns), specifications.nvfp4(tiles=True), amax=whole).row
    assert result is not None
    nibbles = mine.view(rows, columns)
    mask = nibbles[:, 0::2] * 0x0F + nibbles[:, 1::2] * 0xF0
    mask = mask.to(torch.uint8)
    weight._rowwise_data.copy_((weight._rowwise_data & ~mask) | (result.data & mask))
    weight._rowwise_scale_inv.copy_(repadded(result.scales, tuple(weight._rowwise_scale_inv.shape)))
    weight._amax_rowwise.copy_(whole)
    weight.update_usage(columnwise_usage=False)


def _tiles(flat: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return the tiles: [tile rows, tile columns, elements]."""
    split = flat.view(rows // TILE, TILE, columns // TILE, TILE)
    return split.transpose(1, 2).reshape(rows // TILE, columns // TILE, TILE * TILE)


def _matrix(tiles: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    split = tiles.view(rows // TILE, columns // TILE, TILE, TILE)
    return split.transpose(1, 2).reshape(rows, columns)


def _require_tiles(weight: Any) -> None:
    tiled = isinstance(weight, NVFP4Tensor) and weight._get_quantizer().with_2d_quantization and weight.dim() == 2
    if not tiled or weight._with_gemm_swizzled_scales or weight._nvfp4_use_4over6:
        got = f"a {type(weight).__name__}"
        raise NotSupportedError("quantize_master_weights", got, "an NVFP4 matrix of 2D quantization, compact", "TEM-10")
