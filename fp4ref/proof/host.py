"""Checks of the shared header in a form at which a processor is fast, for claims that a GPU decides input by input.

Each decides the claim that names it: about the same inputs, with an argument for those that are not compared.
"""

from __future__ import annotations

from fp4ref.proof import native, transforms
from fp4ref.proof.claims import Replayed, Tell
from fp4ref.proof.header_scales import BYTES, FACTOR, HELPERS, ONE_MAXIMUM, told
from fp4ref.proof.steps import shown

# What depends on the scale byte alone stands before the loops. Each loop has one step of the pipeline over 32-bit
# numbers, so that the compiler puts 16 of them into a register.
BLOCK = f"""
FP4_API unsigned signed_code(float x, float y)
{{
    const float m = magnitude(y);
    const unsigned n = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
    return is_nan(x) ? 7u : n | bits_of(x) >> 31 << 3;
}}
EXPORT fp4ref_block_@(u64 from, u64 to, const u64* a, u64* found)
{{
    constexpr unsigned n = 4096;
    const float g = encoding(float_of((unsigned)a[0]), 2688.0);
    for (u64 start = from; start < to; start += n) {{
        const float s = byte_value(start >> 32);
        const Scale scale = {{(unsigned)(start >> 32), s, {FACTOR}(s, g)}};
        const double factor = (double)factor_of(s, g);
        const unsigned first = (unsigned)start;
        unsigned got[n], wrong = 0;
        float y[n];
        for (unsigned i = 0; i < n; ++i) got[i] = encode<Plain<448>, float32>(float_of(first + i), scale, g);
        for (unsigned i = 0; i < n; ++i) y[i] = once((double)float_of(first + i) * factor);
        for (unsigned i = 0; i < n; ++i) wrong += got[i] != signed_code(float_of(first + i), y[i]);
        for (unsigned i = n; wrong && i-- > 0;)
            if (got[i] != signed_code(float_of(first + i), y[i]) && start + i < found[1]) found[1] = start + i;
        found[0] += wrong;
    }}
}}
"""
# Factors in order, in runs with one entry: the codes are checked for the first and for the last factor of a run.
RUNS = f"""
static bool wrong_codes(u64 i)
{{
{transforms.THRESHOLDS}
}}
EXPORT fp4ref_runs_@(u64 from, u64 to, const u64*, u64* found)
{{
    thresholds::Entry before = {{}};
    for (u64 i = from; i <= to; ++i) {{
        const thresholds::Entry t = thresholds::entry<Factored>(0x38, float_of((unsigned)(i < to ? i : from)));
        const bool one = t.fours == before.fours && t.threes == before.threes;
        if (i > from && i < to && one && t.ones == before.ones && t.ramp == before.ramp) continue;
        const u64 ends[2] = {{i > from ? i - 1 : i, i < to ? i : i - 1}};
        for (const u64 end : ends)
            if (wrong_codes(end)) {{
                found[0] += 1;
                found[1] = end < found[1] ? end : found[1];
            }}
        before = t;
    }}
}}
"""
BY_RUNS = (
    "the entry of every factor is computed; of neighbours with the same entry the first and the last decide, because a "
    "rounded product never falls as its factor grows"
)


def block(tell: Tell) -> Replayed:
    """Compare the codes of all float32 under all scale bytes with those of products that are rounded once."""
    size = BYTES << 32
    source = native.HOST + HELPERS + BLOCK + "}\n"
    wrong, first = native.sweep(source, "block", size, tell, (ONE_MAXIMUM,))
    return Replayed(size, None if first is None else f"{told('block_all', first)}; {wrong} inputs are wrong")


def factors(start: int, size: int, tell: Tell) -> Replayed:
    """Compare codes by thresholds with those of rounded products, at both ends of every run of equal entries."""
    helpers = HELPERS + transforms.FACTORED
    source = native.text({"entries": transforms.ENTRIES}, helpers + RUNS)
    without, _ = native.sweep(source, "entries", size, lambda done: tell(done / 2), (), start)
    if without == size:
        return Replayed(size, "no factor has an entry")
    wrong, first = native.sweep(source, "runs", size, lambda done: tell(0.5 + done / 2), (), start)
    return Replayed(size, None if first is None else f"the factor {shown(first)}; {wrong} ends of runs are wrong")
