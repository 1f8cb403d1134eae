"""Operands with NaN and infinities: no other row may see them, and none may be lost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp4ref import packing
from fp4ref.conformance.families.products.case import GemmCase, Random, integers
from fp4ref.formats import Codes, F
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.spec import Spec

ROWS = 40, 24  # of A and B


def specials(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """NaN scales, also of blocks of zeros and ones, and elements that are no numbers. Rules: GEM-3, GEM-17."""
    width, nan = spec.block.columns, spec.scale.nan[0]
    if spec.scale.format.second_zero:
        return  # scales have no NaN
    a, b = _pair(spec, random)
    for q, row in ((a, 3), (b, 5)):
        bytes_of(q).scales[row, 1] = nan
    yield GemmCase(family, "nan-scale", a, b, specials=("nan",))
    a, b = _pair(spec, random)
    for q, row in ((a, 6), (b, 2)):
        data = bytes_of(q)
        data.scales[row, 1] = nan
        data.data[row] = 0  # NaN times zero is NaN
    yield GemmCase(family, "nan-scale-of-zeros", a, b, specials=("nan",))
    a, b = _pair(spec, random)
    one = packing.pack(spec.element.encode(np.ones((1, width), F)), spec.element.format)
    for q, row in ((a, 9), (b, 4)):
        data = bytes_of(q)
        data.scales[row, 1] = nan
        data.data[:, one.size : 2 * one.size] = one  # an infinity in its place would stay one
    yield GemmCase(family, "nan-scale-of-ones", a, b, specials=("nan",))
    codes = np.arange(1 << spec.element.format.bits, dtype=np.uint8)
    values = spec.element.decode(codes)
    nans, infinities = codes[np.isnan(values)], codes[np.isinf(values)]
    if nans.size:
        yield _nan_elements(family, spec, random, nans, width)
    if infinities.size:
        yield _infinities(family, spec, random, infinities, width)


def specials_of_tails(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """NaN scales of the last block of the last rows, which fill no tile, and of one row. Rules: GEM-3, GEM-17."""
    width, nan = spec.block.columns, spec.scale.nan[0]
    if spec.scale.format.second_zero:
        return
    for m, n, more in ((19, 13, 3), (133, 131, 1), (1, 5, width), (6, 1, width)):
        a, b = (integers(spec, random, rows, 2 * width + more) for rows in (m, n))
        bytes_of(a).scales[-1, -1] = nan
        bytes_of(b).scales[-2 if n > 1 else -1, -1] = nan
        yield GemmCase(family, f"{m}x{n}", a, b, specials=("nan",))


def second_zeros(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Scales that are the second zero of a format, and in every third row the bit that has no meaning.

    Rules: UE4M3-1.
    """
    form = spec.scale.format
    if form.second_zero:
        a, b = _pair(spec, random)
        for q, row in ((a, 3), (b, 5)):
            scales = bytes_of(q).scales
            scales[::3] |= 1 << form.bits - 1
            scales[row, 1] = form.codes
        yield GemmCase(family, "scales", a, b)


def _nan_elements(family: str, spec: Spec, random: Random, nans: Codes, width: int) -> GemmCase:
    """Every code of NaN, each in a row of its own, against zeros in every third row of the other operand."""
    a, b = _pair(spec, random)
    of_a, of_b = bytes_of(a).data, bytes_of(b).data
    of_b[::3, 5] = of_a[::3, width + 1] = 0
    for row, code in enumerate(nans):
        of_a[4 * row + 1, 5] = of_b[3 * row + 2, width + 1] = code
    return GemmCase(family, "nan-element", a, b, specials=("nan",))


def _infinities(family: str, spec: Spec, random: Random, infinities: Codes, width: int) -> GemmCase:
    """Infinities against numbers of both signs, zeros, each other, and a second one in their row."""
    plus, minus = infinities  # codes grow with the sign bit
    a, b = _pair(spec, random)
    of_a, of_b = bytes_of(a).data, bytes_of(b).data
    of_b[::3, 4] = of_a[::5, width] = 0
    of_a[2, 4], of_a[7, 4], of_a[11, 4] = plus, minus, plus
    of_a[11, 9] = minus
    of_b[7, 4], of_b[8, 4], of_b[10, width] = minus, plus, plus
    return GemmCase(family, "inf-element", a, b, specials=("inf",))


def _pair(spec: Spec, random: Random) -> tuple[Quantized, Quantized]:
    a, b = (integers(spec, random, rows, 3 * spec.block.columns) for rows in ROWS)
    return a, b


def bytes_of(q: Quantized) -> DirectionData:
    """Return the row direction, which is there."""
    assert q.row is not None
    return q.row
