"""Claims about theorems on bytes that move between formats: which moves are exact, and that none is missed.

Magnitudes are written out from the rule of E2M1, and an exact move is searched in fractions; values are compared as
the golden model dequantizes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import CUDA_E2M1, Codes, F, Floats
from fp4ref.packing import pack
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.code_values import E2M1 as MAGNITUDES
from fp4ref.proof.code_values import patterns_of
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.theorems import moving

MX_BLOCK, NV_BLOCK = 32, 16
EVERY = np.arange(MX_BLOCK, dtype=np.uint8) % 16  # all codes of E2M1
SETS = range(1, 128)  # of magnitudes: bit i stands for code i + 1
LAST_BYTE = 127 + 116  # of the largest scale that a global scale reaches
SPAN = 17
SPANS_OF_SETS = {17: 70, 18: 36, 19: 14, 20: 7}
THIRD = Fraction(1, 3)  # scale over ratio without powers of two, if the global scale is three times one
OF_THREES = 0b1010100  # the set of 1.5, 3 and 6
THREES = 11  # sets that move under a factor 3 * 2^k
POWERS = range(-127, 128)


def _of_set(mask: int, width: int) -> Codes:
    """Return codes [width] whose magnitudes are a set, of both signs."""
    codes = [code for code in range(1, 8) if mask >> (code - 1) & 1]
    return np.resize(np.array([*codes, *(code | 8 for code in codes)], np.uint8), width)


def _values(spec: str, codes: Codes, scales: Codes, amax: Floats | None = None) -> Floats:
    data = DirectionData(pack(codes, CUDA_E2M1.format), scales, amax)
    found: Floats = api.dequantize(Quantized(resolve(spec), codes.shape, "float32", "linear", data), backend="numpy")
    return found


def _same(one: Floats, two: Floats) -> bool:
    return one.tobytes() == two.tobytes()


def _e4m3() -> list[Fraction]:
    return [Fraction(float(value)) for value in patterns_of("e4m3")[1:0x7F].view(F)]


def within(tell: Tell) -> Replayed:
    """Move blocks of all codes with the scales of 17 binades below each one, and of 18.

    Rules: THM-4.
    """
    scales = _e4m3()
    ratios = {one / two for one in scales for two in scales}
    widest = max(ratio for ratio in ratios if ratio.numerator & (ratio.numerator - 1) == 0 == ratio.denominator - 1)
    near = min(abs(ratio / 2**k - 1) for ratio in ratios for k in (SPAN + 1, SPAN + 2))
    if widest != 2**SPAN or near < Fraction(1, 1 << 20):
        return Replayed(len(ratios), f"two scales of E4M3 are {widest} apart")
    for top in range(LAST_BYTE + 1):
        bytes_ = np.arange(max(top - SPAN, 0), top + 1, dtype=np.uint8)[None]
        codes = np.tile(EVERY, (1, bytes_.shape[1]))
        moved = moving.nvfp4_from_mxfp4(codes, bytes_)
        if not isinstance(moved, moving.Exact) or moved.exponent != top - 127 - 8 or not moved.kept:
            return Replayed(top, f"scale bytes {bytes_[0, 0]:02X} to {top:02X} are not moved: {moved}")
        if not _same(_values("nvfp4", moved.codes, moved.scales, moved.amax), _values("mxfp4", codes, bytes_)):
            return Replayed(top, f"scale bytes {bytes_[0, 0]:02X} to {top:02X} get other values")
        if top > SPAN:
            wide = moving.nvfp4_from_mxfp4(codes[:, : 2 * MX_BLOCK], np.array([[top, top - SPAN - 1]], np.uint8))
            if isinstance(wide, moving.Exact):
                return Replayed(top, f"scale bytes {top - SPAN - 1:02X} and {top:02X} are moved")
        tell(top / LAST_BYTE)
    past = moving.nvfp4_from_mxfp4(EVERY[None], np.array([[LAST_BYTE + 1]], np.uint8))
    return Replayed(2 * LAST_BYTE, "a scale past the floats is moved" if isinstance(past, moving.Exact) else None)


def widest_spans(tell: Tell) -> Replayed:
    """Search the widest span of every set of magnitudes, and move blocks as far apart, and farther.

    Rules: THM-5.
    """
    counts: dict[int, int] = {}
    ends = [_ends(mask) for mask in SETS]
    for mask in SETS:
        span = max(top - low for low, top in ends[mask - 1].values())
        counts[span] = counts.get(span, 0) + 1
        codes = np.tile(_of_set(mask, MX_BLOCK), (2, 1))
        for apart in range(SPAN, span + 4):
            bytes_ = np.array([[120], [120 - apart]], np.uint8)
            moved = moving.nvfp4_from_mxfp4(codes, bytes_)
            if isinstance(moved, moving.Exact) is not (apart <= span):
                return Replayed(mask, f"the set {mask:07b}, {apart} binades apart: {moved}")
            if isinstance(moved, moving.Exact) and not _same(
                _values("nvfp4", moved.codes, moved.scales, moved.amax), _values("mxfp4", codes, bytes_)
            ):
                return Replayed(mask, f"the set {mask:07b}, {apart} binades apart, gets other values")
        tell(mask / len(SETS))
    for (high, one), (low, two) in product(enumerate(ends, 1), repeat=2):
        best = THIRD if not (high | low) & ~OF_THREES else Fraction(1)
        spans = {odd: one[odd][1] - two[odd][0] for odd in one.keys() & two.keys()}
        if any(span > spans[best] for odd, span in spans.items() if odd != THIRD or best == THIRD):
            return Replayed(len(SETS), f"{high:07b} above {low:07b} are wider under another global scale: {spans}")
    return Replayed(len(SETS), None if counts == SPANS_OF_SETS else f"sets by their spans: {counts}")


def _ends(mask: int) -> dict[Fraction, tuple[int, int]]:
    """Return the exponents of the smallest and the largest scale over a ratio, by what is left without powers of two.

    Between them is every exponent.
    """
    values = [MAGNITUDES[code] for code in range(1, 8) if mask >> (code - 1) & 1]
    found: dict[Fraction, set[int]] = {}
    for ratio in {one / two for one, two in product(MAGNITUDES[1:], repeat=2)}:
        if all(value / ratio in MAGNITUDES for value in values):
            for scale in _e4m3():
                odd = _odd(scale / ratio)
                power = scale / ratio / odd
                found.setdefault(odd, set()).add(power.numerator.bit_length() - power.denominator.bit_length())
    if any(max(group) - min(group) >= len(group) for group in found.values()):
        raise ArithmeticError(f"exponents are missing for the set {mask:07b}")
    return {odd: (min(group), max(group)) for odd, group in found.items()}


def _odd(number: Fraction) -> Fraction:
    """Return a number without its factors of 2."""
    top, bottom = number.numerator, number.denominator
    return Fraction(top // (top & -top), bottom // (bottom & -bottom))


def factors(tell: Tell) -> Replayed:
    """Move blocks of every set under 2^k and 3 * 2^k, and of one magnitude under all other significands.

    Rules: THM-6.
    """
    codes = np.stack([_of_set(mask, NV_BLOCK) for mask in SETS])
    movable = [_movable(mask) for mask in SETS]
    if sum(movable) != THREES:
        return Replayed(0, f"{sum(movable)} sets move under three times a power of two")
    count = 0
    for power in POWERS:
        for base, rows in ((1.0, np.ones(len(SETS), bool)), (1.5, np.array(movable))):
            factor = np.full((len(SETS), 1), np.ldexp(base, power), F)
            count += len(SETS)
            if np.ldexp(base, power) != factor[0, 0] or (base == 1.5 and power - 1 < -125):
                continue
            moved = moving.mxfp4_from_nvfp4(codes[rows], factor[rows])
            with np.errstate(over="ignore"):
                want = CUDA_E2M1.decode(codes[rows]) * factor[rows]
            if not isinstance(moved, moving.Exact) or not _same(_values("mxfp4", moved.codes, moved.scales), want):
                return Replayed(count, f"blocks with the factor {factor[0, 0]!s}: {moved}")
            others = moving.mxfp4_from_nvfp4(codes[~rows], factor[~rows]) if not rows.all() else None
            if others is not None and (isinstance(others, moving.Exact) or others.blocks != (~rows).sum()):
                return Replayed(count, f"blocks with the factor {factor[0, 0]!s} are moved, though none can be")
        tell((power - POWERS[0]) / len(POWERS) / 2)
    significands = (np.arange(1 << 23, dtype=np.uint32) | np.uint32(127 << 23)).view(F)
    threes, _ = moving._decomposed(significands)
    right = np.where(significands == 1, 0, np.where(significands == 1.5, 1, 2))
    wrong = np.flatnonzero(threes != right)
    count += len(significands)
    if len(wrong):
        return Replayed(count, f"the factor {significands[wrong[0]]!s} counts as another one")
    one = np.array([[1.125]], F)
    for code in range(1, 8):
        if isinstance(moving.mxfp4_from_nvfp4(np.full((1, NV_BLOCK), code, np.uint8), one), moving.Exact):
            return Replayed(count, f"code {code} under 9/8 is moved")
    return Replayed(count)


def _movable(mask: int) -> bool:
    """Return whether three times the magnitudes of a set are magnitudes under some power of two."""
    values = [3 * MAGNITUDES[code] for code in range(1, 8) if mask >> (code - 1) & 1]
    return any(all(value * Fraction(2) ** power in MAGNITUDES for value in values) for power in range(-8, 8))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about moved bytes."""
    decoded = (*whole.DECODED[ClaimSubject.GOLDEN], "fp4ref.specs:MXFP4")
    shared: dict[str, Any] = {"method": Method.ARGUMENT, "subject": ClaimSubject.GOLDEN}
    yield ProofClaim(
        name="theorem-moved-nvfp4/golden",
        rules=("THM-4",),
        statement="MXFP4 whose scales are at most 17 binades apart, up to 2^116, is moved to NVFP4 with its codes; "
        "with all codes, none that is wider.",
        domain="all largest scales with all that are at most 18 binades below",
        size=(LAST_BYTE + 1) * (SPAN + 2),
        decide=within,
        covers=("fp4ref.theorems.moving:nvfp4_from_mxfp4", "fp4ref.specs:NVFP4", *decoded),
        reduction="blocks share the global scale alone, so all scales between two are tried at once; no ratio of two "
        "E4M3 numbers is 2^18 or 2^19, nor so near to them that the roundings of DEQ-1 could hide it",
        **shared,
    )
    yield ProofClaim(
        name="theorem-moved-sets/golden",
        rules=("THM-5",),
        statement="Every set of magnitudes is moved to NVFP4 up to its widest span, which a search in fractions gives; "
        "a global scale of 2^m is the best for other blocks than those of 1.5, 3 and 6, for which 3 * 2^m is.",
        domain="all 127 sets of magnitudes, two blocks of one set; the global scales of all pairs of sets",
        size=len(SETS),
        decide=widest_spans,
        covers=("fp4ref.theorems.moving:nvfp4_from_mxfp4", "fp4ref.specs:NVFP4", *decoded),
        reduction="a ratio of new scale to old one maps a magnitude of a block to another, so it is a ratio of two",
        **shared,
    )
    yield ProofClaim(
        name="theorem-moved-mxfp4/golden",
        rules=("THM-6",),
        statement=f"A block of NVFP4 is moved to MXFP4 if its factor is 2^k, or 3 * 2^k with one of {THREES} sets; "
        "under another one, none is.",
        domain="all 127 sets under both kinds of factors in all binades, and all significands",
        size=2 * len(SETS) * len(POWERS) + (1 << 23),
        decide=factors,
        covers=("fp4ref.theorems.moving:mxfp4_from_nvfp4", "fp4ref.theorems.moving:_decomposed", *decoded),
        reduction="a factor matters by its power of two, and by whether the rest of it is 1, 3 or another number",
        **shared,
    )
