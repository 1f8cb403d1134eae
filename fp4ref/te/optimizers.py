"""Optimizers and operations on lists of tensors by the emulated library's names, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.adam import FusedAdam
from fp4ref.te.errors import SettingError
from fp4ref.te.module.options import require_only_supported

__all__ = [
    "FusedAdam",
    "FusedSGD",
    "MultiTensorApply",
    "multi_tensor_applier",
    "multi_tensor_l2norm",
    "multi_tensor_scale",
]


class FusedSGD(torch.optim.SGD):
    """torch.optim.SGD; weight decay after the momentum is refused by name."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool | None = None,
    ) -> None:
        require_only_supported("FusedSGD", wd_after_momentum=wd_after_momentum)
        super().__init__(
            params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov
        )


class MultiTensorApply:
    """Calls an operation with lists of tensors, from which empty tensors are left out."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self, op: Callable[..., Any], noop_flag_buffer: Tensor, tensor_lists: Sequence[Sequence[Any]], *args: Any
    ) -> Any:
        """Return op(chunk_size, noop_flag_buffer, lists, *args); None without elements."""
        if len({len(tensors) for tensors in tensor_lists}) > 1:
            got = f"lists of {', '.join(str(len(tensors)) for tensors in tensor_lists)} tensors"
            raise SettingError("multi_tensor_applier", got, "lists of one length")
        rows = [row for row in zip(*tensor_lists, strict=True) if row[0].numel()]
        if not rows:
            return None
        columns = [[getattr(x, "_local_tensor", x) for x in column] for column in zip(*rows, strict=True)]
        return op(self.chunk_size, noop_flag_buffer, columns, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Sequence[Sequence[Tensor]], per_tensor: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the norm of all tensors of the first list, float32 [1], and those of each if asked for."""
    norms = torch.stack([tensor.float().norm() for tensor in tensor_lists[0]])
    return norms.norm().reshape(1), norms if per_tensor else norms.new_empty(0)


def multi_tensor_scale(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Sequence[Sequence[Tensor]], scale: float
) -> None:
    """Write the tensors of the first list, times a factor, into those of the second; set the flag for inf or NaN."""
    for source, target in zip(*tensor_lists, strict=True):
        target.copy_(source.float() * scale)
        if not source.isfinite().all():
            noop_flag.fill_(1)
