"""LayerNorm and RMSNorm as modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.module.device import default_device
from fp4ref.te.module.normalization import normalize


class _Norm(torch.nn.Module):
    """The parameters and the call that both have in common."""

    normalization: str
    biased: bool

    def __init__(
        self,
        normalized_shape: int | Iterable[int] | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        device: torch.device | str | None = None,
        hidden_size: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        given: Any = hidden_size if normalized_shape is None else normalized_shape
        shape = (given,) if isinstance(given, int) else tuple(given)
        self.normalized_shape, self.eps = shape, eps
        self.zero_centered_gamma, self.sequence_parallel = zero_centered_gamma, sequence_parallel
        dtype = dtype or params_dtype or torch.get_default_dtype()
        options: dict[str, Any] = {"dtype": dtype, "device": default_device(device)}
        self.weight = torch.nn.Parameter(torch.empty(shape, **options))
        self.bias = torch.nn.Parameter(torch.empty(shape, **options)) if self.biased else None
        self._fill()
        for parameter in self.parameters():
            parameter.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]

    def reset_parameters(self) -> None:
        """Set the factor to one and the bias to zero, moving them off the meta device."""
        for name, parameter in list(self.named_parameters(recurse=False)):
            if parameter.device.type == "meta":
                made = torch.nn.Parameter(torch.empty_like(parameter, device=default_device(None)))
                vars(made).update(vars(parameter))
                setattr(self, name, made)
        self._fill()

    def _fill(self) -> None:
        with torch.no_grad():
            self.weight.fill_(0.0 if self.zero_centered_gamma else 1.0)
            if self.bias is not None:
                self.bias.zero_()

    @not_compiled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize x [..., *normalized_shape]; inside `torch.autocast` the result has its type."""
        autocast = torch.is_autocast_enabled(x.device.type)
        last = self.weight.numel()
        flat = normalize(
            x.reshape(-1, last),
            self.weight.reshape(-1),
            None if self.bias is None else self.bias.reshape(-1),
            normalization=self.normalization,
            eps=self.eps,
            zero_centered_gamma=self.zero_centered_gamma,
            dtype=torch.get_autocast_dtype(x.device.type) if autocast else None,
        )
        return flat.reshape(x.shape)


class LayerNorm(_Norm):
    """(x - mean) / sqrt(var + eps) * weight + bias over the trailing axes."""

    normalization, biased = "LayerNorm", True


class RMSNorm(_Norm):
    """x / sqrt(mean(x^2) + eps) * weight over the trailing axes."""

    normalization, biased = "RMSNorm", False
