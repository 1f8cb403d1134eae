"""The sums of a GEMM, float32 [M, N]: exact, block by block, or by a library. One tile of the result at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fp4ref.formats import F, Floats, ignoring_float_warnings
from fp4ref.model.dequantize import dequantize
from fp4ref.model.integers import LIMIT, Integers, Wide, integers, rounded
from fp4ref.operands import Operand
from fp4ref.quantized import DirectionData

ELEMENTS = 1 << 20  # of an operand that are integers at one time
SIDE = 1 << 9  # rows and columns of a tile of the result, at most


@ignoring_float_warnings
def exact(a: Operand, b: Operand) -> Floats:
    """Return the true sums, each rounded once.

    Integers are 64 bits wide where no partial sum can reach 2^63: K * max|A| * max|B| below it, which holds for
    NVFP4 (|A| <= 12 * 229376) up to K = 1,217,394. Elsewhere Python's integers add up the blocks.

    Rules: GEM-1, GEM-2, GEM-3, GEM-21, GEM-25. Certificates: gemm-limit, gemm-longest, gemm-pairs-*, gemm-ties,
    gemm-spreads-*, gemm-long-mx, special-operands.
    """
    return _by_tiles(a, b, _exact)


@ignoring_float_warnings
def blockwise(a: Operand, b: Operand) -> Floats:
    """Add the blocks' contributions, each rounded once, to +0 in the order of k, in float32.

    Rules: GEM-1, GEM-4. Certificates: gemm-contributions, gemm-pairs-*, gemm-order-*.
    """
    return _by_tiles(a, b, _blockwise)


@ignoring_float_warnings
def fast(a: Operand, b: Operand) -> Floats:
    """Multiply values code * scale, exact in float32 (but for GEM-11's extremes), by NumPy's library.

    The order of the additions is the library's.

    Rules: GEM-1, GEM-11. Certificates: gemm-operands.
    """
    return np.asarray(values(a) @ values(b).T, F)


def values(operand: Operand) -> Floats:
    """code * scale of an operand, [rows, K]. Rules: GEM-1, GEM-11. Certificates: operand-values."""
    spec, (rows, columns) = operand.spec, operand.shape
    scales = operand.scale_layout.to_linear(operand.data.scales, rows, -(-columns // spec.block.columns))
    data = DirectionData(operand.data.data, scales, None)
    return np.asarray(dequantize(data, operand.shape, spec, np.dtype(F), np.dtype(F)), F)


def _by_tiles(a: Operand, b: Operand, tile: Callable[[Integers, Integers, int], Floats]) -> Floats:
    result = np.zeros((a.shape[0], b.shape[0]), F)
    if a.shape[1]:
        for rows in _ranges(a):
            left = integers(a, rows)
            for columns in _ranges(b):
                result[rows, columns] = tile(left, integers(b, columns), a.spec.block.columns)
    return result


def _ranges(operand: Operand) -> Iterator[slice]:
    rows, columns = operand.shape
    step = max(min(ELEMENTS // columns, SIDE), 1)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _exact(a: Integers, b: Integers, width: int) -> Floats:
    (left, low_a), (right, low_b) = _aligned(a, width), _aligned(b, width)
    if left is not None and right is not None and _fits(left, right):
        sums = rounded(left @ right.T, low_a + low_b)
    else:
        sums = rounded(_wide(a, b, width), int(a.exponent.min() + b.exponent.min()))
    return _with_specials(sums, a.signs, b.signs)


def _aligned(part: Integers, width: int) -> tuple[Wide | None, int]:
    """Mantissas over one common power of two; None where 64 bits cannot hold them."""
    low = int(part.exponent.min())
    shift = part.exponent - low
    largest = int(np.abs(part.mantissa).max()).bit_length()
    if int(shift.max()) + largest > 62:
        return None, low
    return part.mantissa << np.repeat(shift, width, axis=1)[:, : part.mantissa.shape[1]], low


def _fits(a: Wide, b: Wide) -> bool:
    """Return True if no sum of products can leave 64 bits. Certificates: gemm-longest, gemm-long-mx."""
    most: int = a.shape[1] * int(np.abs(a).max()) * int(np.abs(b).max())
    return most < LIMIT


def _wide(a: Integers, b: Integers, width: int) -> Wide:
    """Return the sums over the smallest power of two of all products, in Python's integers."""
    total = np.zeros((len(a.mantissa), len(b.mantissa)), object)
    low = int(a.exponent.min() + b.exponent.min())
    for part, exponent in _contributions(a, b, width):
        total += part.astype(object) << (exponent - low).astype(object)
    return total


def _contributions(a: Integers, b: Integers, width: int) -> Iterator[tuple[Wide, Wide]]:
    """Every block's sums of products, integers [M, N] and their exponents, in the order of k."""
    for block in range(a.exponent.shape[1]):
        place = slice(block * width, (block + 1) * width)
        left, right = a.mantissa[:, place], b.mantissa[:, place]
        if not _fits(left, right):
            left, right = left.astype(object), right.astype(object)
        yield left @ right.T, a.exponent[:, block, None] + b.exponent[None, :, block]


def _blockwise(a: Integers, b: Integers, width: int) -> Floats:
    total = np.zeros((len(a.mantissa), len(b.mantissa)), F)
    for block, (part, exponent) in enumerate(_contributions(a, b, width)):
        place = slice(block * width, (block + 1) * width)
        total = total + _with_specials(rounded(part, exponent), a.signs[:, place], b.signs[:, place])
    return total


def _with_specials(sums: Floats, a: Floats, b: Floats) -> Floats:
    """Return sums whose terms are all finite, and what IEEE arithmetic makes of the others, whose size does not matter.

    Rules: GEM-3, GEM-23.
    """
    for m in np.flatnonzero(~np.isfinite(a).all(axis=1)):
        special = (a[m] * b).sum(axis=1)
        sums[m] = np.where(np.isfinite(special), sums[m], special)
    for n in np.flatnonzero(~np.isfinite(b).all(axis=1)):
        special = (a * b[n]).sum(axis=1)
        sums[:, n] = np.where(np.isfinite(special), sums[:, n], special)
    return sums
