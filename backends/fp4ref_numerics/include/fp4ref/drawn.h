// E2M1 codes of bfloat16 by random bytes, eight side by side, where nothing is NaN or infinite.
#pragma once
#include <fp4ref/thresholds.h>

namespace fp4ref {
namespace drawn {

// (1 + sum) / 2 rounded down, for a sum of 0 up to 1; not above a sum beyond.
FP4_API float halfway_to_one(float sum)
{
#if defined(__CUDACC__)
    return __fmaf_rd(sum, 0.5f, 0.5f);
#else
    return sum < 1.0f ? float_of(bits_of(0.5f) + (unsigned)(sum * 0x1p23f)) : 0.5f;
#endif
}

// Byte i of a word over 512: as the last places of 2^14, less 2^14.
FP4_API float part_of_step(unsigned random, int i)
{
#if defined(__CUDACC__)
    const unsigned places = __byte_perm(random, bits_of(0x1p14f), 0x7650 + i);
#else
    const unsigned places = bits_of(0x1p14f) | (random >> 8 * i & 255u);
#endif
    return float_of(places) - 0x1p14f;
}

// The index of y, counted from BASE. A sum of |y| and a part of the step of its binade, 1 or above, has the index in the
// upper bits of its pattern from 1 on; below, (1 + sum) / 2 has, and above 1 that is the smaller one. Rules: SR-2, SR-3.
// Certificates: drawn-rows-bfloat16, drawn-fused-bfloat16.
constexpr unsigned BASE = 252;
FP4_API unsigned index(float y, float part)
{
    const float binade = float_of(larger(bits_of(y) & 0x7f800000u, bits_of(1.0f)));
    const float sum = exact_product_plus(part, binade, magnitude(y)), half = halfway_to_one(sum);
#if defined(__CUDACC__)
    const float held = fminf(fmaxf(sum, half), 7.0f);
#else
    const float larger_one = sum > half ? sum : half, held = larger_one < 7.0f ? larger_one : 7.0f;
#endif
    return bits_of(held) >> 22;
}

// Word k of `pairs` holds elements k and k + 4; byte i of the random words is that of element i. Rules: PACK-1, E2M1-2.
FP4_API unsigned packed_codes(const unsigned (&pairs)[4], unsigned low, unsigned high, float factor)
{
    unsigned sum = 0;
    FP4_UNROLL
    for (int e = 7; e >= 0; --e) {
        const unsigned w = pairs[e % 4];
        const float y = float_of(e < 4 ? w << 16 : w & 0xffff0000u) * factor;
        sum = sum * 16u + index(y, part_of_step(e < 4 ? low : high, e % 4));
    }
    sum -= BASE * 0x11111111u;
#if defined(__CUDACC__)
    return thresholds::with_signs(sum, pairs);
#else
    for (int e = 0; e < 8; ++e) sum |= (pairs[e % 4] >> (e < 4 ? 15 : 31) & 1u) << (4 * e + 3);
    return sum;
#endif
}

// What elements under a scale byte are multiplied with, in units of `size`; 0 where a product that matters, that is 2^-10
// or above, may come from a subnormal number or from one that was rounded at another exponent.
// Certificates: drawn-rows-bfloat16.
template <class S> FP4_API float factor(unsigned byte, float g, float size)
{
    const float f = S::Arithmetic::template factor<S, bfloat16>(S::Scale::decode(byte), g);
    return f > 0x1p-100f && f < 0x1p100f ? f * size : 0.0f;
}

}  // namespace drawn
}  // namespace fp4ref
