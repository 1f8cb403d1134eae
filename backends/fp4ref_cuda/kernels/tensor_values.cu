// What codes of 8-bit floats mean without a scale, in a type that holds it.
//
//   codes  uint8  [count]
//   out    Out    [count], of 16 bits
//
// S, whose element counts alone, Out and VECTORS (both begin at multiples of 16 bytes) come before this file. A thread
// takes twice 8 neighbours, which lie 8 * THREADS apart. Rules: E4M3-1, E5M2-1.
// Certificates: tensor-values-*.
#include "common.cuh"

constexpr int EACH = 8, PARTS = 2;
using Format = S::Element::Format;

DEVICE unsigned plain(unsigned code) { return (unsigned)Out::round(S::Element::decode(code & 255u)); }

// True if one of four codes is not finite: added to its magnitude, this carries into the sign's place.
DEVICE bool unusual(unsigned codes)
{
    constexpr unsigned past = (128u - Format::codes) * 0x01010101u;
    return ((codes & 0x7f7f7f7fu) + past) & 0x80808080u;
}

// A finite code: its fields at their places in a float, but for the difference of the biases; the product is exact for
// subnormals too, and bfloat16 is the upper half of it. Certificates: tensor-values-*.
DEVICE unsigned value(unsigned code)
{
    const unsigned bits = (code & 127u) << (23 - Format::mantissa_bits) | (code & 128u) << 24;
    const float x = fp4ref::float_of(bits) * fp4ref::power_of_two(127 - Format::bias);
    return fp4ref::same_type<Out, fp4ref::bfloat16> ? fp4ref::bits_of(x) >> 16 : Out::round_number(x);
}

DEVICE unsigned two(unsigned codes) { return value(codes) | value(codes >> 8) << 16; }

DEVICE unsigned two_plainly(unsigned codes) { return plain(codes) | plain(codes >> 8) << 16; }

extern "C" __global__ void __launch_bounds__(THREADS) tensor_values(
    const byte* __restrict__ codes, index_t count, Out::word* __restrict__ out)
{
    const index_t first = ((index_t)blockIdx.x * THREADS * PARTS + threadIdx.x) * EACH;
    wait_for_previous_kernel();
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
            const unsigned x = of[part].x, y = of[part].y;
            const uint4 words = unusual(x) || unusual(y)
                ? uint4{two_plainly(x), two_plainly(x >> 16), two_plainly(y), two_plainly(y >> 16)}
                : uint4{two(x), two(x >> 16), two(y), two(y >> 16)};
            *(uint4*)(out + start) = words;
        } else {
            for (index_t i = start; i < count && i < start + EACH; ++i) out[i] = (Out::word)plain(codes[i]);
        }
    }
}
