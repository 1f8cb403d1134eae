"""A glance at a few bytes, which refutes most readers of a buffer before any of them is compared in full.

Nearly every layout in which scales may be stored has another byte than the right one at some of a few blocks. The
bytes that all readers find at these blocks are put side by side once, and each hypothesis is compared with a hundred
readers in one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import Codes

Bools = NDArray[np.bool_]
PLACES = 64  # bytes that are looked at
FEWEST = 4  # readers that are worth a glance


class NamedReader(Protocol):
    """A reader, which its name tells from others."""

    @property
    def name(self) -> str:
        """The name."""


Reader = TypeVar("Reader", bound=NamedReader)


class Found(NamedTuple):
    """The bytes that a reader finds in a part of a case, and where any byte is right, if anywhere."""

    bytes: NDArray[Any]
    free: Bools | None


class Glance(Generic[Reader]):
    """The bytes of readers at a few places of an array.

    counts: the places that count, None for all. find: what a reader finds; None if it finds nothing.
    """

    def __init__(self, shape: tuple[int, ...], counts: Bools | None, find: Callable[[Reader], Found | None]) -> None:
        places = np.arange(math.prod(shape)) if counts is None else np.flatnonzero(counts)
        self._at, self._shape, self._find = places[:: max(len(places) // PLACES, 1)], shape, find
        self._rows: dict[str, tuple[Codes, Bools, bool]] = {}
        self._last: tuple[Sequence[Reader], Codes, Bools, Bools] | None = None

    def possible(
        self, readers: Sequence[Reader], wanted: Codes, differs: Callable[[Codes, Codes], Bools]
    ) -> Sequence[Reader]:
        """Return the readers that find bytes which are right as far as a glance tells, in their order.

        differs: of two arrays, where one has other bytes than the other.
        """
        if wanted.shape != self._shape:
            return readers
        if self._last is None or self._last[0] is not readers:
            rows = [self._row(reader) for reader in readers]
            made, free, lost = (np.array(column) for column in zip(*rows, strict=True))
            self._last = readers, made, free, lost
        _, made, free, lost = self._last
        bad = lost | (differs(made, wanted.reshape(-1)[self._at]) & ~free).any(axis=1)
        return [readers[number] for number in np.flatnonzero(~bad).tolist()]

    def _row(self, reader: Reader) -> tuple[Codes, Bools, bool]:
        """Return the bytes of a reader, where it allows any, and whether it finds no array of this shape."""
        if reader.name not in self._rows:
            found = self._find(reader)
            lost = found is None or found.bytes.shape != self._shape
            free = np.full(len(self._at), lost, np.bool_)
            if found is not None and not lost and found.free is not None:
                free = found.free.reshape(-1)[self._at]
            bytes_ = np.zeros(len(self._at), np.uint8)
            if found is not None and not lost:
                bytes_ = np.where(free, 0, found.bytes.reshape(-1)[self._at]).astype(np.uint8)
            self._rows[reader.name] = bytes_, free, lost
        return self._rows[reader.name]
