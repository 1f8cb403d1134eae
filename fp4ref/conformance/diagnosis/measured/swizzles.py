"""Units of a row that stand at places which depend on the row: swizzles of shared memory that were not undone.

For example, group c of each eight groups of 16 bytes is stored at c ^ (row % 8). Each known swizzle is compared with
the bytes; the one that makes most of the wrong ones right is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.formats import Format

UNITS = (1, 2, 4, 8, 16, 32, 64)  # bytes, or scales
GROUPS = (2, 4, 8, 16)  # units
DIVISORS = (1, 2, 4, 8)  # rows that are stored alike
KINDS = ("xor", "on", "back")
WORDS = {"xor": "c ^ ({digit})", "on": "c + {digit}, around the end", "back": "c - {digit}, around the end"}
LOOKED = 1 << 14  # bytes of a matrix that are compared first
MENDED = 0.5  # the least share of the wrong bytes that a swizzle makes
Index = NDArray[np.intp]
Pair = tuple[Any, Any]  # the candidate's matrix and the right one


class Swizzle(NamedTuple):
    """A place for each unit of a row. unit: columns; group: units; divisor: of the row."""

    kind: str
    unit: int
    group: int
    divisor: int

    @property
    def name(self) -> str:
        """Return a name for a mistake."""
        return f"{self.kind}-{self.unit}-{self.group}-{self.divisor}"

    def text(self, one: str, many: str, per_byte: int = 1) -> str:
        """Return the sentence. one, many: a noun for what a unit is made of. per_byte: columns of it."""
        count = self.unit // per_byte
        units, unit = (f"groups of {count} {many}", "group") if count > 1 else (many, one)
        digit = f"row % {self.group}" if self.divisor == 1 else f"row // {self.divisor} % {self.group}"
        return f"of each {self.group} {units}, {unit} c stands at {WORDS[self.kind].format(digit=digit)}"

    def source(self, column: Any, row: Any, columns: int) -> Index:
        """Return the column whose value stands at a column; columns of no whole group keep their own."""
        size = self.unit * self.group
        at, digit = column // self.unit % self.group, row // self.divisor % self.group
        turned = {"xor": at ^ digit, "on": (at - digit) % self.group, "back": (at + digit) % self.group}[self.kind]
        moved = column + (turned - at) * self.unit
        return np.asarray(np.where(column < columns // size * size, moved, column))

    @property
    def undone(self) -> Swizzle:
        """The swizzle that puts everything back."""
        return self._replace(kind={"xor": "xor", "on": "back", "back": "on"}[self.kind])

    def of_data(self, data: Any, columns: int, form: Format) -> Any:
        """Return packed data [rows, bytes] with its bytes at their places; 6-bit codes move one by one."""
        if 8 % form.bits == 0:
            return self._replace(unit=self.unit * form.bits // 8)(data)
        return packing.pack(self(packing.unpack(data, columns, form)), form)

    def __call__(self, values: Any) -> Any:
        """Return a matrix with its values at their places."""
        rows, columns = values.shape
        return np.take_along_axis(values, _sources(self, rows, columns), axis=1)


@lru_cache(maxsize=64)
def _sources(swizzle: Swizzle, rows: int, columns: int) -> Index:
    return swizzle.source(np.arange(columns)[None, :], np.arange(rows)[:, None], columns)


def swizzles(rows: int, columns: int, per_byte: int) -> Iterator[Swizzle]:
    """Yield the swizzles that move something in a matrix. per_byte: columns of a byte."""
    for kind, unit, group, divisor in itertools.product(KINDS, UNITS, GROUPS, DIVISORS):
        if unit * per_byte * group <= columns and rows > divisor and (kind == "xor" or group > 2):
            yield Swizzle(kind, unit * per_byte, group, divisor)


def swizzled(pairs: Sequence[Pair], per_byte: int = 1) -> Swizzle | None:
    """Return the swizzle of rows that explains at least half of the wrong columns. per_byte: columns of a byte."""
    wrong = [(got, right) for got, right in pairs if got.shape == right.shape and (got != right).any()]
    moved = [pair for pair in wrong if all(map(np.array_equal, *(np.sort(one[:16], axis=1) for one in pair)))]
    if not moved or 2 * len(moved) < len(wrong):
        return None
    got, right = max(moved, key=lambda pair: min(pair[0].size, LOOKED))
    rows = max(LOOKED // got.shape[1], 16)
    got, right = got[:rows], right[:rows]
    best, most = None, int(np.count_nonzero(got == right))
    needed = most + MENDED * (got.size - most)
    for swizzle in swizzles(len(got), got.shape[1], per_byte):
        share = int(np.count_nonzero(got == swizzle(right)))
        if share >= needed and share > most:
            best, most = swizzle, share
    return best
