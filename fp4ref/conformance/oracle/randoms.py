"""A slow second opinion on random bytes: Philox and the counter map, one block at a time, in Python's integers."""

from __future__ import annotations

import numpy as np

from fp4ref.formats import Codes
from fp4ref.quantized import Direction

WORD = (1 << 32) - 1


def philox(counter: int, key: int, rounds: int = 10) -> bytes:
    """Return the 16 bytes of a counter of 128 bits under a key of 64, the low byte of a word first. Rules: SR-6."""
    c = [counter >> 32 * i & WORD for i in range(4)]
    k = [key >> 32 * i & WORD for i in range(2)]
    for _ in range(rounds):
        high = 0xCD9E8D57 * c[2], 0xD2511F53 * c[0]
        c = [high[0] >> 32 ^ c[1] ^ k[0], high[0] & WORD, high[1] >> 32 ^ c[3] ^ k[1], high[1] & WORD]
        k = [(k[0] + 0x9E3779B9) & WORD, (k[1] + 0xBB67AE85) & WORD]
    return b"".join(word.to_bytes(4, "little") for word in c)


def drawn(sequence: int, first: int, count: int, seed: int = 0, offset: int = 0) -> bytes:
    """Words of a thread's sequence, from the first-th on, as bytes. Rules: SR-10."""
    blocks = range(first // 4, (first + count - 1) // 4 + 1)
    stream = b"".join(philox((sequence << 64) + offset + block, seed) for block in blocks)
    return stream[4 * (first % 4) :][: 4 * count]


def random_bytes(
    shape: tuple[int, int],
    direction: Direction,
    seed: int,
    stream: int,
    origin: tuple[int, int],
    whole: tuple[int, int],
) -> Codes:
    """Return the bytes of `fp4ref.random_bits` for legal arguments; shapes are those of x. Rules: SR-7."""
    turn = 1 if direction == "row" else -1
    (rows, columns), (top, left), (_, width) = shape[::turn], origin[::turn], whole[::turn]
    upper = 2 * stream + (direction == "column")
    result = np.empty((rows, columns), np.uint8)
    for r, c in np.ndindex(rows, columns):
        block, i = divmod(left + c, 16)
        result[r, c] = philox((upper << 64) + (top + r) * -(-width // 16) + block, seed)[i]
    return result
