"""Operands of a product as values, and the exact sums of their products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.formats import Floats
from fp4ref.operands import Operand
from fp4ref.quantized import DirectionData

Wide = NDArray[np.float64]


@dataclass(frozen=True)
class OperandSide:
    """An operand as a kernel sees it: elements [rows, K], scales [rows, blocks], its bytes and its tensor's others."""

    elements: Wide
    scales: Wide
    part: Operand
    other: DirectionData | None
    transposed: bool = False  # as it is given to the kernel

    @property
    def width(self) -> int:
        """Elements of a block."""
        return self.part.spec.block.columns

    @property
    def values(self) -> Wide:
        """Element times scale."""
        return self.elements * np.repeat(self.scales, self.width, axis=1)[:, : self.elements.shape[1]]


@dataclass(frozen=True)
class OperandPair:
    """Both operands, the layout in which the kernel is given their scales, and what it is given to add, or None."""

    a: OperandSide
    b: OperandSide
    layout: str
    bias: Floats | None = None
    accumulate: Floats | None = None

    @property
    def row_scaled(self) -> bool:
        """Return True if rows have amaxes of their own."""
        return self.a.part.row_scaled or self.b.part.row_scaled


def side(part: Operand, other: DirectionData | None, *, transposed: bool) -> OperandSide:
    """Decode an operand. other: the bytes of its tensor's other direction. transposed: as the kernel is given it."""
    codes = packing.unpack(part.data.data, part.shape[1], part.spec.element.format)
    elements, scales = part.spec.element.decode(codes), part.spec.scale.decode(part.data.scales)
    return OperandSide(elements.astype(np.float64), scales.astype(np.float64), part, other, transposed)


def product(a: OperandSide, b: OperandSide) -> Wide:
    """Return the sums."""
    return a.values @ b.values.T


def pair_of(case: GemmCase, layout: str) -> OperandPair:
    """Return the operands of a case, and what is added."""
    a, b = (
        side(
            part,
            q.column if direction == "row" else q.row,
            transposed=case.transposed and direction == "column",
        )
        for part, q, direction in zip(case.operands, (case.a, case.b), case.directions, strict=True)
    )
    return OperandPair(a, b, layout, case.bias, case.accumulate)


# What is added


def summed_blocks(
    a: OperandSide, b: OperandSide, order: Callable[[int], list[int]], *, of_b: bool = False
) -> Wide | None:
    """Return sums over the blocks of a list; with of_b, those of A in their own order and those of B in that one."""
    count, width = a.scales.shape[1], a.width
    chosen = order(count)
    if chosen == list(range(count)) or (of_b and len(chosen) != count):
        return None
    padded = [np.pad(s.values, ((0, 0), (0, -s.elements.shape[1] % width))) for s in (a, b)]
    left, right = (values.reshape(len(values), count, width) for values in padded)
    left = left if of_b else left[:, chosen]
    return left.reshape(len(left), -1) @ right[:, chosen].reshape(len(right), -1).T
