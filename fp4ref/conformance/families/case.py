"""The parts of a family: the aim that it is given, the members that it yields, and the cases that these become."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import lcm
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.formats import F, Floats
from fp4ref.model.tiles import join
from fp4ref.quantized import Direction, DirectionData, matrix_shape
from fp4ref.spec import Granularity, Spec

SEED = 20260822
SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}  # names of types in the names of cases
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Case:
    """A call of a quantizer: its inputs, and the mistake or rule at which they aim.

    id: unique among the cases of a specification, as `element-ties/3/bf16/row`. reason: of the family, one sentence.
    x: [..., K], float32, bfloat16 or float16. amax: the caller's, float32 [1] or [rows], or None for that of x.
    random_bits: uint8 [rows, columns] of the direction, for a stochastic specification. encoded: the bytes that a
    kernel is given instead of those of x, scales linear; x then has their shape and type only. made: the golden model's
    bytes of x, where they are asked for many times. seed: of its random numbers.
    """

    id: str
    family: str
    reason: str
    rules: tuple[str, ...]
    x: NDArray[Any]
    spec: Spec
    direction: Direction
    amax: Floats | None = None
    random_bits: NDArray[np.uint8] | None = None
    encoded: DirectionData | None = None
    made: DirectionData | None = None
    seed: int = 0

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of the matrix of the direction."""
        rows, columns = matrix_shape(self.x.shape)
        return (rows, columns) if self.direction == "row" else (columns, rows)


class Member(NamedTuple):
    """An input of a family, before it is given a direction.

    values: the matrix of the direction in the aim's type, or a tensor of another rank. amax: float32 [1] or [rows].
    random_bits: uint8, of the shape of `values`. encoded: the bytes of a direction, for kernels that read them.
    """

    label: str
    values: NDArray[Any]
    amax: Floats | None = None
    random_bits: NDArray[np.uint8] | None = None
    encoded: DirectionData | None = None


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The extent of the members of all families.

    level: 1 takes a second or two, 2 adds large tensors and every bit pattern. size: multiplies the number of aimed
    blocks. multiple: rows and columns of the direction's matrix will be multiples of these; a family whose point is a
    place or a shape heeds them. dtypes: all types that members are made in. seed: other random numbers for each.
    weights: a file of tensors of a real model. encoded: tensors that are given as bytes, too, for a kernel that reads.
    """

    level: int = 1
    size: int = 1
    multiple: tuple[int, int] = (1, 1)
    dtypes: tuple[str, ...] = tuple(INPUT_DTYPES)
    seed: int = 0
    weights: Path | None = None
    encoded: bool = False


DEFAULT = Reach()


@dataclass(frozen=True)
class Aim:
    """The subject for which members of a family are made. direction: read only by families that depend on it."""

    spec: Spec
    dtype: np.dtype[Any]
    direction: Direction = "row"
    reach: Reach = DEFAULT
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED), compare=False)

    @property
    def level(self) -> int:
        """1 takes a second or two, 2 adds large tensors and every bit pattern."""
        return self.reach.level

    @property
    def narrowest(self) -> bool:
        """True in one of the types: the first of the least size."""
        return self.dtype.name == min(self.reach.dtypes, key=lambda name: INPUT_DTYPES[name].itemsize)

    def shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the least multiples that hold a matrix [rows, columns] of the direction."""
        below, across = self.reach.multiple
        return -(-rows // below) * below, -(-columns // across) * across

    def blocks(self, down: int, across: int) -> tuple[int, int]:
        """Return the least counts of whole blocks that are multiples and hold `down` times `across` blocks."""
        (height, width), (rows, columns) = self.spec.block, self.reach.multiple
        rows, columns = lcm(rows, height) // height, lcm(columns, width) // width
        return -(-down // rows) * rows, -(-across // columns) * columns

    @property
    def area(self) -> int:
        """Elements of a block."""
        return self.spec.block.rows * self.spec.block.columns

    @property
    def count(self) -> int:
        """The number of blocks a family that could go on for ever makes."""
        return 48 * self.reach.size * (8 if self.level > 1 else 1)

    @property
    def element_max(self) -> float:
        """The magnitude that a block's maximum is mapped to."""
        return float(self.spec.element_max or self.spec.element.format.max)

    @property
    def unit_amax(self) -> float:
        """The global amax under which a scale byte of value s means exactly s; 0 without a global scale."""
        return 0.0 if self.spec.global_scale is Granularity.NONE else self.element_max * float(self.spec.scale_max)

    @property
    def finite_max(self) -> float:
        """The largest finite value of the type."""
        return float(ml_dtypes.finfo(self.dtype).max)  # type: ignore[no-untyped-call]

    @property
    def smallest_normal(self) -> float:
        """The smallest normal value of the type."""
        return float(ml_dtypes.finfo(self.dtype).smallest_normal)  # type: ignore[no-untyped-call]

    def narrow(self, values: Any) -> NDArray[Any]:
        """Values in the type of the aim, rounded to nearest even."""
        with np.errstate(all="ignore"):
            return np.asarray(values).astype(F).astype(self.dtype)

    def normal(self, *shape: int) -> Values:
        """Return normally distributed values."""
        return self.rng.standard_normal(shape)


Make = Callable[[Aim], Iterator[Member]]


@dataclass(frozen=True)
class Family:
    """Inputs with one purpose. reason: one sentence. rules: what a specification's kernel can break here."""

    name: str
    reason: str
    rules: Callable[[Spec], tuple[str, ...]]
    make: Make


def aim(
    family: str,
    spec: Spec,
    dtype: str = "float32",
    direction: Direction = "row",
    reach: Reach = DEFAULT,
) -> Aim:
    """Return the aim of a family at a specification; random numbers depend on its name, the type and the seed only."""
    own = () if reach.seed == 0 else (reach.seed,)
    rng = np.random.default_rng([SEED, zlib.crc32(f"{family}/{dtype}".encode()), *own])
    return Aim(spec, INPUT_DTYPES[dtype], direction, reach, rng)


def arrange(aimed: Aim, blocks: Sequence[Any] | NDArray[Any], amax: float) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Lay out blocks [n, area] as a matrix whose global amax is `amax`, and say where each block went.

    A block of its own holds `amax`: the first of the matrix, or of every row where rows have a scale each. Blocks that
    are missing from a whole rectangle are copies of the first. Result: matrix in the aim's type, and block row and
    block column of every block, [n, 2].
    """
    flat = np.asarray(blocks).reshape(-1, aimed.area).astype(aimed.dtype)
    rows, columns = aimed.spec.block
    granularity = aimed.spec.global_scale
    lead = np.zeros((1, aimed.area), flat.dtype)
    lead[0, :: max(aimed.area // 5, 1)] = aimed.narrow(amax)
    across = max(min(8, len(flat)), 1)
    if granularity is Granularity.TENSOR:
        flat, first = np.concatenate([lead, flat]), 1
    else:
        first = 0
    down = -(-len(flat) // across)
    grid = np.concatenate([flat, np.repeat(flat[:1], down * across - len(flat), axis=0)])
    grid = grid.reshape(down, across, aimed.area)
    index = np.arange(first, len(flat))
    where = np.stack([index // across, index % across], axis=1)
    if granularity is Granularity.ROW:
        grid = np.concatenate([np.broadcast_to(lead, (down, 1, aimed.area)), grid], axis=1)
        where[:, 1] += 1
    shape = down * rows, grid.shape[1] * columns
    return join(grid.reshape(down, grid.shape[1], rows, columns), shape), where


def matrix_of(aimed: Aim, blocks: Any, amax: float | None = None) -> NDArray[Any]:
    """Return the matrix of `arrange`, by default with the amax under which scale bytes mean themselves."""
    return arrange(aimed, blocks, aimed.unit_amax if amax is None else amax)[0]
