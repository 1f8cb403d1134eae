"""Offsets of layouts as formulas, and tiles as tables: both follow from the digits of a layout's text.

A formula is in the notation of chapter 08, so that one serves every size of the array.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from fp4ref.layout.field_data import CODES, OTHER_DATA
from fp4ref.layout.field_scales import SCALES
from fp4ref.layout.registry import STANDARD_LAYOUTS, TILED_8X4, TILED_128X4
from fp4ref.layout.text import Axis, Form, Product, Term
from fp4ref.layout.value import Layout
from fp4ref.packings import STANDARD_PACKINGS
from fp4ref.standard.tables import table

LINE = 16  # bytes of a tile in one row of its table
SHOWN = 4  # bytes in one cell of that row


class UnitCount(NamedTuple):
    """A count of units: a number times other factors, which are padded sizes of axes or alignments."""

    number: Fraction = Fraction(1)
    factors: tuple[str, ...] = ()

    def times(self, number: Fraction | int, *factors: str) -> UnitCount:
        """Return the count times a number and other factors."""
        return UnitCount(self.number * number, (*self.factors, *factors))

    def __str__(self) -> str:
        numerator, denominator = self.number.as_integer_ratio()
        shown = [str(numerator)] * (numerator != 1 or not self.factors) + list(self.factors)
        product = " * ".join(shown)
        return product if denominator == 1 else f"({product} / {denominator})"


def offset(layout: Layout) -> str:
    """Return the offset of a unit as a formula, the slowest digit first.

    >>> from fp4ref.layout import TILED_8X4
    >>> offset(TILED_8X4)
    '(m / 8) * 8 * size(k) + (k / 4) * 32 + (m % 8) * 4 + k % 4'

    Rules: LAY-13, LAY-16, LAY-17, LAY-19, LAY-20, LAY-21.
    """
    form, running, terms = layout.form, UnitCount(), []
    for item in form.order:
        if isinstance(item, Product):
            running = _aligned(running, _units(form, item))
            continue
        axis = form.axes[item.axis]
        terms.append(_times(_turned(form, item), running))
        running = _after(running, axis, item.digit)
    text = " + ".join(reversed(terms))
    moved = f"move({text})" if form.table else text
    return f"{moved} + {_units(form, form.base)}" if form.base.number else moved


def _units(form: Form, product: Product) -> UnitCount:
    return UnitCount(Fraction(product.number), tuple(f"size({form.axes[axis].name})" for axis in product.axes))


def _after(units: UnitCount, axis: Axis, digit: int) -> UnitCount:
    """Return a count of units times the number of values of a digit."""
    radix = axis.radices[digit]
    return units.times(Fraction(1, axis.tile), f"size({axis.name})") if radix is None else units.times(radix)


def _aligned(units: UnitCount, step: UnitCount) -> UnitCount:
    if units.factors or step.factors:
        return UnitCount(factors=(f"pad({units}, {step})",))
    return UnitCount(Fraction(math.ceil(units.number / step.number) * step.number))


def _turned(form: Form, item: Term) -> str:
    """Return the value of a digit, turned as the text says."""
    value = _value(form, item.axis, item.digit)
    if item.by:
        return f"xor({value}, {_value(form, *item.by)})"
    return f"xor({value}, {item.flip})" if item.flip else value


def _value(form: Form, number: int, digit: int) -> str:
    """Return a digit of an index; the last one needs no remainder."""
    axis, weight = form.axes[number], UnitCount()
    for before in range(digit):
        weight = _after(weight, axis, before)
    divisor = f"({weight})" if " * " in str(weight) and not str(weight).startswith("(") else str(weight)
    text = axis.name if weight == UnitCount() else f"{axis.name} / {divisor}"
    return text if digit == len(axis.radices) - 1 else f"{text} % {_after(UnitCount(), axis, digit)}"


def _times(value: str, stride: UnitCount) -> str:
    if stride == UnitCount():
        return value
    plain = value.isidentifier() or value.startswith("xor(")
    return f"{value if plain else f'({value})'} * {stride}"


def _rows(layouts: Iterable[Layout]) -> str:
    return table(("layout", "offset"), ((f"`{each.name}`", f"`{offset(each)}`") for each in layouts))


def standard_offsets() -> str:
    """Return the offsets of the standard's own layouts. Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-13."""
    return _rows(STANDARD_LAYOUTS)


def field_offsets() -> str:
    """Return the offsets of the named layouts of the field. Rules: LAY-18."""
    return _rows(entry.layout for entry in (*SCALES, *OTHER_DATA))


def packing_offsets() -> str:
    """Return the offsets of the named packings. Rules: PACK-7, PACK-8, PACK-9."""
    return _rows((*STANDARD_PACKINGS, *(entry.layout for entry in CODES)))


def _lines(layout: Layout, shown: Sequence[int | None]) -> str:
    """Return lines of a tile: the row and the scale columns of its bytes; None stands for those in between."""
    rows, columns = layout.tile
    down, across = (part.reshape(-1, LINE) for part in layout.index(np.arange(rows * columns), columns=columns))
    groups = [(at, at + SHOWN - 1) for at in range(0, LINE, SHOWN)]
    lines = [["…", *[""] * len(groups)] if line is None else [str(line)] for line in shown]
    for cells, line in zip(lines, shown, strict=True):
        if line is not None:
            cells += [f"({down[line, at]}, {across[line, at]}–{across[line, end]})" for at, end in groups]
    return table(("line", *(f"bytes {at}–{end}" for at, end in groups)), lines)


def tile_of_128x4() -> str:
    """Return the lines of a tile of 128 x 4 scales. Rules: LAY-3."""
    return _lines(TILED_128X4, (0, 1, None, 31))


def tile_of_8x4() -> str:
    """Return the lines of a tile of 8 x 4 scales. Rules: LAY-4."""
    return _lines(TILED_8X4, (0, 1))
