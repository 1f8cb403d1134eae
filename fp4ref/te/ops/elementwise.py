"""Operations on single elements, on shapes, and on the tensors that enter or leave a chain in its middle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fp4ref.te.module.device import default_device
from fp4ref.te.module.options import divide
from fp4ref.te.ops.fused import BackwardAddRMSNorm, Together
from fp4ref.te.ops.gradients import added_in_place
from fp4ref.te.ops.norms import RMSNormOperation
from fp4ref.te.ops.operation import BasicOperation

Tensor = torch.Tensor
Alone = tuple[Tensor, tuple[()]]


class Identity(BasicOperation):
    """y = x."""

    def run(self, x: Tensor) -> Alone:
        """Return x."""
        return x, ()


class Reshape(BasicOperation):
    """y has x's elements and another shape, one size of which may be -1."""

    def __init__(self, shape: Iterable[int]) -> None:
        super().__init__()
        self._shape = tuple(shape)

    def run(self, x: Tensor) -> Alone:
        """Return x in the shape."""
        return x.reshape(*self._shape), ()


class ConstantScale(BasicOperation):
    """y = x * scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def run(self, x: Tensor) -> Alone:
        """Return the product."""
        return x * self.scale, ()


class Dropout(BasicOperation):
    """Set elements to zero with probability p while training, and scale the others by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout_probability = p

    def run(self, x: Tensor) -> Alone:
        """Return x after dropout, as torch draws it, and no other tensor."""
        return torch.nn.functional.dropout(x, self.dropout_probability, self.training), ()


class Bias(BasicOperation):
    """y = x + bias, a vector of the last axis; with tensor_parallel each process of the group has its part of it."""

    bias: torch.nn.Parameter
    takes_activation = True

    def __init__(
        self,
        size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        tensor_parallel: bool = False,
        tensor_parallel_group: Any = None,
    ) -> None:
        super().__init__()
        processes = torch.distributed.get_world_size(tensor_parallel_group) if tensor_parallel else 1
        self.local_size = divide("Bias", "size", size, processes)
        memory: Any = {"device": default_device(device), "dtype": dtype}
        self.bias = torch.nn.Parameter(torch.zeros(self.local_size, **memory))

    def pre_first_fuser_forward(self) -> None:
        """Make the parameter, if it is on the meta device."""
        if self.bias.device.type == "meta":
            self.bias = torch.nn.Parameter(torch.zeros_like(self.bias, device=default_device(None)))

    def run(self, x: Tensor) -> Alone:
        """Return the sum."""
        return x + self.bias, ()


class AddExtraInput(BasicOperation):
    """y = x + an extra input; in_place: y takes the extra input's place in memory."""

    num_extra_inputs = 1

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self._in_place = in_place

    def run(self, x: Tensor, extra: Tensor) -> Alone:
        """Return the sum."""
        return added_in_place(x, extra) if self._in_place else extra + x, ()


def adds_in_place(operation: BasicOperation) -> bool:
    """Return True for an addition whose result takes the extra input's place."""
    return isinstance(operation, AddExtraInput) and operation._in_place


class MakeExtraOutput(BasicOperation):
    """y = x, and x as an extra output; in_place: a product behind it adds its gradient to that of the extra output."""

    num_extra_outputs = 1

    def __init__(self, *, in_place: bool = False) -> None:
        super().__init__()
        self._in_place = in_place

    def run(self, x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        """Return x twice."""
        return x, (x,)

    def with_next(self, following: Sequence[BasicOperation]) -> Together | None:
        """Return the function that adds both gradients of an RMSNorm's or product's input. Rules: TEM-35, TEM-46."""
        after: Any = following[0] if following else None
        if self._in_place and hasattr(after, "behind_fork"):
            return after.behind_fork(following[1:])  # type: ignore[no-any-return]
        if self._in_place or not isinstance(after, RMSNormOperation):
            return None

        def forked(x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
            y, same = after.forked(x)
            return y, (same,)

        return Together(forked, backward=BackwardAddRMSNorm)
