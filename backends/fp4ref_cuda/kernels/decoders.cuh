// Codes of 4 or 8 bits to a 16-bit type, eight at a time: E2M1 through a table of all values of every scale byte, 8-bit
// floats in blocks without a global scale by their bits; or either by the plain numerics.
//
// S, In (the type that was quantized) and Out come before this file. The 8 magnitudes of E2M1 under one scale are 16
// bytes; a byte permutation with the codes as its selector looks up four at once, and the sign is the code's.
// Certificates: dequantize-*.
#pragma once
#include "common.cuh"

using word = Out::word;
using Format = S::Element::Format;

// Two products of bfloat16, each rounded once. Rules: NUM-3.
DEVICE unsigned product(unsigned a, unsigned b)
{
#if __CUDA_ARCH__ >= 800
    unsigned both;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(both) : "r"(a), "r"(b), "r"(0x80008000u));  // and -0, which changes none
    return both;
#else
    const auto of = [&](int at) {
        return (unsigned)fp4ref::bfloat16::round(fp4ref::bfloat16::widen(a >> at & 0xffffu) * fp4ref::bfloat16::widen(b >> at & 0xffffu));
    };
    return of(0) | of(16) << 16;
#endif
}

// The codes of 8 elements, and what is needed to decode them.
template <int Bits> struct Decoder;

template <> struct Decoder<4> {
    using codes = unsigned;
    static constexpr int entries = 256;

    // High bytes of the values of codes 0 to 3 and 4 to 7, then their low bytes.
    DEVICE uint4 entry(unsigned scale_byte, float A)
    {
        const float scale = fp4ref::decoded_scale<S, In>(scale_byte, A);
        unsigned high[2] = {0, 0}, low[2] = {0, 0};
        UNROLL
        for (int c = 0; c < 8; ++c) {
            const unsigned bits = Out::round(fp4ref::dequantized<S, In>(c, scale, A));
            high[c / 4] |= (bits >> 8) << 8 * (c % 4);
            low[c / 4] |= (bits & 255u) << 8 * (c % 4);
        }
        return {high[0], high[1], low[0], low[1]};
    }

    // True where the scale is not finite, and a NaN has a sign of its own.
    DEVICE bool plain(unsigned, unsigned byte, const uint4* table) { return table[byte].x & 0x7fu; }

    DEVICE unsigned code(unsigned codes, int i) { return codes >> 4 * i & 15u; }

    DEVICE uint4 values(unsigned codes, unsigned byte, const uint4* table)
    {
        const uint4 t = table[byte];
        const unsigned first = codes & 0x77777777u, second = first >> 16, shifted = codes << 4;
        const unsigned h0 = __byte_perm(t.x, t.y, first) ^ (__byte_perm(shifted, codes, 0x5140) & 0x80808080u);
        const unsigned h1 = __byte_perm(t.x, t.y, second) ^ (__byte_perm(shifted, codes, 0x7362) & 0x80808080u);
        const unsigned l0 = __byte_perm(t.z, t.w, first), l1 = __byte_perm(t.z, t.w, second);
        return {__byte_perm(l0, h0, 0x5140), __byte_perm(l0, h0, 0x7362), __byte_perm(l1, h1, 0x5140),
            __byte_perm(l1, h1, 0x7362)};
    }
};

template <> struct Decoder<8> {
    using codes = uint2;
    static constexpr int entries = 0;

    DEVICE uint4 entry(unsigned, float) { return {}; }

    // True where a code is not finite, or the scale is not: added to each magnitude, this carries into the sign's place.
    DEVICE bool plain(uint2 codes, unsigned byte, const uint4*)
    {
        constexpr unsigned past = (128u - Format::codes) * 0x01010101u;
        const unsigned x = (codes.x & 0x7f7f7f7fu) + past, y = (codes.y & 0x7f7f7f7fu) + past;
        return (x | y) & 0x80808080u || byte == 255u;
    }

    DEVICE unsigned code(uint2 codes, int i) { return (i < 4 ? codes.x : codes.y) >> 8 * (i % 4) & 255u; }

    // A magnitude as the bits of a float: its value, but for the difference of the biases, subnormals included. Both
    // products are exact or overflow: the smallest one is 2^-143. Certificates: dequantize-mxfp8-*.
    DEVICE unsigned value(unsigned code, float scale)
    {
        const float q = fp4ref::float_of((code & 127u) << (23 - Format::mantissa_bits));
        const float y = q * fp4ref::power_of_two(127 - Format::bias) * scale;
        return Out::round_number(fp4ref::float_of(fp4ref::bits_of(y) | (code & 128u) << 24));
    }

    // Two codes, each in the upper byte of its half, as bits of bfloat16 in the same way.
    DEVICE unsigned pair(unsigned two, unsigned scale)
    {
        constexpr int down = 1 + Format::mantissa_bits;
        constexpr unsigned magnitudes = (0x7f00u >> down) * 0x10001u;
        const unsigned q = (two >> down & magnitudes) | (two & 0x80008000u);
        constexpr unsigned power = (254u - Format::bias) << 7;
        return product(product(q, power * 0x10001u), scale * 0x10001u);
    }

    DEVICE uint4 values(uint2 codes, unsigned byte, const uint4*)
    {
        if constexpr (fp4ref::same_type<Out, fp4ref::bfloat16>) {
            const unsigned scale = byte ? byte << 7 : 0x40u;
            return {pair(__byte_perm(codes.x, 0, 0x1404), scale), pair(__byte_perm(codes.x, 0, 0x3424), scale),
                pair(__byte_perm(codes.y, 0, 0x1404), scale), pair(__byte_perm(codes.y, 0, 0x3424), scale)};
        }
        const float scale = S::Scale::decode(byte);
        unsigned w[4];
        UNROLL
        for (int i = 0; i < 4; ++i) w[i] = value(code(codes, 2 * i), scale) | value(code(codes, 2 * i + 1), scale) << 16;
        return {w[0], w[1], w[2], w[3]};
    }
};
using D = Decoder<Format::bits>;

// The same by the plain numerics.
DEVICE uint4 decoded_plainly(D::codes codes, unsigned scale_byte, float A)
{
    const float scale = fp4ref::decoded_scale<S, In>(scale_byte, A);
    unsigned w[4] = {0, 0, 0, 0};
    UNROLL
    for (int i = 0; i < 8; ++i)
        w[i / 2] |= (unsigned)Out::round(fp4ref::dequantized<S, In>(D::code(codes, i), scale, A)) << 16 * (i % 2);
    return {w[0], w[1], w[2], w[3]};
}
