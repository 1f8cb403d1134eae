"""Inference in high precision on quantized values: linear layers of torch that torch.compile keeps whole.

Needs torch: `pip install 'fp4ref[torch]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError("fp4ref.torch_modules needs torch: pip install 'fp4ref[torch]'") from error
from torch import Tensor, nn
from torch.nn.functional import linear

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.errors import DomainError
from fp4ref.spec import Granularity, Spec, from_json

Select = Callable[[str, nn.Module], bool] | str | Iterable[str] | None


@lru_cache
def _spec(text: str) -> Spec:
    return from_json(text)


@torch.library.custom_op("fp4ref::fake_quantize", mutates_args=())
def _fake_quantize(x: Tensor, spec: str, amax: Tensor | None) -> Tensor:
    if not x.numel():
        return x.clone()
    rows = x.detach().reshape(-1, x.shape[-1]).contiguous()
    quantized = api.quantize(rows, _spec(spec), "row", amax=amax)
    values: Tensor = api.dequantize(quantized, x.dtype)
    return values.reshape(x.shape).clone()


@_fake_quantize.register_fake
def _shape_of(x: Tensor, spec: str, amax: Tensor | None) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _pass_through(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return grad, None, None


torch.library.register_autograd("fp4ref::fake_quantize", _pass_through)


def fake_quantize(x: Tensor, spec: Spec | str, amax: Tensor | None = None) -> Tensor:
    """Quantize the rows of a tensor [..., K] and return their values in its own type; gradients pass unchanged.

    amax: float32 [1], the global maximum to use instead of the tensor's own, where the specification has one.

    Errors: DomainError for stochastic rounding, and for an amax that the specification does not use.

    Rules: DEQ-1, DEQ-2, DEQ-3.
    """
    resolved = resolve(spec)
    _require_deterministic("fake_quantize", resolved, amax is not None)
    values: Tensor = _fake_quantize(x, _named(resolved), amax)
    return values


@lru_cache
def _named(spec: Spec) -> str:
    return spec.to_json()


def _require_deterministic(operation: str, spec: Spec, given: bool) -> None:
    if spec.stochastic:
        raise DomainError(operation, f"{spec.name}, which rounds stochastically", "nearest rounding", "SR-1")
    if given and spec.global_scale is not Granularity.TENSOR:
        raise DomainError(operation, f"amax with {spec.name}", "a specification with one global scale", "GLB-6")


class QuantizedLinear(nn.Module):
    """y = x' W'^T + b, where W' are the weight's quantized values, and x' those of the input.

    layer: a torch.nn.Linear, whose weight is quantized once, with its own global maximum. spec: of the weight.
    activation_spec: of the input, quantized in each call; None leaves it as it is. activation_amax: the input's global
    maximum, as calibration found it; None takes that of each call. The product is torch's, in the type of the layer.

    Errors: DomainError for stochastic rounding, and for an amax that the specification does not use.

    Rules: DEQ-1, DEQ-2, DEQ-3.
    """

    activation_amax: Tensor | None

    def __init__(
        self,
        layer: nn.Linear,
        spec: Spec | str,
        activation_spec: Spec | str | None = None,
        activation_amax: float | None = None,
    ) -> None:
        super().__init__()
        self.spec = resolve(spec)
        self.activation_spec = None if activation_spec is None else resolve(activation_spec)
        if self.activation_spec is not None:
            _require_deterministic("QuantizedLinear", self.activation_spec, activation_amax is not None)
        elif activation_amax is not None:
            raise DomainError("QuantizedLinear", "activation_amax without activation_spec", "both", "GLB-6")
        self._activations = None if self.activation_spec is None else _named(self.activation_spec)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = fake_quantize(layer.weight.detach(), self.spec)
        self.weight = nn.Parameter(weight, requires_grad=layer.weight.requires_grad)
        self.bias = layer.bias
        amax = None if activation_amax is None else torch.tensor([activation_amax], device=layer.weight.device)
        self.register_buffer("activation_amax", amax)
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., out_features] of an input [..., in_features]."""
        if self._activations is not None:
            x = _fake_quantize(x, self._activations, self.activation_amax)
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return sizes and specifications."""
        activations = "" if self.activation_spec is None else f", activation_spec={self.activation_spec.name}"
        return f"in_features={self.in_features}, out_features={self.out_features}, spec={self.spec.name}{activations}"


def quantize_linears(
    model: nn.Module, spec: Spec | str, activation_spec: Spec | str | None = None, select: Select = None
) -> list[str]:
    """Replace the linear layers of a model, in place, by QuantizedLinear; return the names of those layers.

    They are torch.nn.Linear, and transformers' Conv1D, whose transposed weight is quantized and kept.

    select: the layers, by a pattern of names ("*.mlp.*"), several patterns, or a function of (name, layer); None for
    all.

    Errors: DomainError for a model without such a layer.
    """
    chosen = [
        (name, layer)
        for name, layer in model.named_modules(remove_duplicate=False)
        if name and is_linear(layer) and selected(select, name, layer)
    ]
    if not chosen:
        got = f"a {type(model).__name__} without a linear layer that `select` chooses"
        raise DomainError("quantize_linears", got, "one")
    made: dict[int, QuantizedLinear] = {}
    for name, layer in chosen:
        if id(layer) not in made:
            made[id(layer)] = QuantizedLinear(as_linear(layer), spec, activation_spec)
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, made[id(layer)])
    return [name for name, _ in chosen]


def is_transposed(layer: nn.Module) -> bool:
    """Return True for transformers' Conv1D: y = x W + b with a weight [in, out]."""
    return type(layer).__name__ == "Conv1D" and isinstance(getattr(layer, "nf", None), int)


def is_linear(layer: nn.Module) -> bool:
    """Return True for a torch.nn.Linear itself, and for transformers' Conv1D."""
    return type(layer) is nn.Linear or is_transposed(layer)


def as_linear(layer: Any) -> nn.Linear:
    """Return a torch.nn.Linear as it is, and a Conv1D as one with the transposed weight and the same bias."""
    if not is_transposed(layer):
        found: nn.Linear = layer
        return found
    inputs, outputs = layer.weight.shape
    made = nn.Linear(inputs, outputs, bias=layer.bias is not None, device="meta", dtype=layer.weight.dtype)
    made.weight = nn.Parameter(layer.weight.detach().t().contiguous(), requires_grad=layer.weight.requires_grad)
    made.bias = layer.bias
    return made.train(layer.training)


def selected(select: Select, name: str, layer: nn.Module) -> bool:
    """Return True if a layer is chosen by pattern, patterns or function."""
    if select is None:
        return True
    if isinstance(select, str):
        return fnmatchcase(name, select)
    if callable(select):
        return select(name, layer)
    return any(fnmatchcase(name, pattern) for pattern in select)
