"""The request of a huge call: two tiles, how often the first one is repeated, and the bytes expected of both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.run.messages import Message, jobs_of, of_jobs
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

    def message(self) -> Message:
        """Return the message that asks for this call."""
        record, sent = of_jobs([self.body, self.last])
        for name, (body, last) in self.expected.items():
            sent |= {f"body {name}": body, f"last {name}": last}
        for part, values in self.samples.items():
            sent |= {f"sample {part} {name}": value for name, value in values.items()}
        folds = {name: list(fold) for name, fold in self.folds.items()}
        names = {"expected": list(self.expected), "samples": {part: list(each) for part, each in self.samples.items()}}
        plan = {"folds": folds, "count": self.count, "parts": self.parts, "memory": self.memory}
        return record | {"huge": plan | names}, sent

    @classmethod
    def of(cls, message: Message) -> HugeTrial:
        """Return the call that a message asks for."""
        plan, sent = message[0]["huge"], message[1]
        body, last = jobs_of(message)
        return cls(
            body,
            last,
            {name: (sent[f"body {name}"], sent[f"last {name}"]) for name in plan["expected"]},
            {name: Fold(*fold) for name, fold in plan["folds"].items()},
            plan["count"],
            plan["parts"],
            {
                int(part): {name: sent[f"sample {part} {name}"] for name in names}
                for part, names in plan["samples"].items()
            },
            plan["memory"],
        )
