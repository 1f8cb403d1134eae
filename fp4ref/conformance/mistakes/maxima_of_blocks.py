"""Maxima of blocks as a wrong kernel takes them, and scales that parts of a block share.

Blocks are float32 [down, across, rows, columns], their maxima [down, across, 1, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.formats import Codes, F, Floats
from fp4ref.model.quantize import largest
from fp4ref.spec import Block


def block_of(chosen: Callable[[Floats], Floats]) -> Any:
    """Return the maxima of a function's results for the blocks."""
    return lambda blocks, keep_nan: largest(chosen(blocks), (2, 3), keep_nan)


def grouped(down: int, across: int) -> Any:
    """Return maxima that `down` times `across` neighbouring blocks share."""

    def maxima(blocks: Floats, keep_nan: bool) -> Floats:
        found = largest(blocks, (2, 3), keep_nan)
        rows, columns = found.shape[:2]
        high, wide = min(down, rows), min(across, columns)
        padded = np.pad(found[:, :, 0, 0], ((0, -rows % high), (0, -columns % wide)))
        tiles = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
        wide = np.repeat(np.repeat(tiles.max(axis=(1, 3)), high, axis=0), wide, axis=1)
        return np.ascontiguousarray(wide[:rows, :columns, None, None])

    return maxima


def absolute_block(blocks: Floats, keep_nan: bool) -> Floats:
    """Return |max x| of each block."""
    return np.asarray(np.abs(np.nanmax(blocks, axis=(2, 3), keepdims=True, initial=np.finfo(F).min)), F)


def plain_block(blocks: Floats, keep_nan: bool) -> Floats:
    """Return max x of each block, which can be negative or -0."""
    return np.asarray(np.fmax.reduce(blocks, axis=(2, 3), keepdims=True), F)


def plain_from_zero(blocks: Floats, keep_nan: bool) -> Floats:
    """Return max x of each block and zero, which can be -0."""
    return np.asarray(np.fmax.reduce(blocks, axis=(2, 3), keepdims=True, initial=F(0)), F)


def shifted(down: int, across: int, maxima: Floats) -> Floats:
    """Return the maxima of the blocks `down` and `across` places away; past an edge, those at the edge."""
    rows = np.clip(np.arange(maxima.shape[0]) + down, 0, maxima.shape[0] - 1)
    columns = np.clip(np.arange(maxima.shape[1]) + across, 0, maxima.shape[1] - 1)
    return maxima[rows][:, columns]


def joint(across: int, blocks: Floats, keep_nan: bool) -> Floats:
    """Return the larger maximum of each block and of the one `across` places away."""
    own = largest(blocks, (2, 3), keep_nan)
    return np.asarray(np.maximum(own, shifted(0, across, own)), F)


def ranked(rank: int, blocks: Floats, keep_nan: bool) -> Floats:
    """Return the magnitude of a given rank in each block; rank 1 is the largest."""
    magnitude = np.abs(blocks).reshape(*blocks.shape[:2], 1, -1)
    magnitude = magnitude if keep_nan else np.nan_to_num(magnitude, nan=0, posinf=np.inf)
    return np.asarray(np.sort(magnitude, axis=3)[..., -rank, None])


def averaged(power: int, blocks: Floats, keep_nan: bool) -> Floats:
    """Return the mean magnitude of a block, or the root of its mean square."""
    magnitude = np.abs(blocks) if keep_nan else np.nan_to_num(np.abs(blocks), nan=0, posinf=np.inf)
    mean = (magnitude**power).mean(axis=(2, 3), keepdims=True)
    return np.asarray(mean if power == 1 else np.sqrt(mean), F)


def from_the_first(blocks: Floats, keep_nan: bool) -> Floats:
    """Return maxima that are NaN where the first element is."""
    first = np.isnan(blocks[:, :, :1, :1])
    return np.where(first, F(np.nan), largest(blocks, (2, 3), keep_nan))


def narrower(parts: int, kernel: Kernel) -> Block:
    """Return one of equal parts of a block."""
    return Block(1, kernel.block.columns // parts)


def one_of(parts: int, stored: Callable[[Any], Any], scales: Any) -> Any:
    """Return for each block the scale that `stored` takes of those of its parts, [rows, blocks]."""
    padded = np.pad(scales, ((0, 0), (0, -scales.shape[1] % parts)))
    return stored(padded.reshape(len(padded), padded.shape[1] // parts, parts))


def no_zero(value: np.float32, maxima: Floats) -> Floats:
    """Return the maxima with another value for zero."""
    return np.where(maxima == 0, value, maxima)


def forgetting(blocks: Floats, keep_nan: bool) -> Floats:
    """Return the maximum that `if (!(found >= x)) found = x` finds: a NaN replaces it, and is replaced."""
    values = np.abs(blocks).reshape(*blocks.shape[:2], -1)
    found = np.zeros(blocks.shape[:2], F)
    for column in range(values.shape[2]):
        found = np.where(found >= values[:, :, column], found, values[:, :, column])
    return np.ascontiguousarray(found[:, :, None, None])


def by_bits(kind: type[np.signedinteger[Any] | np.unsignedinteger[Any]], blocks: Floats, keep_nan: bool) -> Floats:
    """Return the magnitude of the element of each block whose bits are the largest integer; NaN is left out."""
    bits = np.where(np.isnan(blocks), F(0), blocks).astype(F).view(kind)
    least = 0 if kind is np.uint32 else np.iinfo(np.int32).min
    return np.abs(np.maximum.reduce(bits, axis=(2, 3), keepdims=True, initial=least).astype(kind).view(F))


def up_to_bfloat16(maxima: Floats) -> Floats:
    """Round magnitudes up to bfloat16; infinities and NaN stay."""
    bits = np.ascontiguousarray(maxima).view(np.uint32)
    above = ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(F)
    return np.where(np.isfinite(maxima), above, maxima)


def kept_over_zeros(blocks: Floats, byte: Codes) -> Codes:
    """Return scale bytes, those of blocks of zeros from the last block of their row that has another element."""
    down, across = blocks.shape[:2]
    other = (blocks != 0).any(axis=(2, 3))
    last = np.maximum.accumulate(np.where(other, np.arange(across), -1), axis=1)
    last = np.where(last < 0, np.arange(across), last)
    return byte[np.arange(down)[:, None], last]
