"""Tensors on a device whose bytes are known: every bfloat16 in blocks of every scale byte, under any maximum.

A row has 255 blocks of a sweep and one block with the global maximum. The expected bytes come from exact fractions and
from operations in double precision, each rounded once to float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, F
from fp4ref.proof.blocks import _edges, values_of
from fp4ref.proof.golden_scales import _encoding, _factor, _once

BYTES, BLOCK, ACROSS = 127, 16, 256
INFINITY, PATTERNS = 0x7F80, 1 << 16  # of bfloat16


class Numerics:
    """Scales, and the places at which codes begin, on the device: the same for every part of a sweep.

    maxima: patterns of bfloat16.
    """

    def __init__(self, maxima: tuple[int, ...], device: str) -> None:
        import torch

        tops = (np.array(maxima, np.uint32) << 16).view(F)
        g = np.where(np.isinf(tops), F(1), _encoding(tops, 448))
        sixth = _once(g.astype(np.float64) * np.float64(_once(1.0 / 6.0)))
        factors = _factor(values_of(CUDA_E4M3).astype(F), g[:, None])
        self.sixth, self.factors = (torch.from_numpy(part).to(device).double() for part in (sixth, factors))
        self.of_scales, self.of_codes = (
            torch.from_numpy(_edges(codec).astype(F)).to(device) for codec in (CUDA_E4M3, CUDA_E2M1)
        )

    def scale_bytes(self, amax: Any, at: int) -> Any:
        """Return the bytes of block maxima, under the maximum with this number. Rules: BLK-3."""
        return reached(self.of_scales, (amax.double() * self.sixth[at]).float())

    def codes(self, x: Any, factors: Any) -> Any:
        """Return the codes of floats, without a sign, that a NaN has none of. Rules: BLK-5, E2M1-3, E2M1-5."""
        return reached(self.of_codes, (x.double() * factors).float().abs())


def reached(edges: Any, values: Any) -> Any:
    """Return how many of ascending numbers each value has reached; NaN has reached all."""
    import torch

    return torch.bucketize(values, edges, out_int32=True, right=True)


def packed(codes: Any) -> Any:
    """Return codes of 4 bits, two in a byte, the first in the low half. Rules: PACK-1."""
    import torch

    pairs = codes.view(*codes.shape[:-1], -1, 2)
    return (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)


def signed(codes: Any, x: Any) -> Any:
    """Return codes with the signs of floats; NaN has none. Rules: E2M1-2, E2M1-5."""
    import torch

    return torch.where(x.signbit() & ~x.isnan(), codes | 8, codes)


class Bfloat16:
    """All bfloat16 in blocks of every byte, and all block maxima, as far as a global maximum allows them.

    x of a maximum: values above the largest maximum of a byte are replaced by it.
    """

    def __init__(self, device: str) -> None:
        import torch

        every = np.resize(np.arange(PATTERNS), -(-PATTERNS // (BLOCK - 1)) * (BLOCK - 1)).reshape(-1, BLOCK - 1)
        swept = np.concatenate([np.insert(every, byte % BLOCK, INFINITY, axis=1) for byte in range(BYTES)])
        alone = np.zeros((INFINITY + 1, BLOCK), np.int64)
        alone[np.arange(INFINITY + 1), np.arange(INFINITY + 1) % BLOCK] = np.arange(INFINITY + 1)
        blocks = np.concatenate([swept, alone])
        more = -len(blocks) % ((ACROSS - 1) * 128)
        blocks = np.concatenate([blocks, np.zeros((more, BLOCK), np.int64)]).reshape(-1, ACROSS - 1, BLOCK)
        # The byte whose largest maximum bounds a block: the last one is that of the global maximum.
        bound = np.full(len(blocks) * (ACROSS - 1), BYTES)
        bound[: len(swept)] = np.repeat(np.arange(BYTES), len(every))
        last = np.zeros((len(blocks), 1, BLOCK), np.int64)
        last[:, 0, 3] = INFINITY
        blocks = np.concatenate([blocks, last], axis=1)
        bound = np.pad(bound.reshape(-1, ACROSS - 1), ((0, 0), (0, 1)), constant_values=BYTES)
        self.patterns = torch.from_numpy(blocks.astype(np.int32)).to(device)
        self.magnitudes = self.patterns & 0x7FFF
        self.nan = self.magnitudes > INFINITY
        self.bound = torch.from_numpy(bound).to(device)
        self.maxima = torch.arange(INFINITY + 1, device=device, dtype=torch.int32)
        self.swept = BYTES * PATTERNS + INFINITY + 1

    def of(self, numerics: Numerics, at: int, top: int) -> tuple[Any, Any, Any]:
        """Return a matrix, the encode scale of each of its blocks, and scale bytes."""
        import torch

        maxima = self.maxima[: top + 1]
        of_maxima = numerics.scale_bytes(_bfloat16(maxima), at)
        limits = torch.zeros(BYTES + 1, dtype=torch.int32, device=maxima.device)
        limits.scatter_reduce_(0, of_maxima.long(), maxima, "amax")
        limits[BYTES] = top
        limit = limits[self.bound][..., None]
        kept = self.nan | (self.magnitudes <= limit)
        patterns = torch.where(kept, self.patterns, limit)
        largest = torch.where(self.nan, 0, patterns & 0x7FFF).amax(-1)
        scales = numerics.scale_bytes(_bfloat16(largest), at)
        factors = numerics.factors[at][scales.long()][..., None]
        x = _bfloat16(patterns)
        return x.view(len(x), -1), factors.expand(x.shape).reshape(len(x), -1), scales.to(torch.uint8)


def _bfloat16(patterns: Any) -> Any:
    import torch

    return patterns.to(torch.int16).view(torch.bfloat16)


def tiled(scales: Any) -> Any:
    """Return scales of whole tiles in tiles of 128 rows and 4 columns. Rules: LAY-3."""
    rows, columns = scales.shape
    tiles = scales.view(rows // 128, 4, 32, columns // 4, 4)  # tile, row / 32, row % 32, tile, column
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1)


def largest_pattern(numerics: Numerics, byte: int, top: int) -> int:
    """Return the largest pattern of a block maximum that has a byte."""
    import torch

    low, high = 0, top
    while low < high:
        middle = (low + high + 1) // 2
        x = torch.tensor([middle], dtype=torch.int32, device=numerics.sixth.device).view(torch.float32)
        if int(numerics.scale_bytes(x, 0)[0]) <= byte:
            low = middle
        else:
            high = middle - 1
    return low
