"""Places: where a mistake holds, as a conjunction of few predicates over a tensor and the coordinates in it.

A predicate is about the tensor (its type, direction, rank or size) or about a coordinate (row, column, block, or the
number of a block counted over the matrix). Coordinates are those of the direction's matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fp4ref.quantized import Direction, matrix_shape

Bools = NDArray[np.bool_]


class Tensor(Protocol):
    """A tensor and the direction in which it is quantized."""

    @property
    def x(self) -> NDArray[Any]:
        """The tensor, [..., K]."""

    @property
    def direction(self) -> Direction:
        """The direction whose matrix is quantized."""


class Units(NamedTuple):
    """Elements or blocks of a tensor: its properties, and rows and columns of the direction's matrix.

    The fields are numbers and words, or arrays that broadcast together. width: columns of a block; a block is given by
    its first column. depth: of a product whose result the tensor is; 0 of any other tensor.
    """

    dtype: Any
    direction: Any
    rank: Any
    rows: Any
    columns: Any
    width: int
    row: Any
    column: Any
    depth: Any = 0

    def at(self, chosen: Any) -> Units:
        """Return some of units that are arrays."""
        return Units(*(field if isinstance(field, int) else field[chosen] for field in self))


def units_of(case: Tensor, width: int, row: Any, column: Any) -> Units:
    """Return the units of a case at some rows and columns of its direction's matrix."""
    rows, columns = matrix_shape(case.x.shape)
    if case.direction == "column":
        rows, columns = columns, rows
    depth = getattr(case, "depth", 0)
    return Units(case.x.dtype.name, case.direction, case.x.ndim, rows, columns, width, row, column, depth)


@dataclass(frozen=True)
class PlaceAxis:
    """A number that every unit has.

    of: the number. length: the count of such numbers in the tensor. one, many: words. sized: it is a property of the
    tensor, not of a coordinate. of_size, whose: the tensors of a size, and those whose size is something, in words.
    """

    one: str
    many: str
    of: Callable[[Units], Any]
    length: Callable[[Units], Any]
    sized: bool = False
    of_size: str = "tensors of {size} {many}"
    whose: str = "tensors whose {many} are"


def _blocks(units: Units) -> Any:
    return -(-units.columns // units.width)


ROW = PlaceAxis("row", "rows", lambda u: u.row, lambda u: u.rows)
COLUMN = PlaceAxis("column", "columns", lambda u: u.column, lambda u: u.columns)
BLOCK = PlaceAxis("block", "blocks", lambda u: u.column // u.width, _blocks)
NUMBER = PlaceAxis(
    "block number",
    "block numbers",
    lambda u: u.row * _blocks(u) + u.column // u.width,
    lambda u: u.rows * _blocks(u),
)


ROWS = PlaceAxis("rows", "rows", lambda u: u.rows, lambda u: u.rows, sized=True)
COLUMNS = PlaceAxis("columns", "columns", lambda u: u.columns, lambda u: u.columns, sized=True)
ELEMENTS = PlaceAxis("elements", "elements", lambda u: u.rows * u.columns, lambda u: u.rows * u.columns, sized=True)
DEPTH = PlaceAxis(
    "depth",
    "depth",
    lambda u: u.depth,
    lambda u: u.depth,
    sized=True,
    of_size="products of a depth of {size}",
    whose="products whose depth is",
)
SIZES, COORDINATES = (ROWS, COLUMNS, ELEMENTS, DEPTH), (ROW, BLOCK, COLUMN, NUMBER)


@dataclass(frozen=True)
class Predicate:
    """A condition on units.

    text: words that follow a comma. bits: how much it says, the length of its description. holds: of units, broadcast
    over their rows and columns. axis: of the number that it is about; None for types, directions and ranks.
    in_columns: of a condition on blocks, the same one on columns, given the columns of a block; None without one.
    """

    text: str
    bits: float
    holds: Callable[[Units], Any]
    axis: PlaceAxis | None = None
    in_columns: Callable[[int], Predicate] | None = None

    @property
    def about_tensor(self) -> bool:
        """Return True if it holds for all of a tensor or for nothing of it."""
        return self.axis is None or self.about_size

    @property
    def about_size(self) -> bool:
        """Return True if the size of a tensor decides."""
        return self.axis is not None and self.axis.sized


@dataclass(frozen=True)
class Place:
    """A conjunction of predicates; without any it is everywhere."""

    predicates: tuple[Predicate, ...] = ()

    @property
    def text(self) -> str:
        """The place in words that follow a comma; empty for everywhere."""
        tensor = [predicate.text for predicate in self.predicates if predicate.about_tensor]
        inside = [predicate.text for predicate in self.predicates if not predicate.about_tensor]
        return ", ".join([" and ".join(inside)] * bool(inside) + tensor)

    @property
    def bits(self) -> float:
        """The length of its description."""
        return sum(predicate.bits for predicate in self.predicates)

    @property
    def about_tensor(self) -> bool:
        """Return True if it holds for all of a tensor or for nothing of it."""
        return all(predicate.about_tensor for predicate in self.predicates)

    @property
    def about_size(self) -> bool:
        """Return True if the size of a tensor has a part in it."""
        return any(predicate.about_size for predicate in self.predicates)

    def holds(self, units: Units) -> Bools:
        """Return which units are inside, of the shape that their rows and columns broadcast to."""
        inside = np.ones(np.broadcast_shapes(np.shape(units.row), np.shape(units.column)), np.bool_)
        for predicate in self.predicates:
            inside &= predicate.holds(units)
        return inside

    def in_columns(self, width: int) -> Place:
        """Return the same place with conditions on columns instead of blocks, for what happens to elements.

        One block of several keeps its number.

        Rules: CNF-26.
        """
        return Place(tuple(p if p.in_columns is None else p.in_columns(width) for p in self.predicates))

    def of_elements(self, case: Tensor, width: int, rows: slice, columns: slice) -> Bools:
        """Return which elements of some rows and columns of a case are inside."""
        high, wide = units_of(case, width, 0, 0)[3:5]
        row, column = np.arange(high)[rows, None], np.arange(wide)[None, columns]
        return self.holds(units_of(case, width, row, column))


EVERYWHERE = Place()
