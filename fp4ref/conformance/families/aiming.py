"""Aiming: the inputs at which the bytes of a specification change, found by bisection of its own functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.families.case import Aim, Values
from fp4ref.formats import E8M0, Codec, F, Floats, Format, Rounding, grid, ignoring_float_warnings
from fp4ref.model.quantize import block_scale, constants, global_scale, scaled
from fp4ref.spec import Granularity, Spec

Ordered = NDArray[np.int64]
NARROWEST = (-8, -1)  # of a type with no more range than the elements


def midpoints(form: Format) -> Values:
    """Ties between neighbouring values of a format; the last is that of overflow."""
    values = grid(form)
    return (values[:-1] + values[1:]) / 2


def nearest(codec: Codec) -> Codec:
    """Return the codec without its random bits, for aiming."""
    return dataclasses.replace(codec, rounding=Rounding.EVEN) if codec.rounding is Rounding.STOCHASTIC else codec


def patterns(aimed: Aim, values: NDArray[Any]) -> Ordered:
    """Bit patterns of values >= 0, which are ordered as the values are."""
    return values.astype(aimed.dtype).view(f"u{aimed.dtype.itemsize}").astype(np.int64)


def from_patterns(aimed: Aim, bits: Ordered) -> NDArray[Any]:
    """Values of bit patterns, held within those of +0 and infinity."""
    top = int(patterns(aimed, np.array(np.inf)))
    return np.clip(bits, 0, top - 1).astype(f"u{aimed.dtype.itemsize}").view(aimed.dtype)


def beside(aimed: Aim, values: NDArray[Any], by: int | NDArray[Any]) -> NDArray[Any]:
    """Return the magnitudes of the type a number of steps above; below for negative numbers."""
    return from_patterns(aimed, patterns(aimed, values) + by)


class Steps:
    """The first steps of a specification under one global amax: from block maxima to bytes, from values to codes."""

    def __init__(self, spec: Spec, dtype: np.dtype[Any], amax: float) -> None:
        self._spec = spec
        self._k = constants(spec, dtype)
        wanted = None if spec.global_scale is Granularity.NONE else np.full((1, 1, 1, 1), amax, F)
        with np.errstate(all="ignore"):
            self._g = global_scale(wanted, spec, self._k)

    @ignoring_float_warnings
    def scale(self, maxima: NDArray[Any]) -> tuple[Floats, NDArray[np.uint8]]:
        """Scales before their codec and scale bytes of block maxima, of any shape."""
        flat = maxima.astype(F).reshape(-1, 1, 1, 1)
        before = block_scale(flat, self._g, self._spec, self._k)
        before = np.broadcast_to(before, flat.shape)
        return before.reshape(maxima.shape), self._spec.scale.encode(before).reshape(maxima.shape)

    @ignoring_float_warnings
    def magnitudes(self, x: NDArray[Any], maxima: NDArray[Any]) -> Floats:
        """Return the element values that magnitudes x [n, m] of blocks with the maxima [n] are rounded to."""
        before, codes = (part.reshape(-1, 1, 1, 1) for part in self.scale(maxima))
        blocks = x.astype(F)[:, None, None, :]
        y = scaled(blocks, before, codes, self._g, self._spec, self._k)
        element = nearest(self._spec.element)
        return np.abs(element.decode(element.encode(np.asarray(y, F))))[:, 0, 0, :]


def bisected(aimed: Aim, above: Callable[[NDArray[Any]], NDArray[np.bool_]], high: NDArray[Any]) -> NDArray[Any]:
    """Return the smallest magnitudes of the type for which a monotone test holds, or `high` if it never does."""
    low, top = np.full(high.shape, -1, np.int64), patterns(aimed, high)
    for _ in range(8 * aimed.dtype.itemsize):
        middle = (low + top) // 2
        holds, open_ = above(from_patterns(aimed, middle)), top - low > 1
        low, top = np.where(open_ & ~holds, middle, low), np.where(open_ & holds, middle, top)
    return from_patterns(aimed, top)


def element_thresholds(aimed: Aim, maxima: NDArray[Any], amax: float) -> NDArray[Any]:
    """For each block maximum the smallest inputs that are rounded past each element value, [n, values - 1]."""
    return _element_thresholds(aimed.spec, aimed.dtype, maxima.dtype, maxima.tobytes(), float(amax)).copy()


@lru_cache(maxsize=256)  # families ask for the same in every direction, and a run for one specification after the other
def _element_thresholds(
    spec: Spec, dtype: np.dtype[Any], kind: np.dtype[Any], maxima_bytes: bytes, amax: float
) -> NDArray[Any]:
    aimed, maxima = Aim(spec, dtype), np.frombuffer(maxima_bytes, kind)
    steps = Steps(spec, dtype, amax)
    wanted = grid(spec.element.format)[1:-1].astype(F)
    high = np.repeat(maxima[:, None], len(wanted), axis=1)
    return bisected(aimed, lambda x: steps.magnitudes(x, maxima) >= wanted, high)


def scale_thresholds(aimed: Aim, amax: float) -> NDArray[Any]:
    """Return the smallest block maxima that reach each scale byte, up to the global amax or the largest value."""
    return _scale_thresholds(aimed.spec, aimed.dtype, float(amax)).copy()


@lru_cache(maxsize=256)
def _scale_thresholds(spec: Spec, dtype: np.dtype[Any], amax: float) -> NDArray[Any]:
    aimed = Aim(spec, dtype)
    steps = Steps(spec, dtype, amax)
    form = spec.scale.format
    wanted = np.arange(1, form.codes)
    top = aimed.narrow(amax if aimed.unit_amax else aimed.finite_max)

    def above(maxima: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray((steps.scale(maxima)[1] & (form.sign_bit - 1 if form.signed else 0xFF)) >= wanted)

    found = bisected(aimed, above, np.full(wanted.shape, top))
    return np.unique(found[(found > 0) & (found < top)].astype(F)).astype(aimed.dtype)


def scale_values(aimed: Aim) -> Values:
    """Values of the scale format that exact units can have in the type: normal numbers, a wide range of powers."""
    form = aimed.spec.scale.format
    if form is not E8M0:
        return grid(form)[1 : form.codes]
    low, high = exponents(aimed)
    return np.asarray(np.ldexp(1.0, np.arange(low, high + 1)))


def exponents(aimed: Aim) -> tuple[int, int]:
    """Return the smallest and largest power of two by which every element value is multiplied exactly."""
    lowest = 1 - aimed.spec.element.format.bias - aimed.spec.element.format.mantissa_bits - 1
    low = int(np.log2(aimed.smallest_normal)) - lowest
    high = int(np.log2(aimed.finite_max)) - aimed.spec.element.format.emax - 1
    return (max(low, -110), min(high, 110)) if low < high else NARROWEST


def filled(aimed: Aim, leads: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Blocks [n, area]: each with its maximum, at a place that moves, and the given magnitudes, signs mixed.

    leads: [n]. others: [n, m]; repeated until they fill a block, and spread over as many as they need.
    """
    room = aimed.area - 1
    if room < 1:
        return leads[:, None]
    parts = -(-others.shape[1] // room)
    index = np.arange(parts * room) % others.shape[1]
    leads = np.repeat(leads, parts)
    rest = others[:, index].reshape(-1, room)
    blocks = np.concatenate([leads[:, None].astype(aimed.dtype), rest.astype(aimed.dtype)], axis=1)
    signs = aimed.rng.choice(np.array([1, -1], np.int8), blocks.shape)
    turn = (np.arange(aimed.area)[None, :] - (5 * np.arange(len(blocks)))[:, None]) % aimed.area
    signed = blocks.astype(F) * signs
    return np.take_along_axis(signed, turn, axis=1).astype(aimed.dtype)
