// Scale arithmetic, one struct per implementation's order of operations, by the name that specifications use.
//
//   global_scale(A)      g of the global maximum
//   block_scale(a, g)    a block's scale before its codec
//   working(t, s)        the scale that elements are divided by: of t, before its codec, or what the stored byte means
//   factor(s, g)         what `apply` combines with every element of a block whose stored scale means s
//   apply(x, f, s)       the element in units of its scale, before its codec
//   decode(s, A)         what `value` combines with every element value q
//   value(q, d, A)       the dequantized element
//
// S is the specification, In the input type. Each operator is one float operation, in the written order.
// Rules: NUM-1, PRO-3.
#pragma once
#include <fp4ref/codec.h>

namespace fp4ref {
namespace arithmetic {

#define FP4_RULE template <class S, class In> FP4_API float

struct stored_scale_works {
    FP4_API float working(float, float s) { return s; }
};
struct scale_before_codec_works {
    FP4_API float working(float t, float) { return t; }
};
struct normal_or_infinite_scale_works {
    FP4_API float working(float, float s) { return is_nan(s) ? float_of(0x7f800000u) : s < 0x1p-126f ? 0x1p-126f : s; }
};
struct infinite_scale_works {
    FP4_API float working(float t, float s) { return magnitude_bits(t) == 0x7f800000u ? t : s; }
};

// Without a global scale: divide by the stored scale, which for a power of two equals multiplying by its reciprocal.
// Rules: GLB-6, BLK-10, DEQ-2.
template <class Working = stored_scale_works> struct no_global_scale_by : Working {
    FP4_RULE global_scale(float) { return 1.0f; }
    FP4_RULE factor(float s, float) { return 1.0f / s; }
    FP4_RULE apply(float x, float f, float) { return x * f; }
    FP4_RULE decode(float s, float) { return s; }
    FP4_RULE value(float q, float d, float) { return q * d; }
};
using no_global_scale = no_global_scale_by<>;

// The CUDA default path of NVFP4.
struct te : stored_scale_works {
    // Rules: GLB-2, GLB-3.
    FP4_RULE global_scale(float A)
    {
        const float g = min_number(S::scale_max * S::element_max / A, FLOAT_MAX);
        return A == 0.0f || g == 0.0f ? 1.0f : g;
    }
    // Rules: BLK-3.
    FP4_RULE block_scale(float a, float g) { return min_number(a * (g * SIXTH), FLOAT_MAX); }
    // Rules: BLK-4, BLK-6.
    FP4_RULE factor(float s, float g) { return min_number(1.0f / (s * (1.0f / g)), FLOAT_MAX); }
    // Rules: BLK-5.
    FP4_RULE apply(float x, float f, float) { return x * f; }
    // Rules: DEQ-1.
    FP4_RULE decode(float s, float A) { return s * A * (1.0f / (S::element_max * S::scale_max)); }
    FP4_RULE value(float q, float d, float) { return q * d; }
};

// Rules: FOS-1.
struct te_division : te {
    FP4_RULE block_scale(float a, float g) { return a / 6.0f * g; }
};

// fma(x, f, +0): a product that is exactly zero is +0. Rules: BLK-11.
FP4_API float fused_with_zero(float x, float f)
{
    const float product = x * f;
    return product == 0.0f && (x == 0.0f || f == 0.0f) ? 0.0f : product;
}

struct te_fast : te {
    FP4_RULE factor(float s, float g) { return bfloat16::narrow(min_number(g / s, 0x1.fep127f)); }
    FP4_RULE apply(float x, float f, float) { return fused_with_zero(x, f); }
};

struct te_cpp_test_oracle : te {
    FP4_RULE factor(float s, float g) { return s == 0.0f ? 0.0f : te::factor<S, In>(s, g); }
};

struct torchao : stored_scale_works {
    FP4_RULE global_scale(float A) { return A / (S::scale_max * S::element_max); }
    FP4_RULE block_scale(float a, float g)
    {
        const float t = a / 6.0f / g;
        return is_nan(t) ? t : t < 0x1p-6f ? 0x1p-6f : t > S::scale_max ? S::scale_max : t;
    }
    // A NaN factor says by its payload where it came from: the scale, or the global scale.
    FP4_RULE factor(float s, float g)
    {
        if (is_nan(g)) return float_of((bits_of(g) & 0x80000000u) | 0x7FC00000u);
        if (is_nan(s)) return float_of((bits_of(s) & 0x80000000u) | 0x7FE00000u);
        return 1.0f / g / s;
    }
    FP4_RULE apply(float x, float f, float)
    {
        if (!is_nan(f)) return x * f;
        const float end = (bits_of(f) & 0x00200000u) != 0u ? 2.0f : 1.5f;
        return (bits_of(f) & 0x80000000u) != 0u ? -end : end;
    }
    FP4_RULE decode(float s, float A) { return s * torchao::global_scale<S, In>(A); }
    FP4_RULE value(float q, float d, float) { return q * d; }
};

struct modelopt : torchao {
    FP4_RULE block_scale(float a, float g)
    {
        const float t = a / (6.0f * g);
        return t == 0.0f ? 1.0f : t;
    }
    FP4_RULE factor(float s, float g) { return s * g; }
    FP4_RULE apply(float x, float f, float) { return x / f; }
};

struct compressed_tensors : stored_scale_works {
    FP4_RULE global_scale(float A)
    {
        const float g = In::narrow(In::narrow(1.0f / A) * (S::scale_max * S::element_max));
        return is_finite(g) ? g : 1.0f;
    }
    FP4_RULE block_scale(float a, float g)
    {
        const float t = g * In::narrow(a / 6.0f), held = t > S::scale_max ? S::scale_max : t;
        return S::Scale::decode(S::Scale::encode(held)) == 0.0f ? 0.125f : held;
    }
    FP4_RULE factor(float s, float g) { return s / g; }
    FP4_RULE apply(float x, float f, float) { return x / f; }
    FP4_RULE decode(float s, float A) { return s / compressed_tensors::global_scale<S, In>(A); }
    FP4_RULE value(float q, float d, float) { return q * d; }
};

struct fouroversix : stored_scale_works {
    FP4_RULE global_scale(float A) { return A == 0.0f ? 1.0f : S::scale_max * S::element_max / A; }
    FP4_RULE block_scale(float a, float g) { return a / S::element_max * g; }
    FP4_RULE factor(float s, float g) { return 1.0f / (1.0f / g * s); }
    FP4_RULE apply(float x, float f, float s) { return s != 0.0f ? x * f : 0.0f; }
    FP4_RULE decode(float s, float) { return s; }
    FP4_RULE value(float q, float d, float A) { return q * d * A / (S::element_max * S::scale_max); }
};

struct flashinfer : stored_scale_works {
    FP4_RULE global_scale(float A) { return S::scale_max * S::element_max * (1.0f / A); }
    FP4_RULE block_scale(float a, float g) { return g * (a * SIXTH); }
    FP4_RULE factor(float s, float g)
    {
        const float t = s * (1.0f / g);
        return t != 0.0f ? 1.0f / t : 0.0f;
    }
    FP4_RULE apply(float x, float f, float) { return x * f; }
    FP4_RULE decode(float s, float A) { return s / flashinfer::global_scale<S, In>(A); }
    FP4_RULE value(float q, float d, float) { return q * d; }
};

struct flashinfer_trace : flashinfer {
    FP4_RULE block_scale(float a, float g) { return a / 6.0f * g; }
    FP4_RULE factor(float, float g) { return g; }
    FP4_RULE apply(float x, float g, float s) { return x * g / (s > 0.0f ? s : 1.0f); }
};

// MX: the E8M0 codec rounds up, so a mode returns the quotient itself or an exact power of two.

FP4_API float finite_or_nan(float a, float t) { return is_finite(a) ? t : float_of(0x7fc00000u); }

// 2^(field - 127 - emax), held within the values of E8M0.
template <class S> FP4_API float shared_scale(unsigned field)
{
    const int e = (int)field - S::Element::Format::emax;
    return e <= 0 ? 0x1p-127f : float_of((unsigned)(e > 254 ? 254 : e) << 23);
}

// Rules: MXS-1.
struct rceil : no_global_scale {
    FP4_RULE block_scale(float a, float) { return a * (1.0f / S::element_max); }
};
struct rceil_cast_only : rceil {
    FP4_RULE apply(float x, float f, float) { return fused_with_zero(x, f); }
};
// Rules: MXS-1, MXS-5.
struct ocp_rceil : no_global_scale {
    FP4_RULE block_scale(float a, float) { return finite_or_nan(a, a * (1.0f / S::element_max)); }
};
// Rules: MXS-2, MXS-5.
struct ocp_floor : no_global_scale {
    FP4_RULE block_scale(float a, float) { return finite_or_nan(a, shared_scale<S>(bits_of(a) >> 23)); }
};
// Rules: MXS-3, MXS-5.
struct ocp_ceil : no_global_scale {
    FP4_RULE block_scale(float a, float) { return finite_or_nan(a, shared_scale<S>((bits_of(a) + 0x7fffffu) >> 23)); }
};
// Rules: MXS-4, MXS-5.
struct ocp_even : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        const unsigned half = 1u << (22 - S::Element::Format::mantissa_bits);
        return finite_or_nan(a, shared_scale<S>((bits_of(a) + half) >> 23));
    }
};

// The exponent bits of a block's maximum, rounded by an addend, also of infinity; NaN for NaN.
template <class S> FP4_API float shared_scale_of_any(float a, unsigned addend)
{
    return is_nan(a) ? a : shared_scale<S>((bits_of(a) + addend) >> 23);
}
struct torchao_floor : no_global_scale_by<normal_or_infinite_scale_works> {
    FP4_RULE block_scale(float a, float) { return shared_scale_of_any<S>(a, 0u); }
};
struct torchao_ceil : no_global_scale_by<normal_or_infinite_scale_works> {
    FP4_RULE block_scale(float a, float) { return shared_scale_of_any<S>(a, 0x7fffffu); }
};
struct torchao_even : no_global_scale_by<normal_or_infinite_scale_works> {
    FP4_RULE block_scale(float a, float)
    {
        return shared_scale_of_any<S>(a, 1u << (22 - S::Element::Format::mantissa_bits));
    }
};

// EVEN with one mantissa bit for every element format; a block that this makes infinite is divided by infinity.
struct compressed_tensors_mx : no_global_scale_by<infinite_scale_works> {
    FP4_RULE block_scale(float a, float)
    {
        const unsigned field = (bits_of(a) + (1u << 21)) >> 23;
        return field < 255u ? shared_scale<S>(field) : float_of(0x7f800000u);
    }
};

// The next power of two of t >= 0, 2^-126 for every subnormal above 2^-127 or below; what is not finite stays.
FP4_API float up_from_any(float t)
{
    const unsigned field = (bits_of(t) + 0x7fffffu) >> 23;
    return !is_finite(t) ? t : field ? float_of(field << 23) : 0x1p-127f;
}

struct deepgemm : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        if (is_nan(a)) return float_of(0x7f800000u);
        const float t = up_from_any((a > 1e-4f ? a : 1e-4f) / S::element_max);
        return t > 0x1p-126f ? t : 0x1p-126f;
    }
};

// Elements of a block whose byte is 0 are 0.
struct zero_below_normal : no_global_scale {
    FP4_RULE apply(float x, float f, float s) { return s == 0x1p-127f ? 0.0f : x * f; }
};
struct fouroversix_mx : zero_below_normal {
    FP4_RULE block_scale(float a, float)
    {
        return is_nan(a) ? 0.0f : finite_or_nan(a, up_from_any(a / S::element_max));
    }
};
struct flashinfer_mx : zero_below_normal {
    FP4_RULE block_scale(float a, float) { return up_from_any(a * SIXTH); }
};

// log2 of t > 0, rounded to float32, between integers: the exponent of t and its mantissa say where it lies, except that
// values so near to 2^k that their logarithm rounds to k count as k. Above 2^k the logarithm grows by 1 / ln 2 of
// 2^-23 a step, below by half of that, and half the distance of floats at k is 2^(n - 24), n the exponent of k.
struct Log2 {
    int exponent;
    unsigned mantissa;
};
FP4_API Log2 log2_parts(float t)
{
    const bool subnormal = t < 0x1p-126f;
    const unsigned u = bits_of(subnormal ? t * 0x1p23f : t);
    return {(int)(u >> 23) - 127 - (subnormal ? 23 : 0), u & 0x7fffffu};
}
// floor(ln 2 * 2^n) steps, n the exponent of the floats next to k, toward zero or away from it; none next to 0.
FP4_API int steps_near(int k, bool toward_zero)
{
    const unsigned size = (unsigned)(k < 0 ? -k : k);
    int n = (int)(bits_of((float)size) >> 23) - 127;
    n -= toward_zero && (size & (size - 1)) == 0;
    return size == 0 || n < 0 ? 0 : (45426 << n) >> 16;  // ln 2 * 2^16
}
FP4_API int log2_ceil(float t)
{
    const Log2 l = log2_parts(t);
    return l.exponent + ((int)l.mantissa > steps_near(l.exponent, l.exponent < 0) / 2);
}
FP4_API int log2_floor(float t)
{
    const Log2 l = log2_parts(t);
    const int k = l.exponent + 1;
    return l.exponent + ((int)(0x800000u - l.mantissa) <= steps_near(k, k > 0));
}
// 2^exponent, held within the values of E8M0.
FP4_API float scale_of(int exponent)
{
    return exponent < -126 ? 0x1p-127f : power_of_two(exponent > 127 ? 127 : exponent);
}

struct modelopt_mx : no_global_scale_by<scale_before_codec_works> {
    FP4_RULE block_scale(float a, float)
    {
        const float t = a / 6.0f;
        return finite_or_nan(a, t > 0.0f ? scale_of(log2_ceil(t)) : 0x1p-127f);
    }
};
struct torchao_rceil : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        const float t = a / S::element_max;
        return is_nan(t) ? t : !(t > 0.0f) ? 0x1p-127f : is_finite(t) ? scale_of(log2_ceil(t)) : 0x1p127f;
    }
    FP4_RULE factor(float s, float) { return s == 0x1p-127f ? 1.0f : 1.0f / s; }
};
struct flashinfer_trace_mx : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        const float t = a / S::element_max;
        return !(t > 0.0f) ? 1.0f : is_finite(t) ? scale_of(log2_floor(t)) : 0x1p127f;
    }
};

#undef FP4_RULE
}  // namespace arithmetic
}  // namespace fp4ref
