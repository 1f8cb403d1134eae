"""Random bytes by the counter map, in plain torch; compiles with `torch.compile(fullgraph=True)`."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 16  # bytes of one output
WORD = 0xFFFF_FFFF
BLOCKS_ON_CPU, BLOCKS = 1 << 13, 1 << 20  # at once


def random_bytes(
    shape: tuple[int, int], origin: tuple[int, int], across: int, seed: int | Tensor, upper: int, device: torch.device
) -> Tensor:
    """Random bytes uint8 [rows, columns] of a part of a direction's matrix.

    origin: row and block of the part's first element in the whole. across: blocks of a whole row. seed: the key, int64
    [1] where it is on the device.
    upper: the upper half of the counter.

    Rules: SR-7, SR-8.
    """
    rows, columns = shape
    blocks = -(-columns // BLOCK)
    at_once = BLOCKS_ON_CPU if device.type == "cpu" else BLOCKS
    step = rows if torch.compiler.is_compiling() else max(at_once // max(blocks, 1), 1)
    if not rows or not columns:
        return torch.zeros(shape, dtype=torch.uint8, device=device)
    parts = []
    for first in range(0, rows, max(step, 1)):
        start = (origin[0] + first) * across + origin[1]
        count = min(step, rows - first)
        parts.append(_rows(count, blocks, start, across, seed, upper, device)[:, :columns])
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)


def _rows(
    rows: int, blocks: int, start: int, across: int, seed: int | Tensor, upper: int, device: torch.device
) -> Tensor:
    """Bytes of whole blocks, [rows, blocks * 16]; `start` is the index of the first one."""
    row = torch.arange(rows, dtype=torch.int64, device=device)[:, None]
    block = torch.arange(blocks, dtype=torch.int64, device=device)[None]
    # The index as two words: int64 has no room for its top bit.
    high_step, low_step = across >> 32, across & WORD
    low = row * low_step + block + (start & WORD)  # below 2^63: no tensor has 2^31 rows of 2^31 blocks
    high = (row * high_step + (start >> 32) + (low >> 32)) & WORD
    words = philox4x32([low & WORD, high, upper & WORD, upper >> 32], seed & WORD, (seed >> 32) & WORD)
    shifts = torch.arange(0, 32, 8, dtype=torch.int64, device=device)
    drawn = torch.stack([word.expand(rows, blocks) for word in words], dim=-1)[..., None] >> shifts
    return (drawn & 0xFF).to(torch.uint8).reshape(rows, blocks * BLOCK)


def philox4x32(counter: list[Tensor | int], k0: int | Tensor, k1: int | Tensor, rounds: int = 10) -> list[Tensor]:
    """Return the output words of counters of four words, low first; words are int64 below 2^32. Rules: SR-6.

    Certificates: philox-bits.
    """
    c0, c1, c2, c3 = counter
    for _ in range(rounds):
        (high_a, low_a), (high_b, low_b) = _product(c0, 0xD2511F53), _product(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return [c0, c1, c2, c3]  # type: ignore[list-item]  # after one round all are tensors


def _product(word: Tensor | int, multiplier: int) -> tuple[Tensor | int, Tensor | int]:
    """High and low word of a product; int64 would overflow, so the multiplier comes in halves."""
    upper, lower = word * (multiplier >> 16), word * (multiplier & 0xFFFF)  # below 2^48
    return (upper + (lower >> 16)) >> 16, (((upper & 0xFFFF) << 16) + lower) & WORD
