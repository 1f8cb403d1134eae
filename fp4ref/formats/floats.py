"""Arrays of float32 and of codes."""

from __future__ import annotations

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
