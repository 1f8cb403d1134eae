"""Rows of bytes that are taken to be further apart, or closer, than they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fp4ref import packing
from fp4ref.conformance.mistakes.record import Mistake, Slot, known, of, one_row
from fp4ref.formats import Codes, Format

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


BytePitch = Callable[[int, int, int], int]  # (rows, columns, bytes of a row) -> bytes from one row to the next
BYTE_PITCHES: tuple[tuple[str, str, BytePitch], ...] = (
    *(
        (f"{n}", f"a multiple of {n} bytes", partial(lambda n, rows, columns, each: -(-each // n) * n, n))
        for n in (2, 4, 8, 16, 32, 64, 128)
    ),
    ("half", "half as many bytes as columns, rounded down,", lambda rows, columns, each: columns // 2),
    ("columns", "as many bytes as columns", lambda rows, columns, each: columns),
    ("rows", "as many bytes as half the rows, rounded up,", lambda rows, columns, each: -(-rows // 2)),
    ("one-more", "one byte too many", lambda rows, columns, each: each + 1),
)


def pitches() -> Iterator[Mistake]:
    """Yield bytes that are written, or copied, at the pitch of something else than a row of them."""
    for name, text, apart in BYTE_PITCHES:
        yield known(
            Slot.PACKING,
            f"codes-pitch-{name}",
            f"rows of data are written {text} apart; past the end none is",
            alone=True,
            fills=True,
            codes=of(partial(lambda pitch, kernel: partial(_codes_written_at, pitch, kernel.codec.format), apart)),
            whole=True,
        )
    for name, text, pitch in PITCHES:
        for way, said, move in (
            ("stored", "written at", _written_at),
            ("read", "copied from places at", _read_at),
            ("stored-across", "written block by block, each down the rows, at", _written_across),
        ):
            yield known(
                Slot.LAYOUT,
                f"{way}-{name}",
                f"scale bytes are {said} the pitch of {text}; past the end none is",
                one_row,
                alone=True,
                scales=of(partial(lambda move, pitch, kernel: partial(move, pitch, kernel.block.columns), move, pitch)),
                whole=True,
            )


def _codes_written_at(pitch: BytePitch, form: Format, codes: Codes) -> Codes:
    """Return codes whose rows of bytes are written a pitch apart; later ones win."""
    data = packing.pack(codes, form)
    rows, each = data.shape
    return packing.unpack(_placed(data, pitch(rows, codes.shape[1], each)), codes.shape[1], form)


def _placed(data: Codes, apart: int) -> Codes:
    rows, across = data.shape
    offsets = (np.arange(rows)[:, None] * apart + np.arange(across)).reshape(-1)
    made, kept = np.zeros(data.size, np.uint8), offsets < data.size
    made[offsets[kept]] = data.reshape(-1)[kept]
    return made.reshape(data.shape)


def _written_at(pitch: Pitch, width: int, scales: Codes) -> Codes:
    """Return rows of scale bytes written a pitch apart; later ones win."""
    rows, across = scales.shape
    return _placed(scales, pitch(rows, across, width))


def _written_across(pitch: Pitch, width: int, scales: Codes) -> Codes:
    """Return rows of scale bytes written a pitch apart; later blocks win."""
    rows, across = scales.shape
    offsets = (np.arange(across)[:, None] + np.arange(rows) * pitch(rows, across, width)).reshape(-1)
    made, kept = np.zeros(scales.size, np.uint8), offsets < scales.size
    made[offsets[kept]] = scales.T.reshape(-1)[kept]
    return made.reshape(scales.shape)


def _read_at(pitch: Pitch, width: int, scales: Codes) -> Codes:
    """Return rows of scale bytes taken from places a pitch apart."""
    rows, across = scales.shape
    return taken_at(pitch(rows, across, width), scales)


def taken_at(apart: int, grid: Codes) -> Codes:
    """Return rows of bytes taken from places a number of bytes apart; zeros follow the last."""
    rows, across = grid.shape
    offsets = np.arange(rows)[:, None] * apart + np.arange(across)
    flat = np.append(grid.reshape(-1), np.uint8(0))
    return np.asarray(flat[np.minimum(offsets, grid.size)])
