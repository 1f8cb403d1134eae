"""A layout for given sizes: every digit with its stride, so that an offset is a sum, and the sum can be undone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.layout.text import Form, Product, Term

Ints = NDArray[np.int64]


class Digit(NamedTuple):
    """A digit of an index: the number of its values, and their distance in units.

    A negative stride stores its values backwards.
    """

    radix: int
    stride: int


@dataclass(frozen=True)
class Strides:
    """The digits of each axis, fastest first. offset = first + the sum of digit * stride over all axes.

    rests: which digit of an axis is the rest. stored: axis and digit of each digit, the fastest stored one first.
    size: units of the whole buffer.
    """

    axes: tuple[tuple[Digit, ...], ...]
    rests: tuple[int, ...]
    stored: tuple[tuple[int, int], ...]
    first: int
    size: int

    def place(self, axis: int, digit: int) -> int:
        """Return the weight of a digit in its index: the product of the faster radices."""
        return math.prod(faster.radix for faster in self.axes[axis][:digit])

    def spread(self, axis: int, index: Ints) -> Ints:
        """Return the part of the offset that an index of one axis contributes. Rules: LAY-13."""
        digits = self.axes[axis]
        offset = np.zeros_like(index)
        for radix, stride in digits[:-1]:
            index, digit = np.divmod(index, radix)
            offset = offset + digit * stride
        return offset + index * digits[-1].stride

    def gather(self, offset: Ints, endless: bool = False) -> tuple[list[Ints], NDArray[np.bool_]]:
        """Return the indices whose digits make up an offset, and where the offset belongs to a digit at all.

        endless: the slowest stored digit has no upper bound.
        """
        lowest = self.first + sum(min(d.stride, 0) * (d.radix - 1) for digits in self.axes for d in digits)
        rest = offset - lowest
        indices = [np.zeros_like(offset) for _ in self.axes]
        found = rest >= 0
        for number, (axis, digit) in enumerate(reversed(self.stored)):
            radix, stride = self.axes[axis][digit]
            value, rest = np.divmod(rest, max(abs(stride), 1))
            if number or not endless:
                found &= value < radix
            indices[axis] += (radix - 1 - value if stride < 0 else value) * self.place(axis, digit)
        return indices, found & (rest == 0)


def is_unbounded(form: Form) -> bool:
    """Return True if no offset depends on the size of the first axis: its rest is stored slowest. Rules: LAY-13."""
    places = [item for item in form.order if isinstance(item, Term)]
    products = [form.base, *(item for item in form.order if isinstance(item, Product))]
    radices = form.axes[0].radices
    slowest = places[-1][:2] == (0, len(radices) - 1) and radices[-1] is None
    return slowest and not any(0 in product.axes for product in products)


@lru_cache(maxsize=256)
def strides(form: Form, padded: tuple[int, ...]) -> Strides:
    """Derive the strides of a layout for padded sizes of its axes. Rules: LAY-13, LAY-16, LAY-17."""
    first, running = form.base.of(padded), 1
    made: list[list[list[Digit]]] = [[[] for _ in axis.radices] for axis in form.axes]
    for item in form.order:
        if isinstance(item, Product):
            unit = max(item.of(padded), 1)
            running = -(-running // unit) * unit
            continue
        axis = form.axes[item.axis]
        radix = axis.radices[item.digit]
        radix = padded[item.axis] // axis.tile if radix is None else radix
        made[item.axis][item.digit] = _runs(radix, running, item.flip)
        running *= radix
    digits = tuple(tuple(part for parts in axis for part in parts) for axis in made)
    places = [item for item in form.order if isinstance(item, Term)]
    stored = tuple((p.axis, start + i) for p in places for start, i in _numbers(made[p.axis], p.digit))
    rests = tuple(sum(map(len, made[a][: axis.radices.index(None)])) for a, axis in enumerate(form.axes))
    first -= sum(d.stride * (d.radix - 1) for axis in digits for d in axis if d.stride < 0)
    last = first + sum(max(d.stride, 0) * (d.radix - 1) for axis in digits for d in axis)
    return Strides(digits, rests, stored, first, max(running, last + 1) if math.prod(padded) else 0)


def _numbers(parts: Sequence[Sequence[Digit]], digit: int) -> list[tuple[int, int]]:
    start = sum(map(len, parts[:digit]))
    return [(start, i) for i in range(len(parts[digit]))]


def _runs(radix: int, stride: int, flip: int) -> list[Digit]:
    """Return a digit as runs of bits that are all flipped (stored backwards) or all kept. Rules: LAY-17."""
    runs: list[Digit] = []
    while flip:
        kept = flip & -flip  # the lowest flipped bit
        ones = flip // kept
        count = (ones ^ (ones + 1)).bit_length() - 1  # flipped bits side by side
        runs += [Digit(kept, stride)] if kept > 1 else []
        runs.append(Digit(1 << count, -stride * kept))
        flip, radix, stride = ones >> count, radix // kept >> count, stride * kept << count
    return [*runs, Digit(radix, stride)] if radix != 1 or not runs else runs
