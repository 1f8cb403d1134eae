"""A slow second opinion on a GEMM: the rules read aloud, one result at a time, in exact rationals, from the bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.oracle import rationals
from fp4ref.conformance.oracle.quantizer import top, unpack
from fp4ref.conformance.oracle.rationals import BFLOAT16, FLOAT16, FLOAT32, over, plus, rounded, times
from fp4ref.quantized import Quantized
from fp4ref.spec import Granularity

BINARY = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}
NUMPY: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


class OracleMatrix(NamedTuple):
    """Decoded codes [rows][K] and block scales [rows][blocks]; width: elements of a block."""

    codes: list[list[float]]
    scales: list[list[float]]
    width: int


def tiled(row: int, column: int, columns: int) -> int:
    """Return the place of a scale byte in 128 x 4 tiles. Rules: LAY-3."""
    tile = row // 128 * -(-columns // 4) + column // 4
    return 512 * tile + row % 32 * 16 + row % 128 // 32 * 4 + column % 4


def matrix(q: Quantized, direction: str = "row") -> OracleMatrix:
    """Return one direction of a tensor, decoded from linear or tiled_128x4 scales. Rules: GEM-1."""
    data = q.row if direction == "row" else q.column
    assert data is not None
    rows, columns = q.matrix if direction == "row" else q.matrix[::-1]
    element, width = q.spec.element.format, q.spec.block.columns
    blocks = -(-columns // width)
    packed = data.data.tolist()
    buffer = np.asarray(data.scales)
    if q.scale_layout not in {"linear", "linear_padded", "tiled_128x4"}:
        raise NotImplementedError(q.scale_layout)

    def code(m: int, k: int) -> int:
        return unpack(packed[m], element.bits, k)

    def scale(m: int, block: int) -> int:
        if q.scale_layout == "tiled_128x4":
            return int(buffer.ravel()[tiled(m, block, blocks)])
        return int(buffer[m, block])

    name = q.spec.scale.format.name
    return OracleMatrix(
        [[rationals.value(code(m, k), element.name) for k in range(columns)] for m in range(rows)],
        [[rationals.value(scale(m, b), name) for b in range(blocks)] for m in range(rows)],
        width,
    )


def true_sum(a: OracleMatrix, b: OracleMatrix, m: int, n: int, ks: range) -> float:
    """Return the sum over some k, rounded once. Rules: GEM-2, GEM-3."""
    numerator, denominator, special = 0, 1, 0.0  # denominators are powers of two
    for k in ks:
        q, s = (a.codes[m][k], b.codes[n][k]), (a.scales[m][k // a.width], b.scales[n][k // a.width])
        if all(math.isfinite(v) for v in (*q, *s)):
            above, below = map(math.prod, zip(*(v.as_integer_ratio() for v in (*q, *s)), strict=True))
            common = max(below, denominator)
            numerator = numerator * (common // denominator) + above * (common // below)
            denominator = common
        else:  # sizes do not matter, and products of signs cannot overflow
            left, right = sign(q[0]) * sign(s[0]), sign(q[1]) * sign(s[1])
            special += left * right
    return rounded(Fraction(numerator, denominator)) if special == 0 else special


def sign(v: float) -> float:
    """-1, 0 or 1; infinities and NaN themselves."""
    return float((v > 0) - (v < 0)) if math.isfinite(v) else v


def summed(a: OracleMatrix, b: OracleMatrix, m: int, n: int, mode: str) -> float:
    """Return the sum of a mode. Rules: GEM-2, GEM-4."""
    depth = len(a.codes[m])
    if mode == "exact":
        return true_sum(a, b, m, n, range(depth))
    total = 0.0
    for start in range(0, depth, a.width):
        total = plus(total, true_sum(a, b, m, n, range(start, min(start + a.width, depth))))
    return total


def expected(
    a: Quantized,
    b: Quantized,
    mode: str,
    dtype: str,
    alpha: float = 1.0,
    bias: NDArray[Any] | None = None,
    accumulate: NDArray[Any] | None = None,
    rule: str = "reciprocal",
    directions: Sequence[str] = ("row", "row"),
) -> NDArray[Any]:
    """Return the result of `fp4ref.gemm` for small operands that fit.

    Rules: GEM-1, GEM-2, GEM-3, GEM-4, GEM-5, GEM-6, GEM-7, GEM-8.
    """
    left, right = matrix(a, directions[0]), matrix(b, directions[1])
    parts = [q.row if d == "row" else q.column for q, d in zip((a, b), directions, strict=True)]
    amax_a, amax_b = ([float(v) for v in part.amax] if part and part.amax is not None else [] for part in parts)
    by_row = [q.spec.global_scale is Granularity.ROW for q in (a, b)]
    factor = top(a.spec) * top(b.spec) if amax_a else 1.0
    result = np.empty((len(left.codes), len(right.codes)), NUMPY[dtype])
    for m, n in np.ndindex(*result.shape):
        total = alpha
        if amax_a:
            if not any(by_row):
                total = times(times(total, amax_a[0]), amax_b[0])
            total = over(total, factor) if rule == "division" else times(total, rounded(Fraction(1) / Fraction(factor)))
        y = times(summed(left, right, m, n, mode), total)
        if all(by_row):
            y = times(times(y, amax_a[m]), amax_b[n])
        elif any(by_row):
            y = times(y, times(amax_a[m if by_row[0] else 0], amax_b[n if by_row[1] else 0]))
        c = None if accumulate is None else float(accumulate[m, n])
        if c is not None and not any(by_row):
            y = plus(y, c)
        if bias is not None:
            y = plus(y, float(bias[n]))
        y = rationals.narrowed(y, BINARY[dtype])
        if c is not None and any(by_row):
            y = rationals.narrowed(plus(y, c), BINARY[dtype])
        result[m, n] = math.nan if math.isnan(y) else y
    return result
