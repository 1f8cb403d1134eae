"""Mistakes in the maxima of rows that have a global scale each: a row takes that of another row, or of several.

For example, a kernel that keeps the maximum of a pair of rows in one register scales both rows by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fp4ref.conformance.mistakes import record
from fp4ref.conformance.mistakes.gathered_rows import GATHERS, Gather
from fp4ref.conformance.mistakes.kernel import Values, over_tensor
from fp4ref.conformance.mistakes.record import Mistake, Slot, known
from fp4ref.formats import F, Floats

Used = Callable[[Floats, Values], Floats]  # what the rows' global scales are made of, of the true maxima
SHARING = (2, 4, 8, 16, 32, 64, 128)  # rows


def _of_other_rows(gather: Gather, amax: Floats, values: Values) -> Floats:
    return np.asarray(gather(amax), F)


def rows_for_others() -> Iterator[Mistake]:
    """Yield maxima of rows that stand for another row, or for several."""
    others: list[tuple[str, str, Used]] = [
        (
            f"row-{words}",
            f"each row's global scale is made of the amax of the row {words}",
            partial(_rolled, by),
        )
        for by, words in ((1, "before"), (-1, "after"))
    ]
    others += [
        (gather.name, gather.text("amax"), partial(_of_other_rows, gather))
        for gather in GATHERS
        if "next" not in gather.name and "previous" not in gather.name  # which are those above
    ]
    for name, text, used in others:
        yield known(
            Slot.AMAX,
            f"amax-used-{name}",
            f"{text}; the amax that is returned is right",
            record.by_row,
            alone=True,
            used=used,
            whole=True,
        )
    for rows in SHARING:
        yield known(
            Slot.AMAX,
            f"amax-shared-{rows}-rows",
            f"{rows} neighbouring rows share their amax",
            record.by_row,
            alone=True,
            amax=partial(shared_by, rows),
        )


def _rolled(by: int, amax: Floats, values: Values) -> Floats:
    return np.roll(amax, by)


def shared_by(rows: int, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the amax of each row's group of `rows` rows."""
    own = over_tensor(values, keep_nan, by_row=True)
    return np.repeat(np.maximum.reduceat(own, range(0, own.size, rows)), rows)[: own.size] if own.size else own
