"""The offsets at which the members of a group start in one buffer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from fp4ref.errors import DomainError

Starts = Literal["packed", "bound", "fixed"]


def group_starts(sizes: Sequence[int], starts: Starts) -> list[int]:
    """Return the offset of each member's first unit, then the size of the buffer. Rules: LAY-8, LAY-22, LAY-54."""
    if starts == "packed":
        return list(itertools.accumulate(sizes, initial=0))
    if starts == "fixed":
        return [number * max(sizes, default=0) for number in range(len(sizes) + 1)]
    raise DomainError("group_offsets", f"starts {starts!r}", "packed, bound or fixed", "LAY-22")


def bound_starts(rows: Sequence[int], multiple: int, width: int) -> list[int]:
    """Return starts that leave room for the padding of the members before, whatever it is. Rules: LAY-22."""
    before = itertools.accumulate(rows, initial=0)
    return [-(-(count + i * (multiple - 1)) // multiple) * multiple * width for i, count in enumerate(before)]
