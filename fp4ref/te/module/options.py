"""Options of modules, checked: those without an emulation, sizes that are divided, weights in named parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fp4ref.te.errors import NotSupportedError, TensorShapeError


def require_only_supported(module: str, **options: Any) -> None:
    """Raise NotSupportedError for an option that is set to anything but its neutral value (None or False).

    Rules: TEM-4.
    """
    for name, value in options.items():
        if isinstance(value, torch.Tensor) or value not in (None, False):
            shown = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
            raise NotSupportedError(module, f"{name}={shown}", f"{name} left out: it has no emulation")


def divide(module: str, name: str, value: int, parts: int) -> int:
    """value / parts, exactly; TensorShapeError otherwise."""
    if value % parts:
        raise TensorShapeError(module, f"{name} {value} over {parts} processes", f"a multiple of {parts}")
    return value // parts


def split_names(module: str, parameters_split: Sequence[str] | dict[str, int] | None, features: int) -> dict[str, int]:
    """Return prefixes of the parameters of one weight, and the rows of each; "" for a weight in one piece."""
    if parameters_split is None:
        return {"": features}
    if isinstance(parameters_split, dict):
        sizes = {name.rstrip("_"): size for name, size in parameters_split.items()}
    else:
        sizes = {name.rstrip("_"): features // len(parameters_split) for name in parameters_split}
    if not sizes or sum(sizes.values()) != features:
        raise TensorShapeError(module, f"parameters_split {parameters_split}", f"parts that add up to {features} rows")
    return {f"{name}_": size for name, size in sizes.items()}
