"""Mistakes in what the maximum of a row's last, partial block sees past the end of the row.

For example, a kernel loads whole vectors, with 1 in the lanes past the end. Then no maximum of a last block is below 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot, known, of
from fp4ref.formats import F, Floats


def partial_blocks() -> Iterator[Mistake]:
    """Yield what the maximum of a last partial block sees past the end of its row."""
    for name, text, tails, whole in (
        ("next-row", "what follows the row in memory, the next row", _next_row, True),
        ("own-row", "the head of its own row", _own_row, True),
        ("infinite", "infinities past the end of the row", partial(_full, np.inf), False),
        ("one", "ones past the end of the row", partial(_full, 1), False),
    ):
        yield known(
            Slot.BLOCK,
            f"block-tail-{name}",
            f"the maximum of a row's last partial block sees {text}",
            lambda kernel: kernel.block.rows == 1,
            tails=of(partial(_filled, tails)),
            whole=whole,
        )


def _filled(tail: Callable[[Floats, int], Floats], kernel: Kernel) -> Callable[[Floats], Floats]:
    """Return values with a last partial block that is filled with a tail of each row."""
    return lambda values: np.concatenate([values, tail(values, -values.shape[1] % kernel.block.columns)], axis=1)


def _next_row(values: Floats, count: int) -> Floats:
    """Return the values that follow each row in memory; zeros follow the last one."""
    rows, columns = values.shape
    flat = np.concatenate([values.reshape(-1), np.zeros(count, F)])
    return np.asarray(flat[(np.arange(rows)[:, None] + 1) * columns + np.arange(count)])


def _own_row(values: Floats, count: int) -> Floats:
    return values[:, :count]


def _full(value: float, values: Floats, count: int) -> Floats:
    return np.full((len(values), count), value, F)
