"""Adam in float32, whose states may be kept in fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fp4ref.spec import Spec
from fp4ref.te.adam_states import WIDE, state_type
from fp4ref.te.errors import SettingError
from fp4ref.te.float8_quantizer import Float8Quantizer
from fp4ref.te.float8_tensor import Float8Tensor
from fp4ref.te.module.options import require_only_supported
from fp4ref.te.tensor import QuantizedTensor

STATES = ("exp_avg", "exp_avg_sq", "master_param")


class FusedAdam(torch.optim.Optimizer):
    """Adam or AdamW, computed in float32 and rounded once to the parameter's type.

    adam_w_mode: decay the weight itself instead of adding the decay to the gradient. master_weights: keep values that
    a narrower parameter is rounded from. A parameter's state has exp_avg, exp_avg_sq and, with master weights,
    master_param; a group has "step". Each state has a type of its own: a type that reaches less far than float32, such
    as float16, is scaled so that the largest value of the tensor is half the largest finite number, and uint8, which is
    FP8, so that it is 448. A moment can have a specification, or its name, instead. use_decoupled_grad: read
    `decoupled_grad`, which may have another type than the parameter, instead of `grad`. store_param_remainders: keep
    of a bfloat16 parameter's master values the lower 16 bits only, int16; the parameter is their upper 16 bits, rounded
    up at half. capturable: a step may get a gradient scaler.

    Errors: SettingError for amsgrad and for types that cannot hold a state.
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
        master_weight_dtype: torch.dtype = WIDE,
        exp_avg_dtype: torch.dtype | Spec | str = WIDE,
        exp_avg_sq_dtype: torch.dtype | Spec | str = WIDE,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        set_grad_none: bool | None = None,
    ) -> None:
        if amsgrad:
            raise SettingError("FusedAdam", "amsgrad=True", "False")
        given = dict(zip(STATES, (exp_avg_dtype, exp_avg_sq_dtype, master_weight_dtype), strict=True))
        moments = {name: state_type(f"{name}_dtype", given[name], False) for name in STATES[:2]}
        masters = {STATES[2]: state_type("master_weight_dtype", master_weight_dtype, True)} if master_weights else {}
        self.kinds, self._types = given, moments | masters
        if capturable and (exp_avg_dtype is not exp_avg_sq_dtype or exp_avg_dtype not in {WIDE, torch.bfloat16}):
            raise SettingError(
                "FusedAdam", f"capturable with {exp_avg_dtype}, {exp_avg_sq_dtype}", "both float32 or bfloat16"
            )
        self._gradient = "decoupled_grad" if use_decoupled_grad else "grad"
        self.adam_w_mode, self.master_weights, self.capturable = adam_w_mode, master_weights, capturable
        self.store_param_remainders = store_param_remainders and master_weights and master_weight_dtype is WIDE
        self._step_supports_amp_scaling = capturable  # torch's gradient scaler then hands itself to `step`
        self._scales: dict[Any, dict[str, Tensor]] = {}
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"bias_correction": bias_correction})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
        """Update every parameter that has a gradient; return the closure's loss.

        grad_scaler: gradients are divided by its scale, in place; if one of them is not finite, nothing is updated.

        Errors: NotSupportedError for a gradient scaler without capturable, SettingError for a quantized parameter
        without master weights, unless it has one scale that its quantizer keeps.
        """
        loss, factor = None, None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.capturable:
            require_only_supported("FusedAdam.step without capturable", grad_scaler=grad_scaler)
        elif grad_scaler is not None:
            if any(found.item() for found in grad_scaler._check_inf_per_device(self).values()):
                return loss
            factor = grad_scaler._get_scale_async().double().reciprocal().float()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if getattr(parameter, self._gradient, None) is not None:
                    self._update(parameter, group, factor)
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

    def get_unscaled_state(self, param: Any, state_name: str, skip_unscale: bool = False) -> Tensor:
        """Return a state of a parameter in float32; the lower bits of master values as they are.

        skip_unscale: return bfloat16 as it is.
        """
        state: Any = self.state[param][state_name]
        kind, kept = self.kinds[state_name], self._types[state_name]
        if kind is WIDE or (skip_unscale and kind is torch.bfloat16):
            return state  # type: ignore[no-any-return]
        values = kept.read(state).reshape(param.shape)
        return values * self._scales[param][state_name] if kept.kept_beside else values

    def set_scaled_state(self, param: Any, state_name: str, unscaled_state: Tensor) -> None:
        """Replace a state of a parameter by float32 values, which are scaled and rounded to its type."""
        kept = self._types[state_name]
        if unscaled_state.dtype is not torch.int16:
            unscaled_state = unscaled_state.to(WIDE)
        scale = kept.scale_of(unscaled_state)
        self.state[param][state_name] = kept.keep(unscaled_state, scale)
        if kept.kept_beside and scale is not None:
            self._scales.setdefault(param, {})[state_name] = scale

    def initialize_state(self, param: Any, store_param_remainders: bool = False) -> None:
        """Give a parameter its states: zeros, and its own values as master values."""
        for name in STATES[:2]:
            self.set_scaled_state(param, name, torch.zeros(param.shape, dtype=WIDE, device=param.device))
        if self.master_weights:
            remainders = torch.zeros(param.shape, dtype=torch.int16, device=param.device)
            values = remainders if store_param_remainders else _float32(param).clone()
            self.set_scaled_state(param, STATES[2], values)

    def state_dict(self) -> dict[str, Any]:
        """Return the state with float32 values, whatever type they are kept in."""
        found = super().state_dict()
        for index, param in enumerate(self._all()):
            if index in found["state"]:
                kept = found["state"][index]
                found["state"][index] = {name: self.get_unscaled_state(param, name) for name in kept}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over states of float32 values, and keep them in their types; a parameter without any gets none."""
        super().load_state_dict(state_dict)
        saved = [key for group in state_dict["param_groups"] for key in group["params"]]
        for key, param in zip(saved, self._all(), strict=True):
            values = state_dict["state"].get(key)
            if values is not None:
                self.state[param] = {}
                for name, value in values.items():
                    if value is not None:
                        self.set_scaled_state(param, name, value.clone())

    def _all(self) -> list[Any]:
        return [param for group in self.param_groups for param in group["params"]]

    def _update(self, parameter: Any, group: dict[str, Any], factor: Tensor | None) -> None:
        _require_master(parameter, self.master_weights)
        remainders = self.store_param_remainders and parameter.dtype is torch.bfloat16
        if not self.state[parameter]:
            self.initialize_state(parameter, remainders)
        first, second = (self.get_unscaled_state(parameter, name) for name in STATES[:2])
        values = self.get_unscaled_state(parameter, STATES[2]) if self.master_weights else _float32(parameter)
        if remainders:
            values = _joined(parameter, values)
        given = getattr(parameter, self._gradient)
        grad = _float32(given)
        if factor is not None:
            grad = grad * factor
            given.copy_(grad)
        _adam(values, grad, first, second, group, self.adam_w_mode)
        for name, state in zip(STATES, (first, second), strict=False):
            if self.kinds[name] is not WIDE:
                self.set_scaled_state(parameter, name, state)
        if remainders:
            upper, self.state[parameter][STATES[2]] = _divided(values)
            parameter.copy_(upper)
            return
        if self.master_weights and self.kinds[STATES[2]] is not WIDE:
            self.set_scaled_state(parameter, STATES[2], values)
        if values is not parameter:
            parameter.copy_(values)


def _adam(
    values: Tensor, grad: Tensor, first: Tensor, second: Tensor, group: dict[str, Any], decoupled_decay: bool
) -> None:
    """Update values and both moments, float32, in place."""
    (beta1, beta2), step = group["betas"], int(group["step"])
    if not decoupled_decay:
        grad = grad + group["weight_decay"] * values
    first.mul_(beta1).add_(grad, alpha=1 - beta1)
    second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    corrections = (1 - beta1**step, 1 - beta2**step) if group["bias_correction"] else (1.0, 1.0)
    update = first / corrections[0] / ((second / corrections[1]).sqrt() + group["eps"])
    if decoupled_decay:
        update = update + group["weight_decay"] * values
    values.sub_(update, alpha=float(group["lr"]))


def _require_master(parameter: Any, master_weights: bool) -> None:
    if isinstance(parameter, QuantizedTensor) and not master_weights:
        kept = isinstance(parameter, Float8Tensor) and isinstance(parameter._quantizer, Float8Quantizer)
        if not kept:
            got = f"FusedAdam without master_weights does not support {type(parameter).__name__} parameters"
            raise SettingError("FusedAdam", got, "master_weights=True")


def _joined(parameter: Tensor, remainders: Tensor) -> Tensor:
    """Return float32 values from their upper bits, rounded up at half, and their lower ones."""
    upper = parameter.detach().view(torch.int16).to(torch.int32) - (remainders < 0).to(torch.int32)
    return ((upper << 16) | (remainders.to(torch.int32) & 0xFFFF)).view(WIDE)


def _divided(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper bits of float32 values, rounded up at half, as bfloat16, and the lower ones as int16."""
    bits = values.view(torch.int32)
    lower = (bits & 0xFFFF).to(torch.int16)
    upper = ((bits >> 16) + (lower < 0).to(torch.int32)).to(torch.int16)
    return upper.view(torch.bfloat16), lower


def _float32(x: Any) -> Tensor:
    """Return the values in float32: the tensor itself, if they are stored so."""
    values: Tensor = x.decode(WIDE) if isinstance(x, QuantizedTensor) else x.detach().float()
    return values
