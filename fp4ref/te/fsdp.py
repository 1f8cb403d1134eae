"""Hooks by which fully sharded training gathers quantized parameters: what a shard sends, and what the parts become.

Scales travel in the compact layout and without padding rows, which are zeros again in the whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp4ref.te.errors import NotSupportedError, TensorShapeError


class Gathered:
    """The hooks of a parameter whose shards send the buffers that `fsdp_extract_buffers` returns."""

    _quantizer: Any
    fsdp_extract_buffers: Any
    rebuilt: Any

    def fsdp_pre_all_gather(
        self, mesh: Any, orig_size: Any, contiguous_orig_stride: Any, module: Any, mp_policy: Any
    ) -> tuple[tuple[Tensor | None, ...], Any]:
        """Return the buffers that a shard sends, and how they are taken over. Rules: TEL-15, TEL-38.

        Errors: NotSupportedError for a format whose shards cannot be gathered; those of `fsdp_extract_buffers`.
        """
        buffers, meta = self.fsdp_extract_buffers()
        if hasattr(self._quantizer, "with_amax_reduction"):
            share_amax(self._quantizer, mesh)
        return buffers, (meta,)

    def fsdp_post_all_gather(
        self, all_gather_outputs: tuple[Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: Any = None
    ) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the whole parameter from gathered buffers, in `out` if given. Rules: TEL-15."""
        parts = whole_parts(all_gather_outputs, self.fsdp_extract_buffers()[0])
        made = self.rebuilt(shape=parts[0].shape, dtype=param_dtype)
        made.fsdp_assign_gathered(tuple(map(owned, parts)), *metadata)
        return taken_over(out, made), all_gather_outputs


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


def taken_over(target: Any, made: Any) -> Any:
    """Return `target` with the bytes of a gathered tensor, whose buffers it keeps where their shapes are equal."""
    if target is None:
        return made
    for name in made.SETTINGS:
        if hasattr(getattr(made, name), "BUFFERS"):  # a part of a hybrid tensor
            setattr(target, name, taken_over(getattr(target, name), getattr(made, name)))
    return received(target, {name.lstrip("_"): getattr(made, name) for name in made.BUFFERS}, None)


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
