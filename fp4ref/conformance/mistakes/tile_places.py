"""Mistakes in where tiles of scales follow each other, and in the last tile of a row of tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.mistakes.foreign import is_tiled
from fp4ref.layout import Layout

Offsets = NDArray[np.int64]
Place = Callable[[NDArray[np.int64], NDArray[np.int64], int, int], Offsets]  # (row, block, rows, blocks) -> byte


def _padded(value: int, to: int) -> int:
    return -(-value // to) * to


def _unpadded_tiles(row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """128x4 tiles whose stride does not count the padding columns."""
    tiles = blocks // 4 or 1
    return np.asarray((row // 128 * tiles + block // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4)


TilePitch = Callable[[int, int, int, int], int]  # (rows, blocks, rows of a tile, blocks of a tile) -> bytes
TILE_PITCHES: tuple[tuple[str, str, TilePitch], ...] = (
    ("unpadded", "as many bytes as the tiles' rows have scales, padding left out,", lambda m, k, high, wide: high * k),
    ("whole", "as many bytes as the whole tiles have", lambda m, k, high, wide: high * (k // wide * wide)),
    ("half", "half as many bytes", lambda m, k, high, wide: high * _padded(k, wide) // 2),
    ("tile", "one tile", lambda m, k, high, wide: high * wide),
    ("rows", "as many bytes as a tile's width has in all rows", lambda m, k, high, wide: wide * _padded(m, high)),
)


def _tiles_apart(form: Layout, pitch: TilePitch, row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """Return offsets if rows of tiles follow each other at another pitch."""
    high, wide = form.tile
    inside = np.asarray(form.offset(row % high, block, blocks, high))
    return np.asarray(inside + row // high * pitch(rows, blocks, high, wide))


def _compact_tiles(row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """128x4 tiles of which the last of a row of tiles is only as wide as the blocks that are left."""
    left = block // 4 * 4
    wide = np.minimum(blocks - left, 4)
    inside = row % 32 * 4 * wide + row % 128 // 32 * wide + block % 4
    return np.asarray(row // 128 * 128 * blocks + left * 128 + inside)


def _right_aligned_tiles(row: Any, block: Any, rows: int, blocks: int) -> Offsets:
    """128x4 tiles of which the last of a row of tiles has its blocks at the end of each four bytes."""
    left = block // 4 * 4
    inside = row % 32 * 16 + row % 128 // 32 * 4 + block % 4 + 4 - np.minimum(blocks - left, 4)
    return np.asarray((row // 128 * (_padded(blocks, 4) // 4) + block // 4) * 512 + inside)


PLACES: tuple[tuple[str, str, Place, bool], ...] = (
    ("layout-unpadded", "the stride of 128x4 tiles does not count padding columns", _unpadded_tiles, True),
    (
        "layout-compact",
        "the last 128x4 tile of a row of tiles is as wide as the blocks that are left, not padded to 4",
        _compact_tiles,
        False,
    ),
    (
        "layout-right-aligned",
        "the blocks of the last 128x4 tile of a row of tiles are at the end of its four bytes, after the padding",
        _right_aligned_tiles,
        False,
    ),
)


def tile_places(declared: Layout) -> Iterator[tuple[str, str, Place, bool]]:
    """Yield (name, text, place, whether scales share bytes) of each mistake."""
    yield from PLACES
    if is_tiled(declared):
        for name, text, pitch in TILE_PITCHES:
            said = f"rows of {'x'.join(map(str, declared.tile))} tiles are stored {text} apart"
            yield f"layout-tiles-apart-{name}", said, partial(_tiles_apart, declared, pitch), True
