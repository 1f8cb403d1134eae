"""y_i = x_i W_i^T + b_i for groups of rows, each with a weight of its own, and the gradients of all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from fp4ref.te.grouped import split_quantize
from fp4ref.te.grouped_gemm import general_grouped_gemm
from fp4ref.te.module.calls import ProductCall, directed
from fp4ref.te.module.linear_function import as_added, as_rows, expose, finish_backward, typed
from fp4ref.te.module.weights import placeholder_for
from fp4ref.te.storage import QuantizedTensorStorage, prepare_for_saving, restore_from_saved, sharing_buffers
from fp4ref.te.together import kept, kinds, together


@dataclass(kw_only=True)
class GroupedCall(ProductCall):
    """Everything of one call that autograd does not differentiate; lists hold one entry per group.

    m_splits: rows of each group, zero allowed. quantized_weights: empty where nothing is quantized. defer: takes the
    computation of wgrad, to be done later. out, dgrad_out: buffers of the results, None for new ones.
    """

    m_splits: list[int]
    input_quantizers: list[Any] = field(default_factory=list)
    grad_output_quantizers: list[Any] = field(default_factory=list)
    quantized_weights: list[Any] = field(default_factory=list)
    main_grads_of: list[Any] = field(default_factory=list)
    defer: Callable[[Callable[[], list[torch.Tensor | None]]], None] | None = None
    out: torch.Tensor | None = None
    dgrad_out: torch.Tensor | None = None

    @property
    def quantizes(self) -> bool:
        """True if fprop takes quantized operands."""
        return bool(self.quantized_weights)

    def of_inputs(self) -> list[Any]:
        """Return the quantizers of the inputs for this call; none where nothing is quantized."""
        if not self.quantizes:
            return []
        for_wgrad = self.wants_wgrad and self.quantizes_backward and not self.keeps_original_input
        return [directed(each, rowwise=True, columnwise=for_wgrad) for each in self.input_quantizers]

    def of_gradients(self) -> list[Any]:
        """Return the quantizers of the output's gradients for this call; none where these are not quantized."""
        if not self.quantizes_backward:
            return []
        wanted = {"rowwise": self.wants_dgrad, "columnwise": self.wants_wgrad}
        return [directed(each, **wanted) for each in self.grad_output_quantizers]

    def forward_kind(self, of_inputs: list[Any]) -> Hashable | None:
        """Return the key of forward passes with the same kernels; None if the result's buffer is given."""
        found = None if self.out is not None else kinds(of_inputs)
        return None if found is None else ("grouped", self.dtype, *self.m_splits, *found)

    def of_backward(self, of_gradients: list[Any]) -> tuple[Any, ...]:
        """Return the quantizers of a backward pass, with those of the inputs if these are quantized again."""
        again = self.quantizes_backward and self.keeps_original_input
        return *of_gradients, *(self.input_quantizers if again else ())

    def backward_kind(self, of_gradients: list[Any]) -> Hashable | None:
        """Return the key of backward passes with the same kernels; None if a result's buffer is given."""
        if self.dgrad_out is not None or self.defer is not None or self.main_grads_of:
            return None
        found = kinds(self.of_backward(of_gradients))
        how = self.dtype, self.backward_override, self.wants_dgrad, self.wants_wgrad
        return None if found is None else ("grouped gradients", *how, *self.m_splits, *found)


def grouped_linear(
    x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor], call: GroupedCall
) -> torch.Tensor:
    """x [..., K] whose rows are those of the groups in order, weights [N, K], biases [N] or none -> [..., N].

    Rules: TEM-1, TEM-2, TEM-5, TEM-13, TEM-14, TEM-15, TEM-16, TEM-45, TEM-55. Certificates: group-weights.
    """
    call.begin(x, weights[0], biases)
    return _GroupedLinear.apply(x, call, *weights, *biases)  # type: ignore[no-any-return, no-untyped-call]


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: GroupedCall, *parameters: torch.Tensor) -> torch.Tensor:
        groups = len(call.m_splits)
        weights, biases = parameters[:groups], parameters[groups:]
        rows = as_rows(x.dequantize() if isinstance(x, QuantizedTensorStorage) else x, call.dtype)
        quantizers = call.of_inputs()
        operands = call.quantized_weights or [weight.to(call.dtype) for weight in weights]
        added = [as_added(bias, call) for bias in biases]
        kind = call.forward_kind(quantizers)
        held = [] if kind is None else kept(quantizers)
        y, *inputs = together(kind, (rows, *operands, *added, *held), partial(_forward, call, quantizers, len(added)))
        if call.wants_any:
            _save(ctx, rows, inputs, weights, operands, call)
            ctx.shape, ctx.biases = x.shape, [bias.dtype for bias in biases]
        result: torch.Tensor = y.reshape(*x.shape[:-1], y.shape[-1])
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call: GroupedCall = ctx.call
        rows = as_rows(grads[0], call.dtype)
        pieces = torch.split(rows, call.m_splits)
        bias_grads = [typed(piece.sum(0), dtype) for piece, dtype in zip(pieces, ctx.biases, strict=False)]
        if not (call.wants_dgrad or call.wants_wgrad):
            finish_backward(ctx)
            return None, None, *[None] * len(pieces), *bias_grads
        quantizers = call.of_gradients()
        saved = restore_from_saved(ctx.tensor_objects, ctx.saved_tensors)
        kind = call.backward_kind(quantizers)
        held = [] if kind is None else kept(call.of_backward(quantizers))
        drawn = [] if kind is None else _drawn(quantizers, pieces)
        act = partial(_backward, call, quantizers, (ctx.inputs, len(held)), ctx.weight_shape)
        dx, *weight_grads = together(kind, (rows, *saved, *held, *drawn), act)
        finish_backward(ctx)
        return None if dx is None else dx.reshape(ctx.shape), None, *weight_grads, *bias_grads


def _drawn(quantizers: list[Any], pieces: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the random bytes that the quantizers of the groups take, two for each; nothing for none."""
    if not quantizers:
        return []
    drawn = [quantizer.draw(piece) for quantizer, piece in zip(quantizers, pieces, strict=True)]
    return [part for pair in drawn for part in pair or (None, None)] if any(drawn) else []


def _forward(
    call: GroupedCall, quantizers: list[Any], added: int, rows: torch.Tensor, *parameters: Any
) -> tuple[Any, ...]:
    """Return the products in one matrix, and the inputs of the groups as they were multiplied.

    quantizers: of the inputs. parameters: weights, `added` biases, and what the quantizers keep.
    """
    groups = len(call.m_splits)
    operands, biases = list(parameters[:groups]), list(parameters[groups : groups + added])
    inputs: Any = torch.split(rows, call.m_splits)
    if quantizers:
        inputs = split_quantize(rows, call.m_splits, quantizers)
    y = rows.new_empty(rows.shape[0], operands[0].shape[0]) if call.out is None else call.out
    general_grouped_gemm(
        operands,
        list(inputs),
        [y],
        out_dtype=call.dtype,
        m_splits=call.m_splits,
        bias=biases,
        use_bias=bool(biases),
        single_output=True,
    )
    return y, *(inputs if quantizers else ())


def _backward(
    call: GroupedCall,
    quantizers: list[Any],
    counts: tuple[int, int],
    weight_shape: tuple[int, int],
    rows: torch.Tensor,
    *saved: Any,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradient of all inputs in one matrix, and those of the weights; None for what is not to be returned.

    quantizers: of the output's gradients. saved: inputs of the groups, or one for all; then weights, if the gradient of
    the inputs is wanted; then what quantizers keep; then random bytes of both directions for each group, if some were
    drawn. counts: of the inputs, and of what is kept.
    """
    inputs, held = counts
    pieces: Any = torch.split(rows, call.m_splits)
    weights = len(pieces) if call.wants_dgrad else 0
    if quantizers:
        bits = saved[inputs + weights + held :]
        drawn = list(zip(bits[::2], bits[1::2], strict=True))
        pieces = split_quantize(rows, call.m_splits, quantizers, drawn=drawn)
    dx = None
    if call.wants_dgrad:
        operands = [_operand(operand, call) for operand in saved[inputs : inputs + weights]]
        dx = rows.new_empty(rows.shape[0], operands[0].shape[1]) if call.dgrad_out is None else call.dgrad_out
        general_grouped_gemm(
            operands,
            list(pieces),
            [dx],
            out_dtype=call.dtype,
            layout="NN",
            m_splits=call.m_splits,
            grad=True,
            single_output=True,
        )
    if not call.wants_wgrad:
        return dx, *[None] * len(call.m_splits)
    read = _inputs(list(saved[:inputs]), call)
    if call.defer is None:
        return dx, *_weight_gradients(read, list(pieces), weight_shape, call)
    call.defer(lambda: _weight_gradients(read, list(pieces), weight_shape, call))
    return dx, *[None] * len(call.m_splits)


def _save(ctx: Any, rows: torch.Tensor, inputs: Any, weights: Any, operands: Any, call: GroupedCall) -> None:
    """Keep what the backward pass reads, in as few bytes as that allows."""
    saved_inputs: list[Any] = []
    saved_weights: list[Any] = []
    if call.wants_wgrad:
        saved_inputs = [rows.detach()] if call.keeps_original_input else list(inputs)
    if call.wants_dgrad:
        exact = call.backward_override == "high_precision"
        saved_weights = list(weights) if exact else [sharing_buffers(operand) for operand in operands]
    if call.quantizes_backward:
        for tensor in (*saved_inputs, *saved_weights):
            if isinstance(tensor, QuantizedTensorStorage):
                tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
    tensors, ctx.tensor_objects = prepare_for_saving(*saved_inputs, *saved_weights)
    ctx.save_for_backward(*tensors)
    expose(ctx, call)
    ctx.call, ctx.inputs, ctx.weight_shape = call, len(saved_inputs), tuple(weights[0].shape)


def _operand(saved: Any, call: GroupedCall) -> Any:
    """Return a saved operand as the backward GEMM takes it."""
    if isinstance(saved, QuantizedTensorStorage):
        return saved if call.quantizes_backward else saved.dequantize(dtype=call.dtype)
    return saved.to(call.dtype)


def _inputs(saved: list[Any], call: GroupedCall) -> list[Any]:
    """Return the inputs of wgrad, per group."""
    if len(saved) == len(call.m_splits) and isinstance(saved[0], QuantizedTensorStorage):
        return [_operand(operand, call) for operand in saved]
    if not call.quantizes_backward:
        return list(saved[0].split(call.m_splits))
    quantizers = [directed(each, rowwise=False, columnwise=True) for each in call.input_quantizers]
    return list(split_quantize(saved[0], call.m_splits, quantizers))


def _weight_gradients(
    inputs: list[Any], grad_outputs: list[Any], shape: tuple[int, int], call: GroupedCall
) -> list[torch.Tensor | None]:
    """dW_i = grad_output_i^T x_i, new, or added to each parameter's `main_grad`."""
    parameters = call.main_grads_of
    if parameters:
        results = [parameter.main_grad for parameter in parameters]
    else:
        device = grad_outputs[0].device
        results = [torch.empty(shape, dtype=call.dtype, device=device) for _ in call.m_splits]
    general_grouped_gemm(
        inputs,
        grad_outputs,
        results,
        out_dtype=results[0].dtype,
        layout="NT",
        m_splits=call.m_splits,
        grad=True,
        accumulate=bool(parameters) and not call.overwrite_main_grad,
    )
    if not parameters:
        return list(results)
    return [placeholder_for(parameter) for parameter in parameters]
