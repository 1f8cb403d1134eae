"""Optimizers and operations on lists of tensors by the emulated library's names, in float32 on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.errors import SettingError
from fp4ref.te.module.options import require_only_supported
from fp4ref.te.tensor import QuantizedTensor

__all__ = [
    "FusedAdam",
    "FusedSGD",
    "MultiTensorApply",
    "multi_tensor_applier",
    "multi_tensor_l2norm",
    "multi_tensor_scale",
]


class FusedAdam(torch.optim.Optimizer):
    """Adam or AdamW, computed in float32 and rounded once to the parameter's type.

    adam_w_mode: decay the weight itself instead of adding the decay to the gradient. master_weights: keep float32
    values of narrower parameters. A parameter's state has exp_avg, exp_avg_sq and, with master weights, master_param,
    float32 each; a group has "step". use_decoupled_grad: read `decoupled_grad`, which may have another type than the
    parameter, instead of `grad`. capturable and store_param_remainders only advise kernels.

    Errors: SettingError for amsgrad, NotSupportedError for states in other types.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        set_grad_none: bool | None = None,
    ) -> None:
        if amsgrad:
            raise SettingError("FusedAdam", "amsgrad=True", "False")
        types = {"master_weight": master_weight_dtype, "exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype}
        narrow = {f"{name}_dtype": kind for name, kind in types.items() if kind is not torch.float32}
        require_only_supported("FusedAdam", **narrow)
        self._gradient = "decoupled_grad" if use_decoupled_grad else "grad"
        self.adam_w_mode, self.master_weights = adam_w_mode, master_weights
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"bias_correction": bias_correction})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
        """Update every parameter that has a gradient; return the closure's loss.

        Errors: NotSupportedError for a gradient scaler.
        """
        require_only_supported("FusedAdam.step", grad_scaler=grad_scaler)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if getattr(parameter, self._gradient, None) is not None:
                    self._update(parameter, group)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients that are read: take them away, or fill them with zeros."""
        if self._gradient == "grad":
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.decoupled_grad = None
                elif getattr(parameter, "decoupled_grad", None) is not None:
                    parameter.decoupled_grad.zero_()

    def get_unscaled_state(self, param: Any, state_name: str) -> Tensor:
        """Return a state of a parameter in float32, as which it is kept."""
        state: Tensor = self.state[param][state_name]
        return state

    def set_scaled_state(self, param: Any, state_name: str, unscaled_state: Tensor) -> None:
        """Replace a state of a parameter."""
        self.state[param][state_name] = unscaled_state.to(torch.float32)

    def _update(self, parameter: Any, group: dict[str, Any]) -> None:
        state, (beta1, beta2), step = self.state[parameter], group["betas"], group["step"]
        if "exp_avg" not in state:
            state["exp_avg"], state["exp_avg_sq"] = (_zeros(parameter) for _ in range(2))
            if self.master_weights and parameter.dtype is not torch.float32:
                state["master_param"] = _float32(parameter).clone()
        values, grad = state.get("master_param", _float32(parameter)), _float32(getattr(parameter, self._gradient))
        if not self.adam_w_mode:
            grad = grad + group["weight_decay"] * values
        state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        corrections = (1 - beta1**step, 1 - beta2**step) if group["bias_correction"] else (1.0, 1.0)
        deviation = (state["exp_avg_sq"] / corrections[1]).sqrt() + group["eps"]
        update = state["exp_avg"] / corrections[0] / deviation
        if self.adam_w_mode:
            update = update + group["weight_decay"] * values
        values.sub_(update, alpha=float(group["lr"]))
        if values is not parameter:
            parameter.copy_(values)


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


def _float32(x: Any) -> Tensor:
    """Return the values in float32: the tensor itself, if they are stored so."""
    values: Tensor = x.decode(torch.float32) if isinstance(x, QuantizedTensor) else x.detach().float()
    return values


def _zeros(parameter: Any) -> Tensor:
    return torch.zeros(parameter.shape, dtype=torch.float32, device=parameter.device)
