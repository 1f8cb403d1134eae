"""Mistakes in the window of a block's maximum: beside the block, or over neighbours that share a scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.block_maxima import CUT
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot, known, of, one_row, several_rows
from fp4ref.formats import F, Floats
from fp4ref.model.quantize import largest

maxima = partial(known, Slot.BLOCK, alone=True)


def windows() -> Iterator[Mistake]:
    """Yield maxima over other elements than the block's, and over neighbours."""
    yield from _beside()
    yield from _odd_tails()
    yield from _flat()
    yield from _squares()


# Windows that do not start where their block does


def _slid(mode: Any, by: int, values: Floats) -> Floats:
    """Return the values of the columns `by` further on. mode: of np.pad, for what is past the ends of a row."""
    width, size = values.shape[1], abs(by)
    if not width:
        return values
    padded = np.pad(values, ((0, 0), (size, size)), mode=mode)
    return np.ascontiguousarray(padded[:, size + by : size + by + width])


def _in_memory(by: int, values: Floats) -> Floats:
    """Return the values `by` further on in memory, zeros outside of the tensor."""
    return _slid("constant", by, values.reshape(1, -1)).reshape(values.shape)


EDGES: tuple[tuple[str, str, Callable[[int, Floats], Floats]], ...] = (
    ("row", "with nothing past the end of a row", partial(_slid, "constant")),
    ("edge", "with the last element repeated past the end of a row", partial(_slid, "edge")),
    ("around", "around the end of the row", lambda by, values: np.roll(values, -by, axis=1)),
    ("memory", "with the next row past the end of a row", _in_memory),
)
WHOLE = "whole", "as far as the row has any"
SHIFTS = tuple(sign * by for by in (1, 2, 3, 4, 7, 8, 12, 15, 16, 24, 31) for sign in (1, -1))


def _beside() -> Iterator[Mistake]:
    """Yield maxima over as many elements as a block has, from another element on."""
    for by in SHIFTS:
        way = f"{abs(by)} further {'on' if by > 0 else 'back'}"
        ends = [(name, words, partial(slid, by)) for name, words, slid in EDGES]
        whole = [(*WHOLE, of(partial(_filled, by)))] if by < 0 else []
        for name, words, tails in (*ends, *whole):
            yield maxima(
                f"block-window-{by:+d}-{name}",
                f"block maxima are taken over the elements {way}, {words}",
                partial(lambda by, kernel: one_row(kernel) and abs(by) < kernel.block.columns, by),
                tails=tails,
                whole=True,
            )


def _filled(by: int, kernel: Kernel) -> Callable[[Floats], Floats]:
    """Return the function that slides rows of whole blocks, so that the last block sees all of its window."""
    return lambda values: _slid("constant", by, np.pad(values, ((0, 0), (0, -values.shape[1] % kernel.block.columns))))


# Neighbours that share a scale where a row has an odd count of blocks


def _pairs(own: Floats) -> Floats:
    """Return the maxima of whole pairs, for each of the two blocks."""
    whole = own.shape[1] // 2 * 2
    return np.repeat(own[:, :whole].reshape(len(own), whole // 2, 2).max(axis=2), 2, axis=1)


def _paired(last: Callable[[Floats, Floats], Floats], own: Floats) -> Floats:
    """Return the maxima of pairs, and the result of `last` for the last block of an odd count."""
    pairs = _pairs(own)
    return pairs if own.shape[1] % 2 == 0 else np.concatenate([pairs, last(own, pairs)], axis=1)


def _joined(own: Floats) -> Floats:
    pairs = _pairs(own)
    if own.shape[1] % 2 == 0:
        return pairs
    three = np.maximum(pairs[:, -1:], own[:, -1:]) if pairs.size else own
    return np.concatenate([pairs[:, :-2], np.repeat(three, 3, axis=1)], axis=1) if pairs.size else own


def _of_pair(place: int, own: Floats, pairs: Floats) -> Floats:
    return pairs[:, place, None] if pairs.size else own


TAILS: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("joins", "joins the pair before it", _joined),
    ("pair", "has the scale of the pair before it", partial(_paired, partial(_of_pair, -1))),
    ("first", "has the scale of its row's first", partial(_paired, partial(_of_pair, 0))),
    ("zero", "is left out (its maximum is 0)", partial(_paired, lambda own, pairs: own[:, -1:] * F(0))),
)


def _odd_tails() -> Iterator[Mistake]:
    """Yield blocks of twice the width, with another scale for the last block of a row."""
    text = "2 neighbouring blocks of a row share their scale (blocks that much wider)"
    for name, words, shared in TAILS:
        yield maxima(
            f"block-2-across-{name}",
            f"{text}; the last block of an odd count {words}",
            breaks=CUT,
            block_amax=partial(_shared, shared),
            whole=True,
        )


def _flat() -> Iterator[Mistake]:
    """Yield neighbours that are counted over the whole tensor."""
    for count in (2, 4):
        yield maxima(
            f"block-{count}-flat",
            f"{count} neighbouring blocks share their scale, counted over the whole tensor, across the ends of rows",
            one_row,
            block_amax=partial(_shared, partial(_flat_groups, count)),
            whole=True,
        )


def _flat_groups(count: int, own: Floats) -> Floats:
    flat = own.reshape(-1)
    groups = np.pad(flat, (0, -flat.size % count)).reshape(-1, count).max(axis=1)
    return np.repeat(groups, count)[: flat.size].reshape(own.shape)


def _squares() -> Iterator[Mistake]:
    """Yield blocks of several rows whose groups of rows begin at another row."""
    for start in (1, 2, 4, 8):
        yield maxima(
            f"block-rows-from-{start}",
            f"the groups of rows that share a scale begin at row {start}, not at row 0",
            several_rows,
            block_amax=partial(_rows_from, start),
            whole=True,
        )


def _rows_from(start: int, blocks: Floats, keep_nan: bool) -> Floats:
    """Return the maxima [down, across, rows, 1] of groups of rows of which one begins at a row."""
    down, across, high, _ = blocks.shape
    rows = largest(blocks, (3,), keep_nan).transpose(0, 2, 1, 3).reshape(down * high, across)
    moved = np.pad(rows, ((high - start % high, start % high), (0, 0)))
    groups = np.repeat(moved.reshape(-1, high, across).max(axis=1), high, axis=0)
    own = groups[high - start % high :][: down * high]
    return np.ascontiguousarray(own.reshape(down, high, across, 1).transpose(0, 2, 1, 3))


def _shared(shared: Callable[[Floats], Floats], blocks: Floats, keep_nan: bool) -> Floats:
    """Return the maxima [down, across, 1, 1] that blocks share."""
    return np.ascontiguousarray(shared(largest(blocks, (2, 3), keep_nan)[:, :, 0, 0])[:, :, None, None])
