"""y = x W^T + b and its two gradients, each a GEMM of operands that are quantized by role.

fprop: input rowwise x weight rowwise. dgrad: grad_output rowwise x weight columnwise. wgrad: grad_output columnwise x
input columnwise. Between the passes only packed bytes are kept, unless `backward_override` asks for more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from fp4ref.te.cast import quantize
from fp4ref.te.distributed import gather_along_first_dim
from fp4ref.te.gemm import general_gemm
from fp4ref.te.module.calls import LinearCall, ProductCall, directed
from fp4ref.te.module.saved_shards import gather_codes, scatter_codes
from fp4ref.te.module.weights import placeholder_for
from fp4ref.te.quantization import FP8GlobalStateManager
from fp4ref.te.storage import QuantizedTensorStorage, prepare_for_saving, restore_from_saved, sharing_buffers
from fp4ref.te.together import kept, together

BEHIND_NORM = 5  # where the input is among what is saved, if a norm made it: the order that scripts read


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, call: LinearCall) -> Any:
    """x [..., K], weight [N, K], bias [N] -> [..., N] in the call's type; sequence parallelism changes the first axis.

    Rules: TEM-1, TEM-56, TEM-2, TEM-13, TEM-15, TEM-16, TEM-40.
    """
    call.begin(x, weight, (bias,))
    return _Linear.apply(x, weight, bias, call)  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, call: LinearCall) -> Any:
        rows = as_rows(x.detach(), call.dtype)
        quantizer = call.of_input()
        operand = call.quantized_weight if call.quantizes else weight.to(call.dtype)
        source = weight if call.weight_quantizer else operand
        inputs: tuple[Any, ...] = rows, source, None if bias is None else as_added(bias, call)
        kind = call.forward_kind(quantizer)
        inputs += () if kind is None else tuple(kept((call.weight_quantizer, quantizer)))
        kept_input, kept_weight, y = together(kind, inputs, partial(_forward, call, quantizer))
        if call.wants_any:
            if call.wants_wgrad and call.keeps_original_input:
                kept_input = _of_backward(rows, call)
            _save(ctx, kept_input, _saved_weight(weight, operand, call) if kept_weight is None else kept_weight, call)
            ctx.shape, ctx.bias_dtype = x.shape, None if bias is None else bias.dtype
        result = y if x.dim() == 2 else y.reshape(-1, *x.shape[1:-1], y.shape[-1])
        return (result, x.view_as(x)) if call.forks else result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call: LinearCall = ctx.call
        rows = as_rows(grads[0], call.dtype)
        wants_bias = ctx.bias_dtype is not None and ctx.needs_input_grad[2]
        grad_bias = typed(rows.sum(0), ctx.bias_dtype) if wants_bias else None
        if not (call.wants_dgrad or call.wants_wgrad):
            finish_backward(ctx)
            return None, None, grad_bias, None
        saved = restore_from_saved(ctx.tensor_objects, ctx.saved_tensors)
        saved_input, saved_weight = saved[0 if call.norm is None else BEHIND_NORM], saved[1]
        if ctx.scattered is not None:
            gather_codes(saved_weight, ctx.scattered, call.fsdp_group)
        added = grads[1].reshape(-1, grads[1].shape[-1]).to(call.dtype, copy=True) if call.forks else None
        quantizer = call.of_gradient()
        kind = call.backward_kind(quantizer)
        draws = kind is not None and quantizer is not None and not isinstance(rows, QuantizedTensorStorage)
        held = [] if kind is None else kept(call.of_backward(quantizer))
        inputs = rows, saved_input, saved_weight, added, *held, *(quantizer.draw(rows) or () if draws else ())
        dx, dw = together(kind, inputs, partial(_backward, call, quantizer, len(held)))
        finish_backward(ctx)
        return dx if dx is None or len(ctx.shape) == 2 else dx.reshape(ctx.shape), dw, grad_bias, None


def as_rows(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor [..., K] as a matrix of a type; itself if it is one."""
    return typed(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]), dtype)


def typed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in a type; itself, without a call of torch, if it has the type."""
    return x if x.dtype is dtype else x.to(dtype)


def _forward(
    call: LinearCall, quantizer: Any, rows: torch.Tensor, weight: Any, bias: torch.Tensor | None, *held: torch.Tensor
) -> tuple[Any, Any, torch.Tensor]:
    """Return the quantized input and weight as the backward pass reads them, None for none, and the product.

    quantizer: of the input. held: what it and that of the weight keep.
    """
    made = call.weight_quantizer.quantize(weight) if call.weight_quantizer else None
    local = _quantized_input(rows, quantizer, call)
    total = local
    if call.parallel.gathers_input:
        total, _ = gather_along_first_dim(local, call.parallel.group, quantizer=quantizer)
    y, *_ = general_gemm(
        weight if made is None else made,
        total,
        out_dtype=call.dtype,
        alpha=call.result_factor,
        bias=bias,
        out=None if call.added is None else call.added.detach(),
        accumulate=call.added is not None,
    )
    kept_input = _of_backward(local, call) if call.wants_wgrad and not call.keeps_original_input else None
    kept_weight = None if made is None or not _saves_operand(call) else _of_backward(made, call)
    return kept_input, kept_weight, call.parallel.reduced(y) if call.parallel.mode == "row" else y


def _backward(
    call: LinearCall,
    quantizer: Any,
    held: int,
    rows: torch.Tensor,
    saved_input: Any,
    saved_weight: Any,
    added: torch.Tensor | None,
    *rest: Any,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return both gradients, None for one that is not wanted, or that is computed later or added elsewhere.

    quantizer: of the output's gradient. rest: what quantizers keep, `held` tensors, then random bytes that were drawn.
    """
    operand = _quantized_grad(rows, quantizer, call, rest[held:] or None)
    dx = dw = None
    if call.wants_dgrad:
        dx, *_ = general_gemm(
            _backward_operand(saved_weight, call),
            operand,
            out_dtype=call.dtype,
            alpha=call.gradient_factor,
            layout="NN",
            grad=True,
            out=added,
            accumulate=call.forks,
        )
        if call.parallel.mode == "column":
            dx = call.parallel.reduced(dx)
    if call.wants_wgrad:
        gathered = _backward_operand(saved_input, call, gather=True)
        if call.defer is not None:
            call.defer(lambda: _weight_gradient(gathered, operand, call))
        else:
            dw = _weight_gradient(gathered, operand, call)
    return dx, dw


def _quantized_input(rows: torch.Tensor, quantizer: Any, call: LinearCall) -> Any:
    if quantizer is None:
        return rows
    if isinstance(rows, QuantizedTensorStorage):  # by an operation before this one
        return sharing_buffers(rows)
    if call.parallel.gathers_input and not quantizer.is_quantizable(rows):
        return rows  # gathered in high precision, then quantized
    return quantizer(rows)


def _quantized_grad(rows: torch.Tensor, quantizer: Any, call: LinearCall, drawn: Any = None) -> Any:
    """Return the gradient of the output, whole, quantized for what is computed from it."""
    operand: Any = rows
    if quantizer is not None and isinstance(rows, QuantizedTensorStorage):
        return sharing_buffers(rows)
    if quantizer is not None and (not call.parallel.gathers_grad_output or quantizer.is_quantizable(rows)):
        operand = quantizer(rows) if drawn is None else quantize(rows, quantizer, drawn=drawn)
    if call.parallel.gathers_grad_output:
        operand, _ = gather_along_first_dim(operand, call.parallel.group, quantizer=quantizer)
    return operand


def _saves_operand(call: LinearCall) -> bool:
    """Return True if dgrad reads the weight as the forward pass multiplied by it."""
    return call.wants_dgrad and call.backward_override != "high_precision"


def _of_backward(operand: Any, call: LinearCall) -> Any:
    """Return an operand of the forward pass in as few bytes as the backward pass allows."""
    if call.quantizes_backward and isinstance(operand, QuantizedTensorStorage):
        operand.update_usage(rowwise_usage=False, columnwise_usage=True)
    return operand


def _saved_weight(weight: torch.Tensor, operand: Any, call: LinearCall) -> Any:
    if not _saves_operand(call):
        return weight if call.wants_dgrad else None
    return _of_backward(sharing_buffers(operand), call)


def _save(ctx: Any, saved_input: Any, saved_weight: Any, call: LinearCall) -> None:
    """Keep what the backward pass reads."""
    ctx.scattered = None
    if call.fsdp_group is not None and isinstance(saved_weight, QuantizedTensorStorage) and _saves_operand(call):
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
    """Compute the scales of delayed scaling anew, if the backward pass ends with this product. Rules: TEL-90."""
    if ctx.reduce_and_update_bwd_fp8_tensors:
        FP8GlobalStateManager.reduce_and_update_fp8_tensors(forward=False)


def _backward_operand(saved: Any, call: LinearCall, *, gather: bool = False) -> Any:
    """Return a saved operand as the backward GEMM takes it: gathered, quantized or not."""
    if call.quantizes and not call.quantizes_backward and isinstance(saved, QuantizedTensorStorage):
        saved = saved.dequantize(dtype=call.dtype)
    quantizer = None
    if gather and call.quantizes_backward and (call.keeps_original_input or call.parallel.gathers_input):
        quantizer = directed(call.input_quantizer, rowwise=False, columnwise=True)
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


def as_added(bias: torch.Tensor, call: ProductCall) -> torch.Tensor:
    """Return the bias in the type that a quantized GEMM adds: bfloat16 for a float32 result. Rules: TEM-14."""
    dtype = torch.bfloat16 if call.dtype is torch.float32 and call.quantizes else call.dtype
    return typed(bias, dtype)
