"""Differences of two specifications: their fields, their functions, and the bytes that they make of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import api, packing
from fp4ref.conformance.explain.formulas import formula
from fp4ref.conformance.families import cases
from fp4ref.formats import F, Floats
from fp4ref.model.dequantize import dequantize
from fp4ref.quantized import Direction, DirectionData, Quantized, matrix_shape
from fp4ref.spec import Granularity, Spec
from fp4ref.spec_json import differences

SLOTS = ("global_scale", "block_scale", "working_scale", "scaled", "dequantized")
RANDOM_BYTE = 128  # of every element, where a specification rounds stochastically
CHUNK = 1 << 20  # elements whose values are compared at once
AIMED = (
    "element-ties",
    "element-neighbours",
    "block-scale-ties",
    "scale-neighbours",
    "hadamard",
    "candidates",
    "reciprocal",
    "operation-order",
    "double-rounding",
    "flush",
    "profiles",
)
INPUTS = (
    "normal",
    "rows",
    *AIMED,
    "amax-powers",
    "outlier",
    "scale-underflow",
    "largest",
    "subnormals",
    "zero-blocks",
    "zero-tensor",
    "minus-zero",
    "nan",
    "inf",
)
NARROW = ("normal", "block-scale-ties", "profiles")  # families of which bfloat16 tensors are compared as well


class Functions(NamedTuple):
    """A step of the arithmetic that differs: its slot, and what each specification does there."""

    slot: str
    a: str
    b: str


@dataclass(frozen=True)
class Count:
    """Counts of differences in one direction of a tensor, or of the tensors of one family.

    codes, scales: differing element codes and scale bytes; None where bytes cannot be compared one to one.
    values: dequantized values that differ as numbers, where -0 equals 0 and NaN equals NaN.
    """

    name: str
    direction: Direction
    elements: int
    blocks: int
    codes: int | None
    scales: int | None
    values: int

    @property
    def differs(self) -> bool:
        """True if anything that can be compared differs."""
        return bool(self.values if self.codes is None else self.codes or self.scales)


def summed(counts: Iterable[Count]) -> list[Count]:
    """Add the counts of all tensors of a name in a direction."""
    found: dict[tuple[str, Direction], Count] = {}
    for part in counts:
        whole = found.get((part.name, part.direction))
        found[part.name, part.direction] = part if whole is None else _sum(whole, part)
    return list(found.values())


def _sum(a: Count, b: Count) -> Count:
    codes = None if a.codes is None or b.codes is None else a.codes + b.codes
    scales = None if a.scales is None or b.scales is None else a.scales + b.scales
    return Count(a.name, a.direction, a.elements + b.elements, a.blocks + b.blocks, codes, scales, a.values + b.values)


def fields(a: Spec, b: Spec) -> dict[str, tuple[Any, Any]]:
    """Fields of the records that differ, by dotted name, with both values."""
    return differences(a, b)


def functions(a: Spec, b: Spec) -> list[Functions]:
    """Return the functions in which two specifications differ, as one-line formulas."""
    found = []
    for slot in SLOTS:
        ours, theirs = getattr(a.arithmetic, slot), getattr(b.arithmetic, slot)
        if ours is not theirs:
            found.append(Functions(slot, formula(ours), formula(theirs)))
    if a.four_over_six and b.four_over_six:
        for slot in ("difference", "total"):
            ours, theirs = getattr(a.four_over_six, slot), getattr(b.four_over_six, slot)
            if ours is not theirs:
                found.append(Functions(f"4over6 {slot}", formula(ours), formula(theirs)))
    return found


def same_bytes(a: Spec, b: Spec) -> bool:
    """Return True if byte i means the same element or block in both, so that bytes can be compared one to one."""
    return (
        a.element.format == b.element.format and a.scale.format == b.scale.format and a.block.columns == b.block.columns
    )


def directions(a: Spec, b: Spec) -> tuple[Direction, ...]:
    """Return the directions that can differ: columns do only with a transform. Rules: BLK-8, HAD-4."""
    return ("row", "column") if a.hadamard or b.hadamard else ("row",)


def inputs(a: Spec, b: Spec) -> Iterator[tuple[str, Direction, NDArray[Any]]]:
    """Yield the built-in tensors for two specifications, in the directions in which they can differ, by family."""
    forms = [(spec.element.format, spec.scale.format, spec.block, spec.global_scale) for spec in (a, b)]
    for direction in directions(a, b):
        aimed = [spec for spec in (a, b) if direction == "row" or spec.hadamard]
        for spec in aimed if forms[0] != forms[1] else aimed[:1]:
            names = INPUTS if spec is aimed[0] else AIMED
            suffix = "" if spec is aimed[0] else f" of {spec.name}"
            for case in cases(spec, directions=(direction,), dtypes=("float32", "bfloat16"), families=names):
                if direction == "column" or case.x.dtype == F or case.family in NARROW:
                    kind = "" if case.x.dtype == F else f" {case.x.dtype.name}"
                    yield f"{case.family}{kind}{suffix}", direction, case.x


def quantize(
    x: NDArray[Any], spec: Spec, direction: Direction, amax: float | None = None, backend: str | None = "numpy"
) -> Quantized:
    """Quantize one direction; an amax is passed on only to a specification that has a use for it."""
    rows, columns = matrix_shape(x.shape) if direction == "row" else matrix_shape(x.shape)[::-1]
    given = None
    if amax is not None and spec.global_scale is not Granularity.NONE:
        given = np.full(rows if spec.global_scale is Granularity.ROW else 1, amax, F)
    bits = np.full((rows, columns), RANDOM_BYTE, np.uint8) if spec.stochastic else None
    return api.quantize(x, spec, direction, amax=given, random_bits=bits, backend=backend)


def count(
    a: Spec,
    b: Spec,
    x: NDArray[Any],
    direction: Direction = "row",
    name: str = "",
    amax: float | None = None,
    backend: str | None = "numpy",
) -> Count:
    """Quantize a tensor by both specifications and count what differs. Rules: CNF-1."""
    first, second = (quantize(x, spec, direction, amax, backend) for spec in (a, b))
    return counted(first, second, x.dtype, direction, name)


def counted(first: Quantized, second: Quantized, source: np.dtype[Any], direction: Direction, name: str) -> Count:
    """Count what differs between two quantizations of a tensor of the type `source`. Rules: CNF-1."""
    a, b = first.spec, second.spec
    (ours, shape), (theirs, _) = first.direction(direction), second.direction(direction)
    codes = scales = None
    if same_bytes(a, b):
        codes = _different_codes(ours.data, theirs.data, a)
        scales = int(np.count_nonzero(ours.scales != theirs.scales))
    if codes == scales == 0 and a.arithmetic.dequantized is b.arithmetic.dequantized and _same_amax(ours, theirs):
        values = 0
    else:
        values = sum(int(part.sum()) for part in _different_values(first, second, direction, source))
    return Count(name, direction, shape[0] * shape[1], max(ours.scales.size, theirs.scales.size), codes, scales, values)


def _same_amax(a: DirectionData, b: DirectionData) -> bool:
    return (a.amax is None) == (b.amax is None) and (a.amax is None or np.array_equal(a.amax, b.amax, equal_nan=True))


def _different_codes(a: NDArray[np.uint8], b: NDArray[np.uint8], spec: Spec) -> int:
    form = spec.element.format
    return int(np.count_nonzero(packing.unpack(a ^ b, a.shape[-1] * 8 // form.bits, form)))


def _different_values(
    a: Quantized, b: Quantized, direction: Direction, source: np.dtype[Any]
) -> Iterator[NDArray[np.bool_]]:
    """Yield True for values that differ as numbers, in chunks of rows."""
    rows, columns = a.direction(direction)[1]
    height = max(CHUNK // max(columns, 1), 1)
    for start in range(0, rows, height):
        part = slice(start, min(start + height, rows))
        ours, theirs = (_values(q, direction, part, source) for q in (a, b))
        yield (ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))


def _values(q: Quantized, direction: Direction, rows: slice, source: np.dtype[Any]) -> Floats:
    data, (_, columns) = q.direction(direction)
    amax = data.amax[rows] if q.spec.global_scale is Granularity.ROW else data.amax
    part = DirectionData(data.data[rows], data.scales[rows], amax)
    shape = (rows.stop - rows.start, columns)
    values: Floats = dequantize(part, shape, q.spec, np.dtype(F), source)
    return values
