// Element and scale codecs: one rounding of a float to a grid, and the choices on which implementations differ.
#pragma once
#include <fp4ref/bits.h>

namespace fp4ref {

enum class Rounding { even, down, away, truncate, up, stochastic };
enum class Sign { bit, negative, not_positive, nonzero };

template <class A, class B> constexpr bool same_type = false;
template <class A> constexpr bool same_type<A, A> = true;

// A signed grid: Codes finite magnitudes; the next code is infinite where HasInfinity, every other one NaN.
// Rules: E2M1-1, E2M3-1, E3M2-1, E4M3-1, E5M2-1.
template <int ExponentBits, int MantissaBits, int Bias, int Codes, bool HasInfinity> struct Format {
    static constexpr int mantissa_bits = MantissaBits, bias = Bias, codes = Codes;
    static constexpr int bits = 1 + ExponentBits + MantissaBits;
    static constexpr int emax = ((Codes - 1) >> MantissaBits) - Bias;
    static constexpr unsigned sign_bit = 1u << (ExponentBits + MantissaBits);
    static constexpr bool has_infinity = HasInfinity;
};
using e2m1 = Format<2, 1, 1, 8, false>;
using e4m3 = Format<4, 3, 7, 127, false>;
using e5m2 = Format<5, 2, 15, 124, true>;
using e2m3 = Format<2, 3, 1, 32, false>;
using e3m2 = Format<3, 2, 3, 32, false>;
struct e8m0 {
    static constexpr int bits = 8, codes = 255;
};

// NaN and NegativeNaN are the codes of NaN by sign; Overflow is the code past the largest value, -1 to saturate; Infinity
// that of an infinity, before its sign.
template <class Format_, Rounding R, Sign S, int NaN, int NegativeNaN, int Overflow, int Infinity = Overflow> struct Codec {
    using Format = Format_;
    static constexpr bool keeps_nan_sign = NaN != NegativeNaN, stochastic = R == Rounding::stochastic;
    static constexpr bool tells_infinity = Infinity != Overflow;
    static constexpr bool by_sums = R == Rounding::even && same_type<Format, e2m1>;
    static constexpr Sign sign = S;
    static constexpr float narrow_limit = by_sums ? 7.0f : 0x1.fffffep127f;  // below 7, E2M1 does not saturate
    static constexpr int shift = 23 - Format::mantissa_bits;                        // of a mantissa in a float
    static constexpr unsigned lowest = (unsigned)(128 - Format::bias) << 23;        // smallest normal's exponent field
    static constexpr unsigned beyond = (unsigned)(127 + Format::emax + 1) << 23;    // a power of two above every value

    // Index into the grid of |x|, x not NaN; Codes or more means overflow.
    // Adding 2^(e + shift) makes the sum's last place the grid's step in the binade of |x|: the adder rounds to even.
    // Rules: E2M1-3, E2M1-6, E4M3-2, E5M2-2, E2M3-2, E3M2-2, INT8-2, UE4M3-2, UE5M3-2. Certificates: encode-*.
    FP4_API unsigned index(float x, unsigned random_bits)
    {
        if constexpr (by_sums) return e2m1_pattern<false>(x) & 15u;
        if constexpr (stochastic) return stochastic_index(magnitude(x), random_bits);
        const unsigned m = smaller(magnitude_bits(x), beyond);
        const unsigned binade = larger(m & 0x7f800000u, lowest);
        const unsigned below = (binade - lowest) >> shift;  // codes of the binades below
        const float magic = float_of(binade + ((unsigned)shift << 23));
        if constexpr (R == Rounding::even) return below + (bits_of(float_of(m) + magic) - bits_of(magic));
        const float step = float_of(binade - ((unsigned)Format::mantissa_bits << 23));
        const unsigned q = truncated(float_of(m));
        const float rest = float_of(m) - ((float)(q - below) * step);
        if constexpr (R == Rounding::down) return q + (rest > 0.5f * step);
        if constexpr (R == Rounding::away) return q + (rest >= 0.5f * step);
        if constexpr (R == Rounding::up) return q + (rest > 0.0f);
        return q;
    }

    // Steps of 1/2, 1 and 2: each sum rounds to even in its own step, and the smallest counts |x| in codes. The sums'
    // patterns are those of 2^23 + index, in the order of the floats; everything above 7 stops at 8, or at 7 to saturate.
    // Only the low byte is the index. Certificates: e2m1-sums.
    template <bool Narrow> FP4_API unsigned e2m1_pattern(float x) { return e2m1_pattern_of_magnitude<Narrow>(magnitude(x)); }
    template <bool Narrow> FP4_API unsigned e2m1_pattern_of_magnitude(float a)
    {
        const unsigned halves = bits_of(exact_product_plus(a, 2.0f, 0x1p23f)), ones = bits_of(a + (0x1p23f + 2.0f));
        const unsigned twos = bits_of(exact_product_plus(a, 0.5f, 0x1p23f + 4.0f));
        const unsigned stop = bits_of(0x1p23f + (Overflow < 0 ? 7.0f : 8.0f));
        return smaller(smaller(halves, ones), Narrow ? twos : smaller(twos, stop));
    }

    // The same for a random byte: the sum's upper bits count grid values from 1 on, and below 1 there is only 1/2. Past
    // the largest value the step is too wide, which no longer matters. The product is exact. Rules: SR-2, SR-3.
    // Certificates: stochastic-index, stochastic, stochastic-mean.
    FP4_API unsigned stochastic_index(float a, unsigned byte)
    {
        static_assert(!stochastic || same_type<Format, e2m1>, "SR-5: E2M1 only");
        const unsigned binade = larger(bits_of(a) & 0x7f800000u, lowest);
        const float step = float_of(binade - ((unsigned)(Format::mantissa_bits + 8) << 23));  // over 256
        const unsigned sum = bits_of(exact_product_plus((float)(int)byte, step, a));
        const int normal = (int)(sum >> shift) - ((127 - Format::bias) << Format::mantissa_bits), half = sum >= 0x3f000000u;
        return (unsigned)(normal > half ? normal : half);
    }

    // Index of the largest grid value that is not above x >= 0.
    FP4_API unsigned truncated(float x)
    {
        const unsigned m = smaller(bits_of(x), beyond), binade = larger(m & 0x7f800000u, lowest);
        const float steps = float_of(m) * float_of((127u << 23) + ((127u << 23) - binade) + ((unsigned)Format::mantissa_bits << 23));
        return ((binade - lowest) >> shift) + (unsigned)(int)steps;
    }

    // Rules: E2M1-2, E2M1-4, E2M1-5, E2M1-6, E4M3-3, E4M3-4, E4M3-5, E5M2-3, E5M2-4, E5M2-5, SR-3.
    FP4_API unsigned encode(float x, unsigned random_bits = 0)
    {
        const unsigned nan = (unsigned)(keeps_nan_sign && bits_of(x) >> 31 ? NegativeNaN : NaN);
        return is_nan(x) ? nan : low_byte<false>(x, random_bits) & 255u;
    }

    // The same for |x| < narrow_limit, with anything above the low byte: for those who know the range and store a byte.
    // Certificates: past-largest-*.
    FP4_API unsigned encode_narrow(float x, unsigned random_bits) { return low_byte<by_sums>(x, random_bits); }

    template <bool Narrow> FP4_API unsigned low_byte(float x, unsigned random_bits)
    {
        const unsigned i = by_sums ? e2m1_pattern<Narrow>(x) : index(x, random_bits);
        unsigned code = i;
        if constexpr (!by_sums) code = i < Format::codes ? i : (unsigned)(Overflow < 0 ? Format::codes - 1 : Overflow);
        else if constexpr (!Narrow && Overflow >= 0) code = (i & 15u) < Format::codes ? i : (unsigned)Overflow;
        if constexpr (tells_infinity && !Narrow) code = magnitude_bits(x) == 0x7f800000u ? (unsigned)Infinity : code;
        if constexpr (S == Sign::bit) return code | (bits_of(x) >> (32 - Format::bits) & Format::sign_bit);
        bool sign = x < 0.0f;
        if constexpr (S == Sign::not_positive) sign = x <= 0.0f;
        if constexpr (S == Sign::nonzero) sign = x < 0.0f && (code & 255u);
        return code | (sign ? Format::sign_bit : 0u);
    }

    // The value that encode rounds to, before an overflow turns into a code; x not NaN. An infinity with a code of its own
    // has no value. Rules: FOS-3.
    FP4_API float nearest(float x)
    {
        const float v = value(smaller(index(x, 0), (unsigned)(Format::codes - (Overflow < 0))));
        if (tells_infinity && magnitude_bits(x) == 0x7f800000u) return float_of(0x7fc00000u);
        return float_of(bits_of(v) | (bits_of(x) & 0x80000000u));
    }

    // Its magnitude, given |x|; a NaN counts as the largest. Rules: FOS-3. Certificates: estimate-narrow.
    FP4_API float nearest_magnitude(float a)
    {
        if constexpr (R == Rounding::even && Overflow < 0 && !tells_infinity) return nearest_narrow(float_of(smaller(bits_of(a), bits_of(value(Format::codes - 1)))));
        else return magnitude(nearest(a));
    }

    // The same up to the largest value, or where `is_narrow` holds: the binade of a times 2^shift makes the sum's last place the grid's step there.
    FP4_API float nearest_narrow(float a)
    {
        static_assert(R == Rounding::even, "the adder's rounding");
        const float binade = float_of(larger(bits_of(a) & 0x7f800000u, lowest)), size = power_of_two(shift);
        return exact_product_plus(binade, -size, exact_product_plus(binade, size, a));
    }

    // What takes the pattern of `unit` to that of 2^shift, for `nearest_or_tied`.
    FP4_API unsigned binades_up(float unit) { return (127u << 23) + ((unsigned)shift << 23) - bits_of(unit); }

    // The same for a = x * factor, x >= 0, but for ties, which go either way; `up` is that of a unit, 1 / factor but for at
    // most 2^-19 of it. The pattern of M is that of x plus `up`: M enters a binade where x / unit does, and its last place
    // there is the grid's step. M is a multiple of it, and so is M - a, rounded, unless it lies below the binade of M. Where
    // that is so, and where a and x / unit are in different binades, a is so near to the power of two between them that
    // both steps, and half of the smaller one, yield that power. The product need not be rounded: where that matters, the
    // rounded one is a tie. Certificates: estimate-ties.
    FP4_API float nearest_or_tied(float x, float factor, unsigned up)
    {
        const float m = float_of(larger_sum(bits_of(x), up, lowest + 4u + ((unsigned)shift << 23)));
        return m - fused_or_not(-x, factor, m);
    }

    // The value of a grid index: as a normal float, subnormals being twice what it is above the power of two.
    FP4_API float value(unsigned i)
    {
        const float normal = float_of((i << shift) + ((unsigned)(127 - Format::bias) << 23));
        return i >> Format::mantissa_bits ? normal : (normal - power_of_two(-Format::bias)) * 2.0f;
    }

    // Rules: E2M1-1, E4M3-1, E5M2-1. Certificates: values-*.
    FP4_API float decode(unsigned code)
    {
        const unsigned i = code & (Format::sign_bit - 1), sign = code & Format::sign_bit ? 0x80000000u : 0u;
        const bool infinite = Format::has_infinity && i == Format::codes;
        const unsigned special = infinite ? 0x7f800000u : 0x7fc00000u;
        return float_of((i < Format::codes ? bits_of(value(i)) : special) | sign);
    }
};

// Powers of two, rounded up as the hardware does: code 0 also holds everything not above 2^-127.
// Rules: E8M0-1, E8M0-2, E8M0-3, E8M0-4. Certificates: encode-e8m0, values-e8m0.
template <int NaN, int NegativeNaN, int Overflow, int Infinity>
struct Codec<e8m0, Rounding::up, Sign::bit, NaN, NegativeNaN, Overflow, Infinity> {
    using Format = e8m0;
    static constexpr bool keeps_nan_sign = NaN != NegativeNaN;
    FP4_API unsigned encode(float t)
    {
        const unsigned m = magnitude_bits(t), field = m >> 23, mantissa = m & 0x7fffffu;
        const unsigned code = field + (field ? mantissa != 0 : mantissa > 0x400000u);
        const unsigned past = (unsigned)(Overflow < 0 ? 254 : Overflow), infinite = (unsigned)(Infinity < 0 ? 254 : Infinity);
        const unsigned number = m == 0x7f800000u ? infinite : code < 255 ? code : past;
        return is_nan(t) ? (unsigned)(bits_of(t) >> 31 ? NegativeNaN : NaN) : number;
    }
    FP4_API float decode(unsigned code) { return float_of(code == 255 ? 0x7fc00000u : code ? code << 23 : 0x400000u); }
};

// The codecs that conversion instructions of some targets compute.
// Rules: E2M1-2, E2M1-3, E2M1-4, E2M1-5, E4M3-2, E4M3-3, E4M3-4, E5M2-2, E5M2-3, E5M2-4.
using hardware_e2m1 = Codec<e2m1, Rounding::even, Sign::bit, 7, 7, -1>;
using hardware_e4m3 = Codec<e4m3, Rounding::even, Sign::bit, 0x7f, 0x7f, -1>;
using hardware_e5m2 = Codec<e5m2, Rounding::even, Sign::bit, 0x7f, 0x7f, -1>;

// 6-bit codecs by a conversion to 8 bits: E2M3 and E3M2 times `down` have the steps and exponents of the lowest binades of
// E4M3 and E5M2, whose codes there are theirs. Rules: E2M3-2, E2M3-3, E2M3-4, E2M3-5, E3M2-2, E3M2-3, E3M2-4, E3M2-5.
using saturating_e2m3 = Codec<e2m3, Rounding::even, Sign::bit, 31, 31, -1>;
using saturating_e3m2 = Codec<e3m2, Rounding::even, Sign::bit, 31, 31, -1>;
template <class C> constexpr bool by_wider = FP4_NATIVE_FP8 && (same_type<C, saturating_e2m3> || same_type<C, saturating_e3m2>);
// The magnitude from which on the code would be past the largest.
template <class C> constexpr float codes_below = same_type<C, saturating_e2m3> ? 7.75f : 30.0f;

// Two codes in bytes of their own, the sign in bit 7, for magnitudes below `codes_below`.
template <class C> FP4_API unsigned six_bits_wide(float low, float high)
{
#if FP4_NATIVE_FP8
    constexpr bool e2m3_codes = same_type<C, saturating_e2m3>;
    constexpr float down = e2m3_codes ? 0x1p-6f : 0x1p-12f;
    const float a = low * down, b = high * down;
    unsigned short pair;
    if constexpr (e2m3_codes) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
    return pair;
#else
    const unsigned codes = C::encode(low) | C::encode(high) << 8;
    return (codes & 0x1f1fu) | (codes & 0x2020u) << 2;
#endif
}

template <class C> FP4_API unsigned six_bits_pair(float low, float high)
{
    constexpr float top = same_type<C, saturating_e2m3> ? 7.5f : 28.0f;
    const auto inside = [&](float x) { return running_max(-top, min_number(x, top)); };  // a NaN becomes `top`
    const unsigned pair = six_bits_wide<C>(inside(low), inside(high));
    return (pair & 0x1fu) | (pair >> 2 & 0x7e0u) | (pair >> 4 & 0x800u);
}

// Sixteen codes of magnitudes below `codes_below`, in three words. Rules: PACK-4. Certificates: pack-*.
template <class C> FP4_API void packed_sixes(const float (&x)[16], unsigned (&words)[3])
{
    // (a & mask) | (b & ~mask)
    const auto chosen = [](unsigned a, unsigned b, unsigned mask) { return (a & mask) | (b & ~mask); };
    unsigned four[4];
    FP4_UNROLL
    for (int k = 0; k < 4; ++k) {
        const unsigned wide = six_bits_wide<C>(x[4 * k], x[4 * k + 1]) | six_bits_wide<C>(x[4 * k + 2], x[4 * k + 3]) << 16;
        const unsigned codes = chosen(wide, wide >> 2, 0x1f1f1f1fu);    // with the neighbours' bits above the sign
        const unsigned pairs = chosen(codes, codes >> 2, 0x003f003fu);  // of 12 bits, and some above
        four[k] = chosen(pairs, pairs >> 4, 0xfffu);                    // 24 bits, and some above
    }
    words[0] = (four[0] & 0xffffffu) | four[1] << 24;
    words[1] = (four[1] >> 8 & 0xffffu) | four[2] << 16;
    words[2] = (four[2] >> 16 & 0xffu) | four[3] << 8;
}

// Two codes, `low` in the lower bits: a byte of 4-bit codes, 12 bits, or two bytes. Rules: PACK-1, PACK-3, PACK-4. Certificates: convert-*, packed-codes.
template <class C> FP4_API unsigned encode_pair(float low, float high, unsigned low_bits = 0, unsigned high_bits = 0)
{
#if FP4_NATIVE_E2M1
    if constexpr (same_type<C, hardware_e2m1>) {
        unsigned pair;
        asm("{ .reg .b8 b; cvt.rn.satfinite.e2m1x2.f32 b, %1, %2; cvt.u32.u8 %0, b; }" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }
#endif
#if FP4_NATIVE_FP8
    unsigned short pair;
    if constexpr (same_type<C, hardware_e4m3>) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
        return pair;
    }
    if constexpr (same_type<C, hardware_e5m2>) {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
        return pair;
    }
    if constexpr (by_wider<C>) return six_bits_pair<C>(low, high);
#endif
    return C::encode(low, low_bits) | C::encode(high, high_bits) << C::Format::bits;
}

// Eight codes of |x| < narrow_limit, the first one lowest. A pattern is that of 2^23 and an index below 8; the base counts
// in the two highest codes' places only. Rules: PACK-1.
template <class C> FP4_API unsigned packed_narrow(const float (&x)[8])
{
    static_assert(same_type<C, hardware_e2m1>, "by sums, the sign as it is");
    unsigned sum = 0, signs = 0;
    FP4_UNROLL
    for (int i = 7; i >= 0; --i) {
        sum = sum * 16u + C::template e2m1_pattern<true>(x[i]);
        signs = signs << 4 | bits_of(x[i]) >> 28;
    }
    return ((sum - 0x11u * bits_of(0x1p23f)) & 0x77777777u) | (signs & 0x88888888u);
}

}  // namespace fp4ref
