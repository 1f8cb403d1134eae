"""Sums and gathers over a process group, as operations."""

from __future__ import annotations

from typing import Any

import torch

from fp4ref.te.distributed import allreduce, gather_rows, reduce_scatter_along_first_dim
from fp4ref.te.ops.operation import BasicOperation

Tensor = torch.Tensor


class _Collective(BasicOperation):
    def __init__(self, process_group: Any = None) -> None:
        super().__init__()
        self.process_group = process_group
        self.process_group_size = torch.distributed.get_world_size(process_group)

    def run(self, x: Tensor) -> tuple[Tensor, tuple[()]]:
        """Return x if the process is alone, else what all processes make together."""
        return (x if self.process_group_size == 1 else self.together(x)), ()

    def together(self, x: Tensor) -> Tensor:
        """Return the result of two or more processes."""
        raise NotImplementedError


class AllGather(_Collective):
    """y: the rows of all processes, one process after another."""

    def together(self, x: Tensor) -> Tensor:
        """Gather the rows; their gradients are summed."""
        return gather_rows(x, self.process_group)


class AllReduce(_Collective):
    """y: the sum over the processes; its gradient is that of x."""

    def together(self, x: Tensor) -> Tensor:
        """Sum over the processes."""
        return _Sum.apply(x, self.process_group)  # type: ignore[no-any-return, no-untyped-call]


class ReduceScatter(_Collective):
    """y: this process's rows of the sum over the processes."""

    def together(self, x: Tensor) -> Tensor:
        """Sum over the processes and keep some rows; gradients are gathered."""
        return _SumOfRows.apply(x, self.process_group)  # type: ignore[no-any-return, no-untyped-call]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:  # noqa: ARG004 - torch's signature
        return allreduce(x.clone(), group)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grads[0], None


class _SumOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return reduce_scatter_along_first_dim(x, group)[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return gather_rows(grads[0], ctx.group), None
