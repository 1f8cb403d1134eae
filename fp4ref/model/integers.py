"""Operands as integers times powers of two, and integers rounded once to float32.

An element is an integer count of its format's smallest step, and so is an E4M3 scale; an E8M0 scale is a power of two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.formats import E8M0, F, Floats, Format, ignoring_float_warnings
from fp4ref.operands import Operand

Wide = NDArray[Any]  # int64, or Python integers where 64 bits could overflow
LIMIT = 1 << 63
EXACT = 53  # bits of a float64


class Integers(NamedTuple):
    """Rows of an operand: value = mantissa * 2^exponent where signs are finite; 0 elsewhere.

    mantissa: int64 [rows, K]. exponent: int64 [rows, blocks], that of the block.
    signs: float32 [rows, K] of -1, 0 and 1, or infinite or NaN as the value is.
    """

    mantissa: NDArray[np.int64]
    exponent: NDArray[np.int64]
    signs: Floats


def unit(form: Format) -> int:
    """Return the exponent of a format's smallest step: every value is an integer times 2^unit."""
    return 1 - form.bias - form.mantissa_bits


def integers(operand: Operand, rows: slice) -> Integers:
    """Return some rows of an operand, exactly; its global scale has no part in it. Rules: GEM-20, GEM-23, LAY-6."""
    spec, (height, columns) = operand.spec, operand.shape
    element, width = spec.element.format, spec.block.columns
    codes = packing.unpack(operand.data.data[rows], columns, element)
    scales = operand.scale_layout.to_linear(operand.data.scales, height, -(-columns // width))[rows]
    values, factors = spec.element.decode(codes), spec.scale.decode(scales)
    signs = _sign(values) * np.repeat(_sign(factors), width, axis=1)[:, :columns]
    exponent = np.full(scales.shape, unit(element), np.int64)
    if spec.scale.format is E8M0:
        exponent += scales.astype(np.int64) - E8M0.bias
        counts = np.ones(scales.shape, np.int64)
    else:
        exponent += unit(spec.scale.format)
        counts = _count(factors, spec.scale.format)
    mantissa = _count(values, element) * np.repeat(counts, width, axis=1)[:, :columns]
    mantissa[~np.isfinite(signs)] = 0
    zeros = np.add.reduceat(mantissa != 0, range(0, columns, width), axis=1) == 0
    exponent[zeros] = exponent.max(initial=0, where=~zeros)  # a block of zeros has any exponent
    return Integers(mantissa, exponent, signs)


def _sign(values: Floats) -> Floats:
    return np.where(np.isfinite(values), np.sign(values), values)


def _count(values: Floats, form: Format) -> NDArray[np.int64]:
    """Finite values as counts of the smallest step; what is not finite as 0."""
    finite = np.where(np.isfinite(values), values, F(0)).astype(np.float64)
    return np.ldexp(finite, -unit(form)).astype(np.int64)


@ignoring_float_warnings
def rounded(n: Wide, exponent: Any) -> Floats:
    """n * 2^exponent rounded once to float32, nearest even; 0 is +0, and past the largest float32 lies an infinity.

    The bits below the 53 highest are replaced by one that says whether they are all zero: it decides what
    they decided, and the number is exact in float64.

    Rules: GEM-2, NUM-1. Certificates: gemm-ties, gemm-spreads-*, gemm-longest.
    """
    if n.dtype == object:
        return _rounded_wide(n, exponent)
    magnitude = np.abs(n)  # below 2^63
    large = magnitude >= 1 << EXACT
    cut = 64 - EXACT
    sticky = (magnitude >> cut) | ((magnitude & ((1 << cut) - 1)) != 0)
    shortened = np.copysign(np.where(large, sticky, magnitude).astype(np.float64), n)
    return np.asarray(np.ldexp(shortened, exponent + np.where(large, cut, 0)), F)


def _rounded_wide(n: Wide, exponent: Any) -> Floats:
    def shortened(value: int) -> tuple[float, int]:
        cut = max(abs(value).bit_length() - EXACT + 1, 0)
        kept = abs(value) >> cut
        kept |= kept << cut != abs(value)
        return float(-kept if value < 0 else kept), cut

    pairs = [shortened(int(value)) for value in n.ravel()]
    values = np.array([value for value, _ in pairs], np.float64).reshape(n.shape)
    cuts = np.array([cut for _, cut in pairs], np.int64).reshape(n.shape)
    return np.asarray(np.ldexp(values, exponent + cuts), F)
