"""Shrinking an input on which two specifications differ, so that a human can recompute it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.explain.probes import InputKind, Probe, centered
from fp4ref.formats import F
from fp4ref.model.tiles import widen

TRIALS = 1500  # at most so many pairs of quantizations
MANTISSA_BITS = 23
LARGEST = float(np.finfo(F).max)


class Tells(Protocol):
    """Two quantizers, and the question whether a probe tells them apart."""

    def tells(self, probe: Probe, kind: InputKind) -> bool:
        """Return True if they differ on a probe of a kind."""


def shrunk(pair: Tells, probe: Probe, kind: InputKind) -> Probe:
    """Zero elements, cut them off, then make the remaining numbers round; every step keeps the kind of difference."""
    trials = _Trials(pair, probe, kind)
    if probe.amax is not None:
        trials.take(amax=None)
    for step in (_zero, _crop, _center, _round_values, _round_amax, _round_values, _crop):
        step(trials)
    return trials.best


class _Trials:
    """Keeps the smallest probe so far, and counts what it costs."""

    def __init__(self, pair: Tells, probe: Probe, kind: InputKind) -> None:
        self.pair, self.best, self.kind, self.left = pair, probe, kind, TRIALS

    def take(self, **changes: Any) -> bool:
        """Keep a changed probe if the two still differ on it."""
        probe = dataclasses.replace(self.best, **changes)
        self.left -= 1
        if self.left < 0 or not self.pair.tells(probe, self.kind):
            return False
        self.best = probe
        return True


def _zero(trials: _Trials) -> None:
    """Set ever smaller groups of elements to zero."""
    size = trials.best.x.size
    while size >= 1:
        for start in range(0, trials.best.x.size, size):
            values = trials.best.x.copy()
            group = values.reshape(-1)[start : start + size]
            if group.view(f"u{group.dtype.itemsize}").any():
                group[...] = 0
                trials.take(x=values)
        size //= 2


def _crop(trials: _Trials) -> None:
    """Leave out zero columns and rows: all of them, those at both ends, or those at the end."""
    if trials.best.direction == "column":
        return
    for axis in (1, 0):
        used = np.flatnonzero(_used(trials.best.x).any(axis=1 - axis))
        if not len(used):
            continue
        for kept in (used, np.arange(used[0], used[-1] + 1), np.arange(used[-1] + 1)):
            if trials.take(x=np.ascontiguousarray(trials.best.x.take(kept, axis))):
                break


def _used(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Elements that are not +0."""
    return np.asarray(x.view(f"u{x.dtype.itemsize}") != 0)


def _center(trials: _Trials) -> None:
    """Scale by a power of two, so that the largest value is in [1, 2); and drop signs."""
    middle = centered(trials.best)
    trials.take(x=middle.x, amax=middle.amax)
    values = widen(trials.best.x)
    trials.take(x=np.where(np.isfinite(values) & (values != 0), np.abs(values), values).astype(trials.best.x.dtype))


def _round_values(trials: _Trials) -> None:
    """Shorten the mantissa of each value."""
    for index in np.ndindex(trials.best.x.shape):
        value = float(trials.best.x[index])
        if value == 0 or not math.isfinite(value):
            continue

        def works(shorter: float, index: tuple[int, ...] = index) -> bool:
            return trials.take(x=_changed_at(trials.best.x, index, shorter))

        _first_that_works(value, works)


def _round_amax(trials: _Trials) -> None:
    """Shorten the mantissa of the amax; it stays at least the largest value."""
    if trials.best.amax is None:
        return
    values = widen(trials.best.x)
    least = float(np.abs(values[np.isfinite(values)]).max(initial=0))
    _first_that_works(trials.best.amax, lambda shorter: shorter >= least and trials.take(amax=shorter))


def _first_that_works(value: float, works: Callable[[float], bool]) -> None:
    """Try 1, then mantissas of more and more bits, of the same magnitude or the next."""
    mantissa, exponent = math.frexp(value)
    tried = {value}
    if abs(value) != 1:
        tried.add(math.copysign(1.0, value))
        if works(math.copysign(1.0, value)):
            return
    for bits in range(1, MANTISSA_BITS + 1):
        for rounded in (math.floor(mantissa * 2**bits), math.ceil(mantissa * 2**bits)):
            longer = math.ldexp(rounded, exponent - bits)
            shorter = float(F(longer)) if abs(longer) <= LARGEST else math.inf
            if shorter and math.isfinite(shorter) and shorter not in tried:
                tried.add(shorter)
                if works(shorter):
                    return
        if math.ldexp(mantissa, bits) == int(math.ldexp(mantissa, bits)):
            return  # the value itself is no longer


def _changed_at(x: NDArray[Any], index: tuple[int, ...], value: float) -> NDArray[Any]:
    changed = x.copy()
    changed[index] = value
    return changed
