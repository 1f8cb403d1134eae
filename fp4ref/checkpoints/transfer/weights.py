"""A quantized weight in no convention: canonical codes, linear scales, and the small numbers beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import Floats, WeightPiece, element_values
from fp4ref.checkpoints.float_scales import FloatScales, factors, part_of
from fp4ref.checkpoints.transfer.scales import StoredScale
from fp4ref.errors import DomainError
from fp4ref.formats import FORMATS


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
        factors = self.global_scale.factors()
        with np.errstate(over="ignore"):
            return np.float32(factors[matrix if len(factors) > 1 else 0])

    def decoded(self, piece: WeightPiece) -> Floats:
        """Return the values of a piece: element times block scale, times the global scale, in float32.

        Rules: CNV-66.
        """
        values = element_values(self.element, piece.packed)[:, : self.columns]
        with np.errstate(invalid="ignore", over="ignore"):  # damaged scales are infinite or NaN
            if piece.scales is not None:
                scaled = bounds.values(self.scale)[piece.scales] * self.multiplier(piece.matrix)
                return np.asarray(values * np.repeat(scaled, self.block[1], -1)[:, : self.columns], np.float32)
            return np.asarray(values * self.factors(piece), np.float32)

    def factors(self, piece: WeightPiece) -> Any:
        """Return the float scales of a piece, in a shape that multiplies its values. Rules: CKP-10."""
        assert self.float_scales is not None
        assert self.granularity
        rows = range(piece.row, piece.row + len(piece.packed))
        return factors(self.float_scales.numbers(), self.block, self.shape, piece.matrix, rows)

    @property
    def granularity(self) -> str:
        """The part of a weight that a float scale is for: "tensor", "row" or "square"; "" for block scales."""
        if self.float_scales is None:
            return ""
        size = math.prod(self.float_scales.shape)
        part = part_of(self.block, size, self.shape)
        if not part:
            got = f"{self.module}: {size} scales for {self.rows} x {self.columns}"
            squares = f", or each square of {self.block[0]} x {self.block[1]}" if all(self.block) else ""
            raise DomainError("convert", got, f"one for the tensor, or each row{squares}", "CKP-10")
        return part


def cropped(weight: Weight, shape: tuple[int, ...], *, zero: bool = True) -> Weight:
    """Return a weight without rows and columns that only a convention's padding added.

    Errors: DomainError while reading, if `zero` is asked for and the padding has another value.

    Rules: CNV-27, CNV-69.
    """
    rows, columns = shape[-2:]
    width = -(-columns * weight.bits // 8)
    blocks = -(-columns // weight.block[1])

    def read(multiple: int) -> Iterator[WeightPiece]:
        for piece in weight.read(multiple):
            kept = max(min(rows - piece.row, len(piece.packed)), 0)
            if zero and (piece.packed[kept:].any() or piece.packed[:, width:].any()):
                needed = "zero; repair it by --repair padding"
                raise DomainError("convert", f"{weight.module}: padding that is not zero", needed, "CNV-69")
            if kept:
                scales = None if piece.scales is None else piece.scales[:kept, :blocks]
                yield WeightPiece(piece.matrix, piece.row, piece.packed[:kept, :width], scales)

    return replace(weight, shape=shape, read=read)
