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
from fp4ref.te.cast import scaled_fp8_codes
from fp4ref.te.distributed import get_distributed_world_size
from fp4ref.te.dtypes import MXFP8_BLOCK_SCALING_SIZE
from fp4ref.te.dtypes import NVFP4_BLOCK_SCALING_SIZE as TILE
from fp4ref.te.errors import NotSupportedError, SettingError, TensorShapeError
from fp4ref.te.float8_block_tensor import BLOCK, Float8BlockwiseQTensor
from fp4ref.te.float8_quantizer import Float8Quantizer
from fp4ref.te.float8_tensor import Float8Tensor, Float8TensorStorage
from fp4ref.te.fsdp import repadded
from fp4ref.te.hybrid_tensor import HybridQuantizedTensor
from fp4ref.te.identity_tensor import IdentityTensor
from fp4ref.te.mxfp8_tensor import MXFP8Tensor
from fp4ref.te.nvfp4_tensor import NVFP4Tensor
from fp4ref.te.per_tensor import current_scale


def quantize_master_weights(
    model_weights: Sequence[Any],
    master_weights: Sequence[torch.Tensor | None],
    start_offsets: Sequence[int | None],
    group: Any = None,
    fsdp_shard_model_weights: Sequence[Any] | None = None,
    manual_post_all_gather_processing: bool = False,
) -> None:
    """Write this process's codes, and the scales and amax of the whole, into packed weights.

    model_weights: matrices: NVFP4 of 2D quantization or MXFP8 with compact scales, block FP8 in squares, FP8 with one
    scale, or parts with one scale. master_weights: flat parts of their
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
        _require_kind(weight, master, start or 0)
        if hasattr(weight, "clear_high_precision_init_val"):
            weight.clear_high_precision_init_val()
        values, mine = _own_part(weight, master, start or 0)
        for part in weight.parts().values() if isinstance(weight, HybridQuantizedTensor) else [weight]:
            _quantize_part(part, values.clone(), mine, group)


def _quantize_part(weight: Any, values: torch.Tensor, mine: torch.Tensor, group: Any) -> None:
    if isinstance(weight, MXFP8Tensor):
        _quantize_blocks(weight, values, mine, group)
    elif isinstance(weight, NVFP4Tensor):
        _quantize_tiles(weight, values, mine, group)
    elif isinstance(weight, Float8BlockwiseQTensor):
        _quantize_squares(weight, values, mine, group)
    elif isinstance(weight, IdentityTensor):
        held = weight.read_in("row")
        held.copy_(torch.where(mine, values.to(held.dtype), held))
    else:
        _quantize_whole(weight, values, mine, group)


def post_all_gather_processing(model_weights: Sequence[Any]) -> None:
    """Make the column direction of NVFP4 and block FP8 weights anew, from the row direction. Rules: TEM-26, TEL-40."""
    for weight in model_weights:
        _require_kind(weight)
        if isinstance(weight, (NVFP4Tensor, Float8BlockwiseQTensor)):
            weight.update_usage(columnwise_usage=False)
            weight.update_usage(columnwise_usage=True)


def replace_raw_data(tensor: Any, new_raw_data: torch.Tensor) -> None:
    """Move the codes of a quantized tensor's row direction into other memory of the same shape and type.

    Errors: TensorShapeError; SettingError for a hybrid tensor without rows.
    """
    if isinstance(tensor, HybridQuantizedTensor):
        replace_raw_data(tensor.read_in("row"), new_raw_data)
        return
    one = {Float8TensorStorage: "_data", IdentityTensor: "_hp_data"}
    name = next((name for kind, name in one.items() if isinstance(tensor, kind)), "_rowwise_data")
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


def _quantize_squares(weight: Any, values: torch.Tensor, mine: torch.Tensor, group: Any) -> None:
    """Write a block FP8 weight's codes of the row direction, in squares of 128x128. Rules: TEM-26."""
    rows, columns = weight.shape
    squares, owned = (_squares(part, fill) for part, fill in ((values, 0), (mine, True)))
    _with_maxima(squares, owned, group)
    across = -(-columns // BLOCK)
    matrix = squares.view(-1, across, BLOCK, BLOCK).transpose(1, 2).reshape(-1, across * BLOCK)[:rows, :columns]
    quantizer = weight._get_quantizer().copy()
    quantizer.set_usage(rowwise=True, columnwise=False)
    result = quantizer.quantize_impl(matrix.to(weight._dtype).contiguous())
    weight._rowwise_data.copy_(torch.where(mine, result._rowwise_data, weight._rowwise_data))
    weight._rowwise_scale_inv.copy_(result._rowwise_scale_inv)
    weight.update_usage(columnwise_usage=False)


def _squares(matrix: torch.Tensor, fill: Any) -> torch.Tensor:
    """Return squares of 128x128 in the order of rows, those at the edges filled up: [squares, elements]."""
    rows, columns = matrix.shape
    padded = torch.nn.functional.pad(matrix, (0, -columns % BLOCK, 0, -rows % BLOCK), value=fill)
    split = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    return split.transpose(1, 2).reshape(-1, BLOCK * BLOCK)


def _quantize_whole(weight: Any, values: torch.Tensor, mine: torch.Tensor, group: Any) -> None:
    """Write codes of a weight with one scale, its quantizer's or that of the largest amax. Rules: TEM-26."""
    quantizer = weight._get_quantizer()
    amax = values.abs().amax().reshape(1)
    if get_distributed_world_size(group) > 1:
        dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)
    if isinstance(quantizer, Float8Quantizer):
        quantizer.amax.copy_(torch.maximum(quantizer.amax, amax.reshape(quantizer.amax.shape)))
        scale = quantizer.scale.reshape(1)
        inverse = torch.ones_like(scale) / scale
    else:
        how = quantizer.amax_epsilon, quantizer.force_pow_2_scales
        scale, inverse = current_scale(amax, quantizer.dtype, weight._dtype, *how)
    codes = scaled_fp8_codes(values, scale, quantizer.dtype)
    weight._data.copy_(torch.where(mine, codes, weight._data))
    weight._scale_inv.copy_(inverse)


def _tiles(values: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return the tiles: [tile rows, tile columns, elements]."""
    split = values.view(rows // TILE, TILE, columns // TILE, TILE)
    return split.transpose(1, 2).reshape(rows // TILE, columns // TILE, TILE * TILE)


def _matrix(tiles: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    split = tiles.view(rows // TILE, columns // TILE, TILE, TILE)
    return split.transpose(1, 2).reshape(rows, columns)


def _require_kind(weight: Any, master: torch.Tensor | None = None, start: int = 0) -> None:
    """Refuse weights that no process can write a part of. Rules: TEM-57."""
    if isinstance(weight, HybridQuantizedTensor):
        _require_parts(weight, master, start)
        return
    tiled = getattr(getattr(weight, "_quantizer", None), "with_2d_quantization", False)
    kinds = {
        NVFP4Tensor: tiled and not getattr(weight, "_nvfp4_use_4over6", False),
        MXFP8Tensor: not tiled,
        Float8BlockwiseQTensor: getattr(weight, "_is_2D_scaled", False),
        Float8Tensor: True,
        IdentityTensor: True,
    }
    fits = any(isinstance(weight, kind) and good for kind, good in kinds.items())
    if not fits or weight.dim() != 2 or getattr(weight, "_with_gemm_swizzled_scales", False):
        got = f"a {type(weight).__name__}"
        needed = "a matrix of NVFP4 in tiles, MXFP8, block FP8 in squares or FP8 with one scale, compact"
        raise NotSupportedError("quantize_master_weights", got, needed, "TEM-57")


def _require_parts(weight: Any, master: torch.Tensor | None, start: int) -> None:
    """Refuse hybrid weights that Transformer Engine refuses: both parts are to follow from the master values alone.

    Rules: TEM-52.
    """
    parts = weight.parts()
    if not parts:
        got = "both rowwise and columnwise sub-storages dropped"
        raise SettingError("quantize_master_weights", got, "a weight with one direction", "TEM-52")
    if "column" in parts and weight._quantizer.columnwise_source != "original":
        got = "columns of columnwise_source='rowwise_dequantized', made after the rowwise update/all-gather"
        raise NotSupportedError("quantize_master_weights", got, "'original', or rows only", "TEM-52")
    for direction, part in parts.items():
        if not isinstance(part, (Float8Tensor, IdentityTensor)):
            kind = type(getattr(weight._quantizer, f"{direction}wise_quantizer")).__name__
            got = f"HybridQuantizer with {kind} {direction}wise sub-quantizer is not supported"
            raise NotSupportedError(
                "quantize_master_weights", got, "parts with one scale or in high precision", "TEM-52"
            )
        _require_kind(part)
    whole = master is None or (start == 0 and master.numel() == weight.numel())
    if len(parts) > 1 and not whole:
        got = "a partial master shard of a hybrid weight in both directions with columnwise_source='original'"
        raise SettingError("quantize_master_weights", got, "full-master data, or a weight of rows only", "TEM-52")
