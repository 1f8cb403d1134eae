"""Mistakes in which block's scale is stored, or used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.record import Mistake, Stage, known
from fp4ref.formats import Codes


def _from_row(rows: Callable[[Any], Any], scales: Any) -> Any:
    return scales[np.clip(rows(np.arange(len(scales))), 0, max(len(scales) - 1, 0))]


def _from_column(columns: Callable[[Any], Any], scales: Any) -> Any:
    width = scales.shape[1]
    return scales[:, np.clip(columns(np.arange(width)), 0, max(width - 1, 0))]


PLACES: tuple[tuple[str, str, Callable[[Any, Any], Any], Callable[[Any], Any]], ...] = (
    ("next", "of the next block", _from_column, lambda i: i + 1),
    ("previous", "of the previous block", _from_column, lambda i: i - 1),
    ("next-row", "of the next row", _from_row, lambda i: i + 1),
    ("previous-row", "of the previous row", _from_row, lambda i: i - 1),
    ("pair", "of the first of two neighbouring blocks", _from_column, lambda i: i // 2 * 2),
    ("first-column", "of the row's first block", _from_column, lambda i: i * 0),
    ("first-row", "of the first row", _from_row, lambda i: i * 0),
    *(
        (
            f"rows-{n}",
            f"of the row modulo {n} (rows past {n} use the first tile's scales)",
            _from_row,
            partial(lambda m, i: i % m, n),
        )
        for n in (8, 16, 32, 64, 128)
    ),
    *(
        (
            f"columns-{n}",
            f"of the block modulo {n} (blocks past {n} use the first tile's)",
            _from_column,
            partial(lambda m, i: i % m, n),
        )
        for n in (2, 4, 8)
    ),
    *(
        (f"rows-by-{n}", f"of the first of {n} rows", _from_row, partial(lambda m, i: i // m * m, n))
        for n in (2, 4, 16, 32, 128)
    ),
)


def places() -> Iterator[Mistake]:
    """Mistakes in which block's scale is stored, or used."""
    for name, text, gather, index in PLACES:
        by_rows = gather is _from_row
        move = partial(gather, index)
        yield known(Stage.LAYOUT, f"stored-{name}", f"each block has the scale byte {text}", scales=move, whole=True)
        if by_rows:
            yield known(
                Stage.ENCODE,
                f"used-{name}",
                f"elements are divided by the scale {text}",
                lambda kernel: kernel.block.rows == 1,
                used_scale=move,
                whole=True,
            )
        else:
            yield known(
                Stage.ENCODE, f"used-{name}", f"elements are divided by the scale {text}", used_scale=move, whole=True
            )
    for by, way in ((1, "late"), (-1, "early")):
        for name, text, moved in (
            ("rolled", "along a row, around its end", partial(np.roll, shift=by, axis=1)),
            ("zeros", "along a row, and a zero at its end", partial(_shifted, by)),
            ("flat", "over the whole tensor", partial(np.roll, shift=by)),
            ("rows", "down the rows, around the end", partial(np.roll, shift=by, axis=0)),
        ):
            yield known(
                Stage.LAYOUT,
                f"stored-{way}-{name}",
                f"scale bytes are stored one place too {way}, {text}",
                scales=moved,
                whole=True,
            )
    for size in (4, 8, 16, 32, 64, 128):
        yield known(
            Stage.LAYOUT,
            f"unwritten-rows-{size}",
            f"the scale bytes of rows past the last multiple of {size} are not written (0)",
            scales=partial(_zero_rows, size),
            whole=True,
        )
        if size <= 8:
            yield known(
                Stage.LAYOUT,
                f"unwritten-columns-{size}",
                f"the scale bytes past the last multiple of {size} blocks are not written (0)",
                scales=partial(_zero_columns, size),
                whole=True,
            )
    yield known(
        Stage.LAYOUT,
        "unwritten-last",
        "the last block's scale byte is not written (0)",
        scales=lambda s: _last_zero(s, 1),
        whole=True,
    )


def _shifted(by: int, scales: Codes) -> Codes:
    moved = np.roll(scales, by, axis=1)
    moved[:, 0 if by > 0 else -1] = 0
    return moved


def _zero_rows(size: int, scales: Codes) -> Codes:
    scales = scales.copy()
    scales[len(scales) // size * size :] = 0
    return scales


def _zero_columns(size: int, scales: Codes) -> Codes:
    scales = scales.copy()
    scales[:, scales.shape[1] // size * size :] = 0
    return scales


def _last_zero(scales: Codes, count: int) -> Codes:
    scales = scales.copy()
    scales[:, scales.shape[1] - count :] = 0
    return scales
