"""Products of groups of rows, each with a weight of its own, as an operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fp4ref.te.errors import TensorShapeError
from fp4ref.te.module.grouped_linear import GroupedLinear
from fp4ref.te.module.options import require_only_supported
from fp4ref.te.ops.linear import WeightedOperation, uniform

Tensor = torch.Tensor


class GroupedLinearOperation(WeightedOperation, GroupedLinear):  # type: ignore[misc]  # two kinds of forward
    """y_i = x_i W_i^T + b_i for the rows of each group; their counts are an extra input.

    Parameters are weight0, weight1 and so on, then bias0, bias1. scale_bias: a second extra input has one factor of the
    bias for each row.

    Errors: NotSupportedError, TensorShapeError.
    """

    num_extra_inputs = 1

    def __init__(
        self,
        num_groups: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        rng_state_tracker_function: Any = None,
        accumulate_into_main_grad: bool = False,
        single_grouped_weight: bool = False,
        single_grouped_bias: bool = False,
        delay_wgrad_compute: bool = False,
        scale_bias: bool = False,
    ) -> None:
        single = {"single_grouped_weight": single_grouped_weight, "single_grouped_bias": single_grouped_bias}
        require_only_supported("ops.GroupedLinear", **single)
        GroupedLinear.__init__(
            self,
            num_groups,
            in_features,
            out_features,
            fuse_wgrad_accumulation=accumulate_into_main_grad,
            get_rng_state_tracker=rng_state_tracker_function,
            init_method=uniform,
            bias=bias,
            params_dtype=dtype,
            device=device,
            delay_wgrad_compute=delay_wgrad_compute,
        )
        self.num_groups, self.scale_bias = num_groups, scale_bias and bias
        self.num_extra_inputs = 2 if self.scale_bias else 1
        self.apply_bias = bias and not self.scale_bias
        self.open_channels()
        self._parameters = {name: self._parameters[name] for name in sorted(self._parameters, key=_weights_first)}

    def run(
        self, x: Tensor, splits: Tensor | Sequence[int], scales: Tensor | None = None, **buffers: Any
    ) -> tuple[Tensor, tuple[()]]:
        """Return the products, with the biases."""
        require_only_supported("ops.GroupedLinear", **buffers)
        autocast = torch.is_autocast_enabled(x.device.type)
        x = x if autocast else x.to(self.get_parameter("weight0").dtype)
        y = GroupedLinear.forward(self, x, splits)
        if self.scale_bias:
            if scales is None:
                raise TensorShapeError("ops.GroupedLinear", "no factors of the bias", f"{x.shape[0]} of them")
            counts = torch.as_tensor(splits, device=y.device)
            biases = torch.stack([getattr(self, f"bias{group}") for group in range(self.num_groups)]).to(y.dtype)
            y = y + biases.repeat_interleave(counts, dim=0) * scales.to(y.dtype).unsqueeze(-1)
        return y, ()


def _weights_first(name: str) -> tuple[bool, int]:
    """Return the place of weight3 or bias3 among the parameters."""
    return name.startswith("bias"), int(name.lstrip("weightbas"))
