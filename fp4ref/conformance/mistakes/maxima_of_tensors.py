"""Maxima of a tensor or of its rows as a wrong kernel takes them, [1] or [rows]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.kernel import Values, over_tensor
from fp4ref.conformance.mistakes.row_maxima import shared_by
from fp4ref.formats import F, Floats


def amax_of(chosen: Callable[[Floats], Floats], values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the maximum magnitude of a function's results for the values."""
    return over_tensor(Values(values.raw, chosen(values.transformed)), keep_nan, by_row)


def amax_raw(values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Before the transform."""
    return over_tensor(Values(values.raw, values.raw), keep_nan, by_row)


def amax_both(values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the larger of before and after the transform."""
    return np.maximum(amax_raw(values, keep_nan, by_row), over_tensor(values, keep_nan, by_row))


def signed_plain(start: np.float32, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """max x, which can be -0, and from another start than 0 negative."""
    found = np.fmax.reduce(values.transformed, axis=1 if by_row else None, initial=start)
    return np.asarray(found, F).reshape(-1)


def absolute_of_signed(values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """|max x|."""
    found = np.nanmax(values.transformed, axis=1 if by_row else None, initial=-np.inf)
    return np.abs(np.where(np.isfinite(found), found, F(0))).reshape(-1).astype(F)


def largest_bits(kind: str, absolute: bool, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the value whose bits are the largest integer."""
    bits = np.ascontiguousarray(values.transformed, F).view(kind)
    found = np.asarray(bits.max(axis=1 if by_row else None, initial=0), kind).reshape(-1).view(F)
    return np.abs(found) if absolute else found


def by_groups(rows: int, amax: Floats, values: Values) -> Floats:
    """Return the amax of each row's group of `rows` rows."""
    return shared_by(rows, values, keep_nan=False, by_row=True)


def of_one_stack(which: int, of_matrices: int, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the amax of the first (0) or the last (-1) part of a tensor of more than two dimensions, or matrix."""
    count = values.stacks[of_matrices]
    parts = np.split(values.transformed, count, axis=values.axis) if count > 1 else [values.transformed]
    return over_tensor(values._replace(transformed=parts[which]), keep_nan, by_row)


def of_whole_vectors(count: int, few: bool, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the amax up to the last multiple of `count` elements in memory. few: of all where there are fewer."""
    flat = (values.transformed if values.axis == 0 else values.transformed.T).reshape(1, -1)
    whole = flat.size // count * count
    return over_tensor(values._replace(transformed=flat[:, : whole or flat.size * few]), keep_nan, by_row)


def of_first_elements(count: int, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the amax of the first `count` elements in memory."""
    flat = (values.transformed if values.axis == 0 else values.transformed.T).reshape(1, -1)
    return over_tensor(values._replace(transformed=flat[:, :count]), keep_nan, by_row)


def of_first(count: int, amax: Floats, values: Values) -> Floats:
    """Return the amax of the first `count` elements."""
    return over_tensor(Values(values.raw, values.transformed.reshape(1, -1)[:, :count]), keep_nan=False, by_row=False)


def to_bits(bits: int, whole: Callable[[Any], Any], amax: Floats) -> Floats:
    """Round to `bits` bits of mantissa after the leading one."""
    fraction, exponent = np.frexp(np.asarray(amax, np.float64))
    unit = 2.0 ** (bits + 1)
    return np.asarray(np.ldexp(whole(fraction * unit) / unit, exponent), F)


def amax_of_first(count: int, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the amax of the first `count` elements."""
    return of_first(count, values.raw, values)


def amax_of_whole(multiple: int, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the amax up to the last whole group of `multiple` elements, counted over the whole tensor."""
    return of_first(values.raw.size // multiple * multiple, values.raw, values)
