// Values of codes of 8-bit floats, eight at once: as they are, in a type of 16 bits that holds them, or times a scale, as a
// float that is rounded once. SCALED comes before this file. Rules: E4M3-1, E5M2-1, DEQ-2, DEQ-3.
#pragma once
#include "common.cuh"

constexpr int EACH = 8;
using Format = S::Element::Format;
using word = Out::word;
static_assert(SCALED || sizeof(word) == 2, "bfloat16 is the upper half of what is computed");

DEVICE word plain(unsigned code, float scale)
{
    const float x = S::Element::decode(code & 255u);
    return Out::round(SCALED ? x * scale : x);
}

// True if one of four codes is not finite: added to its magnitude, this carries into the sign's place.
DEVICE bool unusual(unsigned codes)
{
    constexpr unsigned past = (128u - Format::codes) * 0x01010101u;
    return ((codes & 0x7f7f7f7fu) + past) & 0x80808080u;
}

// A finite code under a finite scale: its fields at their places in a float, but for the difference of the biases; that
// product is exact for subnormals too, and bfloat16 is the upper half of it. Certificates: tensor-values-*.
DEVICE word value(unsigned code, float scale)
{
    const unsigned bits = (code & 127u) << (23 - Format::mantissa_bits) | (code & 128u) << 24;
    const float x = fp4ref::float_of(bits) * fp4ref::power_of_two(127 - Format::bias);
    if constexpr (SCALED) return Out::round_number(x * scale);
    else return fp4ref::same_type<Out, fp4ref::bfloat16> ? (word)(fp4ref::bits_of(x) >> 16) : Out::round_number(x);
}

DEVICE void store_values(word* out, const uint2& codes, float scale)
{
    union { word words[EACH]; uint4 vectors[sizeof(word) / 2]; } made;
    const bool plainly = unusual(codes.x) || unusual(codes.y) || !fp4ref::is_finite(scale);
    UNROLL
    for (int i = 0; i < EACH; ++i) {
        const unsigned code = (i < 4 ? codes.x : codes.y) >> i % 4 * 8;
        made.words[i] = plainly ? plain(code, scale) : value(code, scale);
    }
    UNROLL
    for (int i = 0; i < (int)sizeof(word) / 2; ++i) ((uint4*)out)[i] = made.vectors[i];
}
