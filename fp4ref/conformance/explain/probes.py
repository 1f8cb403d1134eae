"""Inputs that tell two specifications apart, and what is special about them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.explain import difference
from fp4ref.formats import E4M3, F
from fp4ref.model.tiles import widen
from fp4ref.quantized import Direction
from fp4ref.spec import Spec

SMALL, LARGE = 2.0**-60, 2.0**60
SMALLEST_NORMAL = 2.0**-6 / E4M3.max  # of a block's maximum to the tensor's: below it, E4M3 scales are subnormal


class InputKind(StrEnum):
    """A special property of an input, without which a witness of its kind is no witness."""

    ORDINARY = "ordinary values"
    EXTREME = "very small or very large values"
    ZERO = "a block of zeros"
    MINUS_ZERO = "-0"
    NAN_INF = "NaN or Inf"


@dataclass(frozen=True)
class Probe:
    """An input to both specifications: a small matrix, and the caller's global amax if there is one."""

    x: NDArray[Any]
    direction: Direction
    amax: float | None = None


def kind_of(probe: Probe) -> InputKind:
    """Return the kind of an input: NaN or Inf before -0, all zero, magnitudes near the ends of float32, ordinary."""
    values = widen(probe.x if probe.direction == "row" else probe.x.T)
    if not np.isfinite(values).all():
        return InputKind.NAN_INF
    if ((values == 0) & np.signbit(values)).any():
        return InputKind.MINUS_ZERO
    magnitudes = np.abs(values)
    if not magnitudes.any():
        return InputKind.ZERO
    by_row = magnitudes.max(axis=1)
    top = max(float(by_row.max()), probe.amax or 0.0)
    low = top > LARGE or magnitudes[magnitudes > 0].min() < SMALL or by_row[by_row > 0].min() < top * SMALLEST_NORMAL
    return InputKind.EXTREME if low else InputKind.ORDINARY


def ordinary(x: NDArray[Any]) -> NDArray[Any]:
    """Return the same values with +0 for everything special."""
    values = widen(x)
    return np.where(np.isfinite(values) & (values != 0), values, F(0)).astype(x.dtype)


def tamed(probe: Probe) -> Iterator[Probe]:
    """Yield the same, and each row of it, without what is too small beside the largest, in the middle of the range."""
    rows = probe.x if probe.direction == "row" else probe.x.T
    for values in (rows, *(rows if len(rows) > 1 else ())):
        magnitude = np.abs(widen(np.atleast_2d(values)))
        top = float(magnitude.max())
        kept = np.where(magnitude < top * SMALLEST_NORMAL, rows.dtype.type(0), values).astype(rows.dtype)
        amax = probe.amax if probe.amax is not None and probe.amax * SMALLEST_NORMAL <= top else None
        yield centered(Probe(oriented(kept, probe.direction), probe.direction, amax))


def centered(probe: Probe) -> Probe:
    """Return the values scaled by a power of two, so that the largest value or the amax is in [1, 2)."""
    values = widen(probe.x)
    finite = np.abs(values[np.isfinite(values)])
    top = max(float(finite.max(initial=0)), probe.amax or 0.0)
    if top == 0 or not math.isfinite(top):
        return probe
    shift = 1 - math.frexp(top)[1]
    amax = None if probe.amax is None else math.ldexp(probe.amax, shift)
    return dataclasses.replace(probe, x=np.ldexp(values, shift).astype(probe.x.dtype), amax=amax)


class SpecPair:
    """Two specifications, and the question whether a probe tells them apart."""

    def __init__(self, a: Spec, b: Spec) -> None:
        self.a, self.b = a, b

    def differ(self, probe: Probe) -> bool:
        """Return True if their bytes differ, or their values where bytes cannot be compared."""
        return difference.count(self.a, self.b, probe.x, probe.direction, amax=probe.amax).differs

    def tells(self, probe: Probe, kind: InputKind) -> bool:
        """Return True if they differ on a probe because of its kind."""
        if kind_of(probe) is not kind or not self.differ(probe):
            return False
        if kind in {InputKind.MINUS_ZERO, InputKind.NAN_INF}:
            return not self.differ(dataclasses.replace(probe, x=ordinary(probe.x)))
        return kind is not InputKind.EXTREME or not any(self.tells(tame, InputKind.ORDINARY) for tame in tamed(probe))


def oriented(matrix: NDArray[Any], direction: Direction) -> NDArray[Any]:
    """Return a matrix of the direction as the tensor that has it."""
    return np.ascontiguousarray(matrix if direction == "row" else matrix.T)
