"""Rows that are counted with too few bits: those past the count are written over the first ones, or not at all.

For example, a kernel that keeps the row in 16 bits writes row 65,536 of a tensor over row 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from fp4ref.conformance.mistakes.elsewhere import modulo, taken
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


def wrapped_reads() -> Iterator[Mistake]:
    """Yield rows or columns of x that are read modulo a power of two, by all or by those who quantize only."""
    for bits in BITS:
        count = 1 << bits
        for axis, what in ((0, "row"), (1, "column")):
            read = partial(taken, partial(modulo, count), axis)
            text = f"{what}s from {count:,} on are read at {what} - {count:,} of x"
            yield known(
                Slot.INPUT, f"input-{what}-modulo-{bits}", text, alone=True, whole=True, breaks=("NUM-4",), values=read
            )
            after = f"{text}; the amax is that of all"
            yield known(
                Slot.INPUT,
                f"input-{what}-modulo-{bits}-after",
                after,
                alone=True,
                whole=True,
                breaks=("NUM-4",),
                quantized=read,
            )


def _wrapped(count: int, codes: Codes) -> Codes:
    """Write rows of codes in turn into the first `count` rows; rows behind these are zero."""
    made = codes.copy()
    for start in range(count, len(codes), count):
        rows = codes[start : start + count]
        made[: len(rows)] = rows
    made[count:] = 0
    return made
