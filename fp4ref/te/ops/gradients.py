"""Functions of operations whose gradients are not those that autograd would compute."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


class _ScaledForward(torch.autograd.Function):
    """y = x * scale, whose gradient was multiplied elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:  # noqa: ARG004 - torch's signature
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grads[0], None


class _Joined(torch.autograd.Function):
    """y, which has taken the place of what was added: both have its gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, added: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return y.view(added.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        return grads[0], grads[0]


class _AddedInPlace(torch.autograd.Function):
    """extra += x, where extra may be a parameter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, extra: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        extra.add_(x)
        return extra.view_as(extra)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        return grads[0], grads[0]


def scaled_forward(x: Tensor, scale: float) -> Tensor:
    """Return x * scale, whose gradient was multiplied elsewhere."""
    return _ScaledForward.apply(x, scale)  # type: ignore[no-any-return, no-untyped-call]


def joined(y: Tensor, added: Tensor) -> Tensor:
    """Return y, which has taken the place of what was added."""
    return _Joined.apply(y, added)  # type: ignore[no-any-return, no-untyped-call]


def added_in_place(x: Tensor, extra: Tensor) -> Tensor:
    """Add x to a tensor, which may be a parameter, and return it."""
    return _AddedInPlace.apply(x, extra)  # type: ignore[no-any-return, no-untyped-call]
