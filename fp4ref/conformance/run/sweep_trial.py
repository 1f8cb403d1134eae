"""A call on values of a type under some scale bytes: parts, each a range of bit patterns beside a block maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import Codes


class SweepSteps(NamedTuple):
    """The codes of all bit patterns under one scale byte: `codes[i]` from `starts[i]` up to the next start."""

    byte: int
    maximum: int  # the pattern of the largest element of a block that has this byte
    starts: NDArray[np.int64]
    codes: Codes

    def of(self, pattern: int) -> int:
        """Return the code of a pattern."""
        return int(self.codes[np.searchsorted(self.starts, pattern, side="right") - 1])


class SweepPart(NamedTuple):
    """Patterns from `start` up to `stop`, in blocks whose scale byte is that of `steps`, an index."""

    steps: int
    start: int
    stop: int


@dataclass(frozen=True)
class Sweep:
    """The parts of one call, and the form of its input.

    dtype: of x. block: columns of a block. multiple: rows and columns of x are multiples of these. bits: of a code.
    lead: pattern, byte and code of the tensor's largest element, which begins every row; None without a global scale.
    amaxes: the argument and result `amax` has an element for each row. given: numbers by the names of inputs.
    turn: the elements of every block are turned by this many columns.
    """

    dtype: str
    block: int
    multiple: tuple[int, int]
    bits: int
    parts: tuple[SweepPart, ...]
    steps: tuple[SweepSteps, ...]
    lead: tuple[int, int, int] | None
    amaxes: bool
    given: dict[str, float]
    turn: int = 0

    @property
    def patterns(self) -> int:
        """The number of patterns in all parts."""
        return sum(part.stop - part.start for part in self.parts)
