"""Mistakes in which block's scale is stored, or used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fp4ref.conformance.mistakes.elsewhere import (
    EVERY,
    LAST,
    IndexMap,
    blank,
    cleared,
    clipped,
    first_of,
    inside,
    modulo,
    taken,
)
from fp4ref.conformance.mistakes.kernel import Kernel, after, over_block
from fp4ref.conformance.mistakes.record import Mistake, Slot, known, of, one_row, several_rows
from fp4ref.formats import Codes


class ScalePlace(NamedTuple):
    """Scales [rows, blocks] of other rows (axis 0) or blocks, which are used or stored instead.

    wraps: the index is kept in too few bits.
    """

    name: str
    text: str
    axis: int
    order: IndexMap
    wraps: bool = False


PLACES = (
    ScalePlace("next", "of the next block", 1, partial(clipped, 1)),
    ScalePlace("previous", "of the previous block", 1, partial(clipped, -1)),
    ScalePlace("next-row", "of the next row", 0, partial(clipped, 1)),
    ScalePlace("previous-row", "of the previous row", 0, partial(clipped, -1)),
    ScalePlace("pair", "of the first of two neighbouring blocks", 1, partial(first_of, 2)),
    ScalePlace("first-column", "of the row's first block", 1, lambda index, count: index * 0),
    ScalePlace("first-row", "of the first row", 0, lambda index, count: index * 0),
    *(
        ScalePlace(f"{name}-{n}", f"of the {words}", axis, partial(modulo, n), wraps=True)
        for name, text, axis, sizes in (
            ("rows", "row modulo {0} (rows past {0} use the first tile's scales)", 0, (8, 16, 32, 64, 128, 256)),
            ("columns", "block modulo {0} (blocks past {0} use the first tile's)", 1, [1 << i for i in range(1, 12)]),
        )
        for n, words in ((n, text.format(n)) for n in sizes)
    ),
    *(ScalePlace(f"rows-by-{n}", f"of the first of {n} rows", 0, partial(first_of, n)) for n in (2, 4, 16, 32, 128)),
)


stored = partial(known, Slot.LAYOUT, whole=True)


def misplaced() -> Iterator[Mistake]:
    """Mistakes in which block's scale is stored, or used."""
    for name, text, axis, order, wraps in PLACES:
        move = partial(taken, order, axis)
        if wraps:
            yield known(
                Slot.BLOCK,
                f"both-{name}",
                f"each block has the scale byte {text}, and elements are divided by it",
                one_row,
                alone=True,
                scale_byte=move,
                whole=True,
            )
        yield stored(f"stored-{name}", f"each block has the scale byte {text}", scales=move)
        yield known(
            Slot.ENCODE,
            f"used-{name}",
            f"elements are divided by the scale {text}",
            None if axis else one_row,
            used_scale=move,
            whole=True,
        )
    for by, way in ((1, "late"), (-1, "early")):
        for name, text, moved in (
            ("rolled", "along a row, around its end", partial(np.roll, shift=by, axis=1)),
            ("zeros", "along a row, and a zero at its end", partial(_shifted, by)),
            ("flat", "over the whole tensor", partial(np.roll, shift=by)),
            ("rows", "down the rows, around the end", partial(np.roll, shift=by, axis=0)),
        ):
            yield stored(
                f"stored-{way}-{name}",
                f"scale bytes are stored one place too {way}, {text}",
                scales=moved,
            )
    for size in (4, 8, 16, 32, 64, 128):
        yield stored(
            f"unwritten-rows-{size}",
            f"the scale bytes of rows past the last multiple of {size} are not written (0)",
            scales=partial(cleared, size, 1),
        )
        if size <= 8:
            yield stored(
                f"unwritten-columns-{size}",
                f"the scale bytes past the last multiple of {size} blocks are not written (0)",
                scales=partial(cleared, 1, size),
            )
    yield known(Slot.LAYOUT, "unwritten-all", "every scale byte is 0, or not written", scales=np.zeros_like)
    yield stored(
        "unwritten-last",
        "the last block's scale byte is not written (0)",
        scales=lambda s: blank(s, EVERY, LAST),
    )


def _shifted(by: int, scales: Codes) -> Codes:
    moved = np.roll(scales, by, axis=1)
    moved[:, 0 if by > 0 else -1] = 0
    return moved


# Square blocks


def squares() -> Iterator[Mistake]:
    """Yield scales of blocks with several rows that stand for the block on the other side of the diagonal."""
    own = "elements use their own"
    moves: list[tuple[str, str, str, Callable[[Any], Any]]] = [
        (
            "transposed",
            "the scale bytes of the squares are stored transposed",
            "the transposed scales of the squares",
            _turned,
        ),
        (
            "mirrored",
            "the scale bytes of squares (i, j) and (j, i) are exchanged",
            "the scales of squares (j, i) instead of (i, j)",
            _mirrored,
        ),
        (
            "pitch",
            "the grid of the squares' scale bytes is read row by row with its number of rows as the pitch",
            "the scales of the squares, read row by row with the number of rows of their grid as the pitch,",
            _other_pitch,
        ),
        *(
            (
                f"mirrored-{size}",
                f"the scale bytes of squares (i, j) and (j, i) of {size} x {size} squares are exchanged",
                f"the scales of squares (j, i) instead of (i, j), within {size} x {size} squares,",
                partial(_mirrored_within, size),
            )
            for size in (2, 4, 8)
        ),
        *(
            (
                f"{name}",
                f"the scale bytes of squares are those of the square {name}, where there is one",
                f"the scales of the square {name}, where there is one,",
                partial(taken, partial(inside, by), axis),
            )
            for name, axis, by in (("below", 0, 1), ("above", 0, -1), ("on the right", 1, 1), ("on the left", 1, -1))
        ),
        *(
            (
                f"{word}-twice",
                f"squares (i, j) have the scale byte of square ({both})",
                f"the scales of squares ({both}) instead of (i, j)",
                partial(_on_diagonal, word == "row"),
            )
            for word, both in (("row", "i, i"), ("column", "j, j"))
        ),
    ]
    for name, stored, others, move in moves:
        used, block = f"elements are divided by {others}", f"{others} are stored, and divide the elements"
        for stage, way, text, changes in (
            (Slot.LAYOUT, "stored", f"{stored}; {own}", {"scales": of(partial(_stored, move))}),
            (Slot.ENCODE, "used", f"{used}; the stored bytes are right", {"used_scale": move}),
            (Slot.BLOCK, "block", block, {"block_amax": after(over_block, move)}),
        ):
            yield known(
                stage, f"{way}-squares-{name.replace(' ', '-')}", text, several_rows, alone=True, whole=True, **changes
            )


def _turned(values: Any) -> Any:
    """Return the transpose of a grid [down, across, ...], written row by row into the shape that it had."""
    return np.swapaxes(values, 0, 1).reshape(values.shape)


def _mirrored(values: Any) -> Any:
    """Return a grid [down, across, ...] with what is on either side of the diagonal exchanged, where both exist."""
    count = min(values.shape[:2])
    found = values.copy()
    found[:count, :count] = np.swapaxes(values[:count, :count], 0, 1)
    return found


def _mirrored_within(size: int, values: Any) -> Any:
    """Return a grid [down, across, ...] of square tiles, each with its diagonal's sides exchanged where both exist."""
    i, j = np.indices(values.shape[:2])
    other_i, other_j = i // size * size + j % size, j // size * size + i % size
    there = (other_i < values.shape[0]) & (other_j < values.shape[1])
    return values[np.where(there, other_i, i), np.where(there, other_j, j)]


def _other_pitch(values: Any) -> Any:
    """Return a grid [down, across, ...] whose rows are read `down` places apart; past the end the first ones follow."""
    down, across = np.indices(values.shape[:2])
    flat = values.reshape(-1, *values.shape[2:])
    return flat[(down * values.shape[0] + across) % max(len(flat), 1)] if len(flat) else values


def _on_diagonal(by_row: bool, values: Any) -> Any:
    """Return a grid [down, across, ...] of the value at one index twice, at most the last."""
    down, across = np.indices(values.shape[:2])
    index = down if by_row else across
    return values[np.minimum(index, values.shape[0] - 1), np.minimum(index, values.shape[1] - 1)]


def _stored(move: Callable[[Any], Any], kernel: Kernel) -> Callable[[Codes], Codes]:
    high = kernel.block.rows
    return lambda scales: np.repeat(move(scales[::high]), high, axis=0)[: len(scales)]
