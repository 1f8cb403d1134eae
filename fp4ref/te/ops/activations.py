"""Activations, as operations: computed in float32 and rounded once, like those of the modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fp4ref.te.dtypes import DType
from fp4ref.te.errors import SettingError
from fp4ref.te.float8_quantizer import Float8CurrentScalingQuantizer
from fp4ref.te.module.activation import computed, function_of
from fp4ref.te.ops.operation import BasicOperation

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


class _ActivationOperation(BasicOperation):
    """y = f(x); cache_quantized_input keeps x as per-tensor FP8 for the backward pass."""

    activation: str

    def __init__(self, *, cache_quantized_input: bool = False) -> None:
        super().__init__()
        self.cache_quantized_input = cache_quantized_input

    def function(self) -> Function:
        """Return f."""
        return function_of(self.activation, {})

    def run(self, x: Tensor) -> tuple[Tensor, tuple[()]]:
        """Return f(x)."""
        x = _in_autocast(x)
        kept = None
        if self.cache_quantized_input:
            kept = Float8CurrentScalingQuantizer(DType.kFloat8E4M3, x.device)
            kept.set_usage(rowwise=True, columnwise=False)
            kept.internal = True
        return computed(self.function(), x, kept_as=kept), ()


class GELU(_ActivationOperation):
    """y = gelu(x), by tanh."""

    activation = "gelu"
    joins_bias = True


class QGELU(_ActivationOperation):
    """y = x sigmoid(1.702 x)."""

    activation = "qgelu"


class ReLU(_ActivationOperation):
    """y = max(x, 0)."""

    activation = "relu"
    joins_bias = True


class SReLU(_ActivationOperation):
    """y = max(x, 0)^2."""

    activation = "srelu"


class SiLU(_ActivationOperation):
    """y = x sigmoid(x)."""

    activation = "silu"


class GLU(_ActivationOperation):
    """y = sigmoid(first half) * second half."""

    activation = "glu"


class GEGLU(_ActivationOperation):
    """y = gelu(first half) * second half."""

    activation = "geglu"


class QGEGLU(_ActivationOperation):
    """y = qgelu(first half) * second half."""

    activation = "qgeglu"


class ReGLU(_ActivationOperation):
    """y = max(first half, 0) * second half."""

    activation = "reglu"


class SReGLU(_ActivationOperation):
    """y = max(first half, 0)^2 * second half."""

    activation = "sreglu"


class _Interleaved(_ActivationOperation):
    """A gated activation whose halves may be interleaved in blocks of glu_interleave_size."""

    def __init__(self, *, cache_quantized_input: bool = False, glu_interleave_size: int | None = None) -> None:
        super().__init__(cache_quantized_input=cache_quantized_input)
        self.glu_interleave_size = glu_interleave_size

    def gated(self) -> Function:
        """Return the function of two halves."""
        return function_of(self.activation, {})

    def function(self) -> Function:
        """Return the function of halves as they are stored."""
        return partial(_of_halves, self.gated(), self.glu_interleave_size)


class SwiGLU(_Interleaved):
    """y = silu(first half) * second half."""

    activation = "swiglu"


class ClampedSwiGLU(_Interleaved):
    """y = g sigmoid(alpha g) (l + offset): g is the first half, at most limit, l the second, within +-limit."""

    activation = "clamped_swiglu"

    def __init__(
        self, *, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0, **options: Any
    ) -> None:
        super().__init__(**options)
        self.limit, self.alpha, self.glu_linear_offset = limit, alpha, glu_linear_offset

    def gated(self) -> Function:
        """Return the function of two halves."""
        settings = {"limit": self.limit, "alpha": self.alpha, "glu_linear_offset": self.glu_linear_offset}
        return function_of(self.activation, settings)


class SiTUGLU(_Interleaved):
    """y = b1 tanh(a / b1) sigmoid(a) * b2 tanh(l / b2): a is the first half, l the second, b1 and b2 the betas."""

    def __init__(self, *, beta1: float = 4.0, beta2: float = 25.0, **options: Any) -> None:
        super().__init__(**options)
        self.beta1, self.beta2 = float(beta1), float(beta2)
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not (math.isfinite(beta) and beta > 0):
                raise SettingError(type(self).__name__, f"{name} {beta}", f"{name} finite and positive")

    def gated(self) -> Function:
        """Return the function of two halves."""
        return partial(_situglu, self.beta1, self.beta2)


class _Scaled(BasicOperation):
    """y = f(x) * s, with one factor s for each row, an extra input.

    Errors: SettingError for activation_recompute_in_mlp, which needs a kernel of the whole MLP.
    """

    num_extra_inputs = 1

    def __init__(self, operation: _ActivationOperation, activation_recompute_in_mlp: bool) -> None:
        super().__init__()
        if activation_recompute_in_mlp:
            got = "activation_recompute_in_mlp=True does not support activation recomputation outside of one MLP kernel"
            raise SettingError(type(self).__name__, got, "False")
        self.activation_recompute_in_mlp = False
        self._function = operation.function()
        self.glu_interleave_size = getattr(operation, "glu_interleave_size", None)

    def run(self, x: Tensor, scales: Tensor) -> tuple[Tensor, tuple[()]]:
        """Return the scaled rows."""
        x = _in_autocast(x)
        return computed(self._scaled, x, scales.to(x.dtype)), ()

    def _scaled(self, x: Tensor, scales: Tensor) -> Tensor:
        return self._function(x) * scales.unsqueeze(-1)


class ScaledSwiGLU(_Scaled):
    """y = SwiGLU(x) * s."""

    def __init__(self, glu_interleave_size: int | None = None, *, activation_recompute_in_mlp: bool = False) -> None:
        super().__init__(SwiGLU(glu_interleave_size=glu_interleave_size), activation_recompute_in_mlp)


class ScaledSiTUGLU(_Scaled):
    """y = SiTUGLU(x) * s."""

    def __init__(
        self, glu_interleave_size: int | None = None, *, activation_recompute_in_mlp: bool = False, **betas: float
    ) -> None:
        super().__init__(SiTUGLU(glu_interleave_size=glu_interleave_size, **betas), activation_recompute_in_mlp)


class ScaledClampedQGeGLU(_Scaled):
    """y = ClampedSwiGLU(x) * s."""

    def __init__(
        self,
        glu_interleave_size: int | None = None,
        *,
        activation_recompute_in_mlp: bool = False,
        limit: float = 7.0,
        alpha: float = 1.702,
        glu_linear_offset: float = 1.0,
    ) -> None:
        settings = {"limit": limit, "alpha": alpha, "glu_linear_offset": glu_linear_offset}
        operation = ClampedSwiGLU(glu_interleave_size=glu_interleave_size, **settings)
        super().__init__(operation, activation_recompute_in_mlp)


class ScaledSReLU(_Scaled):
    """y = SReLU(x) * s."""

    def __init__(self, *, activation_recompute_in_mlp: bool = False) -> None:
        super().__init__(SReLU(), activation_recompute_in_mlp)


def _situglu(beta1: float, beta2: float, x: Tensor) -> Tensor:
    gate, linear = x.chunk(2, dim=-1)
    return beta1 * torch.tanh(gate / beta1) * torch.sigmoid(gate) * beta2 * torch.tanh(linear / beta2)


def _of_halves(gated: Function, size: int | None, x: Tensor) -> Tensor:
    """Apply a function of two halves to halves that alternate in blocks of a size."""
    if size is not None:
        blocks = x.reshape(*x.shape[:-1], -1, 2, size)
        x = blocks.transpose(-3, -2).reshape(x.shape)
    return gated(x)


def _in_autocast(x: Tensor) -> Tensor:
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
