"""Calls of products with weights: settings that autograd does not differentiate, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fp4ref.te.distributed import allreduce, reduce_scatter_along_first_dim
from fp4ref.te.together import kinds


class Parallel(NamedTuple):
    """The split of a weight over a process group: mode "column", "row" or None."""

    mode: str | None = None
    group: Any = None
    size: int = 1
    sequence_parallel: bool = False

    @property
    def gathers_input(self) -> bool:
        """True if each process has some rows of the input only."""
        return self.sequence_parallel and self.size > 1 and self.mode == "column"

    @property
    def gathers_grad_output(self) -> bool:
        """True if each process has some rows of the output's gradient only."""
        return self.sequence_parallel and self.size > 1 and self.mode == "row"

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
    weight's gradient in its buffer instead of adding it. `begin` sets the others: which gradients are wanted, wants_any
    for any, if only that of a bias; whether dgrad and wgrad take quantized operands; and whether wgrad starts from the
    input as it came, never with dequantized operands.
    """

    dtype: torch.dtype
    backward_override: str | None = None
    save_original_input: bool = False
    overwrite_main_grad: bool = False
    wants_dgrad: bool = False
    wants_wgrad: bool = False
    wants_any: bool = False
    quantizes_backward: bool = False
    keeps_original_input: bool = True

    @property
    def quantizes(self) -> bool:
        """True if fprop takes quantized operands."""
        raise NotImplementedError

    def begin(self, x: torch.Tensor, weight: torch.Tensor, biases: Iterable[torch.Tensor | None]) -> None:
        """Set what follows from the operands, in the context of the call, and from its settings. Rules: TEM-15, TEM-16.

        weight: one of them.
        """
        if torch.is_grad_enabled():
            self.wants_dgrad, self.wants_wgrad = x.requires_grad, weight.requires_grad
            self.wants_any = self.wants_dgrad or self.wants_wgrad
            if not self.wants_any:
                self.wants_any = any(each is not None and each.requires_grad for each in biases)
        if self.quantizes:
            self.quantizes_backward = self.backward_override is None
            kept = self.save_original_input and self.quantizes_backward
            self.keeps_original_input = kept or self.backward_override == "high_precision"


@dataclass(kw_only=True)
class LinearCall(ProductCall):
    """Everything of one call that autograd does not differentiate.

    Quantizers are the module's, which other calls use at the same time, so that each call directs copies of them; that
    of the weight is such a copy. quantized_weight: the weight operand of fprop and dgrad, None where nothing is
    quantized, or weight_quantizer does it within the call, for this call alone. main_grad_of: the parameter whose
    `main_grad` receives the weight's gradient. fsdp_group: between the passes, each of its processes keeps a part of
    the weight's codes. defer: takes the computation of wgrad, to be done later. norm: what made the input, to be shown
    on the node of the graph: its own input and weight, means, and 1 / deviations. gradient_factor: both gradients are
    multiplied by it before they are rounded. result_factor, added: the product is multiplied by the one and added to
    the other, in its place, before it is rounded. forks: x is returned as well, and its gradient is added to dgrad
    before that is rounded.
    """

    parallel: Parallel
    input_quantizer: Any = None
    grad_output_quantizer: Any = None
    quantized_weight: Any = None
    weight_quantizer: Any = None
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

    def of_input(self) -> Any:
        """Return the quantizer of the input for this call; None where nothing is quantized."""
        if not self.quantizes:
            return None
        for_wgrad = self.wants_wgrad and self.quantizes_backward and not self.keeps_original_input
        return directed(self.input_quantizer, rowwise=True, columnwise=for_wgrad)

    def of_gradient(self) -> Any:
        """Return the quantizer of the output's gradient for this call; None where that is not quantized."""
        if not self.quantizes_backward:
            return None
        return directed(self.grad_output_quantizer, rowwise=self.wants_dgrad, columnwise=self.wants_wgrad)

    def forward_kind(self, of_input: Any) -> Hashable | None:
        """Return the key of forward passes with the same kernels; None if ranks communicate or C is added."""
        if self.parallel.size > 1 or self.added is not None:
            return None
        found = kinds((self.weight_quantizer, of_input))
        kept = self.backward_override, self.save_original_input, self.wants_dgrad, self.wants_wgrad
        return found and ("linear", self.dtype, _bits(self.result_factor), kept, found)

    def of_backward(self, of_gradient: Any) -> tuple[Any, Any]:
        """Return the quantizers of a backward pass: of the input if that is quantized again, and of the gradient."""
        again = self.quantizes_backward and self.keeps_original_input
        return self.input_quantizer if again else None, of_gradient

    def backward_kind(self, of_gradient: Any) -> Hashable | None:
        """Return the key of backward passes with the same kernels; None if ranks communicate or a buffer is given."""
        if self.parallel.size > 1 or self.forks or self.defer is not None or self.main_grad_of is not None:
            return None
        found = kinds(self.of_backward(of_gradient))
        how = self.dtype, _bits(self.gradient_factor), self.backward_override
        return found and ("gradients", how, self.wants_dgrad, self.wants_wgrad, found)


def directed(quantizer: Any, *, rowwise: bool, columnwise: bool) -> Any:
    """Return a copy of a quantizer that produces these directions."""
    own = quantizer.copy()
    own.set_usage(rowwise=rowwise, columnwise=columnwise)
    return own


def _bits(factor: float) -> str:
    """Return a factor so that -0 is another one than 0, and NaN is equal to itself."""
    return "1" if factor == 1.0 else float(factor).hex()
