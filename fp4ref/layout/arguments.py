"""The arguments of a layout's functions: indices, offsets and arrays of units, checked."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError, DTypeError, ShapeError

Ints = NDArray[np.int64]
Index = int | NDArray[np.integer[Any]]


class Named(Protocol):
    """The part of a layout that messages need."""

    @property
    def name(self) -> str:
        """The name that begins the message."""

    @property
    def rule(self) -> str:
        """The rule that ends it."""

    @property
    def unit(self) -> int:
        """Bits of a unit."""


def checked(layout: Named, operation: str, what: str, values: Index, stop: int) -> Ints:
    """Return values as 64-bit integers, all in [0, stop)."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise DTypeError(f"{layout.name}.{operation}", f"{what} of type {array.dtype}", "integers", layout.rule)
    outside = (array < 0) | (array >= stop)
    if outside.any():
        got = f"{what} {array[outside].flat[0]}"
        raise DomainError(f"{layout.name}.{operation}", got, f"0 <= {what} < {stop}", layout.rule)
    return array.astype(np.int64)


def require_units(layout: Named, operation: str, array: NDArray[Any], count: int) -> None:
    """Raise unless an array has `count` axes and one element of the fitting type per unit. Rules: LAY-32."""
    needed = "uint8" if layout.unit <= 8 else f"uint{layout.unit}"
    if array.dtype != needed:
        raise DTypeError(f"{layout.name}.{operation}", f"scales of type {array.dtype}", needed, layout.rule)
    if array.ndim != count:
        raise ShapeError(f"{layout.name}.{operation}", f"shape {list(array.shape)}", counted(count), "LAY-32")


def counted(count: int) -> str:
    """Return a number of axes in words."""
    return {1: "one axis", 2: "two axes"}.get(count, f"{count} axes")


def plain(values: Ints) -> int | Ints:
    """Return a Python integer for a single value."""
    return values if values.ndim else int(values)
