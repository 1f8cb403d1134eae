"""The result of quantizing: bytes, and what is needed to read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fp4ref.errors import DomainError
from fp4ref.spec import Spec

Direction = Literal["row", "column"]
DIRECTIONS: tuple[Direction, ...] = ("row", "column")


class Directions(NamedTuple):
    """One argument per direction, for `amax` and `random_bits`."""

    row: Any = None
    column: Any = None


class DirectionData(NamedTuple):
    """The bytes of one direction.

    data: uint8 [M, ceil(K/2)] packed, low nibble first (8-bit elements: [M, K]); the column direction holds x^T.
    scales: uint8 scale bytes in the layout of the record. amax: float32 [1], [M] for a row scale, or None.
    """

    data: Any
    scales: Any
    amax: Any


@dataclass(frozen=True)
class Quantized:
    """Quantized bytes of a tensor in one or both directions.

    shape, dtype: of the tensor that was quantized; the bytes are those of its [M, K] matrix.
    row, column: None where that direction was not asked for.
    """

    spec: Spec
    shape: tuple[int, ...]
    dtype: str
    scale_layout: str
    row: DirectionData | None = None
    column: DirectionData | None = None

    @property
    def matrix(self) -> tuple[int, int]:
        """[M, K]: leading dimensions flattened. Rules: NUM-4."""
        return matrix_shape(self.shape)

    def direction(self, name: Direction) -> tuple[DirectionData, tuple[int, int]]:
        """The bytes of one direction, and the shape of the matrix that they encode."""
        data = self.row if name == "row" else self.column
        if data is None:
            raise DomainError("dequantize", f"no {name} direction", f"a result quantized with directions={name!r}")
        rows, columns = self.matrix
        return data, (rows, columns) if name == "row" else (columns, rows)


class Group(list[Quantized]):
    """The members of a group, in order.

    memory: what the backend keeps to fill them again, None if it quantizes one member after another.
    """

    def __init__(self, members: Iterable[Quantized] = (), memory: Any = None) -> None:
        super().__init__(members)
        self.memory = memory


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """[M, K] of a tensor of at least one dimension. Rules: NUM-4."""
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows, shape[-1]
