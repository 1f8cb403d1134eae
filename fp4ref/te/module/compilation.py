"""Modules inside a compiled model: their forward passes run as they are, and the compiler works around them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Forward = TypeVar("Forward", bound=Callable[..., Any])


def not_compiled(forward: Forward) -> Forward:
    """Exclude a forward pass from torch.compile; the compiler is not imported as long as nobody compiles."""
    excluded = torch._disable_dynamo(forward)  # type: ignore[attr-defined]

    @functools.wraps(forward)
    def called(*args: Any, **kwargs: Any) -> Any:
        return (excluded if "torch._dynamo" in sys.modules else forward)(*args, **kwargs)

    return called  # type: ignore[return-value]
