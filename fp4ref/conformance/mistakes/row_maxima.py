"""Mistakes in the maxima of rows that have a global scale each: a row takes that of another row, or of several.

For example, a kernel that keeps the maximum of a pair of rows in one register scales both rows by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fp4ref.conformance.mistakes.gathered_rows import GATHERS
from fp4ref.conformance.mistakes.kernel import Values, after, as_of_scales, as_returned, over_tensor
from fp4ref.conformance.mistakes.record import Mistake, Slot, by_row, known
from fp4ref.formats import Floats

Moved = Callable[[Floats], Floats]  # what belongs to rows, along the first axis, in the order in which rows use it
SHARING = (2, 4, 8, 16, 32, 64, 128)  # rows


of_rows = partial(known, when=by_row, alone=True)


def rows_for_others() -> Iterator[Mistake]:
    """Yield maxima of rows that stand for another row, or for several."""
    others: list[tuple[str, str, Moved]] = [
        (
            f"row-{words}",
            f"each row's global scale is made of the amax of the row {words}",
            partial(np.roll, shift=by, axis=0),
        )
        for by, words in ((1, "before"), (-1, "after"))
    ]
    others += [(gather.name, gather.text("amax"), gather) for gather in GATHERS if not gather.adjacent]
    for name, text, moved in others:
        yield of_rows(
            Slot.AMAX,
            f"amax-used-{name}",
            f"{text}; the amax that is returned is right",
            used=after(as_returned, moved),
            whole=True,
        )
        scaled = text.replace("amax", "global scale")
        yield of_rows(
            Slot.ENCODE,
            f"encode-global-{name}",
            f"where elements are scaled, {scaled}; the scale bytes are right",
            element_global=after(as_of_scales, moved),
            whole=True,
        )
    for rows in (None, *SHARING):
        start = "" if rows is None else f", from each multiple of {rows} on"
        for name, words, field, stage in (
            ("amax", "amax", "amax", over_tensor),
            ("amax-used", "global scale is made of an amax that", "used", as_returned),
        ):
            yield of_rows(
                Slot.AMAX,
                f"{name}-not-reset{'' if rows is None else f'-{rows}'}",
                f"a row's {words} is the largest of its own and those of all rows before{start}",
                whole=True,
                **{field: after(stage, partial(_never_reset, rows))},
            )
    for rows in SHARING:
        yield of_rows(
            Slot.AMAX,
            f"amax-shared-{rows}-rows",
            f"{rows} neighbouring rows share their amax",
            amax=partial(shared_by, rows),
        )


def _never_reset(rows: int | None, amax: Floats) -> Floats:
    """Return the largest value up to each row, of all rows or of those since the last multiple of `rows`."""
    starts = range(0, len(amax), rows or max(len(amax), 1))
    parts = [np.maximum.accumulate(amax[start : start + (rows or len(amax))]) for start in starts]
    return np.concatenate([amax[:0], *parts])


def shared_by(rows: int, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the amax of each row's group of `rows` rows."""
    own = over_tensor(values, keep_nan, by_row=True)
    return np.repeat(np.maximum.reduceat(own, range(0, own.size, rows)), rows)[: own.size] if own.size else own
