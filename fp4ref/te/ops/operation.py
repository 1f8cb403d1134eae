"""The base of operations, and how one that somebody else wrote runs: by the methods that it overrides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fp4ref.te.errors import SettingError
from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.ops.chain import Chain
from fp4ref.te.ops.fused import Together
from fp4ref.te.storage import prepare_for_saving, restore_from_saved

Tensor = torch.Tensor


@dataclass
class OperationContext:
    """The values that one call of a written operation hands from its forward to its backward pass."""

    saved_tensors: tuple[Tensor | None, ...] | None = None
    to_save: tuple[Tensor | None, ...] | None = None
    requires_grad: bool = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors, which are `saved_tensors` in the backward pass."""
        self.to_save = tensors


class FusibleOperation(torch.nn.Module):
    """A module that `Sequential` may chain with its neighbours."""

    is_fused_op = False

    def basic_operations(self) -> list[BasicOperation]:
        """Return the operations that this one consists of, in order."""
        raise NotImplementedError

    def pre_first_fuser_forward(self) -> None:
        """Do nothing before the first call."""

    def pre_fuser_forward(self, *, requires_grad: bool) -> None:
        """Do nothing before each call."""

    @not_compiled
    def forward(self, input: Tensor, *extra_inputs: Tensor, **kwargs: Any) -> Any:  # noqa: A002 - the original's name
        """Compute this operation alone: the result, then its extra outputs if it has some."""
        chain = Chain([self])
        return chain(input, *extra_inputs, arguments={id(chain.operations[0]): kwargs})


class BasicOperation(FusibleOperation):
    """Operation from x, and perhaps extra inputs, to y, and perhaps extra outputs.

    Ours override `run`, which autograd differentiates. Others override `op_forward` and `op_backward`, or with extra
    tensors `fuser_forward` and `fuser_backward`; neighbours quantize for themselves, so quantizers are not handed over.
    """

    num_extra_inputs = 0
    num_extra_outputs = 0
    joins_bias = takes_activation = False

    def __init__(self) -> None:
        super().__init__()
        self.open_channels()

    def open_channels(self) -> None:
        """Read every extra input from the caller, and return every extra output to it."""
        self._extra_input_channels: list[str | None] = [None] * self.num_extra_inputs
        self._extra_output_channels: list[tuple[str | None, bool]] = [(None, True)] * self.num_extra_outputs

    def basic_operations(self) -> list[BasicOperation]:
        """Return this operation."""
        return [self]

    def run(self, *tensors: Any, **kwargs: Any) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the result and the extra outputs, from the input and the extra inputs."""
        x, *extra_inputs = tensors
        parameters = list(self.parameters())
        others = (*extra_inputs, *parameters)
        wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *others))
        outputs = _Written.apply(x, self, kwargs, wanted, len(extra_inputs), *others)  # type: ignore[no-untyped-call]
        return outputs[0], outputs[1:]

    def with_next(self, following: Sequence[BasicOperation]) -> Together | None:
        """Return the function that computes this operation and some that follow it with one rounding, if one does."""
        return None

    def require_neighbour(self, before: Sequence[BasicOperation]) -> None:
        """Do nothing: any operations may come before this one."""

    def set_extra_input_channel(self, index: int, channel: str | None) -> BasicOperation:
        """Read an extra input from an earlier operation's extra output of this name, not from the caller."""
        self._require_channel("input", index, self.num_extra_inputs, channel)
        self._extra_input_channels[index] = channel
        return self

    def set_extra_output_channel(
        self, index: int, channel: str | None, *, output_to_caller: bool = True
    ) -> BasicOperation:
        """Name an extra output for later operations; the caller gets it as well unless output_to_caller is False."""
        self._require_channel("output", index, self.num_extra_outputs, channel)
        self._extra_output_channels[index] = channel, output_to_caller or channel is None
        return self

    def _require_channel(self, kind: str, index: int, count: int, channel: Any) -> None:
        kind = f"set_extra_{kind}_channel"
        if not 0 <= index < count:
            raise IndexError(f"{type(self).__name__}.{kind}: index {index}, need one below {count}")
        if channel is not None and not (isinstance(channel, str) and channel):
            raise SettingError(f"{type(self).__name__}.{kind}", f"{channel!r}", "a name, or None")

    def op_forward(self, ctx: OperationContext, input_: Tensor, **kwargs: Any) -> Tensor:
        """Return the result, keeping in ctx what `op_backward` needs."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither run nor op_forward")

    def op_backward(self, ctx: OperationContext, grad_output: Tensor) -> tuple[Tensor, Iterable[Tensor | None]]:
        """Return the gradients of the input and of the parameters."""
        raise NotImplementedError(f"{type(self).__name__} does not override op_backward")

    def fuser_forward(
        self, basic_op_ctxs: list[OperationContext], input_: Tensor, *, basic_op_kwargs: Any, **options: Any
    ) -> tuple[Tensor, Any]:
        """Call `op_forward`; an operation with extra tensors overrides this."""
        quantizers = {name: options[name] for name in ("prev_op_grad_output_quantizer", "next_op_input_quantizer")}
        return self.op_forward(basic_op_ctxs[0], input_, **quantizers, **basic_op_kwargs[0]), [()]

    def fuser_backward(
        self, basic_op_ctxs: list[OperationContext], grad_output: Tensor, **options: Any
    ) -> tuple[Tensor, Any, Any]:
        """Call `op_backward`; an operation with extra tensors overrides this."""
        grad_input, grad_parameters = self.op_backward(basic_op_ctxs[0], grad_output)
        return grad_input, [grad_parameters], [()]

    def get_extra_state(self) -> Tensor:
        """Return no bytes: nothing is kept but the parameters."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Ignore the record."""


class _Written(torch.autograd.Function):
    """Call of an operation that brings its own backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, op: BasicOperation, kwargs: dict[str, Any], wanted: bool, extras: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        context = OperationContext(requires_grad=wanted)
        y, outputs = op.fuser_forward(
            [context],
            x,
            basic_op_extra_inputs=[tensors[:extras]],
            prev_op_grad_output_quantizer=None,
            next_op_input_quantizer=None,
            basic_op_kwargs=[kwargs],
        )
        saved, ctx.objects = prepare_for_saving(*(context.to_save or ()))
        ctx.save_for_backward(*saved)
        context.to_save = None
        ctx.op, ctx.context, ctx.extras, ctx.parameters = op, context, extras, len(tensors) - extras
        return y, *outputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.context.saved_tensors = tuple(restore_from_saved(ctx.objects, ctx.saved_tensors))
        dx, of_parameters, of_extras = ctx.op.fuser_backward(
            [ctx.context], grads[0], basic_op_grad_extra_outputs=[grads[1:]]
        )
        extras = _filled(of_extras[0], ctx.extras)
        return dx, None, None, None, None, *extras, *_filled(of_parameters[0], ctx.parameters)


def _filled(grads: Iterable[Tensor | None] | None, count: int) -> list[Tensor | None]:
    """Return as many gradients as there are tensors; none at all stands for None each."""
    given = list(grads or ())
    return given or [None] * count
