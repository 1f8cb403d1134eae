// Bit patterns of floats, and the three input types.
#pragma once
#include <fp4ref/config.h>

namespace fp4ref {

FP4_API unsigned bits_of(float x) { return __builtin_bit_cast(unsigned, x); }
FP4_API float float_of(unsigned bits) { return __builtin_bit_cast(float, bits); }
FP4_API unsigned magnitude_bits(float x) { return bits_of(x) & 0x7fffffffu; }
FP4_API float magnitude(float x)
{
#if defined(__CUDACC__)
    return fabsf(x);  // part of the instruction that uses it
#else
    return float_of(magnitude_bits(x));
#endif
}
FP4_API bool is_nan(float x) { return magnitude_bits(x) > 0x7f800000u; }
FP4_API bool is_finite(float x) { return magnitude_bits(x) < 0x7f800000u; }
FP4_API unsigned smaller(unsigned a, unsigned b) { return a < b ? a : b; }
FP4_API unsigned larger(unsigned a, unsigned b) { return a > b ? a : b; }

constexpr float FLOAT_MAX = 0x1.fffffep127f;
constexpr float SIXTH = 1.0f / 6.0f;

// A running maximum and one more number; a NaN of that is ignored.
FP4_API float running_max(float most, float x)
{
#if defined(__CUDACC__)
    return fmaxf(most, x);  // one instruction
#else
    return x > most ? x : most;
#endif
}

// The smaller of two numbers; a NaN loses.
FP4_API float min_number(float a, float b)
{
#if defined(__CUDACC__)
    return fminf(a, b);  // one instruction
#else
    return a < b || is_nan(b) ? a : b;
#endif
}

// 2^exponent for -126 <= exponent <= 127.
FP4_API constexpr float power_of_two(int exponent) { return __builtin_bit_cast(float, (unsigned)(exponent + 127) << 23); }

// a * b + c for callers whose product is exact, or too small to matter: one rounding and two give the same.
// Certificates: encode-e2m1, stochastic, estimate-narrow.
FP4_API float exact_product_plus(float a, float b, float c)
{
#if defined(__CUDACC__)
    return fmaf(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// a * b + c with one rounding where the target has a fused operation, else with two.
FP4_API float fused_or_not(float a, float b, float c) { return exact_product_plus(a, b, c); }

// The larger one of a + b, which may wrap, and c, as signed numbers.
FP4_API unsigned larger_sum(unsigned a, unsigned b, unsigned c)
{
#if defined(__CUDACC__)
    return (unsigned)__viaddmax_s32((int)a, (int)b, (int)c);
#else
    const int sum = (int)(a + b), other = (int)c, most = sum > other ? sum : other;
    return (unsigned)most;
#endif
}

// A NaN has the sign of the first operand that is NaN; one that an operation made has its sign bit set. Rules: NUM-2.
// Certificates: signed-nan.
FP4_API float signed_nan(float result, float a, float b, float c)
{
    if (!is_nan(result)) return result;
    const float sign = is_nan(a) ? a : is_nan(b) ? b : is_nan(c) ? c : -1.0f;
    return float_of(0x7fc00000u | (bits_of(sign) & 0x80000000u));
}

// Input and output types: `word` is how an element is stored, `round` makes one of a float, `round_number` of a float
// that is no NaN; `narrow` rounds a float and keeps it one. Rules: NUM-10, DEQ-3.
// Certificates: round-*, widen-*.
struct float32 {
    using word = unsigned;
    static constexpr unsigned infinity = 0x7f800000u;
    static constexpr int precision = 24;  // bits of a significand
    static constexpr float smallest_normal = 0x1p-126f;
    FP4_API float widen(word w) { return float_of(w); }
    FP4_API word round_number(float x) { return bits_of(x); }
    FP4_API word round(float x) { return bits_of(x); }
    FP4_API float narrow(float x) { return x; }
};

struct bfloat16 {
    using word = unsigned short;
    static constexpr unsigned infinity = 0x7f80u;
    static constexpr int precision = 8;  // bits of a significand
    static constexpr float smallest_normal = 0x1p-126f;
    FP4_API float widen(unsigned w) { return float_of(w << 16); }  // a word, or one whose type is wider already
    FP4_API word round_number(float x)
    {
        const unsigned u = bits_of(x);
        return (word)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
    }
    FP4_API word round(float x)
    {
        return is_nan(x) ? (word)((bits_of(x) >> 16 & 0x8000u) | 0x7fc0u) : round_number(x);
    }
    FP4_API float narrow(float x) { return is_nan(x) ? x : widen(round(x)); }
};

struct float16 {
    using word = unsigned short;
    static constexpr unsigned infinity = 0x7c00u;
    static constexpr int precision = 11;  // bits of a significand
    static constexpr float smallest_normal = 0x1p-14f;
    // The 15 lower bits, moved up, lack 112 in the exponent field; a subnormal is what it is above 2^-14, less 2^-14.
    FP4_API float widen(unsigned w)
    {
        const unsigned magnitude = (w & 0x7fffu) << 13, sign = (w & 0x8000u) << 16;
        const unsigned normal = magnitude + (112u << 23);
        const unsigned subnormal = bits_of(float_of(magnitude + (113u << 23)) - 0x1p-14f);
        const unsigned special = magnitude | 0x7f800000u;
        const unsigned finite = magnitude < 1u << 23 ? subnormal : normal;
        return float_of((magnitude < 0x7c00u << 13 ? finite : special) | sign);
    }
    // Nearest even: a normal result by integer addition, a subnormal one by one addition in units of 2^-24.
    FP4_API word round_number(float x)
    {
        const unsigned m = magnitude_bits(x), sign = bits_of(x) >> 16 & 0x8000u;
        const unsigned normal = (m + 0xfffu + (m >> 13 & 1u) - (112u << 23)) >> 13;
        const unsigned subnormal = bits_of(float_of(m) + 0.5f) - bits_of(0.5f);
        const unsigned finite = m < 0x38800000u ? subnormal : smaller(normal, 0x7c00u);
        return (word)((m >= 0x47800000u ? 0x7c00u : finite) | sign);
    }
    FP4_API word round(float x)
    {
        return is_nan(x) ? (word)((bits_of(x) >> 16 & 0x8000u) | 0x7e00u) : round_number(x);
    }
    FP4_API float narrow(float x) { return is_nan(x) ? x : widen(round(x)); }
};

// An input type whose float32 subnormals are read as zeros of their sign; what is rounded to it is not. Rules: NUM-5.
template <class In> struct flushing : In {
    FP4_API float widen(unsigned w)
    {
        const float x = In::widen(w);
        return float_of(magnitude_bits(x) < 0x800000u ? bits_of(x) & 0x80000000u : bits_of(x));
    }
};
template <bool Flushes, class In> struct input_type {
    using type = In;
};
template <class In> struct input_type<true, In> {
    using type = flushing<In>;
};

}  // namespace fp4ref
