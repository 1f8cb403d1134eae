"""Bounds of codes and scale bytes, derived from their formats: what the checks of bytes compare with. Rules: CKP-33."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.convention import CONVENTIONS, Convention
from fp4ref.formats import FORMATS, Codec, Format, grid

MARGIN = 1.15  # above what a uniform distribution gives
SPARE = 10.0  # decibels below what a uniform distribution reaches


@lru_cache
def values(name: str) -> NDArray[np.float32]:
    """Return the value of each code of a format."""
    form = FORMATS[name]
    top = (1 << form.bits) - 1
    return Codec(format=form, nan=(top, top)).decode(np.arange(top + 1, dtype=np.uint8))


def magnitude(form: Format) -> int:
    """Return the mask of a code's magnitude."""
    return (form.sign_bit or 1 << form.bits) - 1


def code_at(form: Format, value: float) -> int:
    """Return the smallest code, without its sign, of a magnitude at or above a value."""
    return int(np.searchsorted(grid(form), value))


@lru_cache
def nan_codes(name: str) -> NDArray[np.bool_]:
    """Return for each code of a format whether it is NaN or infinite."""
    return ~np.isfinite(values(name))


@lru_cache
def negative_codes(name: str) -> NDArray[np.bool_]:
    """Return for each code of a format whether its sign is set and it is finite."""
    form = FORMATS[name]
    return (np.arange(1 << form.bits) & form.sign_bit > 0) & ~nan_codes(name)


def first_normal(form: Format) -> int:
    """Return the smallest code with a full mantissa: relative errors of smaller ones are larger."""
    return 1 << form.mantissa_bits


def overshoot(convention: Convention) -> float:
    """Return the largest ratio of a block's amax to what its largest element can hold, by any rule for the scale.

    A scale with a mantissa is rounded to the nearest; a power of two may be rounded down, as OCP's rule does.
    """
    element, scale = FORMATS[convention.element], FORMATS[convention.scale]
    if scale.mantissa_bits:
        return 1 + 2.0 ** -(scale.mantissa_bits + 1)
    return 2.0 ** (element.emax + 1) / element.max


def most_crowded(convention: Convention) -> float:
    """Return the share of elements with the largest code that blocks scaled to their amax do not exceed.

    A uniform distribution has the share of its range that rounds to the largest value; weights have less.

    >>> from fp4ref.checkpoints.groups import CONVENTIONS
    >>> [round(most_crowded(CONVENTIONS[name]), 2) for name in ("modelopt.nvfp4", "modelopt.mxfp4")]
    [0.25, 0.43]

    Rules: CKP-33.
    """
    form = FORMATS[convention.element]
    last = grid(form)[form.codes - 2 : form.codes]
    return float(MARGIN * (1 - last.mean() / (form.max * overshoot(convention))))


def always_reached(convention: Convention) -> int:
    """Return the code that the largest element of each block reaches, except in a few blocks. Rules: CKP-33."""
    form = FORMATS[convention.element]
    return form.codes - 1 if FORMATS[convention.scale].mantissa_bits else code_at(form, form.max / 2)


def often_reached(convention: Convention) -> int:
    """Return the code that the largest element of some block in two hundred reaches. Rules: CKP-33."""
    form = FORMATS[convention.element]
    return form.codes - 1 if FORMATS[convention.scale].mantissa_bits else code_at(form, 2.0**form.emax)


def least_decibels(name: str) -> float:
    """Return the signal-to-noise ratio that elements reach at least in blocks scaled to their amax, by any rule.

    Values that are uniform between two powers of two reach 10 log10(28 · 4^m) with m mantissa bits.

    Rules: CKP-33.
    """
    return 10 * math.log10(28 * 4.0 ** FORMATS[name].mantissa_bits) - SPARE


def zero_scales(scale: str) -> set[int]:
    """Return the scale bytes that producers give blocks of zeros."""
    known = CONVENTIONS.values()
    return {each.zero_block[0] for each in known if each.scale == scale and each.zero_block is not None}
