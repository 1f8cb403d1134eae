"""Collectives along the first axis, of ordinary and of quantized tensors.

A quantized tensor is gathered as it is stored, in the compact layout of its scales: padding is cut off, the pieces are
put together, and the whole is padded again with zeros. Scales in the GEMM layout cannot be cut and are refused.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from fp4ref.te import mxfp8_tensor, nvfp4_storage
from fp4ref.te.dtypes import MXFP8_BLOCK_SCALING_SIZE, NVFP4_BLOCK_SCALING_SIZE
from fp4ref.te.errors import NotSupportedError, SettingError
from fp4ref.te.float8_block_tensor import Float8BlockwiseQTensorStorage
from fp4ref.te.float8_block_tensor import scale_shape as block_scale_shape
from fp4ref.te.float8_tensor import Float8TensorStorage
from fp4ref.te.fsdp import repadded
from fp4ref.te.mxfp8_tensor import MXFP8TensorStorage
from fp4ref.te.nvfp4_storage import NVFP4TensorStorage
from fp4ref.te.storage import QuantizedTensorStorage
from fp4ref.te.tensor import QuantizedTensor


def get_distributed_world_size(group: Any = None) -> int:
    """Return the number of processes of a group; 1 without torch.distributed."""
    return dist.get_world_size(group) if dist.is_initialized() else 1


def get_distributed_rank(group: Any = None) -> int:
    """Return this process's place in a group."""
    return dist.get_rank(group) if dist.is_initialized() else 0


def allreduce(x: torch.Tensor, group: Any = None, async_op: bool = False) -> tuple[torch.Tensor, None]:
    """Return the sum of x over the group, in x's own memory.

    Errors: NotSupportedError for async_op.
    """
    _require_synchronous("allreduce", async_op)
    if get_distributed_world_size(group) > 1:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
    return x, None


def reduce_scatter_along_first_dim(
    x: torch.Tensor, group: Any = None, async_op: bool = False
) -> tuple[torch.Tensor, None]:
    """Return this process's part of the first axis of the sum of x over the group.

    Errors: SettingError if the first axis does not divide, NotSupportedError for async_op.
    """
    _require_synchronous("reduce_scatter", async_op)
    size = get_distributed_world_size(group)
    if size == 1:
        return x, None
    if x.shape[0] % size:
        raise SettingError("reduce_scatter", f"{x.shape[0]} rows over {size} processes", f"a multiple of {size}")
    if dist.get_backend(group) == "gloo":  # which has no such collective
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total.chunk(size)[get_distributed_rank(group)].contiguous(), None
    part = x.new_empty(x.shape[0] // size, *x.shape[1:])
    dist.reduce_scatter(part, list(x.contiguous().chunk(size)), group=group)
    return part, None


class _Gather(torch.autograd.Function):
    """The rows of all processes; each process's gradient counts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return reduce_scatter_along_first_dim(grads[0], ctx.group)[0], None


def gather_rows(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Gather the rows of all processes, one below the other; the gradient is summed and split again."""
    return _Gather.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]


def gather_along_first_dim(
    inp: Any, process_group: Any = None, async_op: bool = False, quantizer: Any = None
) -> tuple[Any, None]:
    """Gather the parts of all processes, one below the other; with a quantizer, quantized in its directions.

    inp: [m, K] with equal m everywhere, ordinary or quantized. A part that cannot be quantized, or lacks a
    direction, is gathered in high precision and then quantized, with a warning.

    Errors: SettingError for scales in the GEMM layout or unequal amaxes, NotSupportedError for a row-scaled tensor and
    for async_op.

    Rules: TEM-11, TEM-28, TEM-29, TEL-9.
    """
    _require_synchronous("all-gather", async_op)
    quantized = isinstance(inp, QuantizedTensorStorage)
    if get_distributed_world_size(process_group) == 1:
        return (inp if quantizer is None or quantized else quantizer(inp)), None
    if quantizer is None:
        return (_gather_quantized(inp, process_group) if quantized else _gather(inp, process_group)), None
    if not quantized:
        if not quantizer.is_quantizable(inp):
            warnings.warn("all-gather: the parts cannot be quantized; gathering in high precision", stacklevel=2)
            return quantizer(_gather(inp, process_group)), None
        inp = quantizer(inp)
    wanted = [name for name, used in (("row", quantizer.rowwise_usage), ("column", quantizer.columnwise_usage)) if used]
    if set(wanted) - set(inp.directions()):
        warnings.warn("all-gather: a direction is missing; gathering in high precision", stacklevel=2)
        return quantizer(_gather(inp.dequantize(), process_group)), None
    return _gather_quantized(inp, process_group, wanted), None


def _gather(x: Any, group: Any) -> torch.Tensor:
    """Concatenate along the first axis."""
    size = get_distributed_world_size(group)
    x = x.contiguous()
    whole: torch.Tensor = x.new_empty(size * x.shape[0], *x.shape[1:])
    dist.all_gather(list(whole.chunk(size)), x, group=group)
    return whole


def _gather_last(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Concatenate [R, c] along the second axis."""
    size = get_distributed_world_size(group)
    return _gather(x, group).view(size, *x.shape).transpose(0, 1).reshape(x.shape[0], -1)


def _gather_quantized(inp: Any, group: Any, directions: list[str] | None = None) -> Any:
    directions = inp.directions() if directions is None else directions
    if isinstance(inp, Float8TensorStorage):
        _require_equal("scale_inv", inp._scale_inv, group)
        return _rebuilt(inp, group, {"data": _gather(inp._data, group)})
    if isinstance(inp, Float8BlockwiseQTensorStorage):
        return _gather_blocks(inp, group, directions)
    if inp._with_gemm_swizzled_scales:
        raise SettingError("all-gather", "scales in the GEMM layout", "compact scales", "TEM-28")
    if isinstance(inp, NVFP4TensorStorage):
        return _gather_nvfp4(inp, group, directions)
    if isinstance(inp, MXFP8TensorStorage):
        return _gather_mxfp8(inp, group, directions)
    raise NotSupportedError("all-gather", type(inp).__name__, "an NVFP4, MXFP8 or per-tensor FP8 tensor")


def _gather_nvfp4(inp: Any, group: Any, directions: list[str]) -> Any:
    inp.require_not_row_scaled("all-gather")
    rows, columns = inp.record(inp.directions()[0]).shape[:: 1 if "row" in inp.directions() else -1]
    whole = (rows * get_distributed_world_size(group), columns)
    changes: dict[str, Any] = dict.fromkeys(name.lstrip("_") for name in inp.BUFFERS)
    if "row" in directions:
        _require_equal("amax", inp._amax_rowwise, group)
        scales = _gather(inp._rowwise_scale_inv[:rows], group)
        changes["rowwise_data"] = _gather(inp._rowwise_data, group)
        changes["rowwise_scale_inv"] = repadded(scales, nvfp4_storage.scale_shape(whole, columnwise=False))
        changes["amax_rowwise"] = inp._amax_rowwise
    if "column" in directions:
        _require_equal("amax", inp._amax_columnwise, group)
        scales = _gather_last(inp._columnwise_scale_inv[:columns, : rows // NVFP4_BLOCK_SCALING_SIZE], group)
        changes["columnwise_data"] = _gather_last(inp._columnwise_data, group)
        changes["columnwise_scale_inv"] = repadded(scales, nvfp4_storage.scale_shape(whole, columnwise=True))
        changes["amax_columnwise"] = inp._amax_columnwise
    return _rebuilt(inp, group, changes)


def _gather_mxfp8(inp: Any, group: Any, directions: list[str]) -> Any:
    shape = inp.logical_shape()
    rows, columns = shape.numel() // shape[-1], shape[-1]
    whole = (rows * get_distributed_world_size(group), columns)
    changes: dict[str, Any] = dict.fromkeys(name.lstrip("_") for name in inp.BUFFERS)
    for name in directions:
        kept = rows if name == "row" else rows // MXFP8_BLOCK_SCALING_SIZE
        scales = _gather(inp.scales_buffer(name)[:kept], group)
        changes[f"{name}wise_data"] = _gather(getattr(inp, f"_{name}wise_data"), group)
        changes[f"{name}wise_scale_inv"] = repadded(
            scales, mxfp8_tensor.scale_shape(whole, columnwise=name == "column")
        )
    return _rebuilt(inp, group, changes)


def _gather_blocks(inp: Any, group: Any, directions: list[str]) -> Any:
    """Gather block-scaled FP8, whose scales have rows or columns of the matrix on their second axis. Rules: TEL-49."""
    shape, tiles = inp.logical_shape(), inp._is_2D_scaled
    whole = (shape.numel() // shape[-1] * get_distributed_world_size(group), shape[-1])
    changes: dict[str, Any] = dict.fromkeys(name.lstrip("_") for name in inp.BUFFERS)
    for name in directions:
        columnwise = name == "column"
        codes, scales = inp.codes(name).view(torch.uint8), inp.block_scales(name)
        if tiles:
            scales = inp.scales_buffer(name)[:, : scales.shape[1]]
        part = (_gather_last if columnwise else _gather)(scales.contiguous(), group)
        padded = block_scale_shape(whole, tiles=tiles, columnwise=columnwise)
        changes[f"{name}wise_data"] = (_gather_last if columnwise else _gather)(codes, group)
        changes[f"{name}wise_scale_inv"] = repadded(part if tiles else part.t(), padded)
    return _rebuilt(inp, group, changes)


def _rebuilt(inp: Any, group: Any, changes: dict[str, Any]) -> Any:
    if isinstance(inp, QuantizedTensor):
        shape = (inp.shape[0] * get_distributed_world_size(group), *inp.shape[1:])
        return inp.rebuilt(changes, shape=shape)
    return type(inp)(**(inp.get_metadata() | changes), fake_dtype=inp.dtype)


def _require_equal(name: str, value: Any, group: Any) -> None:
    """Refuse parts quantized by different amaxes, which are not parts of one tensor."""
    both = torch.stack((value, -value))
    dist.all_reduce(both, op=dist.ReduceOp.MAX, group=group)
    if not torch.equal(both[0], -both[1]):
        raise SettingError("all-gather", f"parts of different {name}", "quantizers with with_amax_reduction")


def _require_synchronous(operation: str, async_op: bool) -> None:
    if async_op:
        raise NotSupportedError(operation, "async_op=True", "async_op=False: nothing runs beside it")
