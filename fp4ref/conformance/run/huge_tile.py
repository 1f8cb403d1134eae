"""The plan of a huge call: a tile of known values and its golden bytes, which the whole repeats down the rows.

A tile has three times as many rows as layouts and blocks need. No power of two is then a whole number of tiles, and an
offset that wraps around meets other values. The last repetition holds the one largest element of the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.arguments import buffer_shapes, require_hadamard
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families import Case
from fp4ref.conformance.run.huge_trial import Fold, HugeTrial
from fp4ref.conformance.subjects.packed import as_declared
from fp4ref.conformance.subjects.subject import Declaration, draws, golden, job_of
from fp4ref.errors import DomainError
from fp4ref.formats import F, Floats
from fp4ref.layout import LINEAR, layout
from fp4ref.model.quantize import global_amax
from fp4ref.packings import CANONICAL
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Granularity, Spec

OPERATION = "verify --huge"
PARTS = 3  # of a tile; each is a whole number of blocks and of tiles of scales
UNIT = 128  # rows of the largest tile of scales
WIDEST = 1 << 26  # elements of a tile
PEAK = 1024.0  # larger than all other elements
SEED = 20260822


class Size(NamedTuple):
    """A size that an input is to pass: 2^power elements, or bytes."""

    unit: str
    power: int

    @property
    def name(self) -> str:
        """The size in words, as `element 2^31`."""
        return f"{self.unit} 2^{self.power}"

    def elements(self, itemsize: int) -> int:
        """Return the elements that come before it."""
        return (1 << self.power) // (itemsize if self.unit == "byte" else 1)


SIZES = Size("byte", 31), Size("element", 31), Size("element", 32)
WIDTH = 1 << 14  # columns of x


@dataclass(frozen=True)
class HugePlan:
    """The inputs of one kernel: a tile [rows, columns] of x, and the same with the largest element at its end."""

    spec: Spec
    declared: Declaration
    body: Case
    last: Case

    @property
    def rows(self) -> int:
        """Rows of x in a tile."""
        return int(self.body.x.shape[0])

    @property
    def columns(self) -> int:
        """Columns of x."""
        return int(self.body.x.shape[1])

    def count(self, size: Size) -> int:
        """Return the repetitions that reach past a size, and end in a whole tile behind it."""
        return size.elements(self.body.x.itemsize) // self.body.x.size + 2

    def trial(self, size: Size, sizes: tuple[Size, ...], memory: int | None = None) -> HugeTrial:
        """Return the call past a size; samples are the rows around all sizes below, and the first and last rows.

        Rules: CNF-29, CNF-52, CNF-123.
        """
        count, expected = self.count(size), [golden(case) for case in (self.body, self.last)]
        body, last = (
            job_of(case, self.declared, made) for case, made in zip((self.body, self.last), expected, strict=True)
        )
        given = {name: self._fold(name) for name in body.arguments}
        made = {f"out {name}": self._fold(name) for name in body.outputs}
        for name in {"rows", "columns"} & set(body.arguments):
            if name == ("rows" if self.declared.direction == "row" else "columns"):
                body.arguments[name] = last.arguments[name] = self.rows * count
        forms = [
            _declared_form(each, case, self.declared)
            for case, each in zip((self.body, self.last), expected, strict=True)
        ]
        pairs = {name: (forms[0][name], forms[1][name]) for name in body.outputs}
        samples = {part: self._sample(part, count) for part in self._parts(sizes, count)}
        return HugeTrial(body, last, pairs, given | made, count, PARTS, samples, memory)

    def row_of(self, name: str, byte: int) -> int | None:
        """Return the row of x in a tile that decides a byte of a result of the tile; None if all rows do.

        Rules: LAY-1, NUM-4.
        """
        axis, by_row = self._fold(name).axis, self.declared.direction == "row"
        if axis is None:
            return None
        if name == "amax":
            return byte // F().itemsize
        shapes = buffer_shapes(self.spec, self.body.x.shape, self.body.direction, self.declared.scale_layout)
        shape = getattr(shapes, name)[:: -1 if self.declared.transposed else 1]
        order = layout(self.declared.scale_layout) if name == "scales" else LINEAR
        per = self.spec.block.columns if name == "scales" else 8 // self.spec.element.format.bits
        return order.index(byte, shape[1])[axis] * (1 if by_row else per)

    def _fold(self, name: str) -> Fold:
        """Return the repetition of a tile's array in an array of a call."""
        by_row = self.declared.direction == "row"
        if name == "x":
            return Fold(0)
        if name == "random_bits":
            return Fold(0 if by_row else 1)
        if name in {"data", "scales"}:
            high = layout(self.declared.scale_layout).tile[0] if name == "scales" else 1
            return Fold(0 if by_row is not self.declared.transposed else 1, high)
        return Fold(0 if by_row and self.spec.global_scale is Granularity.ROW and _is_amax(name) else None)

    def _parts(self, sizes: tuple[Size, ...], count: int) -> list[int]:
        """Return the first and the last part of all tiles, and those around every size."""
        rows = self.rows // PARTS
        around = [size.elements(self.body.x.itemsize) // self.columns // rows for size in sizes]
        wanted = {0, count * PARTS - 1, *around, *(part - 1 for part in around)}
        return sorted(part for part in wanted if 0 <= part < count * PARTS)

    def _sample(self, part: int, count: int) -> dict[str, NDArray[Any]]:
        """Return the golden bytes of the rows of one part, computed from these rows and the amax alone."""
        tile, place = divmod(part, PARTS)
        case = self.last if tile == count - 1 else self.body
        rows = self.rows // PARTS
        kept = slice(place * rows, (place + 1) * rows)
        bits = case.random_bits
        if bits is not None:
            bits = bits[kept] if self.declared.direction == "row" else bits[:, kept]
        amax = case.amax
        if amax is not None and self._fold("amax").axis == 0:
            amax = amax[kept]
        cut = Case(case.id, case.family, "", (), case.x[kept], self.spec, case.direction, amax, bits)
        form = _declared_form(golden(cut), cut, self.declared)
        return {name: form[name] for name in ("data", "scales") if name in self.declared.outputs}


def plan(spec: Spec, declared: Declaration, width: int = WIDTH) -> HugePlan:
    """Return the inputs for a quantizer; width: about how many columns x has.

    Errors: DomainError for another kernel than a quantizer, and for one that draws its own random bits.

    Rules: CNF-29, CNF-54, CNF-120, CNF-122.
    """
    if declared.operation != "quantize":
        raise DomainError(OPERATION, f"a kernel with operation={declared.operation!r}", "a quantizer", "CNF-54")
    if declared.packing != CANONICAL:
        raise DomainError(OPERATION, f"packing={declared.packing!r}", "the canonical packing", "CNF-54")
    if spec.stochastic and draws(declared):
        raise DomainError(OPERATION, "a kernel that draws its own random bits", "one that takes random_bits", "CNF-54")
    unit = lcm(UNIT, 4 * spec.block.columns, spec.block.rows, *declared.multiple)
    rows, columns = PARTS * unit, -(-width // unit) * unit
    if rows * columns > WIDEST:
        got = f"multiple={declared.multiple}, which takes tiles of {rows} x {columns}"
        raise DomainError(OPERATION, got, f"tiles of at most {WIDEST} elements", "CNF-29")
    direction: Direction = "row" if declared.direction == "row" else "column"
    dtype = "bfloat16" if "bfloat16" in declared.dtypes else declared.dtypes[0]
    require_hadamard(spec, direction, (rows, columns), dtype, OPERATION)
    body = _values(rows, columns, dtype)
    last = body.copy()
    last[-1, -1] = PEAK
    shape = body.shape if direction == "row" else body.shape[::-1]
    bits = np.random.default_rng(SEED).integers(0, 256, shape, np.uint8) if spec.stochastic else None
    cases = [
        Case("huge", "huge", "", (), x, spec, direction, amax, bits)
        for x, amax in zip((body, last), _maxima(body, last, spec, direction), strict=True)
    ]
    return HugePlan(spec, declared, *cases)


def _values(rows: int, columns: int, dtype: str) -> NDArray[Any]:
    """Ties and ordinary numbers, by turns of 16 columns, of many magnitudes; no two rows are alike. Rules: CNF-121."""
    random = np.random.default_rng(SEED)
    ties = random.integers(-24, 25, (rows, columns // 16, 16)) / F(4)
    normal = random.standard_normal(ties.shape, F)
    exponents = random.integers(-4, 5, (*ties.shape[:2], 1))
    chosen = np.where(np.arange(ties.shape[1])[:, None] % 2 == 0, ties, normal)
    return np.ldexp(chosen, exponents).astype(INPUT_DTYPES[dtype]).reshape(rows, columns)


def _maxima(
    body: NDArray[Any], last: NDArray[Any], spec: Spec, direction: Direction
) -> tuple[Floats | None, Floats | None]:
    """Return the amax to quantize each of the two tiles with: of its own rows, or of the whole tensor. Rules: GLB-1."""
    if spec.global_scale is Granularity.NONE:
        return None, None
    own = global_amax(body, spec, direction), global_amax(last, spec, direction)
    if spec.global_scale is Granularity.ROW and direction == "row":
        return own
    whole = np.maximum(*own)
    return whole, whole


def _is_amax(name: str) -> bool:
    return name in {"amax", "encode_scale", "decode_scale"}


def _declared_form(made: DirectionData, case: Case, declared: Declaration) -> dict[str, NDArray[Any]]:
    """Return golden results as a kernel gives them: in its packing, its layout, its transposes."""
    found = {
        "data": as_declared(made.data, case.matrix, case.spec, declared),
        "scales": layout(declared.scale_layout).from_linear(made.scales),
    }
    if declared.transposed:
        found = {name: np.ascontiguousarray(part.T) for name, part in found.items()}
    return found if made.amax is None else found | {"amax": np.asarray(made.amax, F)}
