"""Move the units of an array into a layout's buffer and back, piece by piece.

A buffer is seen digit by digit: one NumPy axis per digit, with the digit's stride. Assigning an array that is split
into the same digits stores every unit. A piece is small, so that a conversion needs little memory beyond its result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.layout.strides import Strides
from fp4ref.layout.text import Axis

PIECE = 1 << 22  # units that a conversion moves at a time
Units = NDArray[Any]


def stored(buffer: Units, array: Units, axes: Sequence[Axis], strides: Strides) -> None:
    """Write an array into a flat buffer that holds 0x00, its padding as its axes say. Rules: LAY-5, LAY-15, LAY-48."""
    whole = any(axis.fill for axis in axes)
    limits = [-(-n // a.multiple) * a.multiple if whole else n for n, a in zip(array.shape, axes, strict=True)]
    if not strides.regular:
        for part in _parts(limits):
            buffer[strides.offsets(_indices(part))] = _filled(array[part], axes, part)
        for part in _parts(array.shape) if whole and strides.repeated else ():  # a place that padding shares
            buffer[strides.offsets(_indices(part))] = array[part]
        return
    for piece, part in _pieces(buffer, strides, limits):
        piece[...] = _filled(array[part], axes, part).reshape(piece.shape)


def loaded(array: Units, buffer: Units, strides: Strides) -> None:
    """Read an array from a flat buffer; padding has no influence. Rules: LAY-6."""
    if not strides.regular:
        for part in _parts(array.shape):
            array[part] = buffer[strides.offsets(_indices(part))]
        return
    for piece, part in _pieces(buffer, strides, array.shape):
        values = array[part]
        shape = [stop.stop - stop.start for stop in part]
        values[...] = piece.reshape(shape)[tuple(slice(0, n) for n in values.shape)]


def _filled(values: Units, axes: Sequence[Axis], part: Sequence[slice]) -> Units:
    """Return a part of the padded array: its values, and around them what the padding of each axis holds.

    Rules: LAY-15, LAY-38, LAY-42.
    """
    filled = np.zeros([stop.stop - stop.start for stop in part], values.dtype)
    for axis in reversed(range(len(axes))):  # padding of several axes is that of the first
        beyond = (slice(None),) * axis + (slice(values.shape[axis], None),)
        filled[beyond] = axes[axis].fill or 0
    filled[tuple(slice(0, n) for n in values.shape)] = values
    return filled


def _parts(limits: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield parts of the array below the limits, cut along the first axis."""
    height = max(PIECE // max(math.prod(limits[1:]), 1), 1)
    for top in range(0, limits[0] if math.prod(limits) else 0, height):
        yield slice(top, min(top + height, limits[0])), *(slice(0, limit) for limit in limits[1:])


def _indices(part: Sequence[slice]) -> list[Units]:
    return list(np.ogrid[tuple(part)])


def _pieces(buffer: Units, strides: Strides, limits: Sequence[int]) -> Iterator[tuple[Units, tuple[slice, ...]]]:
    """Yield parts of the array below the limits, and their units in the buffer, one axis per digit, slowest first."""
    if not buffer.size:
        return
    digits = [tuple(reversed(axis)) for axis in strides.axes]
    flat = [digit for axis in digits for digit in axis]
    view = np.lib.stride_tricks.as_strided(
        buffer[strides.first :],
        [digit.radix for digit in flat],
        [digit.stride * buffer.itemsize for digit in flat],
    )
    inner = [strides.place(axis, rest) for axis, rest in enumerate(strides.rests)]
    left = max(PIECE // math.prod(inner), 1)
    heights = [1] * len(inner)
    for axis in reversed(range(len(inner))):
        count = strides.axes[axis][strides.rests[axis]].radix
        heights[axis] = max(min(count, left), 1)
        left //= heights[axis]
    ranges = [list(_ranges(strides, axis, heights[axis], limits[axis])) for axis in range(len(inner))]
    for parts in itertools.product(*ranges):
        yield view[tuple(i for index, _ in parts for i in index)], tuple(part for _, part in parts)


def _ranges(strides: Strides, axis: int, height: int, limit: int) -> Iterator[tuple[tuple[int | slice, ...], slice]]:
    """Ranges of one axis that share all digits slower than the rest: the index of their digits, and where they are."""
    rest = strides.rests[axis]
    digits = strides.axes[axis]
    inner, count = strides.place(axis, rest), digits[rest].radix
    whole: tuple[int | slice, ...] = (slice(None),) * rest
    slower = [range(digit.radix) for digit in reversed(digits[rest + 1 :])]
    for number, index in enumerate(itertools.product(*slower)):
        for top in range(0, count, height):
            start, stop = (number * count + top) * inner, (number * count + min(top + height, count)) * inner
            if start < limit:
                yield (*index, slice(top, top + height), *whole), slice(start, stop)
