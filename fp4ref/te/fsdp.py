"""Hooks by which fully sharded training gathers quantized parameters: what a shard sends, and what the parts become.

Scales travel in the compact layout and without padding rows, which are zeros again in the whole.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fp4ref.te.errors import NotSupportedError, TensorShapeError


def require_compact(operation: str, tensor: Any) -> None:
    """Raise NotSupportedError for scales in the GEMM layout. Rules: TEL-38."""
    if tensor._with_gemm_swizzled_scales:
        raise NotSupportedError(operation, "GEMM-swizzled scales", "compact ones", "TEL-38")


def require_shard(tensor: Any, block: int, mesh: Any, whole: Any) -> None:
    """Raise unless a shard can be gathered: two dimensions, whole blocks of rows, compact scales, equal shards.

    Rules: TEL-38.
    """
    require_compact("fsdp_pre_all_gather", tensor)
    if tensor.dim() != 2 or tensor.shape[0] % block:
        got = f"a shard of shape {list(tensor.shape)}"
        raise TensorShapeError("fsdp_pre_all_gather", got, f"two dimensions, rows a multiple of {block}", "TEL-38")
    if mesh is not None and whole[0] != tensor.shape[0] * mesh.size(0):
        got = f"{whole[0]} rows over {mesh.size(0)} processes"
        raise TensorShapeError("fsdp_pre_all_gather", got, "equal shards", "TEL-38")


def owned(codes: Tensor) -> Tensor:
    """Return gathered codes that may be read by NumPy, after which the caller could no longer free its own memory."""
    return codes.clone() if codes.device.type == "cpu" else codes


def whole_parts(gathered: tuple[Tensor, ...], own: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the gathered parts; where one process has the whole, torch gathers the first only, and the rest is own."""
    return gathered + own[len(gathered) :]


def share_amax(quantizer: Any, mesh: Any) -> None:
    """Let later updates of a shard in place, an optimizer's, reduce the amax over the shards. Rules: TEL-10, TEL-15."""
    if mesh is not None:
        quantizer.with_amax_reduction, quantizer.amax_reduction_group = True, mesh.get_group(mesh.ndim - 1)


def repadded(scales: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return scales with zeros behind them, in a buffer of another shape. Rules: LAY-2."""
    buffer = scales.new_zeros(shape)
    buffer[: scales.shape[0], : scales.shape[1]] = scales
    return buffer


def received(target: Any, values: dict[str, Tensor | None], new: Any) -> Any:
    """Return the gathered tensor: `target` with its buffers overwritten, or, without one, what `new` makes."""
    if target is None:
        return new(values)
    for name, value in values.items():
        buffer = getattr(target, f"_{name}")
        if buffer is None or value is None or buffer.shape != value.shape:
            setattr(target, f"_{name}", value)
        elif buffer.data_ptr() != value.data_ptr():
            buffer.data.copy_(value)  # the same values again, which a saved tensor may await
    return target
