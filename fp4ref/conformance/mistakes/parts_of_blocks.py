"""Mistakes in which parts of a block are divided by scales of their own, of which one is stored.

For example, a warp that does not reduce over the rows of a square divides each row by its own scale.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.maxima_of_blocks import narrower, one_of
from fp4ref.conformance.mistakes.record import Slot, known, of, one_row
from fp4ref.formats import Floats
from fp4ref.model.quantize import largest

block = partial(known, Slot.BLOCK)


# (name, text, which of the scales of a block's parts is stored)
STORED: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("first", "the first one's scale is stored", lambda s: s[..., 0]),
    ("last", "the last one's scale is stored", lambda s: s[..., -1]),
    ("largest", "the largest of their scales is stored", lambda s: s.max(axis=-1)),
)
OF_PARTS = tuple(
    block(
        f"block-own-{parts}-{name}",
        f"each 1/{parts} of a block is divided by the scale of its own maximum, {text}",
        one_row,
        block=of(partial(narrower, parts)),
        scales=partial(one_of, parts, stored),
    )
    for parts in (2, 4)
    for name, text, stored in STORED
)

# (name, text, which of the bytes [down, across, rows, columns] of a block's parts is stored)
OF_ROWS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    (
        "largest",
        "the byte of the largest of these scales, the block's own, is stored",
        lambda s: s.max(2, keepdims=True),
    ),
    ("first", "the first one's byte is stored", lambda s: s[:, :, :1]),
    ("last", "the last one's byte is stored", lambda s: s[:, :, -1:]),
)


def _taken_down(height: int, blocks: Floats, keep_nan: bool) -> Floats:
    """Return the maximum of each group of rows of a block, for each row."""
    down, across, rows, columns = blocks.shape
    groups = blocks.reshape(down, across, rows // height, height * columns)
    return np.repeat(largest(groups, (3,), keep_nan), height, axis=2)


OF_PARTS_DOWN = tuple(
    block(
        f"block-own-rows-{height}-{name}",
        f"elements are divided by the scale of {words} of the block, {text}",
        partial(lambda height, kernel: kernel.block.rows > height and kernel.block.rows % height == 0, height),
        block_amax=partial(_taken_down, height),
        stored=partial(lambda stored, blocks, byte: stored(byte), stored),
    )
    for height, words in (
        (1, "their own row"),
        (2, "their own 2 rows"),
        (4, "their own 4 rows"),
        (8, "their own 8 rows"),
    )
    for name, text, stored in OF_ROWS
)
