"""A slow second opinion on every byte: the rules read aloud, one element at a time, in exact rationals.

It reads a Spec's fields and the names of its functions, and calls none of them. It refuses settings that it cannot
read. Arrays come in and go out as bytes; between them are lists and Python numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.oracle import hadamard as hadamard_bound
from fp4ref.conformance.oracle import rationals as r
from fp4ref.conformance.oracle.powers import POWERS, power_of_two_scale
from fp4ref.errors import DomainError
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Amax, Granularity, Metric, Spec, Subnormals

Rows = list[list[float]]
SIXTH = r.over(1.0, 6.0)

QUOTIENTS = {"rceil", "rceil-cast-only", "ocp-rceil"}  # the maximum over the element's largest value, rounded up
PRODUCTS = {"te", "te-fast"}  # the maximum times S_enc times fp32(1/6)
RECIPROCALS = {"te", "te-division"}  # elements are multiplied by 1 / (s * (1 / S_enc))


def quantize(
    x: NDArray[Any],
    spec: Spec,
    direction: Direction = "row",
    amax: Sequence[float] | None = None,
    random_bits: NDArray[np.uint8] | None = None,
) -> DirectionData:
    """Quantize one direction of a small tensor; arguments and result as the golden model has them.

    Rules: NUM-4, NUM-5, BLK-1, BLK-7, BLK-8, BLK-9, GLB-1, GLB-5, GLB-6, HAD-4, PACK-1, PACK-2, PACK-3.
    """
    rows = seen(x, spec, direction)
    height, width = len(rows), x.shape[-1] if direction == "row" else math.prod(x.shape[:-1])
    if spec.global_scale is not Granularity.NONE and amax is None:
        maxima = [largest(row, spec.amax is Amax.PROPAGATE_NAN) for row in rows]
        whole = largest(maxima, spec.amax is Amax.PROPAGATE_NAN)
        amax = maxima if spec.global_scale is Granularity.ROW else [whole]
    codes = [[0] * width for _ in rows]
    scales = [[0] * -(-width // spec.block.columns) for _ in rows]
    bits = None if random_bits is None else random_bits.tolist()
    for top, left in itertools.product(range(0, height, spec.block.rows), range(0, width, spec.block.columns)):
        down = range(top, min(top + spec.block.rows, height))
        across = range(left, min(left + spec.block.columns, width))
        padding = [0.0] * (spec.block.columns - len(across))
        block = [[rows[i][j] for j in across] + padding for i in down]
        block += [[0.0] * spec.block.columns for _ in range(spec.block.rows - len(down))]
        drawn = bits and [[bits[i][j] for j in across] + [0] * len(padding) for i in down]
        own = None if amax is None else float(amax[top if spec.global_scale is Granularity.ROW else 0])
        scale, block_codes = quantize_block(block, own, spec, drawn)
        for i in down:
            scales[i][left // spec.block.columns] = scale
            codes[i][across.start : across.stop] = block_codes[i - top][: len(across)]
    packed = [pack(row, spec.element.format.bits) for row in codes]
    return DirectionData(
        np.array(packed, np.uint8).reshape(height, len(pack([0] * width, spec.element.format.bits))),
        np.array(scales, np.uint8).reshape(height, -(-width // spec.block.columns)),
        None if amax is None else np.array(amax, np.float32),
    )


def seen(x: NDArray[Any], spec: Spec, direction: Direction) -> Rows:
    """Return the matrix that is cut into blocks: transposed, transformed, subnormals flushed.

    Rules: NUM-4, NUM-5, BLK-8, HAD-4.
    """
    rows: Rows = x.astype(np.float32).reshape(math.prod(x.shape[:-1]), x.shape[-1]).tolist()
    if direction == "column":
        rows = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(x.shape[-1])]
    if direction == "column" and spec.hadamard:
        mask = spec.hadamard.signs
        groups = [[row[i : i + 16] for i in range(0, len(row), 16)] for row in rows]
        rows = [[y for group in row for y in hadamard_bound.transform(group, mask)] for row in groups]
    if spec.subnormals is Subnormals.FLUSH:
        rows = [[v if abs(v) >= 2.0**-126 or math.isnan(v) else math.copysign(0.0, v) for v in row] for row in rows]
    return rows


def largest(values: Sequence[float], propagate_nan: bool = False) -> float:
    """Return the running maximum of magnitudes, from +0. Rules: BLK-2, GLB-1."""
    found = 0.0
    for v in values:
        if math.isnan(v) and propagate_nan:
            return v
        found = max(found, 0.0 if math.isnan(v) else abs(v))
    return found


def pack(codes: Sequence[int], bits: int) -> list[int]:
    """Return the bytes of one long number, of which the first code is the lowest digit.

    Rules: PACK-1, PACK-2, PACK-3, PACK-4, PACK-5.
    """
    number = 0
    for code in reversed(codes):
        number = number << bits | code
    return list(number.to_bytes(-(-len(codes) * bits // 8), "little"))


def unpack(row: Sequence[int], bits: int, column: int) -> int:
    """Return a code of a packed row. Rules: PACK-1, PACK-3, PACK-4."""
    return int.from_bytes(bytes(row), "little") >> column * bits & (1 << bits) - 1


# Scales


def top(spec: Spec) -> float:
    """Return the largest element times the scale of the block that holds the global maximum. Rules: GLB-2, FOS-2."""
    scale_max = spec.four_over_six.scale_max if spec.four_over_six else r.magnitudes(spec.scale.format.name)[-1]
    return r.times(spec.element_max or r.magnitudes(spec.element.format.name)[-1], scale_max)


def encoding_scale(amax: float, reaches: float) -> float:
    """S_enc = reaches / amax, at most FLT_MAX; 1 for an amax of 0 or infinity. Rules: GLB-2, GLB-3."""
    s = r.at_most(r.over(reaches, amax), r.FLT_MAX)
    return 1.0 if amax == 0 or s == 0 else s


def block_scale(amax: float, g: float, spec: Spec) -> float:
    """Return a block's scale before its codec, a value of float32. Rules: BLK-3, BLK-10, FOS-1, MXS-1, MXS-5."""
    name, element = spec.arithmetic.name, spec.element.format.name
    if name in PRODUCTS:
        return r.at_most(r.times(amax, r.times(g, SIXTH)), r.FLT_MAX)
    if name == "te-division":
        return r.times(r.over(amax, 6.0), g)
    if name == "ocp-rceil" and not math.isfinite(amax):
        return r.MADE_NAN
    if name in QUOTIENTS:
        return r.times(amax, r.over(1.0, spec.element_max or r.magnitudes(element)[-1]))
    if name in POWERS:
        return power_of_two_scale(amax, POWERS[name], element)
    raise DomainError("oracle", f"arithmetic {name}", "one of the standard's")


def scaled(x: float, s: float, g: float, spec: Spec) -> float:
    """Return the element codec's input; s is the stored scale. Rules: BLK-4, BLK-5, BLK-6, BLK-10, BLK-11."""
    name = spec.arithmetic.name
    if name == "te-fast":
        largest_bfloat16 = float((2 - r.power(-7)) * r.power(127))
        return r.fused_with_zero(x, r.narrowed(r.at_most(r.over(g, s), largest_bfloat16), r.BFLOAT16))
    if name in RECIPROCALS:
        return r.times(x, r.at_most(r.over(1.0, r.times(s, r.over(1.0, g))), r.FLT_MAX))
    return r.fused_with_zero(x, r.over(1.0, s)) if name == "rceil-cast-only" else r.over(x, s)


def quantize_block(
    block: Rows, amax: float | None, spec: Spec, random_bits: list[list[int]] | None = None
) -> tuple[int, list[list[int]]]:
    """Return the scale byte and the codes of one block. Rules: BLK-2, BLK-3, BLK-4, BLK-5, FOS-1, FOS-2, FOS-6."""
    g = 1.0 if amax is None else encoding_scale(amax, top(spec))
    flat = [v for row in block for v in row]
    first = block_scale(largest(flat, spec.amax is not Amax.IGNORE_NAN), g, spec)
    candidates = []
    for t in (first, r.times(first, 1.5)) if spec.four_over_six else (first,):
        scale = r.encode(t, spec.scale)
        s = r.value(scale, spec.scale.format.name)
        bytes_of = itertools.chain.from_iterable(random_bits) if random_bits else itertools.repeat(None)
        codes = [r.encode(scaled(v, s, g, spec), spec.element, b) for v, b in zip(flat, bytes_of, strict=False)]
        candidates.append((scale, codes, s))
    chosen = candidates[0]
    if spec.four_over_six:
        assert amax is not None
        six, four = (block_error(codes, s, g, amax, block, spec) for _, codes, s in candidates)
        chosen = candidates[four < six]
    scale, codes, _ = chosen
    width = spec.block.columns
    return scale, [codes[i : i + width] for i in range(0, len(codes), width)]


# 4over6


def block_error(codes: Sequence[int], s: float, g: float, amax: float, block: Rows, spec: Spec) -> float:
    """Return the distance of a block's codes from its inputs. Rules: FOS-3, FOS-4, FOS-5."""
    search = spec.four_over_six
    assert search is not None
    errors: Rows = []
    code = iter(codes)
    for row in block:
        errors.append([])
        for x in row:
            d = difference(r.value(next(code), "e2m1"), s, g, amax, x, search.difference.__name__, top(spec))
            errors[-1].append(r.times(d, d) if search.metric is Metric.SQUARED else abs(d))
    if search.metric is Metric.LARGEST:
        return max((e for row in errors for e in row), key=lambda e: (math.isnan(e), e))
    return TOTALS[search.total.__name__](errors)


def difference(q: float, s: float, g: float, amax: float, x: float, kind: str, reaches: float) -> float:
    """Return decoded minus input, in the units that the search compares. Rules: FOS-3, FOS-4."""
    if kind == "dequantized":
        return r.minus(r.over(r.times(r.times(q, s), amax), reaches), x)
    if kind == "dequantized_by_reciprocal":
        return r.minus(r.times(r.times(q, s), r.over(1.0, g)), x)
    if kind == "scaled_units":
        return r.minus(r.times(q, s), r.times(x, g))
    if kind == "scaled_units_float16":
        return r.minus(r.narrowed(r.times(q, s), r.FLOAT16), r.times(x, g))  # q * s is exact
    raise DomainError("oracle", f"difference {kind}", "one of the standard's")


def in_order(values: Sequence[float]) -> float:
    """Return ((a + b) + c) + ... Rules: FOS-8."""
    total = values[0]
    for v in values[1:]:
        total = r.plus(total, v)
    return total


def by_halves(values: Sequence[float]) -> list[float]:
    """Return the first half plus the second, element by element. Rules: FOS-8."""
    half = len(values) // 2
    return [r.plus(a, b) for a, b in zip(values[:half], values[half:], strict=True)]


def rows_by_tree(errors: Rows) -> float:
    """Each row in order, then row i and i + 8, i + 4, i + 2, i + 1. Rules: FOS-8."""
    totals = [in_order(row) for row in errors]
    while len(totals) > 1:
        totals = by_halves(totals)
    return totals[0]


TOTALS: dict[str, Callable[[Rows], float]] = {
    "sequential": lambda errors: in_order([in_order(row) for row in errors]),
    "halves": lambda errors: in_order([in_order(by_halves(row)) for row in errors]),
    "rows_by_tree": rows_by_tree,
}


# Dequantization


def dequantize(
    data: DirectionData, shape: tuple[int, int], spec: Spec, to: r.Binary = r.FLOAT32, inverse: bool = False
) -> Rows:
    """Return the values that bytes stand for, rounded once to a type. Rules: DEQ-1, DEQ-2, DEQ-3, DEQ-4, HAD-6."""
    packed, scales = data.data.tolist(), data.scales.tolist()
    bits, width = spec.element.format.bits, spec.block.columns
    values: Rows = []
    for i in range(shape[0]):
        row = []
        for j in range(shape[1]):
            code = unpack(packed[i], bits, j)
            q = r.value(code, spec.element.format.name)
            s = r.value(scales[i][j // width], spec.scale.format.name)
            if data.amax is not None:
                amax = float(data.amax[i if spec.global_scale is Granularity.ROW else 0])
                s = r.times(r.times(s, amax), r.over(1.0, top(spec)))
            row.append(r.times(q, s))
        if inverse and spec.hadamard:
            groups = [row[k : k + 16] for k in range(0, len(row), 16)]
            row = [v for group in groups for v in hadamard_bound.inverse(group, spec.hadamard.signs)]
        values.append([r.narrowed(v, to) for v in row])
    return values


def differences(got: DirectionData, expected: DirectionData) -> str:
    """Return the differences of two results as text; empty if every byte and every shape is the same.

    Rules: CNF-1.
    """
    found = []
    for name, a, b in zip(DirectionData._fields, got, expected, strict=True):
        if (a is None) != (b is None) or (a is not None and (a.shape, a.dtype) != (b.shape, b.dtype)):
            found.append(f"{name}: {getattr(a, 'shape', a)}, expected {getattr(b, 'shape', b)}")
        elif a is not None:
            unit = f"u{a.itemsize}"
            where = np.argwhere(np.ascontiguousarray(a).view(unit) != np.ascontiguousarray(b).view(unit))
            if len(where):
                at = tuple(where[0].tolist())
                found.append(f"{name}: {len(where)} differ, first at {at}: {a[at]:#}, expected {b[at]:#}")
    return "; ".join(found)
