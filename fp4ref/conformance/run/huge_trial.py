"""The request of a huge call: two tiles, how often the first one is repeated, and the bytes expected of both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.subjects.guards import numpy_dtype
from fp4ref.conformance.subjects.subject import Job, Output


class Fold(NamedTuple):
    """The repetition of a tile in an array: along an axis, or not at all (None).

    high: rows of the smallest piece of bytes that the axis divides, as a tile of a layout has.
    """

    axis: int | None
    high: int = 1

    def shape(self, tile: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Return the shape of the whole array."""
        return tuple(size * count if axis == self.axis else size for axis, size in enumerate(tile))

    def split(self, tile: tuple[int, ...], size: int) -> tuple[int, int]:
        """Return the number of runs in which the whole holds a tile's bytes, and the bytes of one run."""
        runs = tile[0] // self.high if self.axis == 1 else 1
        return runs, math.prod(tile) * size // runs


@dataclass(frozen=True)
class HugeTrial:
    """A call whose arrays are those of one tile, `count` times; the last repetition has bytes of its own.

    body, last: calls of the two tiles. expected: their results as the kernel should give them. folds: by the names of
    inputs and outputs. samples: results of some rows, by the number of the part of a tile, counted through all
    repetitions; parts: of a tile. memory: bytes that may be used, None for those that are free.
    """

    body: Job
    last: Job
    expected: dict[str, tuple[NDArray[Any], NDArray[Any]]]
    folds: dict[str, Fold]
    count: int
    parts: int
    samples: dict[int, dict[str, NDArray[Any]]]
    memory: int | None = None

    @property
    def outputs(self) -> dict[str, Output]:
        """The results of the whole call."""
        return {
            name: output._replace(shape=self.folds[f"out {name}"].shape(output.shape, self.count))
            for name, output in self.body.outputs.items()
        }

    @property
    def bytes(self) -> int:
        """The bytes of all inputs and results."""
        given = [
            (self.folds[name].shape(value.shape, self.count), value.itemsize)
            for name, value in self.body.arguments.items()
            if isinstance(value, np.ndarray)
        ]
        made = [(output.shape, numpy_dtype(output.dtype).itemsize) for output in self.outputs.values()]
        return sum(math.prod(shape) * size for shape, size in given + made)
