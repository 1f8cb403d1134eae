"""Rows that use what belongs to other rows: a scale, an amax, a bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Rows = Any  # indices of rows
TILES = (2, 4, 8, 16, 32, 64, 128)
MODULI = (8, 16, 32, 64, 128)
EXCHANGED = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Gather:
    """Another row for each row.

    words: with {what} for what is used and {row} for row or column. place: of indices and their count. adjacent: it is
    the row before or after.
    """

    name: str
    words: str
    place: Callable[[Rows, int], Rows]
    adjacent: bool = False

    def text(self, what: str, row: str = "row") -> str:
        """Return the sentence."""
        return self.words.format(what=what, row=row)

    def __call__(self, values: Any) -> Any:
        """Return the values that each row uses instead of its own, along the first axis."""
        count = len(values)
        return values[self.place(np.arange(count), count)] if count else values


def _inside(place: Rows, row: Rows, count: int) -> Rows:
    """Return the place, or the row itself where there is no such row."""
    return np.where((place >= 0) & (place < count), place, row)


def _first_of(size: int, row: Rows, count: int) -> Rows:
    return row // size * size


def _before_group(size: int, row: Rows, count: int) -> Rows:
    return np.maximum(row // size * size - 1, 0)


def _modulo(size: int, row: Rows, count: int) -> Rows:
    return row % size


def _exchanged(step: int, row: Rows, count: int) -> Rows:
    return _inside(row ^ step, row, count)


EXCHANGES = (
    Gather("pairs", "the {what} of {row}s 2i and 2i + 1 are exchanged", partial(_exchanged, 1)),
    *(
        Gather(f"xor-{n}", f"the {{what}} of {{row}}s i and i ^ {n} are exchanged", partial(_exchanged, n))
        for n in EXCHANGED
    ),
)
GATHERS = (
    Gather(
        "next",
        "each {row} uses the {what} of the next {row}",
        lambda row, count: np.minimum(row + 1, count - 1),
        adjacent=True,
    ),
    Gather(
        "previous",
        "each {row} uses the {what} of the {row} before",
        lambda row, count: np.maximum(row - 1, 0),
        adjacent=True,
    ),
    Gather(
        "next-around",
        "each {row} uses the {what} of the next {row}, the last that of the first",
        lambda row, count: (row + 1) % count,
        adjacent=True,
    ),
    Gather(
        "previous-around",
        "each {row} uses the {what} of the {row} before, the first that of the last",
        lambda row, count: row - 1,
        adjacent=True,
    ),
    Gather("first", "every {row} uses the {what} of the first {row}", lambda row, count: row * 0),
    Gather("last", "every {row} uses the {what} of the last {row}", lambda row, count: row * 0 + count - 1),
    Gather("reversed", "{row}s use the {what} of the {row}s in reverse order", lambda row, count: count - 1 - row),
    *(
        Gather(f"tiles-{n}", f"every {{row}} uses the {{what}} of the first {{row}} of its {n}", partial(_first_of, n))
        for n in TILES
    ),
    *(
        Gather(
            f"before-{n}",
            f"every {{row}} uses the {{what}} of the last {{row}} before its group of {n}",
            partial(_before_group, n),
        )
        for n in TILES
    ),
    *(
        Gather(f"modulo-{n}", f"{{row}}s from {n} on use the {{what}} of {{row}} % {n}", partial(_modulo, n))
        for n in MODULI
    ),
    *EXCHANGES,
)
