"""Layouts of scale bytes as the loops read them: digits of a row, and the columns of one row."""

from __future__ import annotations

import ctypes
from ctypes import c_longlong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.layout import Digit, Layout


class Map(ctypes.Structure):
    """A layout for given sizes. Arrays that it points to are kept with it."""

    _fields_ = (
        ("digits", c_void_p),  # int64 [count, 3]: radix, stride, and log2 of the radix or -1
        ("count", c_longlong),
        ("first", c_longlong),
        ("step", c_longlong),  # bytes between groups of four columns side by side, or 0
        ("columns", c_void_p),  # int64 [columns]: where the columns of a row are, if step is 0
    )


@lru_cache(maxsize=128)
def lowered(form: Layout, rows: int, columns: int) -> Map:
    """Lower a layout to numbers for given (unpadded) sizes. Rules: LAY-13."""
    strides = form.strides(rows, columns)
    down, across = (_merged(digits) for digits in strides.axes)
    digits = np.array([(d.radix, d.stride, _log2(d.radix)) for d in down], np.int64)
    step = _step(across)
    table = None if step else strides.spread(1, np.arange(columns))
    pointer = None if table is None else table.ctypes.data
    result = Map(digits.ctypes.data, len(down), strides.first, step, pointer)
    result.kept = digits, table
    return result


def write_padding(buffer: NDArray[Any], form: Layout, rows: int, columns: int) -> None:
    """Fill the padding of a buffer of 0x00 as its axes say. Rules: LAY-5, LAY-15."""
    fills = [axis.fill or 0 for axis in form.axes]
    if not any(fills):
        return
    strides, flat = form.strides(rows, columns), buffer.reshape(-1)
    down, across = (strides.spread(axis, np.arange(size)) for axis, size in enumerate(form.padded(rows, columns)))
    for fill, part in ((fills[0], (down[rows:], across)), (fills[1], (down[:rows], across[columns:]))):
        flat[np.add.outer(*part) + strides.first] = fill


def _merged(digits: tuple[Digit, ...]) -> list[Digit]:
    """Digits without those of one value, neighbours that are one longer digit joined."""
    result: list[Digit] = []
    for digit in digits:
        if result and digit.stride == result[-1].radix * result[-1].stride:
            result[-1] = Digit(result[-1].radix * digit.radix, result[-1].stride)
        elif digit.radix != 1 or not result:
            result.append(digit)
    return result


def _step(across: list[Digit]) -> int:
    """Return the distance of groups of four columns that are stored side by side; 0 if columns are stored otherwise."""
    if across[0].stride != 1 or len(across) > 2:
        return 0
    if len(across) == 1:
        return 4
    return across[1].stride if across[0].radix == 4 else 0


def _log2(radix: int) -> int:
    return radix.bit_length() - 1 if radix & (radix - 1) == 0 else -1
