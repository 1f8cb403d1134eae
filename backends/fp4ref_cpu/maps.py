"""Layouts of scale bytes as the loops read them: digits of a row, and the columns of one row."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_longlong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.layout import Digit, Layout, Strides


class Map(ctypes.Structure):
    """A layout for given sizes. Arrays that it points to are kept with it."""

    _fields_ = (
        ("digits", c_void_p),  # int64 [count, 3]: radix, stride, and log2 of the radix or -1
        ("count", c_longlong),
        ("first", c_longlong),
        ("step", c_longlong),  # bytes between groups of four columns side by side, or 0
        ("columns", c_void_p),  # int64 [columns]: where the columns of a row are, if step is 0
        (
            "turns",
            c_void_p,
        ),  # int64 [turned, 7]: axis, weight and radix of a digit and of the one that turns it; stride
        ("turned", c_longlong),
        ("table", c_void_p),  # int64 [run]: where the units of each run are moved, or null
        ("run", c_longlong),
        ("base", c_longlong),
    )


@lru_cache(maxsize=128)
def lowered(form: Layout, rows: int, columns: int) -> Map:
    """Lower a layout to numbers for given (unpadded) sizes. Rules: LAY-13, LAY-19, LAY-21, LAY-30."""
    strides = form.strides(rows, columns)
    down, across = (_merged(digits) for digits in strides.axes)
    digits = np.array([(d.radix, d.stride, _log2(d.radix)) for d in down], np.int64)
    step = _step(across) if strides.regular else 0
    offsets = None if step else strides.spread(1, np.arange(columns))
    turns = np.array([_turn(strides, *pair) for pair in strides.turned], np.int64)
    table = np.array(strides.table, np.int64) if strides.table else None
    result = Map(digits.ctypes.data, len(down), strides.first, step, _start(offsets))
    result.turns, result.turned = _start(turns), len(turns)
    result.table, result.run, result.base = _start(table), len(strides.table), strides.base
    result.kept = digits, offsets, turns, table
    return result


def _start(array: NDArray[np.int64] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _turn(strides: Strides, mine: tuple[int, int], other: tuple[int, int]) -> list[int]:
    """Return the numbers of a digit that another turns."""
    (axis, digit), (by_axis, by_digit) = mine, other
    turned, by = strides.axes[axis][digit], strides.axes[by_axis][by_digit]
    places = strides.place(*mine), strides.place(*other)
    return [axis, places[0], turned.radix, by_axis, places[1], by.radix, turned.stride]


def write_padding(buffer: NDArray[Any], form: Layout, rows: int, columns: int) -> None:
    """Fill the padding of a buffer of 0x00 as its axes say. Rules: LAY-5, LAY-15, LAY-42."""
    fills = [axis.fill or 0 for axis in form.axes]
    if not any(fills):
        return
    strides, flat = form.strides(rows, columns), buffer.reshape(-1)
    down, across = (np.arange(size) for size in form.padded(rows, columns))
    for fill, part in ((fills[0], (down[rows:], across)), (fills[1], (down[:rows], across[columns:]))):
        flat[strides.offsets([part[0][:, None], part[1]])] = fill


def padding(form: Layout, rows: int, columns: int) -> Callable[[int], None] | None:
    """Return a function of the address of a buffer that fills what is padding there; None without padding.

    Rules: LAY-5, LAY-15, LAY-42.
    """
    shape = form.padded_shape(rows, columns)
    if shape == (rows, columns):
        return None
    size, filled = shape[0] * shape[1], any(axis.fill for axis in form.axes)
    bytes_at = (ctypes.c_uint8 * size).from_address

    def pad(start: int) -> None:
        ctypes.memset(start, 0, size)
        if filled:
            write_padding(np.asarray(bytes_at(start), np.uint8).reshape(shape), form, rows, columns)

    return pad


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
