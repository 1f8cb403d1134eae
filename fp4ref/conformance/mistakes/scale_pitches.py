"""Rows of scale bytes that are taken to be further apart, or closer, than they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot, known, of
from fp4ref.formats import Codes

Pitch = Callable[[int, int, int], int]  # (rows, blocks, columns of a block) -> blocks from one row to the next
PITCHES: tuple[tuple[str, str, Pitch], ...] = (
    ("other-pitch", "the other direction, the blocks of a column", lambda rows, blocks, width: -(-rows // width)),
    *(
        (f"pitch-{n}", f"a multiple of {n} blocks", partial(lambda n, rows, blocks, width: -(-blocks // n) * n, n))
        for n in (2, 4, 8, 16, 32, 64, 128)
    ),
    *(
        (f"pitch-{n}-down", f"whole groups of {n} blocks", partial(lambda n, rows, blocks, width: blocks // n * n, n))
        for n in (2, 4, 8)
    ),
    ("pitch-one-more", "one block too many", lambda rows, blocks, width: blocks + 1),
    ("pitch-one-less", "one block too few", lambda rows, blocks, width: blocks - 1),
    ("pitch-twice", "twice as many blocks", lambda rows, blocks, width: 2 * blocks),
    ("pitch-half", "half as many blocks", lambda rows, blocks, width: -(-blocks // 2)),
    ("pitch-rows", "as many blocks as there are rows", lambda rows, blocks, width: rows),
)


def pitches() -> Iterator[Mistake]:
    """Yield scale bytes that are written, or copied, at the pitch of something else than a row of them."""
    for name, text, pitch in PITCHES:
        for way, said, move in (
            ("stored", "written at", _written_at),
            ("read", "copied from places at", _read_at),
        ):
            yield known(
                Slot.LAYOUT,
                f"{way}-{name}",
                f"scale bytes are {said} the pitch of {text}; past the end none is",
                lambda kernel: kernel.block.rows == 1,
                alone=True,
                scales=of(partial(_at_pitch, move, pitch)),
                whole=True,
            )


def _at_pitch(move: Any, pitch: Pitch, kernel: Kernel) -> Callable[[Codes], Codes]:
    return partial(move, pitch, kernel.block.columns)


def _written_at(pitch: Pitch, width: int, scales: Codes) -> Codes:
    """Return rows of scale bytes written a pitch apart; later ones win."""
    rows, across = scales.shape
    offsets = (np.arange(rows)[:, None] * pitch(rows, across, width) + np.arange(across)).reshape(-1)
    made, kept = np.zeros(scales.size, np.uint8), offsets < scales.size
    made[offsets[kept]] = scales.reshape(-1)[kept]
    return made.reshape(scales.shape)


def _read_at(pitch: Pitch, width: int, scales: Codes) -> Codes:
    """Return rows of scale bytes taken from places a pitch apart."""
    rows, across = scales.shape
    offsets = np.arange(rows)[:, None] * pitch(rows, across, width) + np.arange(across)
    flat = np.append(scales.reshape(-1), np.uint8(0))
    return np.asarray(flat[np.minimum(offsets, scales.size)])
