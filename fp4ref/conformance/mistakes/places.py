"""Places: where a mistake holds, as a conjunction of few predicates over a tensor and the coordinates in it.

A predicate is about the tensor (its type, direction, rank or size) or about a coordinate (row, column, block, or the
number of a block counted over the matrix). Coordinates are those of the direction's matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fp4ref.quantized import Direction, matrix_shape

Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


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
    its first column.
    """

    dtype: Any
    direction: Any
    rank: Any
    rows: Any
    columns: Any
    width: int
    row: Any
    column: Any

    def at(self, chosen: Any) -> Units:
        """Return some of units that are arrays."""
        return Units(*(field if isinstance(field, int) else field[chosen] for field in self))


def units_of(case: Tensor, width: int, row: Any, column: Any) -> Units:
    """Return the units of a case at some rows and columns of its direction's matrix."""
    rows, columns = matrix_shape(case.x.shape)
    if case.direction == "column":
        rows, columns = columns, rows
    return Units(case.x.dtype.name, case.direction, case.x.ndim, rows, columns, width, row, column)


@dataclass(frozen=True)
class PlaceAxis:
    """A number that every unit has.

    of: the number. length: the count of such numbers in the tensor. one, many: words. sized: it is a property of the
    tensor, not of a coordinate.
    """

    one: str
    many: str
    of: Callable[[Units], Any]
    length: Callable[[Units], Any]
    sized: bool = False


def _blocks(units: Units) -> Any:
    return -(-units.columns // units.width)


ROW = PlaceAxis("row", "rows", lambda u: u.row, lambda u: u.rows)
COLUMN = PlaceAxis("column", "columns", lambda u: u.column, lambda u: u.columns)
BLOCK = PlaceAxis("block", "blocks", lambda u: u.column // u.width, _blocks)
NUMBER = PlaceAxis(
    "number of the block",
    "block numbers",
    lambda u: u.row * _blocks(u) + u.column // u.width,
    lambda u: u.rows * _blocks(u),
)
ROWS = PlaceAxis("rows", "rows", lambda u: u.rows, lambda u: u.rows, sized=True)
COLUMNS = PlaceAxis("columns", "columns", lambda u: u.columns, lambda u: u.columns, sized=True)
ELEMENTS = PlaceAxis("elements", "elements", lambda u: u.rows * u.columns, lambda u: u.rows * u.columns, sized=True)
SIZES, COORDINATES = (ROWS, COLUMNS, ELEMENTS), (ROW, BLOCK, COLUMN, NUMBER)


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


# Predicates, each as tight as some units that must be inside allow


def of_types(names: Sequence[str]) -> Predicate:
    """Return the predicate that holds for some types of x."""
    return Predicate(f"in {' and '.join(names)} only", 3.0, lambda u: np.isin(u.dtype, list(names)))


def of_direction(name: str) -> Predicate:
    """Return the predicate that holds for one direction."""
    return Predicate(f"in the {name} direction only", 2.0, lambda u: u.direction == name)


def of_rank(least: int, most: int) -> Predicate:
    """Return the predicate that holds for tensors of some numbers of dimensions."""
    if least > 2:
        words = "in tensors of more than two dimensions only"
    elif most < 2:
        words = "in tensors of one dimension only"
    else:
        words = "in matrices only" if least == most == 2 else "in tensors of at most two dimensions only"
    return Predicate(words, 3.0, lambda u: (u.rank >= least) & (u.rank <= most))


def _weight(number: int) -> float:
    """Bits of a number in a description: round numbers have few."""
    number = max(number, 1)
    return 2.0 * (number // (number & -number)).bit_length() + float(np.log2(number.bit_length()))


PRIOR = {"row": 1.0, "block": 1.5, "column": 2.0, "number of the block": 4.0}
OF_SIZES = 5.0  # bits of a threshold of a size, of which the evidence has few


def at_least(axis: PlaceAxis, value: int, below: int | None = None) -> Predicate:
    """Return `axis >= value`. below: the largest size that is known to be right."""
    if axis.sized:
        known = "" if below is None else f" (not with {below:,})"
        words, bits = f"in tensors of {value:,} {axis.many} and more only{known}", OF_SIZES
    else:
        words, bits = f"in {axis.many} from {value:,} on", PRIOR[axis.one] + _weight(value)
    columns = (lambda width: at_least(COLUMN, value * width)) if axis is BLOCK else None
    return Predicate(words, bits, lambda u: axis.of(u) >= value, axis, columns)


def at_most(axis: PlaceAxis, value: int, above: int | None = None) -> Predicate:
    """Return `axis <= value`. above: the smallest size that is known to be right."""
    if axis.sized:
        known = "" if above is None else f" (not with {above:,})"
        words = f"in tensors of {value:,} {axis.many if value > 1 else axis.one} or fewer only{known}"
        return Predicate(words, OF_SIZES, lambda u: axis.of(u) <= value, axis)
    if value == 0:
        return Predicate(f"in {axis.one} 0", PRIOR[axis.one] + 1, lambda u: axis.of(u) == 0, axis)
    bits = PRIOR[axis.one] + _weight(value + 1)
    return Predicate(f"in {axis.many} before {value + 1:,}", bits, lambda u: axis.of(u) <= value, axis)


def equal_to(axis: PlaceAxis, value: int) -> Predicate:
    """Return `axis == value`."""
    bits = PRIOR[axis.one] + _weight(value) + 1
    return Predicate(f"in {axis.one} {value:,}", bits, lambda u: axis.of(u) == value, axis)


def multiples(axis: PlaceAxis, modulus: int, *, are: bool, width: int) -> Predicate:
    """Return the predicate on a size that is, or is not, a multiple of a power of two, of a block's width first."""
    words = f"in tensors whose {axis.many} are {'a' if are else 'no'} multiple of {modulus} only"
    bits = OF_SIZES - (modulus == width)
    return Predicate(words, bits, lambda u: (axis.of(u) % modulus == 0) == are, axis)


def residues(axis: PlaceAxis, modulus: int, first: int, last: int) -> Predicate:
    """Return `axis % modulus` in first..last, which may pass the end of the residues."""
    count = (last - first) % modulus + 1
    name = f"{axis.one} % {modulus}"
    if count == 1:
        words = f"where {name} == {first}"
    elif count == modulus - 1:
        words = f"where {name} != {(last + 1) % modulus}"
    elif last == modulus - 1:
        words = f"where {name} >= {first}"
    elif first == 0:
        words = f"where {name} < {last + 1}"
    elif first < last:
        words = f"where {name} is {first} to {last}"
    else:
        words = (
            f"where {name} is {first} to {modulus - 1} or 0 to {last}"
            if last
            else (
                f"where {name} is {first} to {modulus - 1} or 0"
                if first < modulus - 1
                else f"where {name} is {first} or 0"
            )
        )
    ends = 1 if count == 1 else 2 - (first == 0 or last == modulus - 1) * 0.5
    bits = PRIOR[axis.one] + 3 + ends * np.log2(modulus)

    def in_columns(width: int) -> Predicate:
        return residues(COLUMN, modulus * width, first * width, last * width + width - 1)

    alone = axis is not BLOCK or count in {1, modulus - 1}
    return Predicate(words, bits, lambda u: (axis.of(u) - first) % modulus < count, axis, None if alone else in_columns)


def past_multiple(axis: PlaceAxis, modulus: int) -> Predicate:
    """Return the predicate that holds past the last whole group of a size, if an incomplete one follows."""
    return Predicate(
        f"in {axis.many} past the last multiple of {modulus}",
        PRIOR[axis.one] + 2,
        lambda u: axis.of(u) >= axis.length(u) // modulus * modulus,
        axis,
    )


def partial_block() -> Predicate:
    """Return the predicate that holds in a last block that is not full."""
    return Predicate(
        "in the last, partial block", PRIOR["block"] + 1, lambda u: u.column >= u.columns // u.width * u.width, BLOCK
    )


def last_group(axis: PlaceAxis, size: int) -> Predicate:
    """Return the predicate that holds in the last group of a size, full or not."""
    return Predicate(
        f"in the last group of {size} {axis.many}",
        PRIOR[axis.one] + 3,
        lambda u: axis.of(u) >= (axis.length(u) - 1) // size * size,
        axis,
    )


def from_end(axis: PlaceAxis, count: int) -> Predicate:
    """Return the predicate that holds for the last few."""
    words = f"in the last {axis.one}" if count == 1 else f"in the last {count:,} {axis.many}"
    bits = PRIOR[axis.one] + _weight(count)
    return Predicate(words, bits, lambda u: axis.of(u) >= axis.length(u) - count, axis)


POWERS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
EVERYWHERE = Place()
