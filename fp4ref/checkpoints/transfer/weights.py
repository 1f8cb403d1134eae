"""A quantized weight in no convention: canonical codes, linear scales, and the small numbers beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.transfer.scales import Floats, StoredScale
from fp4ref.errors import DomainError
from fp4ref.files.tensors import DTYPES
from fp4ref.formats import FORMATS
from fp4ref.layout import Layout

PIECE = 1 << 23  # elements of a piece, at most, where a tile's rows are not more
ORIGIN = "fp4ref.origin"  # the key of metadata that keeps what another convention has no place for
Bytes = NDArray[np.uint8]


@lru_cache
def values_of_bytes(element: str) -> Floats:
    """Return the values of the codes in each byte of the canonical packing, [256, codes of a byte]."""
    each = bounds.values(element)
    every = np.arange(256)
    return each[every] if FORMATS[element].bits == 8 else np.stack([each[every & 15], each[every >> 4]], -1)


class WeightPiece(NamedTuple):
    """Some rows of one matrix. packed: canonical packing, [rows, bytes]; scales: [rows, blocks] or None."""

    matrix: int
    row: int
    packed: Bytes
    scales: Bytes | None


class FloatScales(NamedTuple):
    """Block scales that are numbers: those of FP8 weights."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def numbers(self) -> Floats:
        """Return the values, in the order of memory: powers of two where bytes of E8M0 are stored."""
        if self.dtype in {"U8", "F8_E8M0"}:
            return bounds.values("e8m0")[np.frombuffer(self.data, np.uint8)]
        return np.frombuffer(self.data, DTYPES[self.dtype].array).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A quantized weight.

    element, scale, block: as of a `Convention`. shape: [..., rows, columns]. read: yields pieces in order, each of a
    multiple of the given number of rows except a matrix's last. remarks: known when all was read. origin: how the
    convention named there stored the weight, as far as other conventions have no place for it.
    """

    module: str
    element: str
    scale: str
    block: tuple[int, int]
    shape: tuple[int, ...]
    read: Callable[[int], Iterator[WeightPiece]]
    global_scale: StoredScale | None = None
    input_scale: StoredScale | None = None
    float_scales: FloatScales | None = None
    remarks: Callable[[], list[str]] = list
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of one matrix."""
        return self.shape[-2]

    @property
    def columns(self) -> int:
        """Columns of one matrix."""
        return self.shape[-1]

    @property
    def matrices(self) -> int:
        """The number of matrices, one after the other."""
        return math.prod(self.shape[:-2])

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return FORMATS[self.element].bits

    @property
    def blocks(self) -> int:
        """Blocks of a row; 0 if the scales are numbers."""
        return -(-self.columns // self.block[1]) if self.scale else 0

    def multiplier(self, matrix: int = 0) -> np.float32:
        """Return the factor that the global scale means, rounded to float32; 1 if there is none. Rules: CKP-20."""
        if self.global_scale is None:
            return np.float32(1)
        factors = self.global_scale.multipliers()
        return np.float32(float(factors[matrix if len(factors) > 1 else 0]))

    def decoded(self, piece: WeightPiece) -> Floats:
        """Return the values of a piece: element times block scale, times the global scale, in float32.

        Rules: CNV-4.
        """
        rows = len(piece.packed)
        values = values_of_bytes(self.element)[piece.packed].reshape(rows, -1)[:, : self.columns]
        if piece.scales is not None:
            factors = bounds.values(self.scale)[piece.scales] * self.multiplier(piece.matrix)
            return np.asarray(values * np.repeat(factors, self.block[1], -1)[:, : self.columns], np.float32)
        return np.asarray(values * self.factors(piece, rows), np.float32)

    def factors(self, piece: WeightPiece, rows: int) -> Any:
        """Return the float scales of a piece, in a shape that multiplies its values."""
        assert self.float_scales is not None
        numbers, kind = self.float_scales.numbers(), self.granularity
        if kind == "tensor":
            return numbers[piece.matrix if numbers.size > 1 else 0]
        if kind == "row":
            return numbers.reshape(self.matrices, -1)[piece.matrix, piece.row : piece.row + rows, None]
        high, wide = (-(-size // 128) for size in self.shape[-2:])
        squares = numbers.reshape(self.matrices, high, wide)[piece.matrix]
        down = squares[np.arange(piece.row, piece.row + rows) // 128]
        return np.repeat(down, 128, 1)[:, : self.columns]

    @property
    def granularity(self) -> str:
        """The part of a weight that a float scale is for: "tensor", "row" or "square"; "" for block scales."""
        if self.float_scales is None:
            return ""
        size = math.prod(self.float_scales.shape)
        squares = self.matrices * -(-self.rows // 128) * -(-self.columns // 128)
        sizes = {"tensor": {1, self.matrices}, "row": {self.matrices * self.rows}, "square": {squares}}
        declared = {(128, 128): "square", (1, 0): "row"}.get(self.block, "tensor")
        kind = next((each for each in (declared, "tensor", "row", "square") if size in sizes[each]), "")
        if not kind:
            got = f"{self.module}: {size} scales for {self.rows} x {self.columns}"
            raise DomainError("convert", got, "one for the tensor, each row, or each square of 128", "CKP-10")
        return kind


def swapped(data: Bytes) -> Bytes:
    """Exchange the two halves of each byte."""
    return (data >> 4 | data << 4).astype(np.uint8)


def struct_heads(packing: Layout, rows: int, columns: int) -> int:
    """Return the number of scale bytes before the elements of a struct."""
    return packing.strides(rows, columns).first * packing.unit // 8


def cropped(weight: Weight, shape: tuple[int, ...], *, zero: bool = True) -> Weight:
    """Return a weight without rows and columns that only a convention's padding added.

    Errors: DomainError while reading, if `zero` is asked for and the padding has another value.

    Rules: CNV-5.
    """
    rows, columns = shape[-2:]
    width = -(-columns * weight.bits // 8)
    blocks = -(-columns // weight.block[1])

    def read(multiple: int) -> Iterator[WeightPiece]:
        for piece in weight.read(multiple):
            kept = max(min(rows - piece.row, len(piece.packed)), 0)
            if zero and (piece.packed[kept:].any() or piece.packed[:, width:].any()):
                needed = "zero; repair it by --repair padding"
                raise DomainError("convert", f"{weight.module}: padding that is not zero", needed, "CNV-5")
            if kept:
                scales = None if piece.scales is None else piece.scales[:kept, :blocks]
                yield WeightPiece(piece.matrix, piece.row, piece.packed[:kept, :width], scales)

    return replace(weight, shape=shape, read=read)
