"""A product on trial: two operands and what is added, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families import named
from fp4ref.formats import E8M0, Codes, F, Floats
from fp4ref.layout import LINEAR, layout
from fp4ref.operands import AlphaRule, Epilogue, Operand
from fp4ref.quantized import Direction, DirectionData, Quantized
from fp4ref.spec import Granularity, Spec

ONE = F(2688)  # a power of two times this, as the amax of both operands, makes alpha a power of two
Random = np.random.Generator


@dataclass(frozen=True)
class GemmCase:
    """Two operands, scales linear. aimed: every order of float32 additions gives the same sums.

    bias: float32 [N]; accumulate: float32 [M, N] that every result type holds exactly; None where nothing is added.
    specials: what operands hold beside numbers, of nan and inf. directions: which one of each tensor is multiplied.
    transposed: column directions are given to the kernel as [K, rows]. seed: of its random numbers. plain: the name of
    the family's case with the same elements and scales that shows their sums, if this one does not. beside: what that
    case stands beside, of "bias" and "accumulate": it says nothing of a kernel that takes neither.
    """

    family: str
    name: str
    a: Quantized
    b: Quantized
    aimed: bool = True
    bias: Floats | None = None
    accumulate: Floats | None = None
    specials: tuple[str, ...] = ()
    directions: tuple[Direction, Direction] = ("row", "row")
    transposed: bool = False
    seed: int = 0
    plain: str = ""
    beside: tuple[str, ...] = ()
    measured_in: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Its name in reports. Rules: CNF-106."""
        return named(f"{self.family}-{self.name}", self.seed)

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """The matrices that are multiplied."""
        a, b = (
            Operand(*q.direction(name), q.spec, layout(q.scale_layout))
            for q, name in zip((self.a, self.b), self.directions, strict=True)
        )
        return a, b

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        a, b = self.operands
        return a.shape[0], b.shape[0], a.shape[1]

    def epilogue(self, to: str, rule: AlphaRule) -> Epilogue:
        """Return the epilogue of a case: the bias, C in the type of the result, and one cast to that type."""
        dtype = INPUT_DTYPES[to]
        c = None if self.accumulate is None else self.accumulate.astype(dtype)
        return Epilogue(F(1), self.bias, c, dtype, rule)


@dataclass(frozen=True)
class ProductFamily:
    """The reason of a family, in a sentence, and the rules that it checks.

    alone: the cause in words, if families of the same words alone fail. bounded: operands are `integers` of the usual
    size, whose products have small sums.
    """

    make: Callable[[str, Spec, Random], Iterator[GemmCase]]
    reason: str
    rules: tuple[str, ...]
    alone: str = ""
    bounded: bool = False


def record(spec: Spec, codes: Codes, scales: Codes, amax: float = float(ONE)) -> Quantized:
    """Codes [rows, K] and scale bytes as a tensor whose rows were quantized."""
    count = {Granularity.NONE: None, Granularity.TENSOR: 1, Granularity.ROW: len(codes)}[spec.global_scale]
    given = None if count is None else np.full(count, amax, F)
    data = DirectionData(packing.pack(codes, spec.element.format), scales, given)
    return Quantized(spec, codes.shape, "float32", LINEAR.name, data)


def element_codes(spec: Spec, values: NDArray[np.float64]) -> Codes:
    """Codes of values that the element format has."""
    codes = spec.element.encode(values.astype(F))
    assert (spec.element.decode(codes) == values).all()
    return codes


def scale_bytes(spec: Spec, values: NDArray[np.float64]) -> Codes:
    """Bytes of scales that the scale format has."""
    codes = spec.scale.encode(values.astype(F))
    assert (spec.scale.decode(codes) == values).all()
    return codes


def case_of(family: str, name: str, spec: Spec, *sides: tuple[NDArray[np.float64], NDArray[np.float64]]) -> GemmCase:
    """Return a case of element values [rows, K] and scales [rows, blocks]."""
    a, b = (record(spec, element_codes(spec, values), scale_bytes(spec, scales)) for values, scales in sides)
    return GemmCase(family, name, a, b)


def integers(spec: Spec, random: Random, rows: int, columns: int, *, largest: int = 6, top: int = 10) -> Quantized:
    """Draw elements and scales so small that the magnitudes of all products sum to less than 2^24 units.

    Elements are halves up to `largest`, scales integers up to `top`: with 6 and 10, (2 * 6)^2 * 10^2 * 1024 < 2^24.
    """
    grid = np.unique(spec.element.decode(np.arange(1 << spec.element.format.bits, dtype=np.uint8)))
    halves = grid[np.isfinite(grid) & (np.abs(grid) <= largest) & (grid * 2 == np.rint(grid * 2))]
    blocks = -(-columns // spec.block.columns)
    if spec.scale.format is E8M0:
        scales = np.ldexp(1.0, random.integers(0, top.bit_length(), (rows, blocks)))
    else:
        scales = random.integers(1, top + 1, (rows, blocks)).astype(np.float64)
    values = random.choice(halves, (rows, columns)).astype(np.float64)
    return record(spec, element_codes(spec, values), scale_bytes(spec, scales))
