"""Rows that are counted with too few bits: those past the count are written over the first ones, or not at all.

For example, a kernel that keeps the row in 16 bits writes row 65,536 of a tensor over row 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from fp4ref.conformance.mistakes.record import Mistake, Slot, known
from fp4ref.formats import Codes

BITS = (8, 10, 12, 15, 16)


def wrapped_rows() -> Iterator[Mistake]:
    """Yield rows that are written modulo a power of two, their bytes or their codes alone."""
    for bits in BITS:
        count = 1 << bits
        move = partial(_wrapped, count)
        moves: tuple[tuple[Slot, str, Any], ...] = (
            (Slot.DIRECTION, "rows", {"scales": move, "codes": move}),
            (Slot.PACKING, "codes", {"codes": move}),
            (Slot.LAYOUT, "scales", {"scales": move}),
        )
        for stage, what, changes in moves:
            rows = "rows" if what == "rows" else f"the {what} of rows"
            text = f"{rows} from {count:,} on are written over those of row % {count:,}"
            yield known(stage, f"wrapped-{what}-{bits}", text, alone=True, whole=True, **changes)


def _wrapped(count: int, codes: Codes) -> Codes:
    """Write rows of codes in turn into the first `count` rows; rows behind these are zero."""
    made = codes.copy()
    for start in range(count, len(codes), count):
        rows = codes[start : start + count]
        made[: len(rows)] = rows
    made[count:] = 0
    return made
