// Operands of a GEMM read element by element, as integer counts of a smallest step, and sums that never round.
#pragma once
#include "matrix.h"

namespace fp4ref_cpu {

template <bool Condition, class A, class B> struct Choice {
    using type = A;
};
template <class A, class B> struct Choice<false, A, B> {
    using type = B;
};
template <bool Condition, class A, class B> using choose = typename Choice<Condition, A, B>::type;
typedef __int128 wide;
typedef unsigned __int128 unsigned_wide;

struct Side {
    const byte* data;   // [rows, ceil(K * bits / 8)]
    byte* scales;       // the whole buffer of the layout, only read
    const float* amax;  // [1], [rows], or null
    size rows;
    Map map;
};

enum class ResultType : int { float32, bfloat16, float16 };

struct GemmJob {
    Side a, b;
    size columns;  // K
    float alpha, factor;
    int division;
    ResultType type;
    const float* bias;       // [N] or null
    const void* accumulate;  // [M, N] of that type, or null
    const float* sums;       // [M, N], of `finish` only
    void* out;               // [M, N]
    size next;
};

// One row of an operand.
template <class S> struct Row {
    static constexpr int BITS = S::Element::Format::bits, W = S::columns;
    const byte* const data;
    const ScaleRow scales;

    Row(const Side& side, size row, size columns)
        : data(side.data + row * ((columns * BITS + 7) / 8)),
          scales(ScaleRow::of(side.scales, side.map, row))
    {
    }
    float element(size k) const
    {
        if constexpr (BITS == 4) return S::Element::decode(data[k / 2] >> k % 2 * 4 & 15u);
        if constexpr (BITS == 6) {  // from bit 6 k on; the last code of a row needs no next byte
            const size first = k * 6 / 8;
            const int shift = (int)(k * 6 % 8);
            return S::Element::decode((data[first] | (shift > 2 ? data[first + 1] << 8 : 0)) >> shift & 63u);
        }
        return S::Element::decode(data[k]);
    }
    unsigned scale_byte(size block) const { return scales.at(block); }
    float scale(size block) const { return S::Scale::decode(scale_byte(block)); }
    bool is_finite_at(size k) const { return is_finite(element(k)) && is_finite(scale(k / W)); }

    // -1, 0 or 1, infinite or NaN, as the value is.
    float sign(size k) const { return sign_of(element(k)) * sign_of(scale(k / W)); }
    static float sign_of(float x) { return is_finite(x) ? x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f : x; }
};

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
// overflow before 2^31 of them.
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

}  // namespace fp4ref_cpu
