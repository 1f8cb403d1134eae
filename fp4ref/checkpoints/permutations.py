"""Orders learnt from evidence: the permutation of columns or rows that makes stored values the source's."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.access import Floats
from fp4ref.layout import Layout

PERIODS = (8, 16, 32, 64)  # columns after which an order repeats
LONGEST = PERIODS[-1]
ROWS, COLUMNS = 128, 1024  # of a sample
ALIKE = 0.9  # correlation of a column or row with its counterpart


@lru_cache
def exchanged(packing: Layout, columns: int) -> NDArray[np.int64]:
    """Return for each column the one that is in the other half of its byte; itself if there is none. Rules: CKP-23."""
    first = np.arange(LONGEST)
    offsets = np.asarray(packing.offset(0, first, LONGEST, 1))
    order = np.searchsorted(offsets, offsets ^ 1, sorter=np.argsort(offsets))
    partner = np.argsort(offsets)[order]
    every = np.arange(columns)
    other = every // LONGEST * LONGEST + partner[every % LONGEST]
    return np.where(other < columns, other, every)


def column_order(source: Floats, values: Floats, packing: Layout | None) -> tuple[str, str] | None:
    """Return the code and the description of the order of columns inside a period; None if there is none.

    packing: that of elements of four bits, which says what two share a byte.

    Rules: CKP-50.
    """
    for period in PERIODS:
        width = source.shape[1] // period * period
        if not width:
            continue
        a, b = (each[:4096, :width].reshape(-1, period).astype(np.float64) for each in (source, np.nan_to_num(values)))
        order = _matched(a, b)
        if order is not None and (order != np.arange(period)).any():
            shown = " ".join(map(str, order))
            if packing is not None and packing.unit == 4 and (order == exchanged(packing, period)).all():
                return "nibble-order", "the two elements of each byte are exchanged"
            return "element-order", f"element j of each {period} is the source's element {shown}"
    return None


def _matched(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Return for each column of b the column of a that it follows, if that is a permutation."""
    norms = np.sqrt((a * a).sum(0))[:, None] * np.sqrt((b * b).sum(0))[None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = np.where(norms > 0, a.T @ b / norms, 0)
    order = alike.argmax(0)
    sure = alike[order, np.arange(len(order))] > ALIKE
    return order if sure.all() and len(set(order.tolist())) == len(order) else None


def row_order(source: Floats, values: Floats) -> str:
    """Return a description of the order of rows; "" if rows are in no order of the source's. Rules: CKP-50."""
    a, b = source[:, :COLUMNS].astype(np.float64), np.nan_to_num(values[:, :COLUMNS]).astype(np.float64)
    rows = np.unique(np.linspace(0, len(b) - 1, min(ROWS, len(b))).astype(int))
    norms = np.sqrt((a * a).sum(1))[:, None] * np.sqrt((b[rows] ** 2).sum(1))[None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = np.where(norms > 0, a @ b[rows].T / norms, 0)
    order = alike.argmax(0)
    sure = alike[order, np.arange(len(rows))] > ALIKE
    moved = order != rows
    if sure.mean() < 0.9 or not moved.any() or len(set(order[sure].tolist())) < sure.sum():
        return ""
    first = int(np.flatnonzero(moved & sure)[0]) if (moved & sure).any() else 0
    return (
        f"row {rows[first]} is the source's row {order[first]}; {int((moved & sure).sum())} of {len(rows)} rows moved"
    )
