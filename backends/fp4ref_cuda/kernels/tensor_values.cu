// What codes of 8-bit floats mean, without a scale in a type of 16 bits that holds it, or under one scale of the whole
// tensor: their product as a float, rounded once.
//
//   codes  uint8    [count]
//   scale  float32  [1], with SCALED
//   out    Out      [count]
//
// S, whose element counts alone, Out, SCALED and VECTORS (both begin at multiples of 16 bytes) come before this file. A
// thread takes twice 8 neighbours, which lie 8 * THREADS apart. Rules: E4M3-1, E5M2-1, DEQ-2, DEQ-3.
// Certificates: tensor-values-*, tensor-decoded-*.
#include "common.cuh"

constexpr int EACH = 8, PARTS = 2;
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

// A finite code: its fields at their places in a float, but for the difference of the biases; the product is exact for
// subnormals too, and bfloat16 is the upper half of it. Certificates: tensor-values-*.
DEVICE word value(unsigned code, float scale)
{
    const unsigned bits = (code & 127u) << (23 - Format::mantissa_bits) | (code & 128u) << 24;
    const float x = fp4ref::float_of(bits) * fp4ref::power_of_two(127 - Format::bias);
    if constexpr (SCALED) return Out::round(x * scale);
    else return fp4ref::same_type<Out, fp4ref::bfloat16> ? (word)(fp4ref::bits_of(x) >> 16) : Out::round_number(x);
}

template <class Of> DEVICE void store_eight(word* out, const uint2& codes, const Of& of)
{
    union { word words[EACH]; uint4 vectors[sizeof(word) / 2]; } made;
    UNROLL
    for (int i = 0; i < EACH; ++i) made.words[i] = of((i < 4 ? codes.x : codes.y) >> i % 4 * 8);
    UNROLL
    for (int i = 0; i < (int)sizeof(word) / 2; ++i) ((uint4*)out)[i] = made.vectors[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) tensor_values(
    const byte* __restrict__ codes, index_t count, const float* scale, word* __restrict__ out)
{
    const index_t first = ((index_t)blockIdx.x * THREADS * PARTS + threadIdx.x) * EACH;
    wait_for_previous_kernel();
    const float by = SCALED ? *scale : 1.0f;
    uint2 of[PARTS];
    UNROLL
    for (int part = 0; part < PARTS; ++part) {
        const index_t start = first + part * THREADS * EACH;
        if (VECTORS && start + EACH <= count) of[part] = __ldg((const uint2*)(codes + start));
    }
    UNROLL
    for (int part = 0; part < PARTS; ++part) {
        const index_t start = first + part * THREADS * EACH;
        if (VECTORS && start + EACH <= count) {
            const bool plainly = unusual(of[part].x) || unusual(of[part].y);
            if (plainly) store_eight(out + start, of[part], [&](unsigned code) { return plain(code, by); });
            else store_eight(out + start, of[part], [&](unsigned code) { return value(code, by); });
        } else {
            for (index_t i = start; i < count && i < start + EACH; ++i) out[i] = plain(codes[i], by);
        }
    }
}
