"""LayerNorm and RMSNorm of the last axis: computed in float32, rounded once, differentiated from their input."""

from __future__ import annotations

from typing import Any

import torch

from fp4ref.te.dtypes import DType, torch_dtype
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
    return normalize_with_statistics(
        x,
        weight,
        bias,
        normalization=normalization,
        eps=eps,
        zero_centered_gamma=zero_centered_gamma,
        dtype=dtype,
    )[0]


def normalize_with_statistics(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    normalization: str,
    eps: float,
    zero_centered_gamma: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return the result of `normalize`, the mean of each row (None for RMSNorm), and 1 / its deviation, in float32."""
    return _Normalization.apply(  # type: ignore[no-any-return, no-untyped-call]
        x.contiguous(), weight, bias, normalization == "LayerNorm", eps, zero_centered_gamma, dtype or x.dtype
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
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        y, mean, rstd = _forward(x, weight, bias, centered, eps, zero_centered_gamma)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.zero_centered_gamma = zero_centered_gamma
        ctx.mark_non_differentiable(*(statistic for statistic in (mean, rstd) if statistic is not None))
        return y.to(dtype), mean, rstd

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        return *_backward(grads[0], x, weight, bias, mean, rstd, ctx.zero_centered_gamma), None, None, None, None


def normalize_and_fork(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centered_gamma: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return RMSNorm of x and x itself; the gradients of both are added in float32, and rounded once.

    Rules: TEM-35.
    """
    return _ForkedRMSNorm.apply(x, weight, eps, zero_centered_gamma)  # type: ignore[no-any-return, no-untyped-call]


class _ForkedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float, zero_centered_gamma: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y, _, rstd = _forward(x, weight, None, False, eps, zero_centered_gamma)
        ctx.save_for_backward(x, weight, rstd)
        ctx.zero_centered_gamma = zero_centered_gamma
        return y.to(x.dtype), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        dx, dweight, _ = _backward(grads[0], x, weight, None, None, rstd, ctx.zero_centered_gamma, added=grads[1])
        return dx, dweight, None, None


def _gamma(weight: torch.Tensor, zero_centered: bool) -> torch.Tensor:
    return weight.float() + 1 if zero_centered else weight.float()


def _forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    centered: bool,
    eps: float,
    zero_centered_gamma: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Return the result in float32, the mean of each row if it is subtracted, and 1 / its deviation."""
    gamma, wide = _gamma(weight, zero_centered_gamma), x.float()
    if centered:
        beta = None if bias is None else bias.float()
        return torch.native_layer_norm(wide, gamma.shape, gamma, beta, eps)
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide * rstd * gamma, None, rstd


def _backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    rstd: torch.Tensor,
    zero_centered_gamma: bool,
    added: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return gradients of x, weight and bias, each in its own type; `added` is another gradient of x."""
    gamma = _gamma(weight, zero_centered_gamma)
    wide, grad = x.float(), dy.float()
    if mean is not None:
        dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
            grad, wide, gamma.shape, mean, rstd, gamma, None if bias is None else bias.float(), [True] * 3
        )
    else:
        unit = wide * rstd
        scaled = grad * gamma
        dx = (scaled - unit * (scaled * unit).mean(-1, keepdim=True)) * rstd
        dweight, dbias = (grad * unit).reshape(-1, x.shape[-1]).sum(0), None
    if added is not None:
        dx = dx + added.float()
    return dx.to(x.dtype), dweight.to(weight.dtype), None if bias is None else dbias.to(bias.dtype)


def layernorm_fwd(
    input: torch.Tensor,  # noqa: A002 - the original's names
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: DType | torch.dtype,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Compute LayerNorm of [M, H]: the result in a type, quantized on request; mean, 1 / deviation, float32 [M].

    ln_out: what is written and returned instead of a new tensor, or None. sm_margin is not read.
    """
    y, mean, rstd = _forward(input, weight, bias, True, eps, zero_centered_gamma)
    assert mean is not None
    return _delivered(y.to(torch_dtype(otype)), ln_out, quantizer), mean.reshape(-1), rstd.reshape(-1)


def rmsnorm_fwd(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    eps: float,
    ln_out: Any,
    quantizer: Any,
    otype: DType | torch.dtype,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> tuple[Any, None, torch.Tensor]:
    """Compute RMSNorm of [M, H], as `layernorm_fwd`, without a mean."""
    y, _, rstd = _forward(input, weight, None, False, eps, zero_centered_gamma)
    return _delivered(y.to(torch_dtype(otype)), ln_out, quantizer), None, rstd.reshape(-1)


def layernorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    mu: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Compute gradients of x [M, H], the factor and the summand [H], from the statistics [M] of `layernorm_fwd`."""
    statistics = mu.reshape(-1, 1), rsigma.reshape(-1, 1)
    return _backward(dz, x, gamma, torch.zeros_like(gamma), *statistics, zero_centered_gamma)


def rmsnorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int = 0,
    zero_centered_gamma: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gradients of x [M, H] and of the factor [H], from the statistics [M] of `rmsnorm_fwd`."""
    return _backward(dz, x, gamma, None, None, rsigma.reshape(-1, 1), zero_centered_gamma)[:2]


def _delivered(y: torch.Tensor, out: Any, quantizer: Any) -> Any:
    if quantizer is not None:
        return quantizer.quantize(y, out=out)
    return y if out is None else out.copy_(y)
