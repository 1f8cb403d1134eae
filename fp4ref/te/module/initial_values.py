"""Initial values of parameters: the functions that fill them, and those of a packed one in high precision."""

from __future__ import annotations

from types import MethodType

import torch


def keep_initial_value(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Give a packed parameter its values before packing, on the CPU, until they are cleared."""
    parameter._high_precision_init_val = value.detach().to("cpu", copy=True)  # type: ignore[attr-defined]
    parameter.get_high_precision_init_val = MethodType(  # type: ignore[attr-defined]
        lambda self: getattr(self, "_high_precision_init_val", None), parameter
    )
    parameter.clear_high_precision_init_val = MethodType(  # type: ignore[attr-defined]
        lambda self: self.__dict__.pop("_high_precision_init_val", None), parameter
    )


def zeros(parameter: torch.Tensor) -> None:
    """Fill with zero."""
    parameter.zero_()


def ones(parameter: torch.Tensor) -> None:
    """Fill with one."""
    parameter.fill_(1)


def normal(parameter: torch.Tensor) -> None:
    """Fill with normal numbers of a deviation of 0.023, as Transformer Engine does."""
    torch.nn.init.normal_(parameter, mean=0.0, std=0.023)
