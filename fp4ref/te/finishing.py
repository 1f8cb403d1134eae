"""The last steps of a product, after its sums: a factor, a bias, and one rounding to the type of the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fp4ref import registry
from fp4ref.registry import Call
from fp4ref.remembered import Same


def finished(sums: Tensor, factor: Any, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return sums * factor + bias, each step in float32; the last one writes the result's type. Rules: TEL-32."""
    target = sums if dtype is torch.float32 else torch.empty_like(sums, dtype=dtype)
    if bias is None and factor is None:
        return sums.to(dtype)
    if bias is None:
        return torch.mul(sums, factor, out=target)
    made = _in_one_pass(sums, factor, bias, dtype)
    if made is not None:
        return made
    return torch.add(sums if factor is None else sums.mul_(factor), bias.to(torch.float32), out=target)


def _in_one_pass(sums: Tensor, factor: Any, bias: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Return the same by a backend that does it in one pass; None without one, or where one pass suffices anyway."""
    if not isinstance(factor, Tensor) or dtype is torch.float32 or not bias.is_contiguous():
        return None
    found = _finisher(tuple(sums.shape), bias.dtype, dtype, sums.device.type, registry.registered())
    if found is None:
        return None
    call, finish = found
    result: Tensor = finish(call, sums, factor, bias)
    return result


@lru_cache(maxsize=1024)
def _finisher(
    shape: tuple[int, int], bias: torch.dtype, to: torch.dtype, device: str, registered: Same
) -> tuple[Call, Callable[..., Any]] | None:
    """Return a call that finishes products of one shape, and the function that serves it; None without one."""
    source, target = (str(kind).removeprefix("torch.") for kind in (bias, to))
    call = Call("finish_product", source=source, to=target, device=device, shape=shape)
    return (call, registry.choose(call, None)) if registry.offers(call, None) else None
