"""The digest of a weight's decoded numbers, the same in every format that has them, without decoding each.

Sixteen neighbouring columns of a row are a run. Its numbers are one positive factor, the largest that they are all
whole multiples of, times whole numbers without a common divisor: both follow from the numbers alone.

Rules: CNV-16.
"""

from __future__ import annotations

import base64
import hashlib
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import Bytes, WeightPiece
from fp4ref.checkpoints.transfer.weights import Weight

RUN = 16
PART = 1 << 19  # elements that are counted at once
HALVES = np.array([0, 1, 2, 3, 4, 6, 8, 12])  # the magnitudes of E2M1's codes, in halves
OTHERS = np.uint64(0xFFFFFFFFFFFFFFFF)  # in the place of a run whose whole numbers are no codes of E2M1
ONES, SEVENS, EIGHTS = (np.uint64(digit * 0x1111111111111111) for digit in (1, 7, 8))
NOT_FINITE = 0xFF
Runs = NDArray[Any]


class DecodedDigest:
    """A digest that grows by pieces, in order."""

    def __init__(self, weight: Weight, length: int) -> None:
        self.weight, self.length = weight, length
        self.parts = [hashlib.sha256() for _ in range(3)]  # whole numbers as codes, others, factors

    def add(self, piece: WeightPiece) -> None:
        """Count a piece, in parts that stay in a cache."""
        step = max(PART // max(self.weight.columns, 1), 1)
        for row in range(0, len(piece.packed), step):
            scales = None if piece.scales is None else piece.scales[row : row + step]
            self._add(WeightPiece(piece.matrix, piece.row + row, piece.packed[row : row + step], scales))

    def _add(self, piece: WeightPiece) -> None:
        if self.weight.block[1] % RUN:  # runs of several scales: each number is counted alone
            values = self.weight.decoded(piece).astype(np.float64) + 0.0
            values[np.isnan(values)] = np.nan
            self.parts[1].update(values.tobytes())
            return
        factors = _factors(self.weight, piece)
        if self.weight.element == "e2m1":
            words, at, divisors = _words(piece.packed, self.weight.columns)
            others: Any = b""
            with np.errstate(invalid="ignore"):
                factors = np.multiply(factors, 0.5, order="C")
                factors.reshape(-1)[at] *= divisors
        else:
            words, whole, others = _wide(self.weight, piece, factors)
            with np.errstate(invalid="ignore"):
                factors = factors * whole
        if not (factors > 0).all():
            _turn(words, factors < 0)
            words[(factors == 0) & (words != OTHERS)] = 0
            words[np.isnan(factors)] = 0
            factors = np.abs(factors)
            factors[np.isnan(factors)] = np.nan
        for part, data in zip(self.parts, (words, others, factors), strict=True):
            part.update(data)

    def text(self) -> str:
        """Return the digest as text."""
        whole = hashlib.sha256(b"".join(part.digest() for part in self.parts))
        return base64.urlsafe_b64encode(whole.digest()[: self.length]).decode()


def _factors(weight: Weight, piece: WeightPiece) -> Runs:
    """Return the product of the scales of each run, as float64, which has it exactly: [rows, runs]."""
    rows, runs = len(piece.packed), -(-weight.columns // RUN)
    factor: Any = np.float64(weight.multiplier(piece.matrix))
    if piece.scales is not None:
        with np.errstate(invalid="ignore"):
            each = np.take(bounds.values(weight.scale).astype(np.float64) * factor, piece.scales)
        return np.repeat(each, weight.block[1] // RUN, -1)[:, :runs] if weight.block[1] > RUN else each
    if weight.float_scales is not None:
        found = np.broadcast_to(np.asarray(weight.factors(piece), np.float64), (rows, weight.columns))[:, ::RUN]
    else:
        found = np.ones((rows, runs))
    with np.errstate(invalid="ignore"):
        return np.asarray(found * factor)


@lru_cache
def _tables() -> tuple[Bytes, NDArray[np.float64], NDArray[Any]]:
    """Return which magnitudes a byte has, the divisor of a set of magnitudes, and bytes divided by each divisor."""
    low, high = np.arange(256) & 7, np.arange(256) >> 4 & 7
    present = ((1 << low | 1 << high) >> 1).astype(np.uint8)
    divisors = np.array(
        [math.gcd(*(int(HALVES[code + 1]) for code in range(7) if mask >> code & 1)) for mask in range(128)]
    )
    divided = np.zeros((13, 256), np.uint8)
    for divisor in range(1, 13):
        fits = HALVES % divisor == 0
        codes = np.where(fits, np.searchsorted(HALVES, HALVES // divisor), 0)
        signed = np.concatenate([codes, np.where(codes > 0, codes + 8, 0)])  # -0 is 0
        every = np.arange(256)
        divided[divisor] = signed[every & 15] | signed[every >> 4] << 4
    return present, divisors, divided


def _words(packed: Bytes, columns: int) -> tuple[Runs, Runs, Runs]:
    """Return the whole numbers of runs of E2M1 as codes, a word of 16 each.

    Then the places of those that were divided by more than a half, and their halves.
    """
    present, divisors, divided = _tables()
    runs = -(-columns // RUN)
    data = packed[:, : -(-columns // 2)]
    if columns % RUN:
        data = np.zeros((len(packed), 8 * runs), np.uint8)
        data[:, : -(-columns // 2)] = packed[:, : -(-columns // 2)]
        if columns % 2:
            data[:, columns // 2] &= 15
    words = np.ascontiguousarray(data).view(np.uint64)
    magnitudes = words & SEVENS
    words = magnitudes | (words & (magnitudes + SEVENS) & EIGHTS)  # -0 is 0
    flat = words.reshape(-1)
    at = np.flatnonzero(~_without_divisor(flat))
    some = flat[at].view(np.uint8).reshape(-1, 8)
    divisor: Runs = np.asarray(np.take(divisors, np.bitwise_or.reduce(np.take(present, some), -1)))
    flat[at] = divided[np.maximum(divisor, 1)[:, None], some].view(np.uint64)[:, 0]
    return words, at, divisor


def _without_divisor(words: Runs) -> NDArray[np.bool_]:
    """Return True for words whose halves have no common divisor: 1 is among them, or 3 beside 1, 2, 4 or 8."""
    upper = words >> np.uint64(1)
    upper |= upper >> np.uint64(1)
    found = np.asarray(words & ~upper & ONES != 0)
    rest = np.flatnonzero(~found)
    some = words[rest]
    low, middle, high = some & ONES, some >> np.uint64(1) & ONES, some >> np.uint64(2) & ONES
    three, even = low & middle & ~high, (middle | high) & ~low
    found[rest] = (three != 0) & (even != 0)
    return found


def _turn(words: Runs, chosen: Runs) -> None:
    """Exchange the signs of the chosen runs, in place."""
    if chosen.any():
        every = np.arange(256)
        signs = np.where(every & 7, 8, 0) | np.where(every >> 4 & 7, 128, 0)
        turned = np.take((every ^ signs).astype(np.uint8), words[chosen].view(np.uint8)).view(np.uint64)
        words[chosen] = np.where(words[chosen] == OTHERS, OTHERS, turned)


class _Elements(NamedTuple):
    """By code: the odd part of the magnitude, 0 of zero; its place among odd parts; the power of two; the sign."""

    odd: NDArray[Any]
    place: NDArray[Any]
    power: NDArray[Any]
    sign: NDArray[Any]
    parts: NDArray[Any]


@lru_cache
def _elements(name: str) -> _Elements:
    values = bounds.values(name).astype(np.float64)
    finite = np.isfinite(values) & (values != 0)
    mantissa, exponent = np.frexp(np.where(finite, np.abs(values), 1.0))
    whole = (mantissa * 2**53).astype(np.int64)
    zeros = np.log2(whole & -whole).astype(int)
    odd, power = whole >> zeros, exponent - 53 + zeros
    parts = np.unique(odd[finite])
    place = np.where(finite, 1 << np.searchsorted(parts, odd).clip(0, len(parts) - 1), 0)
    odd = np.where(finite, odd, np.where(values == 0, 0, NOT_FINITE - np.isinf(values)))
    sign = np.signbit(values) & (values != 0) & ~np.isnan(values)
    return _Elements(odd, place.astype(np.uint8), np.where(finite, power, 127).astype(np.int8), sign, parts)


def _wide(weight: Weight, piece: WeightPiece, factors: Runs) -> tuple[Runs, Runs, Bytes]:
    """Return runs of eight-bit elements: as words where E2M1 has their numbers, their factors, and all others.

    Another run has three bytes for each number: the odd part, the power of two, and the sign.
    """
    table, runs = _elements(weight.element), -(-weight.columns // RUN)
    codes = np.zeros((len(piece.packed), runs * RUN), np.uint8)
    codes[:, : weight.columns] = piece.packed[:, : weight.columns]
    if weight.columns % RUN:
        codes[:, weight.columns :] = int(np.flatnonzero(table.odd == 0)[0])
    blocks, zero = codes.reshape(-1, RUN), factors.reshape(-1, 1) == 0
    masks = np.where(zero[:, 0], 0, np.bitwise_or.reduce(np.take(table.place, blocks), -1))
    common = np.array(
        [math.gcd(*(int(each) for bit, each in enumerate(table.parts) if mask >> bit & 1)) for mask in range(256)]
    )
    divisor = np.take(common, masks)
    powers = np.take(table.power, blocks)
    least = powers.min(-1)
    odd = np.take(table.odd, blocks)
    finite = (odd > 0) & (odd < NOT_FINITE - 1)
    odd = np.where(zero, np.where(odd < NOT_FINITE - 1, 0, NOT_FINITE), odd)  # an infinity times 0 is NaN
    finite &= ~zero
    odd = np.where(finite, odd // np.maximum(divisor, 1)[:, None], odd)
    shift = np.where(finite, powers - least[:, None].astype(int), 0)
    signs = np.take(table.sign, blocks)
    halves = np.where(finite, odd << np.minimum(shift, 20), 0)
    code = np.searchsorted(HALVES, halves).clip(0, 7)
    small = ((HALVES[code] == halves) & (finite | (odd == 0))).all(-1)
    nibbles = np.where((code > 0) & signs, code + 8, code).astype(np.uint8)
    words = np.full(len(blocks), OTHERS)
    words[small] = np.ascontiguousarray(nibbles[small, 0::2] | nibbles[small, 1::2] << 4).view(np.uint64).reshape(-1)
    large = ~small & ~np.isnan(factors.reshape(-1))
    signs = (signs ^ (factors.reshape(-1, 1) < 0)) & (finite | (odd == NOT_FINITE - 1))
    others = np.stack([odd[large], shift[large], signs[large]], -1).astype(np.uint8)
    whole = np.where(divisor > 0, divisor * 2.0 ** np.where(divisor > 0, least, 0), 0.0)
    whole[(divisor == 0) & ~small] = 1.0
    shape = len(piece.packed), runs
    return words.reshape(shape), whole.reshape(shape), others
