"""Random bytes for stochastic rounding, from the state of torch's generators.

On a CUDA device the state is torch's own {seed, offset}, and each quantization reserves 1024 of the offset. A CPU
generator has no offset: a seed is drawn from it; so it is on a device, too, while a graph is captured, so that replays
differ. Either way torch.manual_seed and the saved generator states apply.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fp4ref.quantized import DirectionChoice, Directions
from fp4ref.random_source import bits_by_key

RESERVED = 1024  # of a device generator's offset, per quantization
SEED_MASK, STREAM_MASK = 2**64 - 1, 2**63 - 1


class RngState(NamedTuple):
    """The start of one quantization's random bytes. seed: an integer, or one on a device, int64 [1]."""

    seed: Any
    offset: int


def next_state(device: torch.device) -> RngState:
    """Return the state for one quantization on a device; torch's generator of that device moves on.

    Rules: TEL-6, TEL-76.
    """
    if device.type != "cuda":
        return RngState(int(torch.randint(0, 2**63 - 1, (1,)).item()), 0)
    if torch.cuda.is_current_stream_capturing():
        return RngState(torch.randint(-(2**63), 2**63 - 1, (1,), device=device), 0)
    index = device.index
    generator = torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
    offset = generator.get_offset()
    generator.set_offset(offset + RESERVED)
    return RngState(generator.initial_seed(), offset)


def random_bytes(
    shape: tuple[int, int], directions: DirectionChoice, state: RngState, device: torch.device
) -> Directions:
    """Return one byte per element of a matrix [M, K]: uint8 [M, K], and [K, M] for the columns. Rules: SR-7, TEL-6."""
    return bits_by_key(shape, directions, *key_of(state), device)


def key_of(state: RngState) -> tuple[Any, int]:
    """Return the seed, and the upper word of the rows' key, of one quantization's random bytes."""
    seed = state.seed if isinstance(state.seed, Tensor) else int(state.seed) & SEED_MASK
    return seed, 2 * (int(state.offset) & STREAM_MASK)
