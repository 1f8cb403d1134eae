"""Arrays of float32 and of codes."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
F = np.float32


def ignoring_float_warnings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run with NumPy's floating-point warnings off: infinities and NaN are values here, not accidents."""
    return np.errstate(all="ignore")(function)


def is_number(value: Any) -> bool:
    """Return True for an integer or a floating-point number of any width that is no truth value.

    Rules: GLB-4, GEM-19.
    """
    return isinstance(value, (numbers.Integral, float, np.floating)) and not isinstance(value, bool)


def nearest_float32(value: Any) -> np.float32:
    """Round a number once to float32; one beyond the largest becomes infinite.

    An integer of more bits than a float64 has keeps 32 of them, of which the last is set if any other is: two roundings
    then give what one does.

    Rules: GLB-8, GEM-19, NUM-1.
    """
    if isinstance(value, numbers.Integral):
        magnitude = abs(int(value))
        shift = max(0, magnitude.bit_length() - 32)
        kept = magnitude >> shift | (magnitude != magnitude >> shift << shift)
        value = math.ldexp(kept if value > 0 else -kept, min(shift, 900))  # type: ignore[operator]
    with np.errstate(over="ignore"):
        return F(value)
