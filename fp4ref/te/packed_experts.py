"""Experts whose weights are one parameter [experts, N, K], of which their module multiplies one slice after another."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fp4ref.te.errors import NotSupportedError

PRODUCTS = ("mm", "matmul", "einsum", "linear")  # in the names of functions that multiply


def packed_weights(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the weights [experts, N, K] of a module by name: those of a module whose class is named "...Experts"."""
    if not type(module).__name__.endswith("Experts"):
        return {}
    return {name: weight for name, weight in module.named_parameters(recurse=False) if weight.dim() == 3}


def convert_experts(module: torch.nn.Module, name: str, make: Any) -> None:
    """Let a module multiply slices of its packed weights by quantized layers; its parameters stay the same objects.

    make: (weight [N, K], name) -> a function of (x, weight, bias).

    Rules: TEM-37, TEM-48.
    """
    kind = type(module)
    layers = {part: make(weight[0], f"{name}.{part}") for part, weight in packed_weights(module).items()}
    module.__class__ = type(kind.__name__, (_ConvertedExperts, kind), {"__module__": kind.__module__})
    vars(module).update(_name=name, _layers=layers)


class _ConvertedExperts(torch.nn.Module):
    """Experts whose products of slices are quantized.

    Errors: at a call, NotSupportedError if they multiply otherwise than by `torch.nn.functional.linear`.
    """

    _name: str
    _layers: dict[str, Any]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute as the class that was converted."""
        with _Slices(self._name, {id(weight): self._layers[part] for part, weight in packed_weights(self).items()}):
            return super().forward(*args, **kwargs)


class _Slices(TorchFunctionMode):
    """Context in which `linear` with a slice of a packed weight is computed by a quantized layer."""

    def __init__(self, name: str, layers: dict[int, Any]) -> None:
        super().__init__()
        self.name, self.layers = name, layers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        function = getattr(func, "__name__", str(func))
        if not any(word in function for word in PRODUCTS):
            return func(*args, **kwargs)
        layer = next((found for arg in (*args, *kwargs.values()) if (found := self._layer(arg)) is not None), None)
        if layer is None:
            return func(*args, **kwargs)
        if func is not torch.nn.functional.linear:
            got = f"{self.name}, which multiplies its experts by {function}"
            needed = "torch.nn.functional.linear: model.set_experts_implementation('eager'), or select=... without it"
            raise NotSupportedError("convert", got, needed, "TEM-37")
        x, weight, *bias = args
        return layer(x, weight, kwargs.get("bias", bias[0] if bias else None))

    def _layer(self, x: Any) -> Any:
        """Return the layer of the packed weight that a tensor is or views."""
        if not isinstance(x, torch.Tensor):
            return None
        with torch._C.DisableTorchFunctionSubclass():
            base = x if x._base is None else x._base
        return self.layers.get(id(base))
