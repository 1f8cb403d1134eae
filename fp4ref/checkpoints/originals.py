"""Tensors of the checkpoint in high precision that quantized ones were made of, and how far the values are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.access import Floats, WeightPiece
from fp4ref.checkpoints.checkpoint import Checkpoint
from fp4ref.checkpoints.convention import FLOATS
from fp4ref.checkpoints.experts import ExpertView
from fp4ref.checkpoints.groups import TensorGroup
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.files.tensors import DTYPES

CHUNK = 1 << 22  # elements that are in memory
SUMMED = 1 << 15  # elements whose float64 values are in the processor's cache


@dataclass
class SquaredError:
    """Sums of squares: the source's, the error's, and the product of both."""

    source: float = 0.0
    error: float = 0.0
    product: float = 0.0
    stored: float = 0.0

    def add(self, source: Floats, values: Floats) -> None:
        """Count some values; stored ones that are not finite count as 0. Both arrays have one shape."""
        one, two = source.reshape(-1), values.reshape(-1)
        for begin in range(0, one.size, SUMMED):
            a, b = (each[begin : begin + SUMMED].astype(np.float64) for each in (one, two))
            if not np.isfinite(_product(b, b)):
                b[~np.isfinite(b)] = 0
            apart = a - b
            self.source += _product(a, a)
            self.error += _product(apart, apart)
            self.product += _product(a, b)
            self.stored += _product(b, b)

    @property
    def decibels(self) -> float:
        """The signal-to-noise ratio."""
        return decibels_of(self.source, self.error)

    @property
    def factor(self) -> float:
        """The constant by which the source's values are best multiplied to give the stored ones."""
        return self.product / self.source if self.source else 1.0

    @property
    def scaled(self) -> float:
        """Decibels after the stored values are divided by the factor."""
        factor = self.factor
        if not factor:
            return -math.inf
        return decibels_of(self.source, self.source - 2 * self.product / factor + self.stored / factor**2)


def _product(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """Return the sum of products; not by BLAS, whose threads spin where processors are busy."""
    return float(np.einsum("i,i", one, two))


def decibels_of(signal: float, error: float) -> float:
    """Return a ratio of energies in decibels; of nothing, 0."""
    return 10 * math.log10(signal / error) if signal > 0 and error > 0 else math.inf if signal > 0 else 0.0


def counterpart(source: Checkpoint, group: TensorGroup) -> StoredTensor | None:
    """Return the source's tensor of a group, if it has one."""
    names = [f"{group.module}.weight", group.module, *(tensor.name for tensor in group.parts.values())]
    return next((source.tensors[name] for name in names if is_matrix(source.tensors.get(name))), None)


def is_matrix(tensor: StoredTensor | None) -> TypeGuard[StoredTensor]:
    """Return True for a matrix, or several, of floating-point type."""
    return tensor is not None and tensor.dtype in FLOATS and len(tensor.shape) > 1


class Original:
    """Rows of the source in the shape of a group; experts that are stored as [E, K, N] are transposed."""

    def __init__(self, tensor: StoredTensor, group: TensorGroup) -> None:
        self.tensor, self.group = tensor, group
        self._last = -1, np.zeros((0, 0), np.float32)
        *front, rows, columns = tensor.shape
        as_stored = not isinstance(tensor, ExpertView)
        self.turned = as_stored and (*front, columns, rows) == group.shape and group.convention.turned
        self.rows, self.columns = (columns, rows) if self.turned else (rows, columns)
        padded = all(
            -(-size // multiple) * multiple == stored
            for size, multiple, stored in zip(
                (rows, columns), group.convention.multiples, group.shape[-2:], strict=True
            )
        )
        self.fits = self.turned or (tuple(front) == group.shape[:-2] and padded)

    def read(self, piece: WeightPiece) -> Floats:
        """Return the rows of a piece, padded with zeros."""
        height, width = len(piece.packed), self.group.columns
        if self.turned:
            return self._matrix(piece.matrix).T[piece.row : piece.row + height]
        rows = max(min(height, self.rows - piece.row), 0)
        first = (piece.matrix * self.rows + piece.row) * self.columns
        if (rows, self.columns) == (height, width):
            return self._some(first, rows * width).reshape(rows, width)
        result = np.zeros((height, width), np.float32)
        result[:rows, : self.columns] = self._some(first, rows * self.columns).reshape(rows, self.columns)
        return result

    def _matrix(self, number: int) -> Floats:
        """Return a matrix that is stored transposed; it is kept for the pieces that follow."""
        if self._last[0] != number:
            whole = self._some(number * self.rows * self.columns, self.rows * self.columns)
            self._last = number, whole.reshape(self.columns, self.rows)
        return self._last[1]

    def _some(self, first: int, count: int) -> Floats:
        kind = DTYPES[self.tensor.dtype].array
        data = self.tensor.bytes(first * kind.itemsize, count * kind.itemsize)
        return np.frombuffer(data, kind).astype(np.float32)


def amax_of(tensor: StoredTensor) -> float:
    """Return the largest magnitude of a tensor of floating-point type, read a chunk at a time; NaN if it has one.

    Magnitudes are in the order of their bits, NaN behind infinity.
    """
    kind, largest = DTYPES[tensor.dtype].array, 0
    bits, magnitude = np.dtype(f"u{kind.itemsize}"), (1 << 8 * kind.itemsize - 1) - 1
    for begin in range(0, tensor.size, CHUNK):
        count = min(CHUNK, tensor.size - begin)
        values = np.frombuffer(tensor.bytes(begin * kind.itemsize, count * kind.itemsize), bits)
        largest = max(largest, int((values & bits.type(magnitude)).max()))
    return float(np.array(largest, bits).view(kind).astype(np.float32))
