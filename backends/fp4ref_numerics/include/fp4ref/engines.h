// Scale arithmetic of inference engines and kernel libraries, in the form of the header of arithmetics.
#pragma once
#include <fp4ref/arithmetic.h>

namespace fp4ref {
namespace arithmetic {

#define FP4_RULE template <class S, class In> FP4_API float

// v / 2, v the first of 0, 1, 2, 3, 4, 6, 8, 12 and -1 to -12 whose distance abs(v * d - x), rounded, is the smallest.
FP4_API float least_error(float x, float d)
{
    constexpr float NUMBERS[15] = {0, 1, 2, 3, 4, 6, 8, 12, -1, -2, -3, -4, -6, -8, -12};
    float best = 0.0f, error = magnitude(NUMBERS[0] * d - x);
    for (int i = 1; i < 15; ++i) {
        const float distance = magnitude(NUMBERS[i] * d - x);
        const bool closer = distance < error;
        best = closer ? NUMBERS[i] * 0.5f : best, error = closer ? distance : error;
    }
    return best;
}

// ggml: a byte modulo 256; a block whose byte is FF has no number near its scale, and a NaN is nearest to nothing.
struct ggml : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        if (!(a > 0.0f) || !is_finite(a)) return 0x1p-127f;
        const int byte = (log2_floor(a) - S::Element::Format::emax + 127) & 255;
        return byte == 255 ? float_of(0x7fc00000u) : scale_of(byte - 127);
    }
    FP4_RULE factor(float s, float) { return s * 0.5f; }
    FP4_RULE apply(float x, float f, float) { return least_error(x, f); }
};
template <> constexpr bool grows<ggml> = false;

// The scale rounded half away on the grid of E4M3, one bit of the mantissa looked at; everything from 248 on is 448.
struct ggml_nvfp4 : ggml {
    FP4_RULE block_scale(float a, float)
    {
        const float sixth = a / 6.0f, t = sixth < 448.0f ? sixth : 448.0f;
        if (t < 0x1p-6f) {
            const int steps = (int)(t * 512.0f + 0.5f);
            return (float)(steps > 7 ? 7 : steps) * 0x1p-9f;
        }
        const float rounded = float_of((bits_of(t) + (1u << 19)) & 0xfff00000u);
        return rounded < 256.0f ? rounded : 448.0f;
    }
};
template <> constexpr bool grows<ggml_nvfp4> = false;

// MLX: the power of two above the quotient. A byte below 0 wraps; then the scale is negative here, and 2^256 times as large.
struct mlx_scale_works {
    FP4_API float working(float t, float, float)
    {
        if (bits_of(t) >> 31 == 0u) return t;
        return is_nan(t) ? 0x1p-128f : -t * 0x1p-128f * 0x1p-128f;
    }
};
struct mlx_fp8 : no_global_scale_by<mlx_scale_works> {
    FP4_RULE block_scale(float a, float)
    {
        if (!is_finite(a)) return In::precision == 24 ? -2.0f : -0x1p-127f;
        const float t = In::narrow(a / S::element_max);
        if (!(t > 0.0f)) return 1.0f;
        const Log2 l = log2_parts(t);
        const int exponent = l.exponent + (l.mantissa != 0u);
        return exponent == -128 ? float_of(0xffc00000u) : exponent < -128 ? -scale_of(exponent + 256) : scale_of(exponent);
    }
    FP4_RULE factor(float s, float) { return In::narrow(s); }
    FP4_RULE apply(float x, float f, float) { return In::narrow(x / f); }
};
struct mlx : mlx_fp8 {
    FP4_RULE apply(float x, float f, float) { return least_error(In::narrow(x / f), 0.5f); }
};
template <> constexpr bool grows<mlx> = false;
struct mlx_nvfp4 : no_global_scale {
    FP4_RULE block_scale(float a, float g) { return In::narrow(a / 6.0f) * g; }
    FP4_RULE factor(float, float g) { return g; }
    FP4_RULE apply(float x, float g, float s) { return least_error(In::narrow(x / In::narrow(s)) * g, 0.5f); }
};
template <> constexpr bool grows<mlx_nvfp4> = false;
struct mlx_nvfp4_global : mlx_nvfp4 {
    FP4_RULE global_scale(float A) { return S::scale_max * S::element_max / A; }
    FP4_RULE decode(float s, float A) { return s / mlx_nvfp4_global::global_scale<S, In>(A); }
};
template <> constexpr bool grows<mlx_nvfp4_global> = false;

// triton_kernels: the factor is 0 where the scale is 0 or infinite.
template <class Working> struct zero_factor : no_global_scale_by<Working> {
    FP4_RULE factor(float s, float) { return s == 0.0f || s == 0x1p-127f ? 0.0f : 1.0f / s; }
};
struct triton_up : zero_factor<infinite_scale_works> {
    FP4_RULE block_scale(float a, float) { return is_nan(a) ? 0.0f : up_from_any(a / S::element_max); }
};
struct triton_down : zero_factor<infinite_scale_works> {
    FP4_RULE block_scale(float a, float)
    {
        const float t = a / power_of_two(S::Element::Format::emax);
        return is_finite(t) ? scale_of((int)(bits_of(t) >> 23) - 127) : float_of(0x7f800000u);
    }
};
struct triton_nvfp4 : zero_factor<stored_scale_works> {
    FP4_RULE block_scale(float a, float) { return a / 6.0f; }
};

// vLLM: the reciprocal of 0 is that of 1e8.
FP4_API float reciprocal_or_tiny(float v) { return 1.0f / (v == 0.0f ? 1e8f : v); }
struct vllm_emulation : flashinfer {
    FP4_RULE block_scale(float a, float g)
    {
        const float t = g * (a * SIXTH);
        return t > S::scale_max ? S::scale_max : t;
    }
    FP4_RULE factor(float s, float g) { return reciprocal_or_tiny(s * reciprocal_or_tiny(g)); }
};
struct nan_scale_works {
    FP4_API float working(float t, float s, float) { return is_nan(t) ? t : s; }
};
struct vllm_mxfp8 : no_global_scale_by<nan_scale_works> {
    FP4_RULE block_scale(float a, float)
    {
        if (!is_finite(a)) return is_nan(a) ? a : 0x1p127f;
        return scale_of(log2_ceil((a < 0x1p-126f ? 0x1p-126f : a) / S::element_max));
    }
};

// aiter: the exponent of a quotient; every nonzero mantissa counts where it rounds up, that of a subnormal too.
template <int Divisor, unsigned Carry, bool Up> struct aiter : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        if (is_nan(a)) return float_of(0x7fc00000u);
        const float v = (Carry ? float_of((bits_of(a) + Carry) & 0xff800000u) : a) / (float)Divisor;
        const unsigned field = (bits_of(v) + (Up ? 0x7fffffu : 0u)) >> 23;
        return is_finite(v) ? scale_of((int)smaller(field, 254u) - 127) : float_of(0x7fc00000u);
    }
};
struct aiter_round_down : aiter<4, 0u, false> {};
struct aiter_round_up : aiter<6, 0u, true> {};
struct aiter_even : aiter<4, 1u << 21, false> {};
struct aiter_ceil : aiter<4, 0u, true> {};

// Quark: EVEN that takes a zero block for one of 2^-126, and an infinite one for the largest scale.
struct quark_even : no_global_scale {
    FP4_RULE block_scale(float a, float)
    {
        if (is_nan(a)) return a;
        const float amax = a == 0.0f ? 0x1p-126f : a;
        const unsigned field = (bits_of(amax) + (1u << (22 - S::Element::Format::mantissa_bits))) >> 23;
        return field < 255u ? shared_scale<S>(field) : 0x1p127f;
    }
};

// comfy-kitchen: g, rounded to the input's type, decodes.
struct comfy_kitchen : torchao {
    FP4_RULE global_scale(float A) { return In::narrow(torchao::global_scale<S, In>(A)); }
    FP4_RULE block_scale(float a, float g)
    {
        const float t = a / 6.0f / g;
        return t > S::scale_max ? S::scale_max : t;
    }
    FP4_RULE factor(float s, float g) { return g * s; }
    FP4_RULE apply(float x, float f, float s)
    {
        if (is_nan(s)) return bits_of(s) >> 31 ? -2.0f : 2.0f;
        return f == 0.0f ? 0.0f : x / f;
    }
    FP4_RULE decode(float s, float A) { return comfy_kitchen::global_scale<S, In>(A) * s; }
};
// Byte 00 divides by 0, and a zero block has +0 only.
struct comfy_scale_works {
    FP4_API float working(float t, float s, float) { return t == 0.0f ? float_of(0x7f800000u) : s == 0x1p-127f ? 0.0f : s; }
};
struct comfy_kitchen_mx : no_global_scale_by<comfy_scale_works> {
    FP4_RULE block_scale(float a, float)
    {
        if (a == 0.0f) return 0.0f;
        const float t = a / S::element_max;
        return is_finite(t) && t > 0x1p-127f ? scale_of(log2_ceil(t)) : 0x1p-127f;
    }
    FP4_RULE factor(float s, float) { return s; }
    FP4_RULE apply(float x, float f, float) { return is_finite(f) ? x / f : 0.0f; }
};

#undef FP4_RULE
}  // namespace arithmetic
}  // namespace fp4ref
