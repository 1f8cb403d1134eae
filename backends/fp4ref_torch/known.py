"""The common parts of all orders of operations: constants of the specification, minima, the fused product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fp4ref.spec import Spec
from fp4ref_torch.exact import (
    SIGN,
    SMALLEST_NORMAL,
    bits,
    constant,
    div,
    floats,
    is_nan,
    is_zero,
    magnitude,
    mul,
    rounded_bfloat16,
    rounded_float16,
    sub,
)


@dataclass(frozen=True)
class Known:
    """The inputs of an order of operations: the specification, the input's type, and a tensor on its device."""

    spec: Spec
    dtype: torch.dtype
    like: Tensor

    def value(self, number: float) -> Tensor:
        """Return a constant, rounded to float32."""
        return constant(self.like, number)

    @property
    def element_max(self) -> Tensor:
        """The magnitude that a block's maximum is mapped to."""
        return self.value(self.spec.element_max or self.spec.element.format.max)

    @property
    def total(self) -> Tensor:
        """scale_max * element_max."""
        return mul(self.value(self.spec.scale_max), self.element_max)

    @property
    def sixth(self) -> Tensor:
        """fp32(1/6)."""
        return div(self.value(1), self.value(6))

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number of the input's type."""
        return float(torch.finfo(self.dtype).smallest_normal)

    def over(self, divisor: Tensor) -> Tensor:
        """1 / divisor."""
        return div(self.value(1), divisor)

    def narrow(self, x: Tensor) -> Tensor:
        """x rounded to the input's type."""
        if self.dtype is torch.bfloat16:
            return rounded_bfloat16(x)
        return rounded_float16(x) if self.dtype is torch.float16 else x


Global = Callable[[Tensor, Known], Tensor]  # (amax, k) -> g
BlockScale = Callable[[Tensor, Tensor, Known], Tensor]  # (amax, g, k) -> t, what the scale's codec gets
Scaled = Callable[[Tensor, Tensor, Tensor, Known], Tensor]  # (x, s, g, k) -> y, what the element's codec gets
Values = Callable[[Tensor, Tensor, Tensor, Known], Tensor]  # (q, s, global amax, k) -> values


def at_most(x: Tensor, bound: float) -> Tensor:
    """Return the smaller; the bound where x is NaN."""
    return torch.where(x <= bound, x, bound)


def at_most_nan(x: Tensor, bound: float) -> Tensor:
    """Return the smaller; NaN stays."""
    return torch.where(x > bound, bound, x)


def at_least_nan(x: Tensor, bound: float) -> Tensor:
    """Return the larger; NaN stays."""
    return torch.where(x < bound, bound, x)


def flushed(x: Tensor) -> Tensor:
    """Return x, or a zero of its sign where x is subnormal."""
    return floats(torch.where(magnitude(x) < SMALLEST_NORMAL, bits(x) & SIGN, bits(x)))


def first_of_the_nearest(y: Tensor) -> Tensor:
    """y; from 2^24 on the first of the E2M1 values with the smallest rounded distance, 2^-149 for 0, of y's sign."""
    size = floats(magnitude(y))
    best, error = torch.full_like(y, 2.0**-149), size
    for value in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0):
        distance = floats(magnitude(sub(size, torch.full_like(y, value))))
        closer = distance < error
        best, error = torch.where(closer, value, best), torch.where(closer, distance, error)
    return torch.where(size >= 2.0**24, floats(bits(best) | bits(y) & SIGN), y)


def fused(x: Tensor, factor: Tensor) -> Tensor:
    """fma(x, factor, +0): the product, but an exactly zero one is +0. Rules: BLK-11."""
    y = mul(x, factor)
    return torch.where((is_zero(x) | is_zero(factor)) & ~is_nan(y), 0.0, y)
