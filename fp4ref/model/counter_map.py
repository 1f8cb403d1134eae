"""The standard's own random bytes: each follows from where its element is in the whole tensor, and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import Codes
from fp4ref.philox import philox4x32

ELEMENTS = 16  # of a block of random bytes, one per byte of a Philox output
BLOCKS_AT_ONCE = 1 << 16


def random_bytes(shape: tuple[int, int], origin: tuple[int, int], across: int, seed: int, upper: int) -> Codes:
    """Random bytes uint8 [rows, columns] of a part of a direction's matrix.

    shape: rows and columns of the part. origin: row and block of its first element in the whole. across: blocks of a
    whole row. seed: the key, 64 bits. upper: the upper 64 bits of the counter; the lower ones are the block's index.

    Rules: SR-7, SR-8.
    """
    rows, columns = shape
    blocks = -(-columns // ELEMENTS)
    result = np.zeros((rows, columns), np.uint8)
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint64)
    step = max(BLOCKS_AT_ONCE // max(blocks, 1), 1)
    for first in range(0, rows if columns else 0, step):
        row = np.arange(first, min(first + step, rows), dtype=np.uint64)[:, None] + np.uint64(origin[0])
        column = np.arange(blocks, dtype=np.uint64) + np.uint64(origin[1])
        index: NDArray[np.uint64] = np.asarray(row * np.uint64(across) + column, np.uint64)
        counter = np.empty((*index.shape, 4), np.uint64)
        counter[..., 0], counter[..., 1] = index & np.uint64(0xFFFFFFFF), index >> np.uint64(32)
        counter[..., 2], counter[..., 3] = upper & 0xFFFFFFFF, upper >> 32
        words = philox4x32(counter, key).astype("<u4")
        result[first : first + len(row)] = words.view(np.uint8).reshape(len(row), -1)[:, :columns]
    return result
