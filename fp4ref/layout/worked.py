"""A layout's map as arithmetic: the sum that gives one offset, in symbols or in numbers, and the notation of CuTe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fp4ref.layout.strides import Digit, Strides
from fp4ref.layout.value import Layout


def formula(layout: Layout, sizes: Sequence[int], names: Sequence[object]) -> str:
    """Return the offset as an expression in Python's notation, the slowest digit first.

    sizes: of each axis, without padding. names: of each index, or the indices themselves.

    >>> from fp4ref.layout import TILED_128X4
    >>> formula(TILED_128X4, (300, 18), (37, 8))
    '(37 // 128)*2560 + (8 // 4)*512 + (37 % 32)*16 + (37 // 32 % 4)*4 + 8 % 4'

    Rules: LAY-13, LAY-17, LAY-19, LAY-20, LAY-21.
    """
    found = layout.strides(*sizes)
    turned = dict(found.turned)
    terms = []
    for axis, number in reversed(found.stored):
        digit = found.axes[axis][number]
        if digit.radix == 1 or not digit.stride:
            continue
        value = _value(found, names, (axis, number), modulo=(axis, number) in turned)
        if other := turned.get((axis, number)):
            value = f"({value} ^ {_value(found, names, other, modulo=True)})"
        terms.append(_times(value, digit))
    terms += [str(found.first)] if found.first or not terms else []
    return " + ".join(terms)


def worked(layout: Layout, sizes: Sequence[int], indices: Sequence[int]) -> str:
    """Return the sum that gives the offset of one unit, and the offset; then the step of a layout's table.

    >>> from fp4ref.layout import LINEAR, Layout
    >>> worked(LINEAR, (300, 18), (37, 8))
    '37*18 + 8 = 674'
    >>> worked(Layout("rotated", "n(*) k(3,*): k0 k1 n0; table 2,0,1"), (1, 6), (0, 5))
    '(5 // 3)*3 + 5 % 3 = 5; place 2 of the table is 1: 3 + 1 = 4'

    Rules: LAY-13, LAY-21.
    """
    found, offset = layout.strides(*sizes), int(layout.offsets(indices, sizes))
    text = formula(layout, sizes, indices)
    if not found.table:
        return text if text == str(offset) else f"{text} = {offset}"
    summed = int(replace(found, table=()).offsets([np.asarray(index) for index in indices]))
    run = offset - (offset - found.base) % len(found.table)
    return f"{text} = {summed}; place {summed - run} of the table is {offset - run}: {run} + {offset - run} = {offset}"


def cute(layout: Layout, sizes: Sequence[int], repeats: Sequence[int] = ()) -> str:
    """Return the map in the notation of CuTe, shape:stride, or "" if it is not one.

    repeats: how many neighbouring indices of each axis share a unit, as the elements of a block share a scale.

    >>> from fp4ref.layout import TILED_128X4
    >>> cute(TILED_128X4, (300, 18), (1, 16))
    '((32,4,3),(16,4,5)):((16,4,2560),(0,1,512))'

    Rules: LAY-13.
    """
    found = layout.strides(*sizes)
    if not found.regular or found.first:
        return ""
    each = repeats or [1] * len(found.axes)
    modes = [[Digit(n, 0)] * (n > 1) + list(digits) for n, digits in zip(each, found.axes, strict=True)]
    return ":".join(f"({','.join(_mode([digit[part] for digit in mode]) for mode in modes)})" for part in (0, 1))


def _mode(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"({','.join(map(str, numbers))})"


def _value(found: Strides, names: Sequence[object], place: tuple[int, int], *, modulo: bool) -> str:
    """Return a digit of an index; the slowest one needs no remainder."""
    axis, number = place
    digits, weight = found.axes[axis], found.place(axis, number)
    text = f"{names[axis]} // {weight}" if weight > 1 else f"{names[axis]}"
    remainder = modulo or number < len(digits) - 1
    return f"{text} % {digits[number].radix}" if remainder else text


def _times(value: str, digit: Digit) -> str:
    if digit.stride == 1:
        return value
    return f"{value}*{digit.stride}" if " " not in value or value.startswith("((") else f"({value})*{digit.stride}"
