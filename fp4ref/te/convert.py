"""Swap the linear layers of an existing model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch

from fp4ref.te.availability import check_recipe_support
from fp4ref.te.errors import SettingError
from fp4ref.te.module.linear import Linear
from fp4ref.te.packed_experts import convert_experts, packed_weights
from fp4ref.te.quantization import autocast
from fp4ref.torch_modules import Select, is_linear, is_transposed, selected


def convert(
    model: torch.nn.Module,
    recipe: Any,
    *,
    select: Select = None,
) -> torch.nn.Module:
    """Replace every `torch.nn.Linear` in a model, in place, by one that quantizes by the recipe; returns the model.

    transformers' Conv1D, whose weight is [in, out], is replaced, too. Experts that transformers packs into one
    parameter [experts, N, K] keep their module, whose products of slices are quantized; it has to compute them by
    `torch.nn.functional.linear` (`set_experts_implementation("eager")`).

    Parameters are the same objects, so that an optimizer and tied weights stay valid. Each new layer uses the recipe in
    every call, inside or outside of `autocast`, and fills its input up to whole blocks with rows of zeros, which change
    no scale. select: the layers, by a pattern of dotted names ("*.experts.*"), several patterns, or a function of
    (name, layer); layers whose sizes the recipe's blocks do not divide have to be left out.

    Errors: SettingError for a recipe that is not emulated, a model without a layer to replace, and sizes that the
    recipe's blocks do not divide; the message names the layer.

    Rules: TEM-6, TEM-22, TEM-41.
    """
    check_recipe_support(recipe)
    chosen = [
        (name, layer)
        for name, layer in model.named_modules(remove_duplicate=False)
        if is_linear(layer) and selected(select, name, layer)
    ]
    experts = [
        (name, module)
        for name, module in model.named_modules()
        if packed_weights(module) and selected(select, name, module)
    ]
    if not chosen and not experts:
        raise SettingError("convert", f"a {type(model).__name__} without a torch.nn.Linear to replace", "one")
    block = row_block(recipe)
    for name, layer in chosen:
        _require_blocks(name, layer.weight, block)
    for name, module in experts:
        for part, weight in packed_weights(module).items():
            _require_blocks(f"{name}.{part}", weight[0], block)
    made: dict[int, torch.nn.Module] = {}
    for name, layer in chosen:
        parent_name, _, attribute = name.rpartition(".")
        if id(layer) not in made:
            kind = ConvertedTransposed if is_transposed(layer) else ConvertedLinear
            made[id(layer)] = kind(layer, recipe, name)
        if not name:
            return made[id(layer)]
        setattr(model.get_submodule(parent_name), attribute, made[id(layer)])
    for name, module in experts:
        convert_experts(module, name, lambda weight, part: _of_slices(weight, recipe, part))
    return model


def _require_blocks(name: str, weight: torch.Tensor, block: int) -> None:
    if weight.shape[0] % block or weight.shape[1] % block:
        got = f"{name or 'the model'} of {list(weight.shape)}"
        raise SettingError("convert", got, f"multiples of {block}, or select=... without it", "TEM-22")


def _of_slices(weight: torch.Tensor, recipe: Any, name: str) -> Callable[..., torch.Tensor]:
    """Return a function of (x, weight, bias) that multiplies by the recipe, for weights of one shape."""
    outputs, inputs = weight.shape
    shape = torch.nn.Linear(inputs, outputs, bias=False, device="meta", dtype=weight.dtype)
    layer = ConvertedLinear(shape, recipe, name)

    def multiply(x: torch.Tensor, part: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        y: torch.Tensor = torch.func.functional_call(layer, {"weight": part}, (x,))
        return y if bias is None else y + bias

    return multiply


def row_block(recipe: Any) -> int:
    """Return the number of which both sizes of a quantized matrix are multiples."""
    return 32 if recipe.mxfp8() else 16 if recipe.nvfp4() else 1


class ConvertedLinear(Linear):
    """A Linear with the parameters of a torch layer and a recipe of its own. Rules: TEM-6, TEM-21."""

    def __init__(self, layer: torch.nn.Linear, recipe: Any, name: str) -> None:
        with_bias = layer.bias is not None
        super().__init__(
            layer.in_features,
            layer.out_features,
            bias=with_bias,
            params_dtype=layer.weight.dtype,
            device="meta",
            name=name or None,
        )
        self.recipe = recipe
        self.weight = layer.weight
        if with_bias:
            self.bias = layer.bias
        self.train(layer.training)

    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> torch.Tensor:
        """Compute as Linear, by this layer's recipe."""
        rows = inp.reshape(-1, inp.shape[-1])
        missing = -rows.shape[0] % row_block(self.recipe)
        with autocast(recipe=self.recipe):
            filled = torch.nn.functional.pad(rows, (0, 0, 0, missing))
            y = super().forward(filled, is_first_microbatch, fp8_output, fp8_grad)
        assert isinstance(y, torch.Tensor)
        return y[: rows.shape[0]].reshape(*inp.shape[:-1], y.shape[-1])

    def extra_repr(self) -> str:
        """Return sizes and recipe."""
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.recipe}"


class ConvertedTransposed(torch.nn.Module):
    """A layer y = x W + b with the parameters of transformers' Conv1D, computed as one with W^T. Rules: TEM-41."""

    def __init__(self, layer: Any, recipe: Any, name: str) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        inputs, outputs = self.weight.shape
        with_bias = self.bias is not None
        shape = torch.nn.Linear(inputs, outputs, bias=with_bias, device="meta", dtype=self.weight.dtype)
        self._linear = [ConvertedLinear(shape, recipe, name)]  # in a list, because its parameters are this layer's
        self.train(layer.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., outputs] of an input [..., inputs]."""
        given = {"weight": self.weight.t()} | ({} if self.bias is None else {"bias": self.bias})
        y: torch.Tensor = torch.func.functional_call(self._linear[0], given, (x,))
        return y

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the layer, which is that of its product."""
        for linear in self._linear:
            linear.train(mode)
        return super().train(mode)

    def extra_repr(self) -> str:
        """Return sizes and recipe."""
        return self._linear[0].extra_repr()
