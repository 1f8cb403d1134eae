"""Units: what a shard is made of. Each knows its tensors before any byte is read, and then writes them in pieces."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from fp4ref.checkpoints.access import WeightPiece
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.checkpoints.transfer.placing import Emit, Placed, PlacedWeight

CHUNK = 1 << 24  # bytes of a copy that are in memory


class Unit(Protocol):
    """Tensors that are written together. Rules: CNV-7."""

    @property
    def home(self) -> str:
        """The source's shard beside whose tensors these are written."""

    def tensors(self) -> list[Placed]:
        """Return the tensors."""

    def write(self, emit: Emit) -> list[str]:
        """Emit the bytes of all tensors; return what is lost, in numbers."""

    def remarks(self) -> list[str]:
        """Return remarks on a weight that was written, a line each, that are no loss."""


@dataclass(frozen=True)
class Copy:
    """A tensor that keeps its bytes. name: its new name; shape: its new shape, if it has one."""

    tensor: StoredTensor
    name: str
    shape: tuple[int, ...] | None = None

    @property
    def home(self) -> str:
        """The source's shard."""
        return self.tensor.shard.name

    def tensors(self) -> list[Placed]:
        """Return the tensor."""
        shape = self.tensor.shape if self.shape is None else self.shape
        return [Placed(self.name, self.tensor.dtype, shape, self.tensor.count)]

    def write(self, emit: Emit) -> list[str]:
        """Emit the bytes, a chunk at a time."""
        for begin in range(0, self.tensor.count, CHUNK):
            emit(self.name, begin, self.tensor.bytes(begin, min(CHUNK, self.tensor.count - begin)))
        return []

    def remarks(self) -> list[str]:
        """Return nothing."""
        return []


@dataclass(frozen=True)
class Moved:
    """A quantized weight that keeps its codes and block scales.

    misread: scale bytes that the convention's readers decode otherwise.
    """

    placed: PlacedWeight
    home: str
    misread: frozenset[int] = field(default_factory=frozenset)

    def tensors(self) -> list[Placed]:
        """Return the weight's tensors."""
        return self.placed.tensors()

    def write(self, emit: Emit) -> list[str]:
        """Emit the weight; count the scale bytes that the convention's readers decode otherwise. Rules: CNV-67."""
        weight, count = self.placed.weight, 0

        def counted(piece: WeightPiece) -> WeightPiece:
            nonlocal count
            if piece.scales is not None and self.misread:
                found = set(map(int, set(piece.scales.tobytes()))) & self.misread
                count += sum(int((piece.scales == byte).sum()) for byte in found)
            return piece

        read = weight.read
        watched = replace(weight, read=lambda multiple: map(counted, read(multiple)))
        replace(self.placed, weight=watched).write(emit)
        if not count:
            return []
        return [f"{weight.module}: {count} scale bytes that readers of {self.placed.convention.name} decode otherwise"]

    def remarks(self) -> list[str]:
        """Return the errors that a repair made."""
        return self.placed.weight.remarks()
