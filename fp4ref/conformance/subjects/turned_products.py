"""Cases as a declaration has them: the directions of the operands, and zeros where nothing is to be added."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fp4ref import packing
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.conformance.subjects.subject import Declaration
from fp4ref.formats import F
from fp4ref.quantized import Direction, DirectionData, Quantized
from fp4ref.spec import Granularity


def fitted(case: GemmCase, declared: Declaration) -> GemmCase:
    """Return the product of the declared directions, with zeros where the kernel adds and the case does not.

    Rules: GEM-15, GEM-16. Certificates: directions-given.
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


def padded(case: GemmCase, multiple: tuple[int, int]) -> GemmCase:
    """Pad a product to the multiples of rows and of K that a kernel takes: rows follow again, K ends in zeros.

    Zeros leave every sum as it is, so a case that is exact in every order stays so.

    Rules: CNF-19, GEM-13.
    """
    m, n, _ = case.shape
    a, b = (_grown(q, *multiple) for q in (case.a, case.b))
    below, across = (np.arange(q.shape[0]) % own for q, own in ((a, m), (b, n)))
    bias = None if case.bias is None else case.bias[across]
    c = None if case.accumulate is None else np.ascontiguousarray(case.accumulate[below][:, across])
    return replace(case, a=a, b=b, bias=bias, accumulate=c)


def _grown(q: Quantized, rows: int, columns: int) -> Quantized:
    """Return the row direction of a tensor with rows and columns that are multiples."""
    assert q.row is not None
    (height, depth), form = q.matrix, q.spec.element.format
    shape = -(-height // rows) * rows, -(-depth // columns) * columns
    index, blocks = np.arange(shape[0]) % height, -(-shape[1] // q.spec.block.columns)
    codes = np.pad(packing.unpack(q.row.data, depth, form)[index], ((0, 0), (0, shape[1] - depth)))
    one = q.spec.scale.encode(np.ones((1, 1), F)).item()
    scales = np.pad(q.row.scales[index], ((0, 0), (0, blocks - q.row.scales.shape[1])), constant_values=one)
    by_row = q.row.amax is not None and q.spec.global_scale is Granularity.ROW
    amax = q.row.amax[index] if by_row else q.row.amax
    return replace(q, shape=shape, row=DirectionData(packing.pack(codes, form), scales, amax))


def adds_to_c(declared: Declaration) -> bool:
    """Return True if a kernel is given what is already there."""
    return "accumulate" in declared.inputs or declared.in_place


def turned(q: Quantized, direction: Direction) -> Quantized:
    """Return the row direction of a tensor as that direction of another one, whose other direction holds other numbers.

    They are the same bytes with the rows moved by one, in the shape of the other direction, so that a kernel that
    reads them makes sums of the same size.

    Rules: GEM-16, GEM-54.
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
