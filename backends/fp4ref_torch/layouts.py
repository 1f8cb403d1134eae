"""Layouts of scale bytes: every digit is a dimension of a reshaped tensor, and the stored order is a permutation.

Each step has its inverse: pad the axes, split them into digits, turn those that others turn, keep one value of those
that are repeated, put the digits into stored order, flip those that are flipped, then join dimensions from the fastest
one on, leaving the gaps of alignments between them, and move the units of each run by a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fp4ref.layout import Layout, Term, layout


class StoredDigit(NamedTuple):
    """A dimension of the stored tensor: a digit of some values, XORed with `flip`, or an alignment of what is inside.

    dimension: that of the digit in the split tensor. align: units, 0 for a digit. by: the dimension that turns it.
    """

    dimension: int
    values: int
    flip: int
    align: int
    by: int | None = None


def from_linear(scales: Tensor, name: str) -> Tensor:
    """Scale bytes [rows, columns] in the order of a layout, padded as it says.

    Errors: LayoutError for scales that differ where the layout has one place for them.

    Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5, LAY-13, LAY-15, LAY-16, LAY-17, LAY-19, LAY-20, LAY-21, LAY-38, LAY-39,
    LAY-42, LAY-46, LAY-48.
    """
    form = layout(name)
    rows, columns = scales.shape
    high, wide = _padded(form, rows, columns)
    if not high * wide:
        return scales.new_zeros(form.padded_shape(rows, columns))
    down, across = (axis.fill or 0 for axis in form.axes)
    padded = scales if wide == columns else pad(scales, (0, wide - columns), value=across)
    padded = padded if high == rows else pad(padded, (0, 0, 0, high - rows), value=down)
    shape, steps = _steps(form, high, wide)
    repeated = _repeated(form)
    digits = _turned(padded.reshape(shape), steps)
    if repeated:
        within = scales.new_ones((rows, columns), dtype=torch.bool)
        within = _turned(pad(within, (0, wide - columns, 0, high - rows)).reshape(shape), steps)
        digits = torch.where(_at(within, repeated, 0), _at(digits, repeated, 0), _at(digits, repeated, -1))
    digits = digits.permute([*repeated, *_stored(steps)])[(0,) * len(repeated)]
    inside = 1  # units of the dimensions that are joined so far
    joined = digits.reshape(*digits.shape, 1)
    for step in steps:
        if step.align:
            more = -inside % step.align
            joined, inside = pad(joined, (0, more)), inside + more
        else:
            joined = _flipped(joined, -2, step.flip).flatten(-2)
            inside *= step.values
    shape_of_buffer = form.padded_shape(rows, columns)
    count, base = math.prod(shape_of_buffer), form.form.base.of((high, wide))
    if count != joined.numel() or base:
        joined = pad(joined, (0, max(count - base - joined.numel(), 0)))[: count - base]
    if table := form.form.table:
        joined = _moved(joined, _inverse(table))
    buffer = pad(joined, (base, 0)).reshape(shape_of_buffer)
    if repeated:
        form.require_agreement(bool((to_linear(buffer, rows, columns, name) == scales).all()))
    return buffer


def _moved(units: Tensor, places: list[int]) -> Tensor:
    """Return the units of each run at other places; behind the last whole run there are gaps only (LAY-21)."""
    runs = pad(units, (0, -units.numel() % len(places))).reshape(-1, len(places))
    return runs[:, places].flatten()[: units.numel()]


def to_linear(buffer: Tensor, rows: int, columns: int, name: str) -> Tensor:
    """Return the scale bytes [rows, columns] of a buffer, without padding.

    Rules: LAY-6, LAY-13, LAY-16, LAY-17, LAY-19, LAY-20, LAY-21.
    """
    form = layout(name)
    high, wide = _padded(form, rows, columns)
    if not high * wide:
        return buffer.new_zeros((rows, columns))
    shape, steps = _steps(form, high, wide)
    sizes, inside = [], 1
    for step in steps:  # units of the dimensions inside, before each step
        sizes.append(inside)
        inside = inside + -inside % step.align if step.align else inside * step.values
    parts = buffer.reshape(-1)[form.form.base.of((high, wide)) :]
    if table := form.form.table:
        parts = _moved(parts, list(table))
    if parts.numel() != inside:
        parts = pad(parts, (0, max(inside - parts.numel(), 0)))[:inside]
    for step, size in zip(reversed(steps), reversed(sizes), strict=True):
        parts = (
            parts[..., :size]
            if step.align
            else _flipped(parts.reshape(*parts.shape[:-1], step.values, size), -2, step.flip)
        )
    repeated = _repeated(form)
    digits = parts.reshape([1] * len(repeated) + list(parts.shape[:-1]))
    digits = digits.permute(_inverse([*repeated, *_stored(steps)])).expand(shape)
    return _turned(digits, steps).reshape(high, wide)[:rows, :columns]


def _padded(form: Layout, rows: int, columns: int) -> tuple[int, int]:
    high, wide = (-(-n // axis.multiple) * axis.multiple for n, axis in zip((rows, columns), form.axes, strict=True))
    return high, wide


def _steps(form: Layout, high: int, wide: int) -> tuple[list[int], list[StoredDigit]]:
    """Return the shape of the padded tensor split into digits, slowest first; and what is stored, fastest first.

    Rules: LAY-30, LAY-31.
    """
    radices = [
        [size // axis.tile if radix is None else radix for radix in axis.radices]
        for size, axis in zip((high, wide), form.axes, strict=True)
    ]
    ends = len(radices[0]), len(radices[0]) + len(radices[1])
    steps = []
    for item in form.form.order:
        if isinstance(item, Term):
            dimension = ends[item.axis] - 1 - item.digit
            by = ends[item.by[0]] - 1 - item.by[1] if item.by else None
            steps.append(StoredDigit(dimension, radices[item.axis][item.digit], item.flip, 0, by))
        else:
            steps.append(StoredDigit(0, 0, 0, item.of((high, wide))))
    return [*reversed(radices[0]), *reversed(radices[1])], steps


def _stored(steps: list[StoredDigit]) -> list[int]:
    """Return the dimensions of the split tensor in stored order, slowest first."""
    return [step.dimension for step in reversed(steps) if not step.align]


def _repeated(form: Layout) -> list[int]:
    """Return the dimensions of the split tensor whose values share a place."""
    ends = [len(form.axes[0].radices), sum(len(axis.radices) for axis in form.axes)]
    return [ends[axis] - 1 - digit for axis, digit in form.form.repeated]


def _at(digits: Tensor, dimensions: list[int], value: int) -> Tensor:
    """Return one value, the first or the last, of some dimensions, which remain."""
    for dimension in dimensions:
        digits = digits.narrow(dimension, value, 1)
    return digits


def _turned(digits: Tensor, steps: list[StoredDigit]) -> Tensor:
    """Return the split tensor with every digit that another turns at its value XOR the other's; twice is nothing."""

    def values(dimension: int) -> Tensor:
        count = digits.shape[dimension]
        return torch.arange(count, device=digits.device).reshape(count, *[1] * (digits.dim() - 1 - dimension))

    for step in steps:
        if step.by is not None:
            index = values(step.dimension) ^ values(step.by)
            index = index.reshape(*[1] * (digits.dim() - index.dim()), *index.shape)
            digits = digits.take_along_dim(index, step.dimension)
    return digits


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _flipped(digits: Tensor, dimension: int, flip: int) -> Tensor:
    if not flip:
        return digits
    values = torch.arange(digits.shape[dimension], device=digits.device)
    return digits.index_select(dimension, values ^ flip)
