"""Blocks as exact numbers: with which scales of another format a block's values stay what they are.

A value is odd * 2^exponent. The needs of elements under one scale follow from the set of their magnitudes and
from the scale, so they are computed once for every pair of both.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import WeightPiece, codes_of
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.errors import DomainError
from fp4ref.formats import FORMATS

ANY = 10_000  # past every exponent
FEW = 2  # runs of a block, at most, of which equal ones are looked for
Integers = NDArray[np.int64]
Ranges = tuple[tuple[int, int, int], ...]  # odd factors, and the least and largest e for which odd * 2^e is in it


class CastTarget(NamedTuple):
    """The format that values are cast to. elements, scales: odd factors with their exponents.

    block: rows and columns that share a scale. free: true if one factor for the tensor can be chosen. element, scale:
    the formats of their codes; scale is "" for numbers.
    """

    name: str
    elements: Ranges
    scales: Ranges
    block: tuple[int, int]
    free: bool
    element: str
    scale: str = ""

    @property
    def factors(self) -> list[int]:
        """Odd factors of a scale together with the global factor."""
        return sorted({one * scale for one in self.outer for scale, _, _ in self.scales})

    @property
    def outer(self) -> tuple[int, ...]:
        """Odd factors of the global factor."""
        return (1, 3) if self.free else (1,)


class Needs(NamedTuple):
    """The needs of blocks. lows, highs: exponents of scales with which they are exact, [blocks, factors of the target].

    source: odd factor and exponent of the scale that all elements but zeros have, [blocks, 2]; the odd factor is 0 if
    they have none in common.
    """

    lows: Integers
    highs: Integers
    source: Integers

    @property
    def empty(self) -> NDArray[np.bool_]:
        """True for a block of zeros."""
        return np.asarray((self.lows == -ANY).all(-1))


class ExactBlocks(NamedTuple):
    """The target's blocks in some rows of a weight.

    row: the first one; across: blocks of a row. needs: of each kind of block; which: the kind of each block.
    scales: odd factors and exponents of the source's scales; owners: which of them each run of `width` elements has.
    """

    row: int
    across: int
    needs: Needs
    which: Integers
    scales: tuple[Integers, Integers]
    owners: Integers
    width: int


def odd_parts(values: Any) -> tuple[Integers, Integers]:
    """Return odd factors and exponents of magnitudes, odd * 2^exponent; the odd factor is 0 for zero and no number."""
    wide = np.asarray(values, np.float64)
    fractions, exponents = np.frexp(np.where(np.isfinite(wide), np.abs(wide), 0))
    whole = np.ldexp(fractions, 53).astype(np.int64)
    low = np.where(whole, whole & -whole, 1)
    return whole // low, exponents.astype(np.int64) - 53 + np.log2(low).astype(np.int64)


def exact_blocks(weight: Weight, piece: WeightPiece, target: CastTarget) -> ExactBlocks:
    """Return the target's blocks of a piece; with a free global scale, without the source's own.

    Errors: DomainError for elements or scales that are not finite.

    Rules: CNV-18.
    """
    wide = target.block[1]
    given = weight.multiplier(piece.matrix)
    if not (np.isfinite(given) and given > 0):
        got = f"{weight.module}: a global scale that means the factor {given:g}"
        raise DomainError("lossless", got, "a positive finite number", "CNV-18")
    factor = np.float64(1 if target.free else given)
    if piece.scales is not None:
        width = math.gcd(weight.block[1], wide)
        numbers = bounds.values(weight.scale)
        each: Integers = np.repeat(piece.scales, weight.block[1] // width, -1).astype(np.int64)
    else:
        width = 1
        every = np.broadcast_to(weight.factors(piece), (len(piece.packed), weight.columns))
        numbers, found = np.unique(every, return_inverse=True)
        each = found.reshape(every.shape).astype(np.int64)
    index = each[:, : -(-weight.columns // width)]
    whole = numbers.astype(np.float64) * factor
    sets, run = _sets(weight, piece, width)
    per_set = np.repeat(index, width // run, -1)[:, : sets.shape[1]]
    finite = np.isfinite(bounds.values(weight.element))
    bad = ~finite[: len(finite) // 2][sets] if weight.bits == 8 else np.zeros(1, np.bool_)  # 4 bits are all finite
    if not np.isfinite(numbers[index]).all() or bad.any():
        raise DomainError("lossless", f"{weight.module}: elements or scales that are not finite", "numbers", "CNV-18")
    table = _table(weight.element, whole.tobytes(), target)
    keys = in_blocks(sets * len(numbers) + per_set, (target.block[0], wide // run))  # 0 is no magnitude but zero
    which: Integers = np.arange(len(keys))
    if keys.shape[1] <= FEW:
        together = keys @ (len(table.lows) ** np.arange(keys.shape[1]))
        _, first, which = np.unique(together, return_index=True, return_inverse=True)
        keys = keys[first]
    lows, highs = table.lows[keys].max(1), table.highs[keys].min(1)
    source = _in_common((table.lows[keys] != -ANY).any(-1), table.source[keys])
    across = -(-weight.columns // wide)
    return ExactBlocks(piece.row, across, Needs(lows, highs, source), which.reshape(-1), odd_parts(whole), index, width)


def _sets(weight: Weight, piece: WeightPiece, width: int) -> tuple[Integers, int]:
    """Return the set of magnitudes of each run, and its length: one bit for each magnitude, or the only one."""
    if weight.bits == 8:
        return (piece.packed[:, : weight.columns] & 0x7F).astype(np.int64), 1
    if width % 2:
        codes = codes_of(piece.packed, 4)[:, : weight.columns] & 7
        return np.asarray(1 << codes.astype(np.int64) >> 1), 1
    every = np.arange(256)
    bits = ((1 << (every & 7) | 1 << (every >> 4 & 7)) >> 1).astype(np.uint8)  # zero has no bit
    rows, columns = len(piece.packed), -(-weight.columns // width)
    found = np.zeros((rows, columns * width // 2), np.uint8)
    used = piece.packed[:, : -(-weight.columns // 2)]
    if weight.columns % 2:
        used = used.copy()
        used[:, -1] &= 0x0F
    found[:, : used.shape[1]] = bits[used]
    return np.bitwise_or.reduce(found.reshape(rows, columns, -1), -1).astype(np.int64), width


@lru_cache(maxsize=8)
def _table(element: str, scales: bytes, target: CastTarget) -> Needs:
    """Return the needs of each set of magnitudes under each scale, [sets * scales, factors]."""
    form = FORMATS[element]
    grid = np.nan_to_num(bounds.values(element)[: (1 << form.bits) // 2])
    members = grid[:, None]
    if form.bits == 4:
        every = np.arange(1 << (len(grid) - 1))[:, None]
        members = np.where(every >> np.arange(len(grid) - 1) & 1, grid[1:], 0)
    numbers = np.frombuffer(scales, np.float64)
    odd, exponent = odd_parts(members)
    scale_odd, scale_exponent = odd_parts(numbers)
    values = (odd[:, None] * scale_odd[:, None]).reshape(-1, members.shape[1])
    exponents = (exponent[:, None] + scale_exponent[:, None]).reshape(values.shape)
    pairs = np.broadcast_to(np.stack([scale_odd, scale_exponent], -1), (len(members), len(numbers), 2)).reshape(-1, 2)
    source = np.where((values != 0).any(-1)[:, None], pairs, 0)
    return Needs(*_intervals(values, exponents, target), source)


def _intervals(odd: Integers, exponent: Integers, target: CastTarget) -> tuple[Integers, Integers]:
    """Return the exponents x for which a scale factor * 2^x makes each block exact, for each factor."""
    size = max(each for each, _, _ in target.elements) + 2
    least, most = np.full(size, ANY), np.full(size, -ANY)
    for each, low, high in target.elements:
        least[each], most[each] = low, high
    lows, highs = (np.empty((len(odd), len(target.factors)), np.int64) for _ in range(2))
    for index, factor in enumerate(target.factors):
        fits = (odd % factor == 0) & (odd // factor < size)
        part = np.where(fits, odd // factor, size - 1)  # that of no element: an empty interval
        low = np.where(odd == 0, -ANY, exponent - most[part]).max(-1)
        high = np.where(odd == 0, ANY, exponent - least[part]).min(-1)
        lows[:, index], highs[:, index] = np.maximum(low, -ANY), np.minimum(high, ANY)
    return lows, highs


def _in_common(counted: NDArray[np.bool_], pairs: Integers) -> Integers:
    """Return for each block the pair that all counted runs have; zeros if they differ or there are none."""
    far = ANY << 32
    low = np.where(counted[..., None], pairs, far).min(1)
    same = (low == np.where(counted[..., None], pairs, -far).max(1)).all(-1)
    return np.where(same[:, None], low, 0)


def in_blocks(values: Any, block: tuple[int, int]) -> Integers:
    """Return the elements of each block, [blocks, elements], of rows; zeros where a block is cut off."""
    (rows, columns), (high, wide) = values.shape, block
    down, across = -(-rows // high), -(-columns // wide)
    whole = np.zeros((down * high, across * wide), np.int64)
    whole[:rows, :columns] = values
    return whole.reshape(down, high, across, wide).transpose(0, 2, 1, 3).reshape(down * across, -1)
