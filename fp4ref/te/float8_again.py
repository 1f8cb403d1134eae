"""Tensors under one scale made and filled as others of their kind were, with nothing decided again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeAlias

from torch import Tensor

from fp4ref.te.quantizer import Facts, Quantizer

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

    def filled_again(
        self, tensor: Tensor, dst: Any, skip: Tensor | None
    ) -> Callable[[Tensor, Self, Any, Tensor | None], None] | None:
        """Return a function that fills other tensors of a kind with what is made first; None for a flag on a device."""
        make = self.repeating(tensor) if tensor.is_contiguous() and skip is None else None
        if make is None:
            return None

        def again(x: Tensor, quantizer: Self, dst: Any, skip: Tensor | None) -> None:
            codes, inverse = make(x, quantizer)
            held = dst.__dict__
            held["_data"].copy_(codes)
            held["_scale_inv"].copy_(inverse)

        return again
