"""The cross entropy of logits whose vocabulary may be split over processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fp4ref.te.distributed import get_distributed_rank, get_distributed_world_size
from fp4ref.te.errors import NotSupportedError


class _CrossEntropy(torch.autograd.Function):
    """The loss of each token in float32, and its gradient, which is computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, inp: Tensor, target: Tensor, label_smoothing: float, reduce_loss: bool, group: Any, ignore_idx: int
    ) -> Tensor:
        x, size = inp.to(torch.float32), get_distributed_world_size(group) if group is not None else 1
        first = get_distributed_rank(group) * x.shape[-1] if size > 1 else 0
        largest = _over_processes(x.amax(-1, keepdim=True), dist.ReduceOp.MAX, group, size)
        shifted = torch.exp(x - largest)
        total = _over_processes(shifted.sum(-1, keepdim=True), dist.ReduceOp.SUM, group, size)
        own = torch.arange(first, first + x.shape[-1], device=x.device) == target.unsqueeze(-1)
        found = _over_processes(torch.where(own, x, 0.0).sum(-1), dist.ReduceOp.SUM, group, size)
        normalizer = (largest + torch.log(total)).squeeze(-1)
        loss = normalizer - found
        share = label_smoothing / (x.shape[-1] * size)
        if label_smoothing:
            loss = loss * (1 - label_smoothing) + label_smoothing * normalizer - share * x.sum(-1)
        gradient = shifted / total - share - own * (1 - label_smoothing)
        ignored = target == ignore_idx
        loss = loss.masked_fill(ignored, 0.0)
        gradient = gradient.masked_fill(ignored.unsqueeze(-1), 0.0)
        if reduce_loss:
            count = (~ignored).sum().clamp(min=1)
            loss, gradient = loss.sum() / count, gradient / count
        ctx.save_for_backward(gradient)
        ctx.dtype, ctx.reduced = inp.dtype, reduce_loss
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        scale = grads[0] if ctx.reduced else grads[0].unsqueeze(-1)
        return (gradient * scale).to(ctx.dtype), None, None, None, None, None


def _over_processes(x: Tensor, operation: Any, group: Any, size: int) -> Tensor:
    if size > 1:
        dist.all_reduce(x, op=operation, group=group)
    return x


def parallel_cross_entropy(
    inp: Tensor,
    target: Tensor,
    label_smoothing: float = 0.0,
    reduce_loss: bool = False,
    dist_process_group: Any = None,
    ignore_idx: int = -100,
    is_cg_capturable: bool = False,
) -> Tensor:
    """Return the cross entropy of logits [a, b, V] and targets [a, b], float32 [a, b], or its mean if `reduce_loss`.

    dist_process_group: each of its processes has an equal part of the vocabulary, in order. ignore_idx: the target of
    tokens whose loss and gradient are 0, which the mean leaves out.

    Errors: NotSupportedError for label smoothing over several processes.
    """
    if label_smoothing and dist_process_group is not None and get_distributed_world_size(dist_process_group) > 1:
        got = f"label_smoothing {label_smoothing} over {get_distributed_world_size(dist_process_group)} processes"
        raise NotSupportedError("parallel_cross_entropy", got, "0, or one process")
    arguments = (inp, target, label_smoothing, reduce_loss, dist_process_group, ignore_idx)
    return _CrossEntropy.apply(*arguments)  # type: ignore[no-any-return, no-untyped-call]
