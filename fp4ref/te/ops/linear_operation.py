"""A product with its bias and the sum over a group, as one operation that consists of several."""

from __future__ import annotations

from typing import Any

import torch

from fp4ref.te.errors import SettingError
from fp4ref.te.module.options import divide
from fp4ref.te.ops.collectives import AllReduce, ReduceScatter
from fp4ref.te.ops.elementwise import Bias
from fp4ref.te.ops.linear import BasicLinear
from fp4ref.te.ops.operation import BasicOperation, FusibleOperation


class LinearOperation(FusibleOperation):
    """y = x W^T + b: a BasicLinear, a Bias, and for tensor_parallel_mode "row" the sum over the group behind both.

    `weight` and `bias` are parameters of these, and have their names: basic_ops.0.weight and basic_ops.1.bias.
    """

    is_fused_op = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        tensor_parallel_mode: str | None = None,
        tensor_parallel_group: Any = None,
        sequence_parallel: bool = False,
        rng_state_tracker_function: Any = None,
        accumulate_into_main_grad: bool = False,
    ) -> None:
        super().__init__()
        mode, group = tensor_parallel_mode, tensor_parallel_group
        size = 1 if mode is None else torch.distributed.get_world_size(group)
        row, split = mode == "row" and size > 1, mode == "column" and size > 1
        linear = BasicLinear(
            divide("Linear", "in_features", in_features, size) if row else in_features,
            out_features,
            device=device,
            dtype=dtype,
            tensor_parallel_mode=None if row else mode,
            tensor_parallel_group=None if row else group,
            sequence_parallel=sequence_parallel and not row,
            rng_state_tracker_function=rng_state_tracker_function,
            accumulate_into_main_grad=accumulate_into_main_grad,
        )
        operations: list[BasicOperation] = [linear]
        if bias:
            memory: Any = {"device": device, "dtype": dtype}
            operations.append(Bias(out_features, **memory, tensor_parallel=split, tensor_parallel_group=group))
        if row:
            operations.append(ReduceScatter(group) if sequence_parallel else AllReduce(group))
        self.basic_ops = torch.nn.ModuleList(operations)

    def basic_operations(self) -> list[BasicOperation]:
        """Return the operations that this one consists of, in order."""
        return list(self.basic_ops)  # type: ignore[arg-type]

    @property
    def weight(self) -> torch.nn.Parameter:
        """The weight, which the product owns."""
        return self.basic_ops[0].weight  # type: ignore[return-value]

    @weight.setter
    def weight(self, parameter: torch.nn.Parameter) -> None:
        self.basic_ops[0].weight = parameter

    @property
    def bias(self) -> torch.nn.Parameter | None:
        """The bias, or None."""
        owner = next((op for op in self.basic_ops if isinstance(op, Bias)), None)
        return None if owner is None else owner.bias

    @bias.setter
    def bias(self, parameter: torch.nn.Parameter) -> None:
        owner = next((op for op in self.basic_ops if isinstance(op, Bias)), None)
        if owner is None:
            raise SettingError("ops.Linear", "a bias for bias=False", "bias=True")
        owner.bias = parameter

    def get_quantizer(self, mode: str, index: int) -> Any:
        """Return one of the quantizers of the product."""
        linear: Any = self.basic_ops[0]
        return linear.get_quantizer(mode, index)

    def __setattr__(self, name: str, value: Any) -> None:
        """Give a parameter to its owner; torch would register it here as well."""
        if name in {"weight", "bias"}:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)
