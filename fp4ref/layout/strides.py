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
    size: units of the whole buffer. turned: pairs of digits, of which the first is stored XOR the second. repeated:
    digits without a place. table: where the units of a run are moved in the end.
    """

    axes: tuple[tuple[Digit, ...], ...]
    rests: tuple[int, ...]
    stored: tuple[tuple[int, int], ...]
    first: int
    size: int
    turned: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = ()
    repeated: tuple[tuple[int, int], ...] = ()
    table: tuple[int, ...] = ()

    @property
    def base(self) -> int:
        """The place of the first unit; `first` differs from it where digits are stored backwards."""
        return self.first + sum(min(d.stride, 0) * (d.radix - 1) for digits in self.axes for d in digits)

    @property
    def regular(self) -> bool:
        """True if an offset is the sum of what its indices contribute."""
        return not (self.turned or self.repeated or self.table)

    def place(self, axis: int, digit: int) -> int:
        """Return the weight of a digit in its index: the product of the faster radices. Rules: LAY-30."""
        return math.prod(faster.radix for faster in self.axes[axis][:digit])

    def spread(self, axis: int, index: Ints) -> Ints:
        """Return the part of the offset that an index of one axis contributes. Rules: LAY-13, LAY-30."""
        digits = self.axes[axis]
        offset = np.zeros_like(index)
        for radix, stride in digits[:-1]:
            index, digit = np.divmod(index, radix)
            offset = offset + digit * stride
        return offset + index * digits[-1].stride

    def offsets(self, indices: Sequence[Ints]) -> Ints:
        """Return the offsets of indices, one array per axis, which broadcast.

        Rules: LAY-13, LAY-19, LAY-20, LAY-21, LAY-39.
        """
        total = sum((self.spread(axis, index) for axis, index in enumerate(indices)), np.zeros((), np.int64))
        for mine, other in self.turned:
            value, by = self._value(indices, mine), self._value(indices, other)
            total = total + ((value ^ by) - value) * self.axes[mine[0]][mine[1]].stride
        total = np.asarray(total + self.first)
        if self.table:
            run, place = np.divmod(total - self.base, len(self.table))
            total = self.base + run * len(self.table) + np.array(self.table)[place]
        return np.asarray(total)

    def ends(self, rows: Ints, columns: Ints) -> tuple[int, int]:
        """Return the smallest and the largest offset of some rows and columns."""
        if not self.regular:
            offsets = self.offsets([rows[:, None], columns[None, :]])
            return int(offsets.min()), int(offsets.max())
        down, across = self.spread(0, rows), self.spread(1, columns)
        return int(down.min() + across.min()) + self.first, int(down.max() + across.max()) + self.first

    def _value(self, indices: Sequence[Ints], digit: tuple[int, int]) -> Ints:
        axis, number = digit
        return np.asarray(indices[axis] // self.place(axis, number) % self.axes[axis][number].radix)

    def gather(self, offset: Ints, endless: bool = False) -> tuple[list[Ints], NDArray[np.bool_]]:
        """Return the indices whose digits make up an offset, and where the offset belongs to a digit at all.

        endless: the slowest stored digit has no upper bound. A repeated digit is 0 in the indices.

        Rules: LAY-41, LAY-47.
        """
        rest = offset - self.base
        if self.table:
            run, place = np.divmod(rest, len(self.table))
            rest = run * len(self.table) + np.argsort(self.table)[place]
        indices = [np.zeros_like(offset) for _ in self.axes]
        found = rest >= 0
        for number, (axis, digit) in enumerate(reversed(self.stored)):
            radix, stride = self.axes[axis][digit]
            value, rest = np.divmod(rest, max(abs(stride), 1))
            if number or not endless:
                found &= value < radix
            indices[axis] += (radix - 1 - value if stride < 0 else value) * self.place(axis, digit)
        for mine, other in self.turned:
            value, by = self._value(indices, mine), self._value(indices, other)
            indices[mine[0]] += ((value ^ by) - value) * self.place(*mine)
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
    """Derive the strides of a layout for padded sizes of its axes.

    Rules: LAY-13, LAY-16, LAY-17, LAY-31, LAY-39, LAY-40.
    """
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
    for axis_number, number in form.repeated:
        radix = form.axes[axis_number].radices[number]
        radix = padded[axis_number] // form.axes[axis_number].tile if radix is None else radix
        made[axis_number][number] = [Digit(radix, 0)]
    for item in form.order:
        if isinstance(item, Term) and item.by:
            made[item.axis][item.digit] = _cut(made[item.axis][item.digit][0], made[item.by[0]][item.by[1]])
    digits = tuple(tuple(part for parts in axis for part in parts) for axis in made)
    places = [item for item in form.order if isinstance(item, Term)]
    stored = tuple((p.axis, start + i) for p in places for start, i in _numbers(made[p.axis], p.digit))
    rests = tuple(sum(map(len, made[a][: axis.radices.index(None)])) for a, axis in enumerate(form.axes))
    first -= sum(d.stride * (d.radix - 1) for axis in digits for d in axis if d.stride < 0)
    last = first + sum(max(d.stride, 0) * (d.radix - 1) for axis in digits for d in axis)
    base, run = form.base.of(padded), max(len(form.table), 1)
    size = max(-(-running // run) * run, base + -(-(last + 1 - base) // run) * run) if math.prod(padded) else 0
    starts = {(a, d): sum(map(len, made[a][:d])) for a, axis in enumerate(form.axes) for d in range(len(axis.radices))}
    turned = tuple(
        ((p.axis, starts[p[:2]] + i), (p.by[0], starts[p.by] + i))
        for p in places
        if p.by
        for i in range(len(made[p.axis][p.digit]))
    )
    repeated = tuple((axis, starts[axis, digit]) for axis, digit in form.repeated)
    return Strides(digits, rests, stored, first, size, turned, repeated, form.table)


def _numbers(parts: Sequence[Sequence[Digit]], digit: int) -> list[tuple[int, int]]:
    start = sum(map(len, parts[:digit]))
    return [(start, i) for i in range(len(parts[digit]))]


def _cut(digit: Digit, other: Sequence[Digit]) -> list[Digit]:
    """Return a digit in as many runs of bits as the one that turns it has; the last run takes what is left."""
    runs: list[Digit] = []
    radix, stride = digit
    for part in other[:-1]:
        runs.append(Digit(part.radix, stride))
        radix, stride = radix // part.radix, stride * part.radix
    return [*runs, Digit(radix, stride)]


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
