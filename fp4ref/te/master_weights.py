"""Quantize packed weights from flat parts of their master values, each process the part that it has.

The processes agree on the amax of every block, then each writes the codes of its own elements. NVFP4's column direction
is made after the codes were gathered. Bytes are those of quantizing the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fp4ref.api import quantize
from fp4ref.te import specifications
from fp4ref.te.distributed import get_distributed_world_size
from fp4ref.te.dtypes import MXFP8_BLOCK_SCALING_SIZE
from fp4ref.te.dtypes import NVFP4_BLOCK_SCALING_SIZE as TILE
from fp4ref.te.errors import NotSupportedError, TensorShapeError
from fp4ref.te.float8_tensor import Float8TensorStorage
from fp4ref.te.fsdp import repadded
from fp4ref.te.mxfp8_tensor import MXFP8Tensor
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

    model_weights: matrices with compact scales, NVFP4 of 2D quantization or MXFP8. master_weights: flat parts of their
    values, in the order of rows, which are rounded to the weight's type; None where this process has none.
    start_offsets: index of each part's first element. Every process of the group calls this with the same model
    weights. Codes of other processes stay as they are. NVFP4's column direction is dropped, and made when it is next
    needed, or by `post_all_gather_processing`. Initial values that a weight keeps are forgotten.

    Errors: NotSupportedError for other tensors, TensorShapeError for a part outside of its weight.

    Rules: TEM-10, TEM-26. Certificates: master-parts.
    """
    if fsdp_shard_model_weights is not None:
        needed = "None: whole weights, of which the process writes its part"
        raise NotSupportedError("quantize_master_weights", "fsdp_shard_model_weights", needed, "TEM-10")
    for weight, master, start in zip(model_weights, master_weights, start_offsets, strict=True):
        _require_kind(weight)
        if hasattr(weight, "clear_high_precision_init_val"):
            weight.clear_high_precision_init_val()
        values, mine = _own_part(weight, master, start or 0)
        if isinstance(weight, MXFP8Tensor):
            _quantize_blocks(weight, values, mine, group)
        else:
            _quantize_tiles(weight, values, mine, group)


def post_all_gather_processing(model_weights: Sequence[Any]) -> None:
    """Make the column direction of NVFP4 weights anew, from the row direction. Rules: TEM-26, TEL-40."""
    for weight in model_weights:
        _require_kind(weight)
        if isinstance(weight, NVFP4Tensor):
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


def _own_part(weight: Any, master: torch.Tensor | None, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values that this process has, float32 with zeros elsewhere, and which these are: [h, w] each."""
    values = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    mine = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
    if master is not None:
        stop = start + master.numel()
        if start < 0 or stop > values.numel():
            got = f"elements {start} to {stop} of a weight of {values.numel()}"
            raise TensorShapeError("quantize_master_weights", got, "a part of it", "TEM-10")
        values.view(-1)[start:stop] = master.detach().flatten().to(weight.dtype).to(torch.float32)
        mine.view(-1)[start:stop] = True
    return values, mine


def _with_maxima(blocks: torch.Tensor, owned: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the maxima of blocks [..., elements] over all processes, which the blocks then have.

    In a block that others have a part of, the first element of somebody else stands in for the maximum.
    """
    amax = blocks.abs().amax(-1)
    if get_distributed_world_size(group) > 1:
        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
    foreign = (~owned).to(torch.uint8).argmax(-1, keepdim=True)
    standing_in = torch.where(owned.all(-1), blocks.gather(-1, foreign)[..., 0], amax)
    blocks.scatter_(-1, foreign, standing_in[..., None])
    return amax


def _quantize_tiles(weight: Any, values: torch.Tensor, mine: torch.Tensor, group: Any) -> None:
    """Write an NVFP4 weight's codes of the row direction, two in a byte. Rules: TEM-26."""
    rows, columns = weight.shape
    tiles = _tiles(values, rows, columns)
    whole = _with_maxima(tiles, _tiles(mine, rows, columns), group).amax().reshape(1)
    result = quantize(_matrix(tiles, rows, columns), specifications.nvfp4(tiles=True), amax=whole).row
    assert result is not None
    mask = (mine[:, 0::2] * 0x0F + mine[:, 1::2] * 0xF0).to(torch.uint8)
    weight._rowwise_data.copy_((weight._rowwise_data & ~mask) | (result.data & mask))
    weight._rowwise_scale_inv.copy_(repadded(result.scales, tuple(weight._rowwise_scale_inv.shape)))
    weight._amax_rowwise.copy_(whole)
    weight.update_usage(columnwise_usage=False)


def _quantize_blocks(weight: Any, values: torch.Tensor, mine: torch.Tensor, group: Any) -> None:
    """Write an MXFP8 weight's codes of the directions that it has. Rules: TEM-26."""
    for direction in weight.directions():
        turned = direction == "column"
        matrix, owned = ((part.t() if turned else part).contiguous() for part in (values, mine))
        matrix = matrix.clone()
        _with_maxima(matrix.view(-1, MXFP8_BLOCK_SCALING_SIZE), owned.view(-1, MXFP8_BLOCK_SCALING_SIZE), group)
        result = quantize(matrix, specifications.mxfp8(weight._fp8_dtype)).row
        assert result is not None
        codes, scales = (part.t() if turned else part for part in (result.data, result.scales))
        data, buffer = getattr(weight, f"_{direction}wise_data"), weight.scales_buffer(direction)
        data.copy_(torch.where(mine, codes, data))
        buffer.copy_(repadded(scales, tuple(buffer.shape)))


def _tiles(values: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return the tiles: [tile rows, tile columns, elements]."""
    split = values.view(rows // TILE, TILE, columns // TILE, TILE)
    return split.transpose(1, 2).reshape(rows // TILE, columns // TILE, TILE * TILE)


def _matrix(tiles: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    split = tiles.view(rows // TILE, columns // TILE, TILE, TILE)
    return split.transpose(1, 2).reshape(rows, columns)


def _require_kind(weight: Any) -> None:
    tiled = getattr(getattr(weight, "_quantizer", None), "with_2d_quantization", False)
    nvfp4 = isinstance(weight, NVFP4Tensor) and tiled and not weight._nvfp4_use_4over6
    mxfp8 = isinstance(weight, MXFP8Tensor) and not tiled
    if not (nvfp4 or mxfp8) or weight.dim() != 2 or weight._with_gemm_swizzled_scales:
        got, needed = f"a {type(weight).__name__}", "an NVFP4 matrix of 2D quantization or an MXFP8 matrix, compact"
        raise NotSupportedError("quantize_master_weights", got, needed, "TEM-10")
