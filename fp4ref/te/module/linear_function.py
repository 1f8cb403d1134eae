"""y = x W^T + b and its two gradients, each a GEMM of operands that are quantized by role.

fprop: input rowwise x weight rowwise. dgrad: grad_output rowwise x weight columnwise. wgrad: grad_output columnwise x
input columnwise. Between the passes only packed bytes are kept, unless `backward_override` asks for more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fp4ref.te.distributed import (
    allreduce,
    gather_along_first_dim,
    reduce_scatter_along_first_dim,
)
from fp4ref.te.gemm import general_gemm
from fp4ref.te.module.saved_shards import gather_codes, scatter_codes
from fp4ref.te.module.weights import placeholder_for
from fp4ref.te.quantization import FP8GlobalStateManager
from fp4ref.te.storage import QuantizedTensorStorage, prepare_for_saving, restore_from_saved, sharing_buffers

BEHIND_NORM = 5  # where the input is among what is saved, if a norm made it: the order that scripts read


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """The split of a weight over a process group: mode "column", "row" or None."""

    mode: str | None = None
    group: Any = None
    size: int = 1
    sequence_parallel: bool = False

    @property
    def gathers_input(self) -> bool:
        """True if each process has some rows of the input only."""
        return self.mode == "column" and self.sequence_parallel

    @property
    def gathers_grad_output(self) -> bool:
        """True if each process has some rows of the output's gradient only."""
        return self.mode == "row" and self.sequence_parallel

    def reduced(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum over the processes: this process's rows of it with sequence parallelism, else all."""
        if self.size == 1:
            return partial
        if self.sequence_parallel:
            return reduce_scatter_along_first_dim(partial, self.group)[0]
        return allreduce(partial, self.group)[0]


@dataclass(kw_only=True)
class ProductCall:
    """The settings that calls with one weight share with calls with several.

    save_original_input: keep the input as it came, and quantize it again for wgrad. overwrite_main_grad: store the
    weight's gradient in its buffer instead of adding it.
    """

    dtype: torch.dtype
    backward_override: str | None = None
    save_original_input: bool = False
    overwrite_main_grad: bool = False
    wants_dgrad: bool = False
    wants_wgrad: bool = False

    @property
    def quantizes(self) -> bool:
        """True if fprop takes quantized operands."""
        raise NotImplementedError

    @property
    def quantizes_backward(self) -> bool:
        """True if dgrad and wgrad take quantized operands."""
        return self.quantizes and self.backward_override is None

    @property
    def keeps_original_input(self) -> bool:
        """True if wgrad starts from the input as it came: never with dequantized operands. Rules: TEM-15, TEM-16."""
        if not self.quantizes or self.backward_override == "high_precision":
            return True
        return self.save_original_input and self.backward_override is None


@dataclass(kw_only=True)
class LinearCall(ProductCall):
    """Everything of one call that autograd does not differentiate.

    quantized_weight: the weight operand of fprop and dgrad, None where nothing is quantized. main_grad_of: the
    parameter whose `main_grad` receives the weight's gradient. fsdp_group: between the passes, each of its processes
    keeps a part of the weight's codes. defer: takes the computation of wgrad, to be done later. norm: what made the
    input, to be shown on the node of the graph: its own input and weight, means, and 1 / deviations. gradient_factor:
    both gradients are multiplied by it before they are rounded. result_factor, added: the product is multiplied by the
    one and added to the other, in its place, before it is rounded. forks: x is returned as well, and its gradient is
    added to dgrad before that is rounded.
    """

    parallel: Parallel
    input_quantizer: Any = None
    grad_output_quantizer: Any = None
    quantized_weight: Any = None
    fsdp_group: Any = None
    main_grad_of: Any = None
    defer: Callable[[Callable[[], torch.Tensor | None]], None] | None = None
    norm: tuple[torch.Tensor | None, ...] | None = None
    gradient_factor: float = 1.0
    result_factor: float = 1.0
    added: torch.Tensor | None = None
    forks: bool = False

    @property
    def quantizes(self) -> bool:
        """True if fprop takes quantized operands."""
        return self.input_quantizer is not None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, call: LinearCall) -> Any:
    """x [..., K], weight [N, K], bias [N] -> [..., N] in the call's type; sequence parallelism changes the first axis.

    Rules: TEM-1, TEM-2, TEM-13, TEM-15, TEM-16, TEM-40.
    """
    grad = torch.is_grad_enabled()
    call.wants_dgrad = grad and x.requires_grad
    call.wants_wgrad = grad and weight.requires_grad
    return _Linear.apply(x, weight, bias, call)  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, call: LinearCall) -> Any:
        rows = x.reshape(-1, x.shape[-1]).to(call.dtype)
        local = _quantized_input(rows, call)
        total = local
        if call.parallel.gathers_input:
            total, _ = gather_along_first_dim(local, call.parallel.group, quantizer=call.input_quantizer)
        operand = call.quantized_weight if call.quantizes else weight.to(call.dtype)
        y, *_ = general_gemm(
            operand,
            total,
            out_dtype=call.dtype,
            alpha=call.result_factor,
            bias=_bias(bias, call),
            out=None if call.added is None else call.added.detach(),
            accumulate=call.added is not None,
        )
        if call.parallel.mode == "row":
            y = call.parallel.reduced(y)
        if call.wants_dgrad or call.wants_wgrad:
            _save(ctx, rows, local, weight, operand, call)
            ctx.shape, ctx.input_dtype, ctx.weight_dtype = x.shape, x.dtype, weight.dtype
            ctx.bias_dtype = None if bias is None else bias.dtype
        result: torch.Tensor = y.reshape(-1, *x.shape[1:-1], y.shape[-1])
        return (result, x.view_as(x)) if call.forks else result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call: LinearCall = ctx.call
        rows = grads[0].reshape(-1, grads[0].shape[-1]).to(call.dtype)
        grad_bias = rows.sum(0).to(ctx.bias_dtype) if ctx.bias_dtype is not None and ctx.needs_input_grad[2] else None
        operand = _quantized_grad(rows, call)
        saved = restore_from_saved(ctx.tensor_objects, ctx.saved_tensors)
        saved_input, saved_weight = saved[0 if call.norm is None else BEHIND_NORM], saved[1]
        if ctx.scattered is not None:
            gather_codes(saved_weight, ctx.scattered, call.fsdp_group)
        dx = dw = None
        if call.wants_dgrad:
            dx, *_ = general_gemm(
                _backward_operand(saved_weight, call),
                operand,
                out_dtype=call.dtype,
                alpha=call.gradient_factor,
                layout="NN",
                grad=True,
                out=grads[1].reshape(-1, grads[1].shape[-1]).to(call.dtype, copy=True) if call.forks else None,
                accumulate=call.forks,
            )
            if call.parallel.mode == "column":
                dx = call.parallel.reduced(dx)
            dx = dx.reshape(ctx.shape)
        if call.wants_wgrad:
            gathered = _backward_operand(saved_input, call, gather=True)
            if call.defer is not None:
                call.defer(lambda: _weight_gradient(gathered, operand, call))
            else:
                dw = _weight_gradient(gathered, operand, call)
        finish_backward(ctx)
        return dx, dw, grad_bias, None


def _quantized_input(rows: torch.Tensor, call: LinearCall) -> Any:
    if not call.quantizes:
        return rows
    for_wgrad = call.wants_wgrad and call.quantizes_backward and not call.keeps_original_input
    if isinstance(rows, QuantizedTensorStorage):  # by an operation before this one
        return sharing_buffers(rows)
    call.input_quantizer.set_usage(rowwise=True, columnwise=for_wgrad)
    if call.parallel.gathers_input and not call.input_quantizer.is_quantizable(rows):
        return rows  # gathered in high precision, then quantized
    return call.input_quantizer(rows)


def _quantized_grad(rows: torch.Tensor, call: LinearCall) -> Any:
    """Return the gradient of the output, whole, quantized for what is computed from it."""
    quantizer = call.grad_output_quantizer if call.quantizes_backward else None
    operand: Any = rows
    if quantizer is not None and isinstance(rows, QuantizedTensorStorage):
        return sharing_buffers(rows)
    if quantizer is not None:
        quantizer.set_usage(rowwise=call.wants_dgrad, columnwise=call.wants_wgrad)
        if not call.parallel.gathers_grad_output or quantizer.is_quantizable(rows):
            operand = quantizer(rows)
    if call.parallel.gathers_grad_output:
        operand, _ = gather_along_first_dim(operand, call.parallel.group, quantizer=quantizer)
    return operand


def _save(ctx: Any, rows: torch.Tensor, local: Any, weight: torch.Tensor, operand: Any, call: LinearCall) -> None:
    """Keep what the backward pass reads, in as few bytes as that allows."""
    saved_input: Any = None
    saved_weight: Any = None
    if call.wants_wgrad:
        saved_input = rows if call.keeps_original_input else local
        if call.quantizes_backward and isinstance(saved_input, QuantizedTensorStorage):
            saved_input.update_usage(rowwise_usage=False, columnwise_usage=True)
    if call.wants_dgrad:
        saved_weight = weight if call.backward_override == "high_precision" else sharing_buffers(operand)
        if call.quantizes_backward:
            saved_weight.update_usage(rowwise_usage=False, columnwise_usage=True)
    ctx.scattered = None
    if call.fsdp_group is not None and saved_weight is not weight and isinstance(saved_weight, QuantizedTensorStorage):
        ctx.scattered = scatter_codes(saved_weight, call.fsdp_group)
    saved: tuple[Any, ...] = (saved_input, saved_weight)
    if call.norm is not None:
        x, gamma, mean, rstd = call.norm
        saved = (x, saved_weight, None, None, gamma, saved_input, mean, rstd)
    tensors, ctx.tensor_objects = prepare_for_saving(*saved)
    ctx.save_for_backward(*tensors)
    ctx.call = call
    expose(ctx, call)
    ctx.grad_output_quantizer = call.grad_output_quantizer if call.quantizes_backward else None


def expose(ctx: Any, call: Any) -> None:
    """Say on the node of the graph how its backward pass computes, by the names that scripts look for."""
    ctx.backward_override = call.backward_override
    ctx.fp8 = call.quantizes_backward
    first = call.quantizes and FP8GlobalStateManager.is_first_fp8_module()
    ctx.reduce_and_update_bwd_fp8_tensors = first and call.quantizes_backward


def finish_backward(ctx: Any) -> None:
    """Compute the scales of delayed scaling anew, if the backward pass ends with this product. Rules: TEL-47."""
    if ctx.reduce_and_update_bwd_fp8_tensors:
        FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)


def _backward_operand(saved: Any, call: LinearCall, *, gather: bool = False) -> Any:
    """Return a saved operand as the backward GEMM takes it: gathered, quantized or not."""
    if call.quantizes and not call.quantizes_backward and isinstance(saved, QuantizedTensorStorage):
        saved = saved.dequantize(dtype=call.dtype)
    quantizer = call.input_quantizer if gather and call.quantizes_backward else None
    if quantizer is not None:
        quantizer.set_usage(rowwise=False, columnwise=True)
        if not isinstance(saved, QuantizedTensorStorage) and not call.parallel.gathers_input:
            saved = quantizer(saved)
    if gather and call.parallel.gathers_input:
        saved, _ = gather_along_first_dim(saved, call.parallel.group, quantizer=quantizer)
    return saved if isinstance(saved, QuantizedTensorStorage) else saved.to(call.dtype)


def _weight_gradient(operand: Any, grad_output: Any, call: LinearCall) -> torch.Tensor | None:
    """dW = grad_output^T x, new, or added to the parameter's `main_grad`."""
    parameter, alpha = call.main_grad_of, call.gradient_factor
    if parameter is None:
        dw, *_ = general_gemm(operand, grad_output, out_dtype=call.dtype, alpha=alpha, layout="NT", grad=True)
        return dw  # type: ignore[no-any-return]
    general_gemm(
        operand,
        grad_output,
        out_dtype=parameter.main_grad.dtype,
        alpha=alpha,
        layout="NT",
        grad=True,
        out=parameter.main_grad,
        accumulate=not call.overwrite_main_grad,
    )
    return placeholder_for(parameter)


def _bias(bias: torch.Tensor | None, call: LinearCall) -> torch.Tensor | None:
    """Return the bias in the type that a quantized GEMM adds: bfloat16 for a float32 result. Rules: TEM-14."""
    if bias is None:
        return None
    narrow = call.quantizes and call.dtype is torch.float32
    return bias.to(torch.bfloat16 if narrow else call.dtype)
