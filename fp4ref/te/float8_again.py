"""Tensors under one scale made and filled as others of their kind were, with nothing decided again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from fp4ref.te import steps
from fp4ref.te.quantizer import Facts, Quantizer
from fp4ref.te.steps import Stepwise

Repeating: TypeAlias = Callable[[Tensor, Any], tuple[Tensor, Tensor]]  # codes and 1 over the scale, by a quantizer


class OfOneScale(Quantizer):
    """A quantizer whose tensors have one scale."""

    def repeating(self, tensor: Tensor) -> Repeating | None:
        """Return the function that makes codes and 1 over the scale for tensors of a kind; None without one."""
        raise NotImplementedError

    def with_buffers(self, codes: Tensor, scale_inv: Tensor, of: Facts, *, requires_grad: bool = False) -> Any:
        """Return a tensor of these buffers, storage if `internal`."""
        raise NotImplementedError

    def made_again(self, tensor: Tensor) -> Callable[[Tensor, Self], Any] | None:
        """Return a function that makes other tensors of a kind, where a backend takes all steps at once."""
        of = tensor.dtype, tensor.shape, tensor.device
        make = self.repeating(tensor) if tensor.is_contiguous() else None
        return make and (lambda x, quantizer: quantizer.with_buffers(*make(x, quantizer), of))

    def stepwise(self, tensor: Tensor) -> Stepwise | None:
        """Return the function that makes codes and 1 over the scale, by operations of backends alone.

        It gets a tensor, what is kept, and a word on the device: unless that is 0, nothing that is kept changes. Where
        it takes other operations, return None.
        """
        return None

    def filled_again(
        self, tensor: Tensor, dst: Any, flag: Tensor | None
    ) -> Callable[[Tensor, Self, Any, Tensor | None], None] | None:
        """Return a function that fills other tensors of a kind."""
        if not tensor.is_contiguous():
            return None
        by_steps = self.stepwise(tensor) if _usual(tensor, *_buffers(dst)) else None

        def fill(x: Tensor, kept: Sequence[Any], held: Sequence[Any], word: Tensor | None) -> None:
            assert by_steps is not None
            for made, buffer in zip(by_steps(x, kept, word), held, strict=True):
                steps.written(made, buffer, word)

        kind = "one scale", self.kind_of_call()
        filled = by_steps and steps.filled(kind, tensor, dst, flag, _buffers, fill, self.kept(), _kept)
        if filled is not None or flag is not None:
            return filled
        make = self.repeating(tensor)
        if make is None:
            return None

        def again(x: Tensor, quantizer: Self, dst: Any, flag: Tensor | None) -> None:
            codes, inverse = make(x, quantizer)
            held = dst.__dict__
            held["_data"].copy_(codes)
            held["_scale_inv"].copy_(inverse)

        return again


def _buffers(dst: Any) -> list[Any]:
    held = dst.__dict__
    return [held["_data"], held["_scale_inv"]]


def _kept(quantizer: OfOneScale) -> tuple[Tensor, ...]:
    return quantizer.kept()


def _usual(tensor: Tensor, codes: Any, scale_inv: Any) -> bool:
    """Return True for buffers of the types and shapes in which codes and 1 over a scale are made."""
    kinds = (codes.dtype, codes.shape, scale_inv.dtype, tuple(scale_inv.shape))
    return bool(kinds == (torch.uint8, tensor.shape, torch.float32, (1,)))
