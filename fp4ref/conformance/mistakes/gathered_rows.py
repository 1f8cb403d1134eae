"""Rows that use what belongs to other rows: a scale, an amax, a bias."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.elsewhere import IndexMap, around, clipped, exchanged, first_of, modulo, taken

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
    place: IndexMap
    adjacent: bool = False

    def text(self, what: str, row: str = "row") -> str:
        """Return the sentence."""
        return self.words.format(what=what, row=row)

    def __call__(self, values: Any, axis: int = 0) -> Any:
        """Return the values that each row, or column, uses instead of its own."""
        return taken(self.place, axis, values)


def _before_group(size: int, row: Any, count: int) -> Any:
    return np.maximum(row // size * size - 1, 0)


EXCHANGES = (
    Gather("pairs", "the {what} of {row}s 2i and 2i + 1 are exchanged", partial(exchanged, 1)),
    *(
        Gather(f"xor-{n}", f"the {{what}} of {{row}}s i and i ^ {n} are exchanged", partial(exchanged, n))
        for n in EXCHANGED
    ),
)
GATHERS = (
    Gather(
        "next",
        "each {row} uses the {what} of the next {row}",
        partial(clipped, 1),
        adjacent=True,
    ),
    Gather(
        "previous",
        "each {row} uses the {what} of the {row} before",
        partial(clipped, -1),
        adjacent=True,
    ),
    Gather(
        "next-around",
        "each {row} uses the {what} of the next {row}, the last that of the first",
        partial(around, 1),
        adjacent=True,
    ),
    Gather(
        "previous-around",
        "each {row} uses the {what} of the {row} before, the first that of the last",
        partial(around, -1),
        adjacent=True,
    ),
    Gather("first", "every {row} uses the {what} of the first {row}", lambda row, count: row * 0),
    Gather("last", "every {row} uses the {what} of the last {row}", lambda row, count: row * 0 + count - 1),
    Gather("reversed", "{row}s use the {what} of the {row}s in reverse order", lambda row, count: count - 1 - row),
    *(
        Gather(f"tiles-{n}", f"every {{row}} uses the {{what}} of the first {{row}} of its {n}", partial(first_of, n))
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
        Gather(f"modulo-{n}", f"{{row}}s from {n} on use the {{what}} of {{row}} % {n}", partial(modulo, n))
        for n in MODULI
    ),
    *EXCHANGES,
)
