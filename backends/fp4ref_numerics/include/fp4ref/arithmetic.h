// Scale arithmetic, one struct per implementation's order of operations, by the name that specifications use.
//
//   global_scale(A)      g of the global maximum
//   block_scale(a, g)    a block's scale before its codec
//   working(t, s, a)     the scale that elements are divided by: of t, before its codec, or what the stored byte means
//   factor(s, g)         what `apply` combines with every element of a block whose stored scale means s
//   apply(x, f, s)       the element in units of its scale, before its codec
//   decode(s, A)         what `value` combines with every element value q
//   value(q, d, A)       the dequantized element
//
// S is the specification, In the input type. Each operator is one float operation, in the written order.
// Rules: NUM-1, PRO-3.
#pragma once
#include <fp4ref/codec.h>
#include <fp4ref/reciprocal.h>

namespace fp4ref {
namespace arithmetic {

#define FP4_RULE template <class S, class In> FP4_API float

// Whether `apply` grows with |x|.
template <class Arithmetic> constexpr bool grows = true;

// Whether `apply` is `quotient`, which grows with |x|, where that is below QUOTIENT_LIMIT.
template <class Arithmetic> constexpr bool by_quotient = false;
constexpr float QUOTIENT_LIMIT = 0x1p24f;

struct stored_scale_works {
    FP4_API float working(float, float s, float) { return s; }
};
struct scale_before_codec_works {
    FP4_API float working(float t, float, float) { return t; }
};
struct normal_or_infinite_scale_works {
    FP4_API float working(float, float s, float)
    {
        return is_nan(s) ? float_of(0x7f800000u) : s < 0x1p-126f ? 0x1p-126f : s;
    }
};
struct infinite_scale_works {
    FP4_API float working(float t, float s, float) { return magnitude_bits(t) == 0x7f800000u ? t : s; }
};

// Without a global scale: divide by the stored scale, which for a power of two equals multiplying by its reciprocal.
// Rules: GLB-6, BLK-10, DEQ-2. Certificates: power-of-two, unscaled.
template <class Working = stored_scale_works> struct no_global_scale_by : Working {
    FP4_RULE global_scale(float) { return 1.0f; }
    FP4_RULE factor(float s, float) { return 1.0f / s; }
    FP4_RULE apply(float x, float f, float) { return x * f; }
    FP4_RULE decode(float s, float) { return s; }
    FP4_RULE value(float q, float d, float) { return q * d; }
};
using no_global_scale = no_global_scale_by<>;

// The CUDA default path of NVFP4.
// Certificates: encoding-*, block-scale, factor, factor-significands, block, block-one-byte,
// block-all, decode, decode-significands.
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

// The smaller of a number and the largest float; a NaN stays.
FP4_API float at_most_float_max(float t) { return t > FLOAT_MAX ? FLOAT_MAX : t; }

struct te_python : te {
    FP4_RULE global_scale(float A)
    {
        const float g = at_most_float_max(S::scale_max * S::element_max / A);
        return g == 0.0f ? 1.0f : g;
    }
    FP4_RULE block_scale(float a, float g) { return a * (g * SIXTH); }
    FP4_RULE factor(float s, float g) { return at_most_float_max(1.0f / (s * (1.0f / g))); }
};

struct te_python_division : te_python {
    FP4_RULE block_scale(float a, float g) { return a / 6.0f * g; }
};

struct te_rht_fused : te_python {
    FP4_RULE global_scale(float A) { return A > 0.0f ? at_most_float_max(S::scale_max * S::element_max / A) : 1.0f; }
};

struct cutlass : te {
    FP4_RULE global_scale(float A) { return S::scale_max * S::element_max / A; }
    FP4_RULE factor(float s, float g) { return at_most_float_max(g * approximate_reciprocal(s)); }
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

struct modelopt_unclamped : torchao {
    FP4_RULE block_scale(float a, float g)
    {
        const float t = a / (6.0f * g);
        return t == 0.0f ? 1.0f : t;
    }
    FP4_RULE factor(float s, float g) { return s * g; }
    FP4_RULE apply(float x, float f, float) { return x / f; }
};

struct modelopt : modelopt_unclamped {
    FP4_RULE block_scale(float a, float g)
    {
        const float t = modelopt_unclamped::block_scale<S, In>(a, g);
        return t < 0x1p-9f ? 0x1p-9f : t > S::scale_max ? S::scale_max : t;
    }
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

// y, but from 2^24 on the E2M1 value whose distance from it, rounded, is the smallest, the first of equals. For 0 the
// smallest subnormal, because its sign counts.
FP4_API float first_of_the_nearest(float y)
{
    const float m = magnitude(y);
    if (!(m >= QUOTIENT_LIMIT)) return y;
    constexpr float VALUES[8] = {0x1p-149f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    float best = VALUES[0], error = m;
    for (int i = 1; i < 8; ++i) {
        const float distance = magnitude(VALUES[i] - m);
        best = distance < error ? VALUES[i] : best, error = distance < error ? distance : error;
    }
    return y < 0.0f ? -best : best;
}

struct flashinfer_trace : flashinfer {
    FP4_RULE block_scale(float a, float g) { return a / 6.0f * g; }
    FP4_RULE factor(float, float g) { return g; }
    FP4_RULE quotient(float x, float g, float s) { return x * g / (s > 0.0f ? s : 1.0f); }
    FP4_RULE apply(float x, float g, float s) { return first_of_the_nearest(quotient<S, In>(x, g, s)); }
};
template <> constexpr bool by_quotient<flashinfer_trace> = true;

// g decodes; a subnormal result becomes a zero of its sign.
FP4_API float flushed(float x) { return float_of(magnitude_bits(x) < 0x800000u ? bits_of(x) & 0x80000000u : bits_of(x)); }
struct jax : torchao {
    FP4_RULE global_scale(float A) { return flushed(torchao::global_scale<S, In>(A)); }
    FP4_RULE block_scale(float a, float g)
    {
        const float t = flushed(magnitude(flushed(a * flushed(1.0f / g))) * SIXTH);
        return t > S::scale_max ? S::scale_max : t;
    }
    FP4_RULE factor(float, float g) { return flushed(1.0f / g); }
    FP4_RULE apply(float x, float f, float s) { return flushed(flushed(x * f) * flushed(1.0f / s)); }
};

struct qwix : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        const float t = In::narrow(a * SIXTH);
        return t < 0x1p-63f ? 1.0f : t;
    }
    FP4_RULE apply(float x, float f, float) { return In::narrow(x * f); }
};

// Rules: APX-1.
struct kernel_approx : flashinfer {
    FP4_RULE factor(float s, float g)
    {
        const float f = approximate_reciprocal(s * approximate_reciprocal(g));  // without a branch, so side by side
        return s == 0.0f ? 0.0f : f;
    }
};

// The scale of a block without a nonzero number counts as infinite, which no byte of a format with a mantissa means.
struct kernel_approx_by_amax : flashinfer {
    FP4_API float working(float, float s, float a) { return a == 0.0f ? float_of(0x7f800000u) : s; }
    FP4_RULE factor(float s, float g)
    {
        const float f = approximate_reciprocal(s * approximate_reciprocal(g));
        return magnitude_bits(s) == 0x7f800000u ? 0.0f : f;
    }
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
struct kernel_mxfp4 : rceil {
    FP4_RULE factor(float s, float) { return s == 0x1p-127f ? 1.0f : 1.0f / s; }
};
// Rules: APX-1.
struct kernel_mxfp8 : rceil {
    FP4_RULE factor(float s, float)
    {
        const float f = approximate_reciprocal(s);
        return s == 0x1p-127f ? 0.0f : f;
    }
    FP4_RULE apply(float x, float f, float)
    {
        const float y = x * f, top = S::element_max;
        return y > top ? top : y < -top ? -top : y;
    }
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

// EVEN, but a carry out of float32 gives NaN.
struct torchao_even_carry : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        const unsigned field = (bits_of(a) + (1u << (22 - S::Element::Format::mantissa_bits))) >> 23;
        return field < 255u ? shared_scale<S>(field) : float_of(0x7fc00000u);
    }
};

// EVEN with one mantissa bit for every element format, each step in the input's type; a block that becomes infinite is
// divided by infinity, one whose scale the type flushes by 1.
struct compressed_tensors_mx : no_global_scale_by<infinite_scale_works> {
    FP4_RULE block_scale(float a, float)
    {
        const float low = In::smallest_normal, below = a < 0.75f * low ? 0.0f : low;
        const float power = a < low ? below : In::narrow(float_of((bits_of(a) + (1u << 21)) & 0x7f800000u));
        if (!is_finite(a) || !is_finite(power)) return float_of(0x7f800000u);
        const float scale = In::narrow(shared_scale<S>(bits_of(power) >> 23));
        return scale == 0.0f ? 1.0f : scale;
    }
    FP4_RULE apply(float x, float f, float) { return In::narrow(x * f); }
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

// Elements of a block whose byte is 0 are 0; those of an infinite block are divided by infinity.
struct zero_below_normal : no_global_scale_by<infinite_scale_works> {
    FP4_RULE apply(float x, float f, float s) { return s == 0x1p-127f ? 0.0f : x * f; }
};
struct fouroversix_mx : zero_below_normal {
    FP4_RULE block_scale(float a, float)
    {
        return is_nan(a) ? 0.0f : up_from_any(a / S::element_max);
    }
};
struct fouroversix_mx_unguarded : no_global_scale_by<infinite_scale_works> {
    FP4_RULE block_scale(float a, float g) { return fouroversix_mx::block_scale<S, In>(a, g); }
    FP4_RULE factor(float s, float) { return s == 0x1p-127f ? float_of(0x7f800000u) : 1.0f / s; }
};
struct flashinfer_mx : zero_below_normal {
    FP4_RULE block_scale(float a, float) { return is_nan(a) ? 0.0f : up_from_any(a * SIXTH); }
};

// 1 over the power of two below element_max / a, which is a normal number.
struct te_fp8_block : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        if (a == 0.0f || !is_finite(a)) return 1.0f;
        const unsigned field = bits_of(min_number(S::element_max / a, FLOAT_MAX)) >> 23;
        return field == 254u ? 0x1p-127f : float_of((254u - field) << 23);
    }
};

// 2^exponent, held within the values of E8M0.
FP4_API float scale_of(int exponent)
{
    return exponent < -126 ? 0x1p-127f : power_of_two(exponent > 127 ? 127 : exponent);
}

// The smallest scale is flushed, so what it divides becomes infinite; zero becomes NaN.
struct jax_mx : no_global_scale_by<infinite_scale_works> {
    FP4_RULE block_scale(float a, float) { return In::narrow(flushed(a / S::element_max)); }
    FP4_RULE factor(float s, float) { return s == 0x1p-127f ? float_of(0x7f800000u) : 1.0f / s; }
};

// The power of two below a multiple of the quotient, all of it in the input's type but the product: in bfloat16.
struct qwix_mx : no_global_scale_by<infinite_scale_works> {
    FP4_RULE block_scale(float a, float)
    {
        constexpr bool four_bits = S::Element::Format::bits == 4;
        const float quotient = In::narrow(a / S::element_max), c = In::narrow(four_bits ? 12.0f / 7.0f : 60.0f / 31.0f);
        const float product = bfloat16::narrow((quotient < 0x1p-63f ? 1.0f : quotient) * c);
        return is_finite(a) ? scale_of((int)(bits_of(product) >> 23) - 127) : a;
    }
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
// The exponent of the floats next to an integer k, toward zero or away from it; below -126 for 0.
FP4_API int exponent_near(int k, bool toward_zero)
{
    const int size = k < 0 ? -k : k, power = (size & (size - 1)) == 0;
    return (int)(bits_of((float)size) >> 23) - 127 - (toward_zero & power);
}
// floor(ln 2 * 2^n) steps, n that exponent; none next to 0.
FP4_API int steps_near(int k, bool toward_zero)
{
    const int n = exponent_near(k, toward_zero), steps = (45426 << (n < 0 ? 0 : n)) >> 16;  // ln 2 * 2^16
    return n < 0 ? 0 : steps;
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
// floor(log2 t), the logarithm rounded to In, for a t of that type. In 16 bits it is k from 2^(k - h) on, h half the
// distance to the number below k, and no t of that type lies so near to that power that rounding twice would show.
template <class In> FP4_API int log2_floor_in(float t)
{
    if constexpr (In::precision == 24) return log2_floor(t);
    // Mantissas of 2^(1 - 2^-j), j from 1 to 12, cut off.
    constexpr unsigned POWERS[12] = {3474675, 5719292, 6996166, 7677309, 8029106, 8207884, 8298001, 8343243, 8365910,
        8377255, 8382930, 8385769};
    const Log2 l = log2_parts(t);
    const int k = l.exponent + 1, j = In::precision - exponent_near(k, k > 0);
    return l.exponent + ((k != 0) & (l.mantissa > POWERS[j > 12 ? 11 : j - 1]));
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
struct modelopt_mxfp8 : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        const float t = a / S::element_max;
        return !(t > 0.0f) ? 0x1p-127f : is_finite(t) ? scale_of(log2_ceil(t)) : 0x1p127f;
    }
};
struct flashinfer_trace_mx : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        const float t = a / S::element_max;
        return !(t > 0.0f) ? 1.0f : is_finite(t) ? scale_of(log2_floor(t)) : 0x1p-127f;
    }
    FP4_RULE quotient(float x, float f, float) { return x * f; }
    FP4_RULE apply(float x, float f, float s)
    {
        if constexpr (S::Element::Format::bits == 4) return first_of_the_nearest(quotient<S, In>(x, f, s));
        return quotient<S, In>(x, f, s);
    }
};
template <> constexpr bool by_quotient<flashinfer_trace_mx> = true;

// Both exponents, that of the block and that of every element, come from a rounded logarithm; Integer rounds an element
// in units of its step. A block's elements are below 2^(emax + 2) of its scale, so no power of two here leaves the range.
template <class Integer> struct microxcaling : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        const int exponent = log2_floor_in<In>(a == 0.0f ? 0x1p-126f : a) - S::Element::Format::emax;
        return is_finite(a) && exponent <= 127 ? scale_of(exponent) : float_of(0x7fc00000u);
    }
    FP4_RULE apply(float x, float f, float)
    {
        using Format = typename S::Element::Format;
        const float z = In::narrow(x * f), size = magnitude(z);
        const int floor = log2_floor_in<In>(size), lowest = 1 - Format::bias, highest = Format::emax + 2;
        const int held = floor > highest ? highest : floor, exponent = held < lowest ? lowest : held;
        const float steps = size * power_of_two(Format::mantissa_bits - exponent);
        const float y = Integer::template of<In>(steps) * power_of_two(exponent - Format::mantissa_bits);
        const float signed_y = z < 0.0f ? -y : y;  // y of a zero is +0
        return is_nan(z) ? z : signed_y;
    }
};
// Of numbers below 2^31.
FP4_API float whole(float v) { return (float)(int)v; }
struct cut_off {
    template <class In> FP4_API float of(float v) { return whole(v); }
};
struct half_up {
    template <class In> FP4_API float of(float v) { return whole(In::narrow(v + 0.5f)); }
};
struct half_to_even {
    template <class In> FP4_API float of(float v)
    {
        const float below = In::narrow(v - 0.5f);
        return half_up::of<In>(v) - (whole(below * 0.5f) * 2.0f == below ? 1.0f : 0.0f);
    }
};
struct microxcaling_nearest : microxcaling<half_up> {};
struct microxcaling_even : microxcaling<half_to_even> {};
struct microxcaling_floor : microxcaling<cut_off> {};

#undef FP4_RULE
}  // namespace arithmetic
}  // namespace fp4ref
