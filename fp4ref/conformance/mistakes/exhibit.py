"""A case as matrices of its direction, read once for the kernels that run on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from operator import is_
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.mistakes.kernel import Kernel, Values, same
from fp4ref.formats import Codes, F, Floats
from fp4ref.model.tiles import Matrix, widen
from fp4ref.quantized import Direction
from fp4ref.spec import Granularity

EVERY = slice(None)


class CaseLike(Protocol):
    """A call of a quantizer: the tensor, the direction, and the caller's other arguments."""

    @property
    def x(self) -> NDArray[Any]:
        """The tensor, [..., K]."""

    @property
    def direction(self) -> Direction:
        """The direction that is quantized."""

    @property
    def amax(self) -> Any:
        """The caller's, or None for that of x."""

    @property
    def random_bits(self) -> Any:
        """Uint8 [rows, columns] of the direction, or None."""


class Exhibit:
    """A case as matrices of its direction, read once."""

    def __init__(self, case: CaseLike) -> None:
        self.case = case
        self.dtype = case.x.dtype
        self.shape = Matrix(case.x, case.direction).shape
        self._amax: dict[Any, tuple[Floats, Floats]] = {}
        self._values: dict[Any, Values] = {}
        self._drawn: tuple[Any, Codes] | None = None
        self._changed: dict[bool, tuple[Any, Any, Floats]] = {}
        self._made: dict[str, tuple[Any, tuple[Any, ...], Any]] = {}

    @cached_property
    def matrix(self) -> Floats:
        """The direction's matrix, float32."""
        return self._matrix(self.case.x)

    def _matrix(self, x: NDArray[Any]) -> Floats:
        return widen(Matrix(x, self.case.direction)[slice(0, self.shape[0]), slice(0, self.shape[1])])

    def quantized(self, kernel: Kernel) -> Values:
        """Return the values that a kernel quantizes."""
        key = kernel.read, kernel.values, kernel.transform, kernel.turned, kernel.placed_values
        if key not in self._values:
            found = self._in_places(kernel) if kernel.placed_values else self._everywhere(kernel)
            if len(self._values) > 3:
                self._values.pop(next(iter(self._values)))
            self._values[key] = found
        return self._values[key]

    def _everywhere(self, kernel: Kernel) -> Values:
        raw = kernel.values(self.matrix if kernel.read is same else self._matrix(kernel.read(self.case.x)))
        turned = self.case.direction in kernel.turned and raw.size
        leading = np.shape(self.case.x)[:-2]
        stacks = (leading[0], math.prod(leading)) if leading else (1, 1)
        axis = 0 if self.case.direction == "row" else 1
        return Values(raw, kernel.transform(raw) if turned and kernel.transform else raw, stacks, axis)

    def _in_places(self, kernel: Kernel) -> Values:
        """Return the values of a kernel that changes some of them, place by place."""
        base = kernel.but(placed_values=())
        found = self.quantized(base)
        for place, apply in kernel.placed_values:
            changed = apply(base)
            assert changed is not None
            inside = place.of_elements(self.case, kernel.spec.block.columns, EVERY, EVERY)
            other = self.quantized(changed)
            raw = np.where(inside, other.raw, found.raw)
            plain = other.transformed is other.raw and found.transformed is found.raw
            found = found._replace(
                raw=raw, transformed=raw if plain else np.where(inside, other.transformed, found.transformed)
            )
        return found

    def changed(self, kernel: Kernel, *, scaled: bool = False) -> Floats:
        """Return the values after what a kernel does to them once the maximum was taken.

        scaled: those that are scaled and encoded, not those that the maxima of blocks are taken of.
        """
        found = self.quantized(kernel).transformed
        change = kernel.elements if scaled and kernel.elements is not None else kernel.quantized
        if change is same:
            return found
        known = self._changed.get(scaled)
        if known is None or known[0] is not change or known[1] is not found:
            known = self._changed[scaled] = change, found, change(found)
        return known[2]

    def made(self, stage: str, at: Any, make: Callable[[], Any], *of: Any) -> Any:
        """Return the result of a stage: made once for kernels in a row that share it and all that it depends on.

        at: the rows and columns. of: the functions and arrays that it depends on, which nothing changes afterwards.
        """
        known = self._made.get(stage)
        if known is None or known[0] != at or not all(map(is_, known[1], of)):
            known = self._made[stage] = at, of, make()
        return known[2]

    def drawn(self, kernel: Kernel) -> Codes | None:
        """Return the random bits that a kernel uses for the elements of the matrix, if it is given any."""
        if self.case.random_bits is None:
            return None
        if self._drawn is None or self._drawn[0] is not kernel.bits:
            self._drawn = kernel.bits, kernel.bits(np.asarray(self.case.random_bits))
        return self._drawn[1]

    def amax(self, kernel: Kernel) -> tuple[Floats, Floats] | None:
        """Return the maximum as a kernel reports it, and as it uses it; None without a global scale."""
        granularity = kernel.spec.global_scale
        if granularity is Granularity.NONE:
            return None
        given = self.case.amax if kernel.takes_amax else None
        source = kernel.read, kernel.values, kernel.transform, kernel.turned, kernel.placed_values
        key = *source, kernel.amax, kernel.used, kernel.keep_nan, granularity, given is None
        if key not in self._amax:
            by_row, values = granularity is Granularity.ROW, self.quantized(kernel)
            found = kernel.amax(values, kernel.keep_nan, by_row) if given is None else np.asarray(given, F).reshape(-1)
            self._amax[key] = found, kernel.used(found, values)
        return self._amax[key]
