"""Move bytes between block formats without changing a value: the conditions, and the bytes where they are met.

Every value is a product of integers and powers of two, so the conditions are exact. The elements of a block matter
only by the set of magnitudes that occur: a mask of seven bits, one for each code but zero.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import ShapeError
from fp4ref.formats import CUDA_E4M3, E2M1, E8M0, Codes, F, Floats, grid

NVFP4_BLOCK, MXFP4_BLOCK = 16, 32
TOP = 448 * 6  # the global maximum over the global scale
NAN_E4M3, NAN_E8M0 = 0x7F, 0xFF
ZERO, SIGN = 0x0, 0x8
FARTHEST = 4  # the exponent of a ratio of two E2M1 magnitudes is at most this
SMALLEST_EXPONENT = -156  # 2688 * 2^-156 is the smallest such float32, 21 * 2^-149
LARGEST_EXPONENT = 116  # 2688 * 2^116 is the largest such float32
NO_THIRD = 8
THIRDS = np.array([0, *[NO_THIRD] * 2, 1, NO_THIRD, 2, NO_THIRD, 4], np.uint8)  # codes of a third of each magnitude
Integers = NDArray[Any]


class Exact(NamedTuple):
    """Bytes of the target format that have the same values.

    codes: uint8 [M, K]. scales: uint8 [M, blocks]. exponent: of the global scale 3^threes * 2^exponent, where the
    target has one; its stored amax is 2688 times that. kept: no code changed.
    """

    codes: Codes
    scales: Codes
    exponent: int | None
    kept: bool
    threes: int = 0

    @property
    def amax(self) -> Floats:
        """The stored amax of NVFP4: float32 [1]."""
        return np.asarray(np.ldexp(np.array([TOP * 3.0**self.threes]), self.exponent or 0), F)


class Inexact(NamedTuple):
    """The reason why no bytes of the target format have the same values.

    blocks: those that cannot be moved, under the best global scale; of the smaller of the two blocks. row, block: the
    first of them.
    """

    reason: str
    blocks: int
    row: int
    block: int


class Ratio(NamedTuple):
    """The new scale over the old one: 3^threes * 2^exponent."""

    threes: int
    exponent: int

    @property
    def value(self) -> Fraction:
        """The number itself."""
        return Fraction(3) ** self.threes * Fraction(2) ** self.exponent


UNCHANGED = Ratio(0, 0)


@lru_cache
def ratios() -> dict[Ratio, tuple[int, Codes]]:
    """Return the ratios by which a scale can change; for each, the magnitudes that it maps to others, and their codes.

    The magnitudes are a mask: bit i stands for code i + 1. The ratio 1 comes first, then those nearest to it.
    """
    magnitudes = [Fraction(value) for value in grid(E2M1)[: E2M1.codes]]
    found: dict[Ratio, tuple[int, Codes]] = {}
    near = sorted(range(-FARTHEST, FARTHEST + 1), key=abs)
    for ratio in (Ratio(threes, exponent) for threes in (0, 1, -1) for exponent in near):
        codes = np.zeros(16, np.uint8)
        mask = 0
        for code, magnitude in enumerate(magnitudes):
            if magnitude / ratio.value in magnitudes:
                new = magnitudes.index(magnitude / ratio.value)
                codes[[code, code | SIGN]] = new, new | SIGN
                mask |= 1 << code >> 1
        if mask:
            found[ratio] = mask, codes
    return found


def masks(codes: Codes, block: int) -> Codes:
    """Return the set of magnitudes of every block [M, blocks]: bit i stands for code i + 1; the last may be shorter."""
    rows, columns = codes.shape
    blocks = -(-columns // block)
    bits = np.array([1 << code >> 1 for code in range(8)], np.uint8)[codes & 7]
    if columns % block:
        bits = np.pad(bits, ((0, 0), (0, blocks * block - columns)))
    return np.asarray(np.bitwise_or.reduce(bits.reshape(rows, blocks, block), axis=2), np.uint8)


def nvfp4_from_mxfp4(codes: Codes, scales: Codes) -> Exact | Inexact:
    """Return the NVFP4 bytes with the values of MXFP4 bytes, if there are any.

    codes: uint8 [M, K], one a byte. scales: uint8 [M, ceil(K / 32)], linear. The global scale is a power of two; the
    smallest one that keeps every code is taken, else the smallest one that keeps every value. If all magnitudes are
    1.5, 3 and 6, it can be three times a power of two. A NaN scale stays NaN.

    Rules: THM-4, THM-5. Certificates: theorem-moved-nvfp4, theorem-moved-sets.
    """
    _require_blocks("nvfp4_from_mxfp4", codes, scales, MXFP4_BLOCK)
    found = _under_power_of_two(codes, scales)
    others = np.repeat(scales != NAN_E8M0, MXFP4_BLOCK, axis=1)[:, : codes.shape[1]] & (THIRDS[codes & 7] == NO_THIRD)
    if isinstance(found, Exact) or others.any():
        return found
    third = _under_power_of_two(THIRDS[codes & 7] & 7 | codes & SIGN, scales)
    if isinstance(third, Exact):
        third = third._replace(kept=False, threes=1)
        with np.errstate(over="ignore"):
            if not np.isinf(CUDA_E4M3.decode(third.scales) * third.amax).any():
                return third
    return found


def _under_power_of_two(codes: Codes, scales: Codes) -> Exact | Inexact:
    """Return the bytes under a global scale that is a power of two."""
    sets = masks(codes, NVFP4_BLOCK)
    bytes_ = np.repeat(scales, MXFP4_BLOCK // NVFP4_BLOCK, axis=1)[:, : sets.shape[1]]
    sets = np.where(bytes_ == NAN_E8M0, 0, sets)
    pairs, inverse = np.unique(sets.astype(np.int32) << 8 | bytes_, return_inverse=True)
    inverse = inverse.reshape(sets.shape)
    wanted, powers = pairs >> 8, (pairs & 0xFF) - E8M0.bias
    used = powers[wanted > 0] if wanted.any() else np.zeros(1, np.int64)
    exponents = np.arange(used.min() - FARTHEST - 9, min(used.max() + FARTHEST + 9, LARGEST_EXPONENT) + 1)
    fitting = {ratio: _fitting(wanted, powers, exponents, ratio) for ratio in ratios() if ratio.threes >= 0}
    movable = np.logical_or.reduce([*fitting.values()]) | (wanted == 0)[:, None]
    kept = fitting[UNCHANGED] | (wanted == 0)[:, None]
    for able in (kept, movable):
        if (at := np.flatnonzero(able.all(0))).size:
            chosen = int(at[0])
            return _rescaled(codes, bytes_, inverse, wanted, powers, int(exponents[chosen]), fitting, chosen)
    counts = np.bincount(inverse.ravel(), minlength=len(pairs))
    best = int((counts @ movable).argmax())
    failing = ~movable[:, best][inverse]
    row, block = (int(place[0]) for place in np.nonzero(failing))
    reason = f"block scales from 2^{used.min()} to 2^{used.max()} do not fit under one global scale"
    return Inexact(reason, int(failing.sum()), row, block)


def _fitting(wanted: Integers, powers: Integers, exponents: Integers, ratio: Ratio) -> NDArray[np.bool_]:
    """Return which sets [pairs] can move by a ratio under which global exponents [exponents].

    The new scale 3^t * 2^x has to be an E4M3 number, and its product with 2688 * 2^exponent a finite float32.
    """
    able = (wanted & ~np.int32(ratios()[ratio][0]) == 0) & (powers + ratio.exponent <= LARGEST_EXPONENT - ratio.threes)
    x = (powers + ratio.exponent)[:, None] - exponents
    return np.asarray(able[:, None] & (x >= -9) & (x <= 8 - ratio.threes))


def _rescaled(
    codes: Codes,
    bytes_: Codes,
    inverse: Integers,
    wanted: Integers,
    powers: Integers,
    exponent: int,
    fitting: dict[Ratio, NDArray[np.bool_]],
    column: int,
) -> Exact:
    """Return the bytes under one global exponent: each pair of set and power moves by its first ratio."""
    scale = np.zeros(len(wanted), np.uint8)
    tables = np.tile(np.arange(16, dtype=np.uint8), (len(wanted), 1))
    left = wanted != 0
    kept = True
    for ratio, able in fitting.items():
        taken = left & able[:, column]
        values = np.ldexp(3.0**ratio.threes, powers[taken] + ratio.exponent - exponent).astype(F)
        scale[taken] = CUDA_E4M3.encode(values)
        tables[taken] = ratios()[ratio][1]
        kept &= ratio == UNCHANGED or not taken.any()
        left &= ~taken
    new = np.where(bytes_ == NAN_E8M0, np.uint8(NAN_E4M3), scale[inverse])
    return Exact(_mapped(codes, tables, inverse, NVFP4_BLOCK), new, exponent, bool(kept))


def _mapped(codes: Codes, tables: Codes, choice: Integers, block: int) -> Codes:
    """Return codes through the table of their block."""
    of_elements = np.repeat(choice, block, axis=1)[:, : codes.shape[1]]
    return np.asarray(tables[of_elements, codes & 15], np.uint8)


def mxfp4_from_nvfp4(codes: Codes, factors: Floats) -> Exact | Inexact:
    """Return the MXFP4 bytes with the values of NVFP4 codes times their factors, if there are any.

    codes: uint8 [M, K], one a byte. factors: float32 [M, ceil(K / 16)], the number by which a block's codes are
    multiplied, such as `nvfp4_factors` returns. A factor of 0 makes zeros with the signs of the codes.

    Rules: THM-6. Certificates: theorem-moved-mxfp4.
    """
    _require_blocks("mxfp4_from_nvfp4", codes, factors, NVFP4_BLOCK)
    zero = np.repeat(factors == 0, NVFP4_BLOCK, axis=1)[:, : codes.shape[1]]
    codes = np.where(zero, codes & SIGN, codes)
    sets, threes, powers = masks(codes, NVFP4_BLOCK), *_decomposed(factors)
    nan = np.isnan(factors)
    refused = np.isinf(factors) | (np.signbit(factors) & ~nan)
    if factors.shape[1] % 2:  # a second half that is not there is like the first one, and empty
        nan, refused = (np.concatenate([part, part[:, -1:]], axis=1) for part in (nan, refused))
        sets, threes, powers = (np.pad(part, ((0, 0), (0, 1))) for part in (sets, threes, powers))
    halves = [(sets[:, half::2], threes[:, half::2], powers[:, half::2]) for half in (0, 1)]
    base = np.where(halves[0][0] != 0, halves[0][2], halves[1][2])
    empty = (halves[0][0] | halves[1][0]) == 0
    chosen, found = np.zeros(base.shape, np.int64), empty.copy()
    for distance in sorted(range(-FARTHEST - 2, FARTHEST + 3), key=abs):
        power = base + distance
        able = (power >= -E8M0.bias) & (power < E8M0.codes - E8M0.bias)
        for half in halves:
            able &= _reaching(power, *half)
        chosen = np.where(able & ~found, power, chosen)
        found |= able
    both = nan[:, 0::2] & nan[:, 1::2]
    found = np.where(nan[:, 0::2] | nan[:, 1::2], both, found) & ~(refused[:, 0::2] | refused[:, 1::2])
    if not found.all():
        row, block = (int(place[0]) for place in np.nonzero(~found))
        reason = "no power of two can be the scale of a block's values"
        return Inexact(reason, int((~found).sum()), row, block)
    scales = np.where(empty, 0, chosen + E8M0.bias).astype(np.uint8)
    scales[both] = NAN_E8M0
    return _under_powers(codes, sets, threes, powers, chosen, scales)


def _decomposed(factors: Floats) -> tuple[Integers, Integers]:
    """Return t and e of factors 3^t * 2^e; t is 2 for every other one."""
    mantissa, exponent = np.frexp(np.where(np.isfinite(factors), factors, F(0)).astype(np.float64))
    threes = np.select([mantissa == 0.5, mantissa == 0.75], [0, 1], 2)
    return threes, exponent - 1 - (threes == 1)


def _reaching(power: Integers, sets: Integers, threes: Integers, powers: Integers) -> NDArray[np.bool_]:
    """Return True where the codes of a half block can be had under the scale 2^power."""
    able = sets == 0
    for ratio, (mask, _) in ratios().items():
        right = (threes == -ratio.threes) & (power - powers == ratio.exponent)
        able |= right & (sets & ~np.int64(mask) == 0)
    return np.asarray(able)


def _under_powers(
    codes: Codes, sets: Integers, threes: Integers, powers: Integers, chosen: Integers, scales: Codes
) -> Exact:
    """Return the bytes whose blocks have the chosen powers of two as scales."""
    tables = np.stack([np.arange(16, dtype=np.uint8), *(table for _, table in ratios().values())])
    choice = np.zeros(sets.shape, np.int64)
    power = np.repeat(chosen, 2, axis=1)
    for index, ratio in enumerate(ratios()):
        right = (threes == -ratio.threes) & (power - powers == ratio.exponent) & (sets != 0)
        choice[right] = index + 1
    new = _mapped(codes, tables, choice, NVFP4_BLOCK)
    return Exact(new, scales, None, bool(np.array_equal(new, codes)))


def nvfp4_factors(scales: Codes, amax: Floats) -> Floats:
    """Return the float32 by which the standard's dequantization multiplies the codes of a block [M, blocks].

    amax: float32 [1], or [M] of a row scale.

    Rules: DEQ-1.
    """
    with np.errstate(all="ignore"):
        s = CUDA_E4M3.decode(scales)
        return np.asarray(s * np.asarray(amax, F).reshape(-1, 1) * (F(1) / F(TOP)), F)


def _require_blocks(operation: str, codes: Codes, scales: Any, block: int) -> None:
    rows, columns = codes.shape
    if scales.shape != (rows, -(-columns // block)):
        raise ShapeError(
            operation, f"scales {list(scales.shape)} of codes {list(codes.shape)}", f"{[rows, -(-columns // block)]}"
        )
