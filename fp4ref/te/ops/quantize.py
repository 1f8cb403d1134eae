"""Quantize what goes through a chain, as an operation."""

from __future__ import annotations

from typing import Any

import torch

from fp4ref.te.module.base import TransformerEngineBaseModule
from fp4ref.te.ops.operation import BasicOperation
from fp4ref.te.quantization import QuantizerRole
from fp4ref.te.storage import QuantizedTensorStorage

Tensor = torch.Tensor


class QuantizingOperation(BasicOperation, TransformerEngineBaseModule):
    """An operation with quantizers: those of a recipe, with the checkpoints of a module."""

    get_extra_state = TransformerEngineBaseModule.get_extra_state
    set_extra_state = TransformerEngineBaseModule.set_extra_state

    def get_quantizer(self, mode: str, index: int) -> Any:
        """Return one of the quantizers of mode "forward" or "backward", in the order of the operands."""
        return self._operands.get([*self.operand_roles(mode == "forward")][index])

    @property
    def _fp8_metas(self) -> dict[str, dict[str, Any]]:
        """The states of both directions, by the library's name."""
        return {"forward": self.fp8_meta, "backward": self.fp8_meta}

    def enter(self, x: Tensor, dtype: torch.dtype) -> None:
        """Read the context; the computation has this type, or that of torch.autocast."""
        self.prepare_forward(x, allow_non_contiguous=True, allow_different_data_and_param_types=True)
        if not torch.is_autocast_enabled(x.device.type):
            self.activation_dtype = dtype


class Quantize(QuantizingOperation):
    """y = x, with x quantized inside `autocast` if `forward`, and the gradient if `backward`; outside of it x."""

    def __init__(self, forward: bool = True, backward: bool = False) -> None:
        super().__init__()
        self._directions = {True: forward, False: backward}

    def operand_roles(self, forward: bool) -> dict[str, QuantizerRole]:
        """Return the role of the input, or backward of the gradient; empty where that direction stays as it is."""
        name = "input" if forward else "grad_output"
        return {name: QuantizerRole("", name, self.name or "")} if self._directions[forward] else {}

    def _get_weight_quantizers(self) -> list[Any]:
        return []

    def run(self, x: Tensor) -> tuple[Tensor, tuple[()]]:
        """Return x, quantized in both directions."""
        self.enter(x, x.dtype)
        if not self.fp8:
            return x, ()
        if self._directions[False] and self.backward_override is None:
            x = _QuantizedGradient.apply(x, self.quantizer("grad_output"))  # type: ignore[no-untyped-call]
        if self._directions[True] and not isinstance(x, QuantizedTensorStorage):
            x = self.quantizer("input")(x)
        return x, ()


class _QuantizedGradient(torch.autograd.Function):
    """y = x, whose gradient is quantized."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, quantizer: Any) -> Tensor:
        ctx.quantizer = quantizer
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0]
        return (grad if isinstance(grad, QuantizedTensorStorage) else ctx.quantizer(grad)), None
