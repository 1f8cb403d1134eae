"""The operands of products and of random bytes, as backends get them beside the description of a call."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from fp4ref.formats import F
from fp4ref.layout import Layout
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity, Spec


class AlphaRule(StrEnum):
    """The rule by which the global amaxes become a factor of the sum."""

    RECIPROCAL = "reciprocal"  # times fp32(1 / factor), as the kernels do (GEM-5)
    DIVISION = "division"  # divided by the factor, as Transformer Engine's Python reference does (GEM-6)


class Operand(NamedTuple):
    """The bytes of one direction of a tensor, a matrix [rows, K]; scales in their layout."""

    data: DirectionData
    shape: tuple[int, int]
    spec: Spec
    scale_layout: Layout

    @property
    def row_scaled(self) -> bool:
        """True if every row has an amax of its own."""
        return self.spec.global_scale is Granularity.ROW


class Epilogue(NamedTuple):
    """From the float32 sums [M, N] to the result.

    bias: [N], float32, bfloat16 or float16, or None. accumulate: [M, N] of the result's dtype, or None.

    Rules: GEM-5, GEM-6, GEM-7, GEM-8.
    """

    alpha: np.float32
    bias: Any
    accumulate: Any
    dtype: np.dtype[Any]
    alpha_rule: AlphaRule


class Counters(NamedTuple):
    """The counters and keys of a part of a direction's random bytes.

    origin: first row, and first block of 16 columns. across: blocks of a row of the whole. seed, upper: keys; a seed in
    the memory of a device, int64 [1], is read there when the bytes are made, which the backends of devices do.

    Rules: SR-7, SR-8.
    """

    origin: tuple[int, int]
    across: int
    seed: Any
    upper: int


def alpha_factor(a: Spec, b: Spec) -> np.float32 | None:
    """Return the number that the product of the amaxes is divided by: both element_max * scale_max, multiplied.

    Returns None without global scales. 7225344 where both scale_max are 448, 4128768 for 448 and 256, 2359296 for 256.

    Rules: GEM-5, GEM-6.
    """
    if a.global_scale is Granularity.NONE:
        return None
    of_a, of_b = (F(spec.element_max or spec.element.format.max) * F(spec.scale_max) for spec in (a, b))
    return F(of_a * of_b)
