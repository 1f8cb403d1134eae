"""The last steps of a product, after its sums: a factor, a bias, and one rounding to the type of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.one_pass import server


def finished(sums: Tensor, factors: Sequence[Any], bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return sums * factor + bias, each step in float32; the last one writes the result's type.

    factors: numbers and tensors of one float32, multiplied from the left into the factor; none for 1.

    Rules: TEL-12, TEL-32.
    """
    if dtype is not torch.float32:
        made = _in_one_pass(sums, factors, bias, dtype)
        if made is not None:
            return made
    target = sums if dtype is torch.float32 else torch.empty_like(sums, dtype=dtype)
    if not factors:
        return sums.to(dtype) if bias is None else torch.add(sums, bias.to(torch.float32), out=target)
    factor = combined(factors)
    if bias is None:
        return torch.mul(sums, factor, out=target)
    return torch.add(sums.mul_(factor), bias.to(torch.float32), out=target)


def combined(factors: Sequence[Any]) -> Any:
    """Return the product of numbers and of tensors of one float32, from the left, each step in float32."""
    total, *others = factors
    for each in others:
        total = total * each
    return total


def _in_one_pass(sums: Tensor, factors: Sequence[Any], bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the same by a backend that does it in one pass; None without one."""
    if bias is not None and (not bias.is_contiguous() or bias.is_neg()):
        return None
    kind = dtype if bias is None else bias.dtype
    found = server("finish_product", sums.device, (sums.shape[0], sums.shape[1]), source=kind, to=dtype)
    if found is None:
        return None
    call, finish = found
    result: Tensor = finish(call, sums, factors, bias)
    return result
