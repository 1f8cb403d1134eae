"""A claim about the errors of a search in the shared header: every way to measure one, operation by operation."""

from __future__ import annotations

from collections.abc import Iterator

from fp4ref.proof import native
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.header_scales import HELPERS
from fp4ref.proof.searches import BYTES, CODES, DIFFERENCES, TOPS

MAXIMA = 0x7F80  # bfloat16 up to the largest number
SIZE = len(DIFFERENCES) * len(TOPS) * CODES * BYTES * MAXIMA
# The first element is 3/4 of what the product stands for. A product of two floats is a double, and a sum or a quotient
# of two floats that is rounded to a double, then to a float, is the one that is rounded once.
CHECK = """
    const unsigned code = (unsigned)(i % 8u), byte = (unsigned)(i / 8u % 127u), bits = (unsigned)(i / 1016u);
    const float q = hardware_e2m1::decode(code), s = hardware_e4m3::decode(byte), A = float_of(bits << 16);
    const float g = encoding(A, 6.0 * TOP), p = once((double)q * (double)s);
    const float reciprocal = once(1.0 / (double)g), xs[3] = {once((double)p * 0.75 / (double)g), 0.34375f, 0.0f};
    for (int k = 0; k < 3; ++k) {
        const float x = xs[k];
        const float scaled = once((double)p - (double)once((double)x * (double)g));
        const float quotient = once((double)once((double)p * (double)A) / (6.0 * TOP));
        const float wants[4] = {once((double)quotient - (double)x),
            once((double)once((double)p * (double)reciprocal) - (double)x), scaled, scaled};
        const float gots[6] = {difference::dequantized::of<Plain<TOP>, false>(q, s, g, A, x),
            difference::dequantized_by_reciprocal::of<Plain<TOP>, false>(q, s, g, A, x),
            difference::scaled_units::of<Plain<TOP>, false>(q, s, g, A, x),
            difference::scaled_units_float16::of<Plain<TOP>, false>(q, s, g, A, x),
            quick_over_constant(A) ? difference::dequantized::of<Plain<TOP>, true>(q, s, g, A, x) : wants[0], 0.0f};
        for (int n = 0; n < 5; ++n) {
            const float want = wants[n % 4], got = gots[n];
            if (is_nan(want) ? !is_nan(got) : bits_of(got) != bits_of(want)) return true;
        }
    }
    return false;
"""


def errors(tell: Tell) -> Replayed:
    """Compare the errors of all codes and scales under all maxima with operations in double precision."""
    inputs = CODES * BYTES * MAXIMA
    checks = {f"errors_{top}": CHECK.replace("TOP", str(top)) for top in TOPS}
    for number, name in enumerate(checks):
        wrong, first = native.sweep(native.text(checks, HELPERS), name, inputs, tell)
        if first is not None:
            code, byte, bits = first % CODES, first // CODES % BYTES, first // (CODES * BYTES)
            where = f"code {code}, scale byte {byte:02X}, maximum {bits:04X}0000"
            return Replayed(number * inputs, f"{name}: {where}; {wrong} inputs are wrong")
    return Replayed(SIZE)


def claims() -> Iterator[ProofClaim]:
    """Yield the claim about errors."""
    yield ProofClaim(
        name="search-errors/header",
        rules=("FOS-3", "FOS-4"),
        method=Method.EXHAUSTIVE,
        subject=ClaimSubject.HEADER,
        statement="An element's error is the operations of its rule, each rounded once, by a quick division too.",
        domain=f"all codes under all scale bytes and all bfloat16 maxima, in {len(DIFFERENCES)} ways, for two values "
        "of scale_max, beside three elements",
        size=SIZE,
        decide=errors,
        covers=(
            *(f"block.h:difference::{name}" for name in DIFFERENCES),
            "block.h:over_constant",
            "block.h:quick_over_constant",
        ),
    )
