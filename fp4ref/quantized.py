"""The result of quantizing: bytes, and what is needed to read them."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError
from fp4ref.spec import Spec

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers have it without an installation; it takes defaults

    Row_co = TypeVar("Row_co", bound="DirectionData | None", default="DirectionData | None", covariant=True)
    Column_co = TypeVar("Column_co", bound="DirectionData | None", default="DirectionData | None", covariant=True)
else:
    from typing import TypeVar

    Row_co, Column_co = TypeVar("Row_co"), TypeVar("Column_co")

Direction = Literal["row", "column"]
DIRECTIONS: tuple[Direction, ...] = ("row", "column")
DirectionChoice = Literal["row", "column", "both"]
LayoutName: TypeAlias = Literal["linear", "linear_padded", "tiled_128x4", "tiled_8x4"] | str  # noqa: PYI051 - names to complete; users add others


class Directions(NamedTuple):
    """One argument per direction, for `amax` and `random_bits`."""

    row: Any = None
    column: Any = None


class DirectionData(NamedTuple):  # noqa: PLW1641 - a tuple of arrays has no hash
    """The bytes of one direction; == compares every byte.

    data: uint8 [M, ceil(K/2)] packed, low nibble first (8-bit elements: [M, K]); the column direction holds x^T.
    scales: uint8 scale bytes in the layout of the record. amax: float32 [1], [M] for a row scale, or None.
    """

    data: Any
    scales: Any
    amax: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DirectionData):
            return NotImplemented
        return all(_same(mine, its) for mine, its in zip(self, other, strict=True))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return f"DirectionData({self.described})"

    def mapped(self, function: Callable[[Any], Any]) -> DirectionData:
        """Apply a function to every buffer that there is."""
        return DirectionData(*(None if part is None else function(part) for part in self))

    @property
    def described(self) -> str:
        """Shapes of the buffers, and the amax if it is one number in the CPU's memory."""
        parts = [f"{name} {_shown(value)}" for name, value in self._asdict().items() if value is not None]
        return ", ".join(parts)


Parts: TypeAlias = tuple[DirectionData | None, DirectionData | None]  # rows and columns; None for one not asked for


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Quantized(Generic[Row_co, Column_co]):
    """Quantized bytes of a tensor in one or both directions.

    shape, dtype: of the tensor that was quantized; the bytes are those of its [M, K] matrix.
    row, column: None where that direction was not asked for. Type checkers know which of them a call of `quantize`
    fills; `Quantized` alone may lack either.
    == compares the record and every byte, padding and the bits of amax included; buffers on a device are copied to
    the host for it.
    """

    spec: Spec
    shape: tuple[int, ...]
    dtype: str
    scale_layout: str
    row: Row_co = None  # type: ignore[assignment]  # of a result that lacks the direction
    column: Column_co = None  # type: ignore[assignment]

    def __init__(
        self,
        spec: Spec,
        shape: tuple[int, ...],
        dtype: str,
        scale_layout: str,
        row: Row_co = None,  # type: ignore[assignment]
        column: Column_co = None,  # type: ignore[assignment]
    ) -> None:
        # Field by field, a frozen dataclass takes twice as long
        self.__dict__.update(spec=spec, shape=shape, dtype=dtype, scale_layout=scale_layout, row=row, column=column)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Quantized):
            return NotImplemented
        mine, its = ((q.spec, q.shape, q.dtype, q.scale_layout) for q in (self, other))
        return mine == its and self.row == other.row and self.column == other.column

    __hash__ = None  # type: ignore[assignment]  # arrays can be written

    def __repr__(self) -> str:
        record = f"{self.spec.name}, {self.dtype} {list(self.shape)}, scales {self.scale_layout}"
        parts = [f"{name}: {data.described}" for name, data in self._present()]
        return f"Quantized({'; '.join([record, *parts])})"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows instead of the repr."""
        cells = [("spec", self.spec.name), ("tensor", f"{self.dtype} {list(self.shape)}")]
        cells += [("scale layout", self.scale_layout)]
        cells += [
            (f"{name} {part}", _shown(value))
            for name, data in self._present()
            for part, value in data._asdict().items()
            if value is not None
        ]
        rows = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in cells)
        return f"<table>{''.join(rows)}</table>"

    def maker(self) -> Callable[[DirectionData | None, DirectionData | None], Quantized]:
        """Return a function that makes other results of this one's record, in a third of the constructor's time."""
        record = {"spec": self.spec, "shape": self.shape, "dtype": self.dtype, "scale_layout": self.scale_layout}
        new = object.__new__

        def make(row: DirectionData | None, column: DirectionData | None) -> Quantized:
            made = new(Quantized)
            held = made.__dict__
            held.update(record)
            held["row"], held["column"] = row, column
            return made

        return make

    def _present(self) -> list[tuple[Direction, DirectionData]]:
        both: tuple[tuple[Direction, DirectionData | None], ...] = ("row", self.row), ("column", self.column)
        return [(name, data) for name, data in both if data is not None]

    @property
    def matrix(self) -> tuple[int, int]:
        """[M, K]: leading dimensions flattened. Rules: NUM-4."""
        return matrix_shape(self.shape)

    def direction(self, name: Direction) -> tuple[DirectionData, tuple[int, int]]:
        """Return the bytes of one direction, and the shape of the matrix that they encode. Rules: RES-7."""
        data = self.row if name == "row" else self.column
        if data is None:
            raise DomainError(
                "dequantize", f"no {name} direction", f"a result quantized with directions={name!r}", "RES-7"
            )
        rows, columns = self.matrix
        return data, (rows, columns) if name == "row" else (columns, rows)


def _host(buffer: Any) -> NDArray[Any]:
    return np.asarray(buffer.cpu() if hasattr(buffer, "cpu") else buffer)


def _same(mine: Any, its: Any) -> bool:
    """Return True if two buffers have the same shape, type and bytes, or if both are None."""
    if mine is None or its is None:
        return mine is its
    one, two = _host(mine), _host(its)
    return one.shape == two.shape and one.dtype == two.dtype and one.tobytes() == two.tobytes()


def _shown(buffer: Any) -> str:
    """Return the type and shape of a buffer, or the value of an amax that is one number in the CPU's memory."""
    if not hasattr(buffer, "shape"):
        return str(buffer)
    device = str(getattr(buffer, "device", "cpu"))
    if tuple(buffer.shape) == (1,) and device == "cpu":
        return f"{float(buffer[0]):.9g}"
    where = "" if device == "cpu" else f" on {device}"
    return f"{str(getattr(buffer, 'dtype', type(buffer).__name__)).rsplit('.', 1)[-1]} {list(buffer.shape)}{where}"


class Group(list[Quantized]):
    """The members of a group, in order.

    memory: what the backend keeps to fill them again, None if it quantizes one member after another.
    """

    def __init__(self, members: Iterable[Quantized] = (), memory: Any = None) -> None:
        super().__init__(members)
        self.memory = memory


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return [M, K] of a tensor of at least one dimension. Rules: NUM-4."""
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows, shape[-1]
