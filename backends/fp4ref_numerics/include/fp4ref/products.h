// Products of quantized operands: values as integer counts of a smallest step, sums that never round, and the steps after
// them. Only what multiplies includes this file.
#pragma once
#include <fp4ref/codec.h>

namespace fp4ref {
namespace products {

using size = long long;
typedef __int128 wide;
typedef unsigned __int128 unsigned_wide;

template <bool Condition, class A, class B> struct Choice {
    using type = A;
};
template <class A, class B> struct Choice<false, A, B> {
    using type = B;
};
template <bool Condition, class A, class B> using choose = typename Choice<Condition, A, B>::type;

// -1, 0 or 1, infinite or NaN, as the value is.
inline float sign_of(float x) { return is_finite(x) ? x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f : x; }

// Code k of a row as it is stored, and its element. Rules: PACK-1, PACK-4, PACK-5.
template <class S> inline unsigned code_of(const unsigned char* row, size k)
{
    constexpr int BITS = S::Element::Format::bits;
    if constexpr (BITS == 4) return row[k / 2] >> k % 2 * 4 & 15u;
    if constexpr (BITS == 6) {  // from bit 6 k on; the last code of a row needs no next byte
        const size first = k * 6 / 8;
        const int shift = (int)(k * 6 % 8);
        return (row[first] | (shift > 2 ? row[first + 1] << 8 : 0)) >> shift & 63u;
    }
    return row[k];
}
template <class S> inline float element_of(const unsigned char* row, size k) { return S::Element::decode(code_of<S>(row, k)); }

constexpr int bits_of_count(long long count)
{
    int bits = 0;
    for (; count > 0; count >>= 1) ++bits;
    return bits;
}

// Values of a specification as integer * 2^(unit + exponent). An E8M0 scale is an exponent, its code; any other is a count
// of its format's steps.
template <class S> struct Counted {
    using Element = typename S::Element::Format;
    using Scale = typename S::Scale::Format;
    static constexpr bool power = same_type<Scale, e8m0>;
    template <class Format> static constexpr int step() { return 1 - Format::bias - Format::mantissa_bits; }
    template <class Format> static constexpr int bits_of_grid() { return Format::emax + 1 - step<Format>(); }
    static constexpr int scale_unit()
    {
        if constexpr (power) return -127;
        else return step<Scale>();
    }
    static constexpr int scale_bits()
    {
        if constexpr (power) return 0;
        else return bits_of_grid<Scale>();
    }
    static constexpr int unit = step<Element>() + scale_unit(), bits = bits_of_grid<Element>() + is_complement<typename S::Element> + scale_bits();
    using integer = choose<bits <= 31, int, size>;

    static int exponent(unsigned scale) { return power ? (int)scale : 0; }
    static integer count(float element, float scale)
    {
        const size of_element = (size)(element * power_of_two(-step<Element>()));
        if constexpr (power) return (integer)of_element;
        else return (integer)(of_element * (size)(scale * power_of_two(-step<Scale>())));
    }
};

// magnitude * 2^exponent, `low` if anything nonzero lies below it, rounded once to float. The bits below the 53 highest
// become one that says whether they are zero, which a double holds exactly, as it does the power of two. Rules: NUM-1.
// Certificates: gemm-ties.
inline float rounded_magnitude(unsigned_wide magnitude, int exponent, bool low)
{
    while (magnitude >> 53) {
        const int cut = magnitude >> 85 ? 32 : magnitude >> 61 ? 8 : 1;
        low |= (magnitude & (((unsigned_wide)1 << cut) - 1)) != 0;
        magnitude >>= cut;
        exponent += cut;
    }
    double value = (double)(long long)(unsigned long long)magnitude;
    if (low) value = __builtin_bit_cast(double, __builtin_bit_cast(unsigned long long, value) | 1u);
    return (float)(value * __builtin_bit_cast(double, (unsigned long long)(exponent + 1023) << 52));
}

inline float rounded(wide sum, int exponent)
{
    const float magnitude = rounded_magnitude((unsigned_wide)(sum < 0 ? -sum : sum), exponent, false);
    return sum < 0 ? -magnitude : magnitude;
}

// A fixed-point number of 22 digits of 32 bits, the lowest worth 2^0. A digit is a 64-bit sum of terms below 2^32: it cannot
// overflow before 2^31 of them. Certificates: gemm-spreads-*, gemm-long-mx.
struct Accumulator {
    static constexpr int DIGITS = 22;
    size digits[DIGITS];

    void add(int sum, int exponent)
    {
        const size shifted = (size)sum * ((size)1 << (exponent & 31));
        digits[exponent >> 5] += shifted & 0xffffffff;
        digits[(exponent >> 5) + 1] += shifted >> 32;
    }
    void add(size sum, int exponent) { add((wide)sum, exponent); }
    void add(wide sum, int exponent)
    {
        const int first = exponent >> 5, shift = exponent & 31;
        const wide low = (wide)(unsigned long long)sum << shift;  // below 2^95
        const wide high = (sum >> 64) << shift;                   // worth 2^64 more, signed
        digits[first] += (size)(unsigned)low;
        digits[first + 1] += (size)(unsigned)(low >> 32);
        digits[first + 2] += (size)(low >> 64) + (size)(unsigned)high;
        digits[first + 3] += (size)(unsigned)(high >> 32);
        digits[first + 4] += (size)(high >> 64);
    }

    // The number times 2^exponent, rounded once.
    float rounded_with(int exponent)
    {
        carry();
        const bool negative = digits[DIGITS - 1] < 0;
        if (negative) {
            for (size& digit : digits) digit = -digit;
            carry();
        }
        int top = DIGITS - 1;
        while (top > 2 && digits[top] == 0) --top;
        bool low = false;
        for (int i = 0; i < top - 2; ++i) low |= digits[i] != 0;
        const unsigned_wide high = (unsigned_wide)digits[top] << 64 | (unsigned_wide)digits[top - 1] << 32 | (unsigned_wide)digits[top - 2];
        const float magnitude = rounded_magnitude(high, exponent + 32 * (top - 2), low);
        return negative ? -magnitude : magnitude;
    }

    // Every digit but the last into [0, 2^32).
    void carry()
    {
        for (int i = 0; i + 1 < DIGITS; ++i) {
            digits[i + 1] += digits[i] >> 32;
            digits[i] &= 0xffffffff;
        }
    }
};

// From a float sum to a result. `alpha`: of the whole product; a, b: maxima of its row and column, unused without row
// scaling. Rules: GEM-3, GEM-5, GEM-6, GEM-7, GEM-8. Certificates: product-*.
template <class A, class B> struct Finishing {
    static constexpr bool rows_a = A::global == Global::row, rows_b = B::global == Global::row, by_row = rows_a || rows_b;

    // The factor of all sums. a, b: the maxima of both tensors, read without row scaling only.
    static float total_alpha(float alpha, float factor, bool division, const float* a, const float* b)
    {
        if constexpr (A::global == Global::none) return alpha;
        if (!by_row) alpha = (alpha * a[0]) * b[0];
        return division ? alpha / factor : alpha * (1.0f / factor);
    }

    template <class Out> static typename Out::word result(float sum, float alpha, float a, float b, bool has_bias, float bias,
        bool has_added, typename Out::word added)
    {
        float y = sum * alpha;
        if constexpr (rows_a && rows_b) y = (y * a) * b;
        else if constexpr (by_row) y = y * (a * b);
        if (!by_row && has_added) y = y + Out::widen(added);
        if (has_bias) y = y + bias;
        typename Out::word out = round<Out>(y);
        if (by_row && has_added) out = round<Out>(Out::widen(out) + Out::widen(added));
        return out;
    }
    template <class Out> static typename Out::word round(float y) { return Out::round(is_nan(y) ? float_of(0x7fc00000u) : y); }
};

}  // namespace products
}  // namespace fp4ref
