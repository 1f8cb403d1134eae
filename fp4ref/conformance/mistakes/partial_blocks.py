"""Mistakes in what the maximum of a last, partial block sees past the end of its row, or below the last row.

For example, a kernel loads whole vectors, with 1 in the lanes past the end. Then no maximum of a last block is below 1.
Another one moves the last square of rows up inside the matrix. Then its maxima see rows of the squares above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot, known, of, several_rows
from fp4ref.formats import F, Floats

Tail = Callable[[Floats, int, int], Floats]  # (values, columns to fill, columns of whole blocks) -> what fills them


def partial_blocks() -> Iterator[Mistake]:
    """Yield what the maximum of a last partial block sees past the end of its row, and below the last row."""
    for name, text, tails, whole in (
        ("next-row", "what follows the row in memory, the next row", _next_row, True),
        ("next-head", "the head of the next row, and nothing behind that", partial(_head_of, 1), True),
        ("row-before", "the head of the row before", partial(_head_of, -1), True),
        ("row-before-end", "the end of the row before", _end_before, True),
        ("own-row", "the head of its own row", _own_row, True),
        ("stale", "the end of the block before, left from the last turn of a loop", _block_before, True),
        ("infinite", "infinities past the end of the row", partial(_full, np.inf), False),
        ("one", "ones past the end of the row", partial(_full, 1), False),
    ):
        yield known(
            Slot.BLOCK,
            f"block-tail-{name}",
            f"the maximum of a row's last partial block sees {text}",
            tails=of(partial(_filled, tails)),
            whole=whole,
        )
    for name, text, tails in (
        ("first", "the first rows of the matrix", _own_row),
        ("above", "the last rows of the blocks above, as if moved up inside the matrix", _block_before),
        ("infinite", "infinities below the last row", partial(_full, np.inf)),
        ("one", "ones below the last row", partial(_full, 1)),
    ):
        yield known(
            Slot.BLOCK,
            f"block-below-{name}",
            f"the maximum of a column's last partial block sees {text}",
            several_rows,
            tails=of(partial(_filled_below, tails)),
            whole=True,
        )


def _filled(tail: Tail, kernel: Kernel) -> Callable[[Floats], Floats]:
    """Return values with a last partial block that is filled with a tail of each row."""
    width = kernel.block.columns

    def filled(values: Floats) -> Floats:
        columns = values.shape[1]
        return np.concatenate([values, tail(values, -columns % width, columns // width * width)], axis=1)

    return filled


def _filled_below(tail: Tail, kernel: Kernel) -> Callable[[Floats], Floats]:
    """Return values with last partial blocks that are filled with a tail of each column."""
    height = kernel.block.rows

    def filled(values: Floats) -> Floats:
        rows = values.shape[0]
        below = tail(values.T, min(-rows % height, rows), rows // height * height)
        return np.concatenate([values, below.T], axis=0)

    return filled


def _next_row(values: Floats, count: int, whole: int) -> Floats:
    """Return the values that follow each row in memory; zeros follow the last one."""
    rows, columns = values.shape
    flat = np.concatenate([values.reshape(-1), np.zeros(count, F)])
    return np.asarray(flat[(np.arange(rows)[:, None] + 1) * columns + np.arange(count)])


def _head_of(step: int, values: Floats, count: int, whole: int) -> Floats:
    """Return the first values of the row `step` further on; zeros where there is none, or no more of it."""
    head = np.zeros((len(values), count), F)
    found = values[:, :count]
    if step > 0:
        head[:-1, : found.shape[1]] = found[1:]
    else:
        head[1:, : found.shape[1]] = found[:-1]
    return head


def _end_before(values: Floats, count: int, whole: int) -> Floats:
    """Return the last values of the row before; zeros for the first row, and in front of a shorter one."""
    end = np.zeros((len(values), count), F)
    found = values[:-1, -count:] if count else values[:-1, :0]
    end[1:, count - found.shape[1] :] = found
    return end


def _own_row(values: Floats, count: int, whole: int) -> Floats:
    return values[:, :count]


def _block_before(values: Floats, count: int, whole: int) -> Floats:
    """Return the values at the same lanes of the block before; zeros where there is none."""
    if whole == 0:
        return np.zeros((len(values), count), F)
    return values[:, whole - count : whole]


def _full(value: float, values: Floats, count: int, whole: int) -> Floats:
    return np.full((len(values), count), value, F)
