"""Checks of parts of the shared header: maxima, powers of two, offsets, random words, packed codes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import F
from fp4ref.proof import native
from fp4ref.proof.claims import Replayed, Tell
from fp4ref.proof.golden_scales import _once
from fp4ref.proof.header_scales import CHECKS, HELPERS, ONE_MAXIMUM, told
from fp4ref.proof.host import BLOCK
from fp4ref.proof.mx_scales import ELEMENTS, MAXIMA
from fp4ref.proof.steps import INFINITY, PATTERNS, CodeSteps, shown
from fp4ref.proof.transforms import MASK, _defined
from fp4ref.specs import MXFP8_E4M3

LAYOUTS = {  # a rule, and the header's function
    "linear": ("LAY-1", "linear"),
    "linear_padded": ("LAY-2", "linear_padded"),
    "tiled_128x4": ("LAY-3", "tiled"),
    "tiled_8x4": ("LAY-4", "tiled"),
}
WIDE, HIGH = 13, 300  # columns and rows of scales
LAST, NAN = 254, 255  # bytes of E8M0
SOME_BYTE = 0x4D  # whose significand has all bits but one
BFLOAT16, BYTES = 1 << 16, 255
# A running maximum of magnitudes; a NaN is ignored, or wins over numbers. The values are compared as doubles.
RUNNING = """
    const unsigned m = (unsigned)i & 0x7fffffffu;
    for (int n = 0; n < 4; ++n) {
        const unsigned amax = n == 0 ? 0u : n == 1 ? 1u : n == 2 ? 0x3f9c71e3u : 0x7f800000u;
        const bool grows = (double)float_of(m) > (double)float_of(amax), nan = m > 0x7f800000u;
        if (running_amax<false>(amax, m) != (grows ? m : amax)) return true;
        if (running_amax<true>(amax, m) != (grows || nan ? m : amax)) return true;
    }
    return !nan_stays(m);
"""
NAN_STAYS = """
static bool nan_stays(unsigned m)
{
    return m > 0x7f800000u || running_amax<true>(0x7fc00000u, m) == 0x7fc00000u;
}
"""
OFFSET = f"""
    using Of = layout::LAYOUT;
    const u64 columns = 1 + i % {WIDE}u, k = i / {WIDE}u % {WIDE}u;
    const u64 m = i / {WIDE * WIDE}u, wide = (columns + 3) / 4 * 4;
    if (k >= columns) return false;
    return Of::offset(m, k, columns) != FORMULA;
"""
FORMULAS = {  # written out from the rules
    "linear": "m * columns + k",
    "linear_padded": "m * wide + k",
    "tiled_128x4": "(m / 128 * (wide / 4) + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4",
    "tiled_8x4": "(m / 8 * (wide / 4) + k / 4) * 32 + m % 8 * 4 + k % 4",
}
RANDOM = """
    const u64* const of = a + 5 * i;
    const RandomBlock got = random_block(of[0], of[1], of[2]);
    return got.word[0] != (unsigned)of[3] || got.word[1] != (unsigned)(of[3] >> 32)
        || got.word[2] != (unsigned)of[4] || got.word[3] != (unsigned)(of[4] >> 32);
"""
# Input i: a bfloat16 x under the byte i >> 16. No product or quotient here is rounded twice.
UNSCALED = """
    const float x = float_of((unsigned)i << 16), s = float_of(i >> 16 ? (unsigned)(i >> 16) << 23 : 0x400000u);
    const float f = Of::Arithmetic::factor<Of, bfloat16>(s, 1.0f), y = Of::Arithmetic::apply<Of, bfloat16>(x, f, s);
    const float value = value_of<Of, bfloat16>(x, decoded_scale<Of, bfloat16>((unsigned)(i >> 16), 0.0f), 0.0f);
    if (global_scale<Of, bfloat16>(x) != 1.0f) return true;
    if (is_nan(x)) return !is_nan(y) || !is_nan(value);
    const float quotient = (float)((double)x / (double)s), product = (float)((double)x * (double)s);
    return bits_of(y) != bits_of(quotient) || bits_of(value) != bits_of(product);
"""
# The smallest product that is not 0 is that of code 1 and byte 1, 2^-10 of the maximum; the largest is 6 * 448 of it.
QUICK = """
    const float A = float_of((unsigned)i);
    if (A == 1.0f) return !quick_over_constant(A);
    return quick_over_constant(A) && !((double)A * 0x1p-10 >= 0x1p-60 && (double)A * 2688.0 <= 0x1p120);
"""
# Input i: two codes, and beside them the place of the first of eight that are packed together.
PAIR = """
    const unsigned first = (unsigned)i & MASK, second = (unsigned)(i >> BITS) & MASK;
    const float low = C::decode(first), high = C::decode(second);
    if (is_nan(low) || is_nan(high) || !is_finite(low) || !is_finite(high)) return false;
    return encode_pair<C>(low, high) != (first | second << BITS);
"""
EIGHT = """
    const unsigned code = (unsigned)i & 15u, other = (unsigned)i >> 4 & 15u, place = (unsigned)i >> 8;
    float x[8];
    unsigned want = 0;
    for (unsigned j = 0; j < 8; ++j) x[j] = hardware_e2m1::decode(j == place ? code : other);
    for (unsigned j = 0; j < 8; ++j) want |= (j == place ? code : other) << 4 * j;
    return packed_narrow<hardware_e2m1>(x) != want;
"""
CODECS = {"hardware_e2m1": 4, "hardware_e4m3": 8, "hardware_e5m2": 8, "saturating_e2m3": 6, "saturating_e3m2": 6}
# The vectors of the claim hadamard-signs, and those of one small element: the largest of the quarters of exact sums, or
# what was there before.
LARGEST = f"""
    const unsigned n = (unsigned)i - 0x10000u, p = n & 15u, q = n >> 4 & 15u;
    float y[16];
    double x[16] = {{}}, most = 0.0;
    for (int j = 0; j < 16; ++j) if (!(i >> 16)) x[j] = (i >> j & 1) ? -1.0 : 1.0;
    if (i >> 16) x[p] = (n >> 8 & 1u) ? -0x1.02p0 : 0x1.02p0;
    if (i >> 16) x[q] = (n >> 9 & 1u) ? -0x1p-8 : 0x1p-8;
    for (int j = 0; j < 16; ++j) y[j] = (float)x[j];
    for (int k = 0; k < 16; ++k) {{
        double sum = 0.0;
        for (int j = 0; j < 16; ++j)
            sum += ((0x{MASK:X}u >> j ^ (unsigned)__builtin_popcount(j & k)) & 1u) ? -x[j] : x[j];
        sum = sum < 0.0 ? -sum : sum;
        most = most < sum ? sum : most;
    }}
    const float before = (i & 64u) ? 3.25f : 0.0f, largest = (float)(most / 4.0);
    return hadamard_amax<0x{MASK:X}u>(before, y) != (largest > before ? largest : before);
"""


# Input i: three operands and a result, each a NaN of either sign or a number.
SIGNED = """
    const float of[5] = {float_of(0x7fc00000u), float_of(0xff800001u), 1.5f, -0.0f, float_of(0xff800000u)};
    const float first = of[i % 5u], second = of[i / 5u % 5u], third = of[i / 25u % 5u], result = of[i / 125u];
    const unsigned got = bits_of(signed_nan(result, first, second, third));
    if (i / 125u > 1u) return got != bits_of(result);
    const bool nans[3] = {i % 5u < 2u, i / 5u % 5u < 2u, i / 25u % 5u < 2u};
    const u64 sign = nans[0] ? i % 5u : nans[1] ? i / 5u % 5u : nans[2] ? i / 25u % 5u : 1u;
    return got >> 31 != sign || (got & 0x7fffffffu) <= 0x7f800000u;
"""


def swept(name: str, size: int, body: str, helpers: str, numbers: Callable[[], list[int]], tell: Tell) -> Replayed:
    """Run a check over a range of inputs."""
    wrong, first = native.sweep(native.text({name: body}, helpers), name, size, tell, numbers())
    return Replayed(size, None if first is None else f"input {first:X}; {wrong} inputs are wrong")


def no_numbers() -> list[int]:
    """Return no numbers, for a check that reads none."""
    return []


def blocks_of_bytes() -> list[tuple[int, int, int]]:
    """Return block numbers, seeds and upper halves of counters: one bit each, all bits, and ends of lower words."""
    bits = [0, (1 << 64) - 1, (1 << 32) - 1, *(1 << bit for bit in range(64))]
    return [*product(bits, (0, 3 << 31), (5, 1 << 63)), *product((7, 1 << 32), bits, (2,)), *product((9,), (1,), bits)]


def random_numbers() -> list[int]:
    """Return these three numbers, and the two halves of what Philox makes of them by its definition."""
    found = []
    for block, seed, upper in blocks_of_bytes():
        words = _defined(block | upper << 64, seed, 10)
        found += [block, seed, upper, words[0] | words[1] << 32, words[2] | words[3] << 32]
    return found


@np.errstate(all="ignore")
def _rounded_up(patterns: NDArray[np.int64], inverse: float) -> NDArray[np.int64]:
    """Return the smallest byte whose power of two is not below a maximum times 1/E, rounded once."""
    t = _once(patterns.astype(np.uint32).view(F).astype(np.float64) * inverse).astype(np.float64)
    mantissa, exponent = np.frexp(np.where(np.isfinite(t) & (t > 0), t, 1.0))
    byte = np.clip(exponent - (mantissa == 0.5) + 127, 0, LAST)
    return np.where(t == 0, 0, np.where(np.isinf(t), LAST, byte))


def quotient_bytes(element_max: float) -> CodeSteps:
    """Return the byte of every maximum, found by halving: a rounded product never falls. Rules: MXS-1, E8M0-2."""
    inverse = float(F(1.0) / F(element_max))
    wanted = np.arange(1, LAST + 1)
    low, high = np.zeros(LAST, np.int64), np.full(LAST, INFINITY, np.int64)
    while (high - low > 1).any():
        middle = (low + high) // 2
        reached = _rounded_up(middle, inverse) >= wanted
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    starts, place = np.unique(high, return_index=True)
    last = [*place[1:] - 1, LAST - 1]
    places = np.concatenate([[0], starts, [INFINITY + 1]]).astype(np.uint64)
    return CodeSteps(places, np.concatenate([[0], wanted[last], [NAN]]).astype(np.uint8))


def rounded_up(tell: Tell) -> Replayed:
    """Compare the header's byte of every block maximum with that of the quotient, for each element format."""
    import fp4ref_numerics

    for place, (spec, element) in enumerate(ELEMENTS.items()):
        want = quotient_bytes(element.max)
        numbers = [len(want.starts), *want.starts.tolist(), *want.codes.tolist()]
        value = "Of::Scale::encode(block_scale<Of, float32>(float_of(bits), 1.0f))"
        source = native.step_text({"rceil": value}, fp4ref_numerics.lower(spec.replace(name="claim"), "Of"))
        wrong, first = native.sweep(source, "rceil", MAXIMA, tell, numbers)
        if first is not None:
            right = int(want.of(np.array([first], np.uint32))[0])
            told = f"the maximum {shown(first)} of {element.name} needs the byte {right:02X}; {wrong} maxima are wrong"
            return Replayed((place + 1) * MAXIMA, told)
    return Replayed(len(ELEMENTS) * MAXIMA)


def packed(tell: Tell) -> Replayed:
    """Pack all pairs of finite codes of each codec, and every code in each of eight places."""
    done = 0
    for codec, bits in CODECS.items():
        body = PAIR.replace("MASK", str((1 << bits) - 1)).replace("BITS", str(bits)).replace("C::", f"{codec}::")
        found = swept("pair", 1 << 2 * bits, body.replace("<C>", f"<{codec}>"), "", no_numbers, tell)
        if found.witness:
            return Replayed(done, f"{codec}: {found.witness}")
        done += found.computed
    found = swept("eight", 1 << 11, EIGHT, "", no_numbers, tell)
    return Replayed(done + found.computed, found.witness)


def unscaled(tell: Tell) -> Replayed:
    """Divide and multiply all bfloat16 by every power of two that a byte means."""
    import fp4ref_numerics

    lowered = fp4ref_numerics.lower(MXFP8_E4M3.replace(name="claim"), "Of")
    return swept("unscaled", BYTES * BFLOAT16, UNSCALED, lowered, no_numbers, tell)


def one_byte(tell: Tell) -> Replayed:
    """Compare the codes of all float32 under one scale byte with those of products that are rounded once."""
    _, body = CHECKS["block_all"]
    return _under_one_byte("block_all", native.text({"block_all": body}, HELPERS), tell)


def one_byte_on_processor(tell: Tell) -> Replayed:
    """Compare them in the form at which a processor is fast."""
    return _under_one_byte("block", native.HOST + HELPERS + BLOCK + "}\n", tell)


def _under_one_byte(name: str, source: str, tell: Tell) -> Replayed:
    wrong, first = native.sweep(source, name, PATTERNS, tell, (ONE_MAXIMUM,), SOME_BYTE << 32)
    return Replayed(PATTERNS, None if first is None else f"{told('block_all', first)}; {wrong} inputs are wrong")
