"""LayerNorm and RMSNorm of the last axis: computed in float32, rounded once, differentiated from their input."""

from __future__ import annotations

from typing import Any

import torch

from fp4ref.te.errors import SettingError

NORMALIZATIONS = ("LayerNorm", "RMSNorm")


def require_normalization(module: str, name: str) -> None:
    """Raise SettingError for a normalization that is neither of the two."""
    if name not in NORMALIZATIONS:
        raise SettingError(module, f"normalization {name!r}", " or ".join(NORMALIZATIONS))


def normalize(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    normalization: str,
    eps: float,
    zero_centered_gamma: bool = False,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias, or x / sqrt(mean(x^2) + eps) * weight for RMSNorm.

    x: [..., H]; weight, bias: [H], no bias for RMSNorm. zero_centered_gamma: the factor is 1 + weight, in float32.
    dtype: of the result, that of x if not given.
    """
    return _Normalization.apply(  # type: ignore[no-any-return, no-untyped-call]
        x, weight, bias, normalization == "LayerNorm", eps, zero_centered_gamma, dtype or x.dtype
    )


class _Normalization(torch.autograd.Function):
    """Keeps x and one or two float32 statistics per row for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        centered: bool,
        eps: float,
        zero_centered_gamma: bool,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        gamma = weight.float() + 1 if zero_centered_gamma else weight.float()
        wide = x.float()
        if centered:
            beta = None if bias is None else bias.float()
            y, mean, rstd = torch.native_layer_norm(wide, gamma.shape, gamma, beta, eps)
        else:
            rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
            y, mean = wide * rstd * gamma, None
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.zero_centered_gamma = zero_centered_gamma
        return y.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        gamma = weight.float() + 1 if ctx.zero_centered_gamma else weight.float()
        wide, grad = x.float(), grads[0].float()
        if mean is not None:
            dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
                grad, wide, gamma.shape, mean, rstd, gamma, None if bias is None else bias.float(), [True] * 3
            )
        else:
            unit = wide * rstd
            scaled = grad * gamma
            dx = (scaled - unit * (scaled * unit).mean(-1, keepdim=True)) * rstd
            dweight, dbias = (grad * unit).reshape(-1, x.shape[-1]).sum(0), None
        dbias = None if bias is None else dbias.to(bias.dtype)
        return dx.to(x.dtype), dweight.to(weight.dtype), dbias, None, None, None, None
