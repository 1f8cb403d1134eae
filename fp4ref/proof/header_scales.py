"""The header's scale arithmetic on the standard's NVFP4 path, compared with the same operations in double precision.

The oracle of one operation is that operation in double precision, rounded once to float32: a double has more than twice
the bits of a float32, so the rounding of a sum, product or quotient to a double never moves it onto or across a tie.
"""

from __future__ import annotations

from fp4ref.proof import native
from fp4ref.proof.claims import Replayed, Tell
from fp4ref.proof.steps import INFINITY, shown

BFLOAT16 = INFINITY // 0x10000 + 1  # magnitudes of bfloat16, infinity included
BYTES = 127  # E4M3 bytes without a sign or NaN
SIGNIFICANDS = 8 << 23  # of an E4M3 scale, times those of a float32 maximum
ONE_MAXIMUM = 0x3FCD0000  # 1.6015625

HELPERS = """
template <int Top> struct Plain {
    using Element = hardware_e2m1;
    using Scale = hardware_e4m3;
    using Arithmetic = arithmetic::te;
    using Search = no_search;
    static constexpr float element_max = 6.0f, scale_max = Top;
    static constexpr int rows = 1, columns = 16;
    static constexpr Global global = Global::tensor;
    static constexpr bool block_keeps_nan = false, amax_keeps_nan = false, flushes = false, has_hadamard = false;
    static constexpr unsigned signs = 0;
};
static constexpr double LARGEST = 0x1.fffffep127;
static float once(double x) { return (float)x; }  // one rounding
static float held(float x) { return x > FLOAT_MAX ? FLOAT_MAX : x; }
static float encoding(float A, double total)
{
    const float g = held(once(total / (double)A));
    return A == 0.0f || g == 0.0f ? 1.0f : g;
}
static float factor_of(float s, float g)
{
    return held(once(1.0 / (double)once((double)s * (double)once(1.0 / (double)g))));
}
static float bf(u64 i) { return float_of((unsigned)i << 16); }
static float byte_value(u64 i) { return hardware_e4m3::decode((unsigned)i); }
static bool differ(float x, float y) { return bits_of(x) != bits_of(y); }
static unsigned nearest_code(float y)
{
    const double a = (double)y;
    return (a > 0.25) + (a >= 0.75) + (a > 1.25) + (a >= 1.75) + (a > 2.5) + (a >= 3.5) + (a > 5.0);
}
"""
FACTOR = "arithmetic::te::factor<Plain<448>, bfloat16>"
DECODE = "arithmetic::te::decode<Plain<448>, bfloat16>"
# By name: the number of inputs, and the body of a check of input i.
CHECKS = {
    "encoding_448": (
        INFINITY + 1,
        (
            "const float A = float_of((unsigned)i);"
            "return differ(global_scale<Plain<448>, bfloat16>(A), encoding(A, 2688.0));"
        ),
    ),
    "encoding_256": (
        INFINITY + 1,
        (
            "const float A = float_of((unsigned)i);"
            "return differ(global_scale<Plain<256>, bfloat16>(A), encoding(A, 1536.0));"
        ),
    ),
    "block_scale": (
        BFLOAT16**2,
        (
            f"const float a = bf(i % {BFLOAT16}u), g = encoding(bf(i / {BFLOAT16}u), 2688.0);"
            "const float sixth = once(1.0 / 6.0);"
            "const float t = held(once((double)a * (double)once((double)g * (double)sixth)));"
            "return differ(block_scale<Plain<448>, bfloat16>(a, g), t);"
        ),
    ),
    "factor": (
        BYTES * BFLOAT16,
        (
            f"const float s = byte_value(i % {BYTES}u), g = encoding(bf(i / {BYTES}u), 2688.0);"
            f"return differ({FACTOR}(s, g), factor_of(s, g));"
        ),
    ),
    "factor_significands": (
        SIGNIFICANDS,
        (
            "const float s = (float)(8 + (i >> 23)), A = float_of(0x3f800000u | ((unsigned)i & 0x7fffffu));"
            f"const float g = encoding(A, 2688.0); return differ({FACTOR}(s, g), factor_of(s, g));"
        ),
    ),
    "decode": (
        BYTES * BFLOAT16,
        (
            f"const float s = byte_value(i % {BYTES}u), A = bf(i / {BYTES}u);"
            f"return differ({DECODE}(s, A), once((double)once((double)s * (double)A) * (double)once(1.0 / 2688.0)));"
        ),
    ),
    "decode_significands": (
        SIGNIFICANDS,
        (
            "const float s = (float)(8 + (i >> 23)), A = float_of(0x3f800000u | ((unsigned)i & 0x7fffffu));"
            f"return differ({DECODE}(s, A), once((double)once((double)s * (double)A) * (double)once(1.0 / 2688.0)));"
        ),
    ),
    "block": (
        128 * BYTES * BFLOAT16,
        (
            f"const float x = bf(i % {BFLOAT16}u), s = byte_value(i / {BFLOAT16}u % {BYTES}u);"
            f"const float g = encoding(bf(0x3f80u + i / ({BFLOAT16}ull * {BYTES}u)), 2688.0);"
            f"const unsigned byte = (unsigned)(i / {BFLOAT16}u % {BYTES}u);"
            f"const Scale scale = {{byte, s, {FACTOR}(s, g)}};"
            "const unsigned code = encode<Plain<448>, bfloat16>(x, scale, g);"
            "return code != nearest_code(once((double)x * (double)factor_of(s, g)));"
        ),
    ),
    "block_all": (
        BYTES << 32,
        (
            "const float x = float_of((unsigned)i), s = byte_value(i >> 32);"
            "const float g = encoding(float_of((unsigned)a[0]), 2688.0);"
            f"const Scale scale = {{(unsigned)(i >> 32), s, {FACTOR}(s, g)}};"
            "const unsigned code = encode<Plain<448>, float32>(x, scale, g);"
            "const float y = once((double)x * (double)factor_of(s, g));"
            "return code != (is_nan(x) ? 7u : nearest_code(magnitude(y)) | bits_of(x) >> 31 << 3);"
        ),
    ),
}


def header(name: str, arguments: tuple[int, ...], tell: Tell) -> Replayed:
    """Compare an operation of the header with the same in double precision, over a domain of CHECKS."""
    size, body = CHECKS[name]
    source = native.text({name: body}, HELPERS)
    wrong, first = native.sweep(source, name, size, tell, arguments)
    if first is None:
        return Replayed(size)
    return Replayed(size, f"{told(name, first)}; {wrong} inputs are wrong")


def told(name: str, i: int) -> str:
    """Return an input of a check in words."""
    if name.startswith("encoding"):
        return f"the maximum {shown(i)}"
    if name == "block_scale":
        return f"the block maximum {shown(i % BFLOAT16 << 16)} under the maximum {shown(i // BFLOAT16 << 16)}"
    if name.endswith("significands"):
        return f"the scale {8 + (i >> 23)} under the maximum {shown(0x3F800000 | i & 0x7FFFFF)}"
    if name == "block":
        byte, most = i // BFLOAT16 % BYTES, 0x3F80 + i // (BFLOAT16 * BYTES)
        return f"{shown(i % BFLOAT16 << 16)} under the byte {byte:02X} and the maximum {shown(most << 16)}"
    if name == "block_all":
        return f"{shown(i & 0xFFFFFFFF)} under the byte {i >> 32:02X} and the maximum {shown(ONE_MAXIMUM)}"
    return f"the byte {i % BYTES:02X} under the maximum {shown(i // BYTES << 16)}"
