"""Elements that use the random bytes of other elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.elsewhere import IndexMap, around, first_of, modulo
from fp4ref.formats import Codes

Index = Callable[[Any, Any, tuple[int, int]], tuple[Any, Any]]  # (row, column, shape) -> those whose byte is used


def at_index(index: Index, bits: Codes) -> Codes:
    """Return the bytes of other elements; where there is no such element, its own."""
    rows, columns = bits.shape
    down, across = index(np.arange(rows)[:, None], np.arange(columns)[None], (rows, columns))
    inside = (down >= 0) & (down < rows) & (across >= 0) & (across < columns)
    down, across = np.clip(down, 0, max(rows - 1, 0)), np.clip(across, 0, max(columns - 1, 0))
    apart = down.shape[1] == across.shape[0] == 1  # rows and columns, which is quick
    made = bits[down[:, 0]][:, across[0]] if apart else bits[down, across]
    return made if inside.all() else np.where(inside, made, bits)


def _numbered(order: IndexMap, row: Any, column: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    """Return the place of another number of an element, counted over the matrix."""
    return np.divmod(order(row * shape[1] + column, shape[0] * shape[1]), max(shape[1], 1))


INDICES: tuple[tuple[str, str, Index], ...] = (
    *(
        (f"columns-{n}", f"column % {n} of their row: they repeat", partial(lambda n, r, c, _: (r, c % n), n))
        for n in (8, 16, 32, 64, 128, 256, 512, 1024, 4096)
    ),
    *(
        (f"rows-{n}", f"row % {n}: rows of them repeat", partial(lambda n, r, c, _: (r % n, c), n))
        for n in (2, 4, 8, 16, 32, 64, 128, 256)
    ),
    ("first-row", "the first row", lambda r, c, _: (r * 0, c)),
    *(
        (f"rows-by-{n}", f"the first of {n} rows", partial(lambda n, r, c, _: (r // n * n, c), n))
        for n in (2, 4, 8, 16, 32)
    ),
    *(
        (f"number-{n}", f"the element's number % {n}: they repeat", partial(_numbered, partial(modulo, n)))
        for n in (256, 1024, 4096, 16384, 65536)
    ),
    *(
        (
            f"number-by-{n}",
            f"the first of {n} elements, counted over the matrix",
            partial(_numbered, partial(first_of, n)),
        )
        for n in (2, 4, 8, 16)
    ),
    *(
        (f"number{sign}{n}", f"the element's number {sign} {n}", partial(_numbered, partial(around, int(f"{sign}{n}"))))
        for n in (1, 2, 4, 8, 16)
        for sign in "-+"
    ),
    *(
        (f"row{sign}{n}", f"row {sign} {n}", partial(lambda by, r, c, _: (r + by, c), int(f"{sign}{n}")))
        for n in (1, 2, 4, 8, 16, 32, 64)
        for sign in "-+"
    ),
    *(
        (f"column{sign}{n}", f"column {sign} {n}", partial(lambda by, r, c, _: (r, c + by), int(f"{sign}{n}")))
        for n in (2, 4, 8, 16, 32, 64)
        for sign in "-+"
    ),
)
