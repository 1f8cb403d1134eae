"""Claims about shortcuts of the shared header: faster forms that give the bits of what they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fp4ref.formats import F
from fp4ref.proof import native
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.steps import INFINITY, PATTERNS, shown
from fp4ref.reciprocal import TABLE

CONSTANTS = (2688, 1536, 6)
LOWEST, HIGHEST = (127 - 60) << 23, (127 + 120) << 23  # 2^-60 and 2^120, the claim's ends
QUOTIENT = """
    const float x = float_of((unsigned)i);
    return bits_of(over_constant<true>(x, (float)a[0])) != bits_of((float)((double)x / (double)a[0]));
"""
RECIPROCAL = """
    const float x = float_of((unsigned)i), got = FUNCTION(x);
    const unsigned m = magnitude_bits(x), sign = (unsigned)i & 0x80000000u;
    if (m > 0x7f800000u) return !is_nan(got);
    const double power = __builtin_bit_cast(double, (u64)(1023 + 127 - (m >> 23)) << 52);
    const double value = (double)float_of((unsigned)a[m & 0x7fffffu]) * power;
    const float normal = value < 0x1p-126 ? 0.0f : (float)value;
    const unsigned right = m < 0x800000u ? 0x7f800000u : m == 0x7f800000u ? 0u : bits_of(normal);
    return bits_of(got) != (right | sign);
"""
# With h the step over 256, a byte moves y exactly if y + byte * h is not below the tie under the next value. All bytes
# from `first` on do; y >= tie - byte * h is computed without rounding.
STOCHASTIC = """
    using Drawn = Codec<e2m1, Rounding::stochastic, Sign::bit, 7, 7, -1>;
    const float y = float_of((unsigned)i);
    const double y_ = (double)y;
    if (y >= 6.0f) {
        for (unsigned byte = 0; byte < 256; byte += 85) if (Drawn::encode(y, byte) != 7u) return true;
        return false;
    }
    const double step = y >= 4.0f ? 2.0 : y >= 2.0f ? 1.0 : 0.5, h = step / 256.0;
    const unsigned whole = (unsigned)(y_ / step);
    const unsigned lower = y >= 4.0f ? 6u : y >= 2.0f ? 2u + whole : whole;
    const double upper = (whole + 1) * step;
    const double tie = upper - __builtin_ldexp(1.0, __builtin_ilogb(upper * 0.9999) - 24);
    int first = (int)((tie - y_) / h);
    while (first > 0 && y_ >= tie - (first - 1) * h) --first;
    while (first < 256 && !(y_ >= tie - first * h)) ++first;
    const auto moved = [&](int byte) { return Drawn::encode(y, (unsigned)byte) != lower + (byte >= first); };
    return moved(0) || moved(255) || (first > 0 && moved(first - 1)) || (first < 256 && moved(first));
"""


def quotient(constant: int, tell: Tell) -> Replayed:
    """Compare two products with the quotient in double precision, rounded once, in all binades of the claim."""
    size = HIGHEST - LOWEST + 1
    source = native.text({"quotient": QUOTIENT})
    wrong, first = native.sweep(source, "quotient", size, tell, (constant,), LOWEST)
    witness = None if first is None else f"{shown(first)} over {constant}; {wrong} inputs are wrong"
    return Replayed(size, witness)


def reciprocal(function: str, tell: Tell) -> Replayed:
    """Compare a function for the reciprocal with the recorded table and the rules for exponents."""
    with np.load(TABLE) as archive:
        distances = archive["d"].astype(np.int32)
    nearest = F(1) / (np.arange(1 << 23, dtype=np.uint32) | np.uint32(0x3F800000)).view(F)
    table = (nearest.view(np.int32) + distances).tolist()
    source = native.text({"reciprocal": RECIPROCAL.replace("FUNCTION", function)})
    wrong, first = native.sweep(source, "reciprocal", PATTERNS, tell, table)
    witness = None if first is None else f"the reciprocal of {shown(first)}; {wrong} inputs are wrong"
    return Replayed(PATTERNS, witness)


def stochastic(tell: Tell) -> Replayed:
    """Compare codes by random bytes with the exact first byte that moves a magnitude."""
    size = INFINITY + 1
    wrong, first = native.sweep(native.text({"stochastic": STOCHASTIC}), "stochastic", size, tell)
    witness = None if first is None else f"{shown(first)} under some random byte; {wrong} inputs are wrong"
    return Replayed(4 * size, witness)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about shortcuts."""
    for constant in CONSTANTS:
        yield ProofClaim(
            name=f"over-{constant}/header",
            rules=("FOS-3", "FOS-1") if constant == CONSTANTS[-1] else ("FOS-3",),
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.HEADER,
            statement=f"Two products with the parts of 1 / {constant} round as the quotient x / {constant} does.",
            domain="all float32 from 2^-60 to 2^120",
            size=HIGHEST - LOWEST + 1,
            decide=partial(quotient, constant),
            covers=("block.h:over_constant",),
        )
    yield ProofClaim(
        name="reciprocal/header",
        rules=("APX-1",),
        method=Method.EXHAUSTIVE,
        subject=ClaimSubject.HEADER,
        statement="The quadratics give the recorded table, and the exponents, zeros and infinities follow the rule.",
        domain="all float32 bit patterns",
        size=PATTERNS,
        decide=partial(reciprocal, "modelled_reciprocal"),
        long=True,
        covers=("reciprocal.h:modelled_reciprocal",),
    )
    yield ProofClaim(
        name="stochastic/header",
        rules=("SR-2", "SR-3"),
        method=Method.ARGUMENT,
        subject=ClaimSubject.HEADER,
        statement="A random byte moves a magnitude exactly if the sum of SR-2, rounded once, reaches the next value.",
        domain="all float32 magnitudes under all 256 bytes",
        size=(INFINITY + 1) << 8,
        decide=stochastic,
        covers=("codec.h:Codec::encode", "codec.h:Codec::stochastic_index"),
        long=True,
        reduction="the rounded sum never falls as the byte grows, so the first byte that moves a magnitude, the byte "
        "before it, 0 and 255 decide the others",
    )
