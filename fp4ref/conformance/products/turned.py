"""Cases as a declaration has them: the directions of the operands, and zeros where nothing is to be added."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fp4ref.conformance.products.case import GemmCase
from fp4ref.conformance.subject import Declaration
from fp4ref.formats import F
from fp4ref.quantized import Direction, DirectionData, Quantized


def fitted(case: GemmCase, declared: Declaration) -> GemmCase:
    """The same product of the declared directions, with zeros to add where the kernel adds and the case does not.

    Rules: GEM-15, GEM-16.
    """
    m, n, _ = case.shape
    bias, c = case.bias, case.accumulate
    if "bias" in declared.inputs and bias is None:
        bias = np.zeros(n, F)
    if adds_to_c(declared) and c is None:
        c = np.zeros((m, n), F)
    a, b = (turned(q, direction) for q, direction in zip((case.a, case.b), declared.directions, strict=True))
    used, turn = declared.directions, declared.transposed
    return replace(case, a=a, b=b, bias=bias, accumulate=c, directions=used, transposed=turn)


def adds_to_c(declared: Declaration) -> bool:
    """Whether a kernel is given what is already there."""
    return "accumulate" in declared.inputs or declared.in_place


def turned(q: Quantized, direction: Direction) -> Quantized:
    """The row direction of a tensor as that direction of another one, whose other direction holds other numbers.

    They are the same bytes with the rows moved by one, in the shape of the other direction, so that a kernel that
    reads them makes sums of the same size.

    Rules: GEM-16.
    """
    assert q.row is not None
    (rows, depth), width = q.matrix, q.spec.block.columns
    bits = q.spec.element.format.bits
    shapes = (depth, -(-rows * bits // 8)), (depth, -(-rows // width))
    data, scales = (np.resize(np.roll(part, 1, axis=0), shape) for part, shape in zip(q.row[:2], shapes, strict=True))
    amax = None if q.row.amax is None else np.resize(q.row.amax, depth if q.row.amax.size > 1 else 1)
    other = DirectionData(data, scales, amax)
    if direction == "row":
        return replace(q, column=other)
    return replace(q, shape=(depth, rows), row=other, column=q.row)
