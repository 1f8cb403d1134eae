"""Mistakes in what 4over6 sees of a block when it chooses, and in which blocks choose together."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.choices import search, search_of
from fp4ref.conformance.mistakes.elsewhere import IndexMap, first_of, inside, taken
from fp4ref.conformance.mistakes.kernel import Kernel, after, smaller
from fp4ref.conformance.mistakes.record import collect, of, searches
from fp4ref.formats import F, Floats


def _masked(seen: Any, kernel: Kernel) -> Any:
    """Return the search of a kernel that sees the errors of some places of a block only."""
    difference = search_of(kernel).difference

    def some(*arguments: Any) -> Any:
        errors = difference(*arguments)
        places = np.arange(errors.shape[-2] * errors.shape[-1]).reshape(errors.shape[-2:])
        return np.where(seen(places, places.size), errors, F(0))

    return search_of(kernel, difference=some)


SEEN: tuple[tuple[str, str, Any], ...] = (
    *((f"without-{i}", f"element {i}", partial(lambda i, at, count: at != i, i)) for i in range(16)),
    ("first-half", "the second half of the block", lambda at, count: at < count // 2),
    ("second-half", "the first half of the block", lambda at, count: at >= count // 2),
    ("even", "every second element, from element 1 on", lambda at, count: at % 2 == 0),
    ("odd", "every second element, from element 0 on", lambda at, count: at % 2 == 1),
    ("first-quarter", "all but the first quarter of the block", lambda at, count: at < count // 4),
)
PARTLY = tuple(
    search(f"search-{name}", f"4over6 errors miss {text}", searches, alone=True, search=of(partial(_masked, seen)))
    for name, text, seen in SEEN
)


def _together(count: int, second: Floats, first: Floats) -> Any:
    """Return the choice that neighbouring blocks make together, by the sums of their errors. count: 0 for a row."""
    across = first.shape[1]
    at = np.arange(across) // (count or max(across, 1))
    sums = [np.add.reduceat(e, np.flatnonzero(np.diff(at, prepend=-1)), axis=1)[:, at] for e in (second, first)]
    return sums[0] < sums[1]


# (name, text, blocks that choose for others)
LEADING: tuple[tuple[str, str, IndexMap], ...] = (
    *((f"first-of-{n}", f"the first of {n} blocks chooses for all of them", partial(first_of, n)) for n in (2, 4, 8)),
    ("before", "each block takes the choice of the block before", partial(inside, -1)),
    ("after", "each block takes the choice of the next block", partial(inside, 1)),
)
SHARED: tuple[tuple[str, str, Any], ...] = (
    *((f"of-{n}", f"{n} neighbouring blocks choose together", partial(_together, n)) for n in (2, 4, 8)),
    ("of-row", "all blocks of a row choose together", partial(_together, 0)),
    *((name, text, after(smaller, partial(taken, order, 1))) for name, text, order in LEADING),
)
CHOSEN = tuple(
    search(f"search-{name}", f"4over6: {text}", searches, alone=True, second=second, whole=True)
    for name, text, second in SHARED
)

BLOCK_CHOICES = collect(PARTLY, CHOSEN)
