"""Maps from each index of rows, columns or blocks to the one that a wrong kernel uses instead; and what it leaves 0.

For example, a kernel that keeps the row in 7 bits uses row 2 for row 130: `partial(modulo, 128)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

EVERY, LAST = slice(None), slice(-1, None)
IndexMap = Callable[[Any, int], Any]  # of indices and their count


def clipped(by: int, index: Any, count: int) -> Any:
    """Return the indices `by` further on; past an end, the one at the end."""
    return np.clip(index + by, 0, count - 1)


def inside(by: int, index: Any, count: int) -> Any:
    """Return the indices `by` further on; one without such stays."""
    return np.where((index + by >= 0) & (index + by < count), index + by, index)


def around(by: int, index: Any, count: int) -> Any:
    """Return the indices `by` further on, around the end."""
    return (index + by) % max(count, 1)


def exchanged(mask: int, index: Any, count: int) -> Any:
    """Return index ^ mask; one without such stays."""
    return np.where(index ^ mask < count, index ^ mask, index)


def first_of(size: int, index: Any, count: int) -> Any:
    """Return the first index of each group."""
    return index // size * size


def modulo(size: int, index: Any, count: int) -> Any:
    """Return the indices modulo a size."""
    return index % size


def taken(order: IndexMap, axis: int, values: Any) -> Any:
    """Return the values along an axis that other indices have."""
    count = values.shape[axis]
    return np.take(values, order(np.arange(count), count), axis) if count else values


def blank(values: Any, *where: slice) -> Any:
    """Return values that are 0 in some rows and columns."""
    values = values.copy()
    values[where] = 0
    return values


def cleared(rows: int, columns: int, values: Any) -> Any:
    """Return values that are 0 past the last whole group of rows, and of columns."""
    down, across = (size // group * group for size, group in zip(values.shape, (rows, columns), strict=True))
    return blank(blank(values, slice(down, None)), EVERY, slice(across, None))
