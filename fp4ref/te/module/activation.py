"""Activations between the two GEMMs of an MLP: computed in float32, rounded once, differentiated from their input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from fp4ref.te.errors import NotSupportedError, SettingError
from fp4ref.te.storage import QuantizedTensorStorage, prepare_for_saving, restore_from_saved, sharing_buffers

Plain = Callable[[torch.Tensor], torch.Tensor]

_gelu = partial(functional.gelu, approximate="tanh")


def _qgelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def _srelu(x: torch.Tensor) -> torch.Tensor:
    return functional.relu(x).square()


PLAIN: dict[str, Plain] = {
    "gelu": _gelu,
    "qgelu": _qgelu,
    "relu": functional.relu,
    "srelu": _srelu,
    "silu": functional.silu,
}
GATED: dict[str, Plain] = {
    "geglu": _gelu,
    "qgeglu": _qgelu,
    "reglu": functional.relu,
    "sreglu": _srelu,
    "swiglu": functional.silu,
    "glu": torch.sigmoid,
}
CLAMPED = "clamped_swiglu"


def is_gated(name: str) -> bool:
    """Return True if the activation takes twice as many features as it returns: f(first half) * second half.

    Errors: NotSupportedError for a name that is no activation.
    """
    if name not in {*PLAIN, *GATED, CLAMPED}:
        known = ", ".join([*PLAIN, *GATED, CLAMPED])
        raise NotSupportedError("LayerNormMLP", f"activation {name!r}", f"one of {known}")
    return name not in PLAIN


def activate(name: str, x: torch.Tensor, parameters: dict[str, Any] | None = None) -> torch.Tensor:
    """Apply an activation to the last axis of x [..., F]; its result has x's type.

    parameters: of "clamped_swiglu" only: limit (7), alpha (1.702), glu_linear_offset (1).

    Errors: NotSupportedError for an unknown name, SettingError for parameters that it does not take.
    """
    return computed(function_of(name, parameters or {}), x)


def computed(function: Callable[..., torch.Tensor], *tensors: torch.Tensor, kept_as: Any = None) -> torch.Tensor:
    """Apply a differentiable function in float32; its result has the first tensor's type.

    kept_as: a quantizer of the tensors that are kept for the backward pass, or None to keep them as they are.
    """
    return _InFloat32.apply(function, kept_as, *tensors)  # type: ignore[no-any-return, no-untyped-call]


def function_of(name: str, parameters: dict[str, Any]) -> Plain:
    """Return the function of an activation's name.

    Errors: NotSupportedError for an unknown name, SettingError for parameters that it does not take.
    """
    is_gated(name)
    allowed = {"limit", "alpha", "glu_linear_offset"} if name == CLAMPED else set()
    if set(parameters) - allowed:
        got = f"activation_params {', '.join(sorted(set(parameters) - allowed))} of {name}"
        raise SettingError("LayerNormMLP", got, ", ".join(sorted(allowed)) or "none")
    if name in PLAIN:
        return PLAIN[name]
    if name == CLAMPED:
        return partial(_clamped_swiglu, **parameters)
    return partial(_gated, GATED[name])


def _gated(function: Plain, x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return function(first) * second


def _clamped_swiglu(
    x: torch.Tensor, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0
) -> torch.Tensor:
    gate, linear = x.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(alpha * gate) * (linear.clamp(-limit, limit) + glu_linear_offset)


class _InFloat32(torch.autograd.Function):
    """Keeps the inputs alone for the backward pass, whatever the formula."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., torch.Tensor], kept_as: Any, *tensors: torch.Tensor) -> torch.Tensor:
        kept = [_shared(tensor) if kept_as is None else kept_as(tensor) for tensor in tensors]
        saved, ctx.objects = prepare_for_saving(*kept)
        ctx.save_for_backward(*saved)
        ctx.function, ctx.dtypes = function, [tensor.dtype for tensor in tensors]
        return function(*(tensor.float() for tensor in tensors)).to(tensors[0].dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        kept = restore_from_saved(ctx.objects, ctx.saved_tensors)
        tensors = [
            tensor if isinstance(tensor, torch.Tensor) else tensor.dequantize(dtype=dtype)
            for tensor, dtype in zip(kept, ctx.dtypes, strict=True)
        ]
        with torch.enable_grad():
            wide = [tensor.detach().float().requires_grad_() for tensor in tensors]
            result = ctx.function(*wide)
        found = torch.autograd.grad(result, wide, grads[0].float())
        return None, None, *(grad.to(dtype) for grad, dtype in zip(found, ctx.dtypes, strict=True))


def _shared(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a quantized one's bytes in an object that may let go of them."""
    return sharing_buffers(tensor) if isinstance(tensor, QuantizedTensorStorage) else tensor
