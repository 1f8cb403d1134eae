"""Steps that some backend does in one pass on a device, where torch needs several."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fp4ref import registry
from fp4ref.quantized import DirectionChoice
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.spec import Spec
from fp4ref.te.dtypes import dtype_name


def server(
    operation: str,
    device: torch.device,
    shape: tuple[int, int],
    *,
    spec: Spec | None = None,
    source: torch.dtype = torch.float32,
    to: torch.dtype = torch.float32,
    direction: DirectionChoice = "row",
) -> tuple[Call, Callable[..., Any]] | None:
    """Return the call of a backend for arrays on a device, and the function that serves it; None without one."""
    return _server(operation, device.type, shape, spec, source, to, direction, registry.registered())


@lru_cache(maxsize=4096)
def _server(
    operation: str,
    device: str,
    shape: tuple[int, int],
    spec: Spec | None,
    source: torch.dtype,
    to: torch.dtype,
    direction: DirectionChoice,
    registered: Same,
) -> tuple[Call, Callable[..., Any]] | None:
    call = Call(operation, spec, dtype_name(source), direction, to=dtype_name(to), device=device, shape=shape)
    return (call, registry.choose(call, None)) if registry.offers(call, None) else None


def overlap(x: Tensor, y: Tensor) -> bool:
    """Return True if two contiguous tensors may share a byte."""
    starts = x.data_ptr(), y.data_ptr()
    return starts[0] < starts[1] + y.nbytes and starts[1] < starts[0] + x.nbytes
