"""Normalizations, as operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fp4ref.te.errors import TensorShapeError
from fp4ref.te.module.activation import computed
from fp4ref.te.module.device import default_device
from fp4ref.te.module.normalization import normalize, normalize_and_fork
from fp4ref.te.ops.operation import BasicOperation

Tensor = torch.Tensor


class _NormOperation(BasicOperation):
    """The parameters of both; sm_margin is not read."""

    normalization: str
    with_bias: bool
    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        normalized_shape: Iterable[int] | int,
        *,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        sm_margin: int | dict[str, int] = 0,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        memory: Any = {"device": default_device(device), "dtype": dtype}
        self.weight = torch.nn.Parameter(torch.empty(shape, **memory))
        if self.with_bias:
            self.bias = torch.nn.Parameter(torch.empty(shape, **memory))
        if memory["device"].type != "meta":
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the factor to one and the bias to zero, on a device that has memory."""
        for name, parameter in list(self.named_parameters()):
            value = 0.0 if name == "bias" or self.zero_centered_gamma else 1.0
            if parameter.device.type == "meta":
                made = torch.full_like(parameter, value, device=default_device(None))
                self.register_parameter(name, torch.nn.Parameter(made))
            else:
                parameter.data.fill_(value)

    def pre_first_fuser_forward(self) -> None:
        """Make the parameters, if they are on the meta device."""
        if self.weight.device.type == "meta":
            self.reset_parameters()

    def flat(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and the factor, in the type of the computation and with one normalized axis."""
        shape = tuple(self.weight.shape)
        if tuple(x.shape[-len(shape) :]) != shape:
            raise TensorShapeError(type(self).__name__, f"input {tuple(x.shape)}", f"trailing axes {shape}")
        autocast = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if autocast else self.weight.dtype
        weight = self.weight.to(dtype).reshape(-1)
        return x.to(dtype).reshape(-1, weight.numel()), weight

    def run(self, x: Tensor) -> tuple[Tensor, tuple[()]]:
        """Return the normalized rows."""
        flat, weight = self.flat(x)
        y = normalize(
            flat,
            weight,
            self.bias.to(weight.dtype).reshape(-1) if self.with_bias and self.bias is not None else None,
            normalization=self.normalization,
            eps=self.eps,
            zero_centered_gamma=self.zero_centered_gamma,
        )
        return y.reshape(x.shape), ()


class LayerNormOperation(_NormOperation):
    """y = (x - mean) / sqrt(var + eps) * weight + bias over the trailing axes."""

    normalization, with_bias = "LayerNorm", True


class RMSNormOperation(_NormOperation):
    """y = x / sqrt(mean(x^2) + eps) * weight over the trailing axes."""

    normalization, with_bias = "RMSNorm", False

    def forked(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalized rows, and x for another path. Rules: TEM-35."""
        flat, weight = self.flat(x)
        y, same = normalize_and_fork(flat, weight, eps=self.eps, zero_centered_gamma=self.zero_centered_gamma)
        return y.reshape(x.shape), same.reshape(x.shape)


class L2NormalizationOperation(BasicOperation):
    """y = x / sqrt(sum(x^2) + eps) over the last axis; seq_length and micro_batch_size are not read."""

    def __init__(
        self, *, eps: float = 1e-6, seq_length: int | None = None, micro_batch_size: int | None = None
    ) -> None:
        super().__init__()
        self.eps = eps

    def run(self, x: Tensor) -> tuple[Tensor, tuple[()]]:
        """Return the rows of length one."""
        return computed(self._normalized, x), ()

    def _normalized(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.eps)
