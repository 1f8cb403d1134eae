// What codes of 8-bit floats mean without a scale, in a type that holds it.
//
//   codes  uint8  [count]
//   out    Out    [count], of 16 bits
//
// S, whose element counts alone, Out and VECTORS (both begin at multiples of 16 bytes) come before this file. A thread
// takes 8 neighbours. Rules: E4M3-1, E5M2-1.
#include "common.cuh"

constexpr int EACH = 8;

extern "C" __global__ void __launch_bounds__(THREADS) tensor_values(
    const byte* __restrict__ codes, index_t count, Out::word* __restrict__ out)
{
    const index_t start = ((index_t)blockIdx.x * THREADS + threadIdx.x) * EACH;
    wait_for_previous_kernel();
    if (start >= count) return;
    const auto value = [](unsigned code) { return (unsigned)Out::round(S::Element::decode(code & 255u)); };
    if (VECTORS && start + EACH <= count) {
        const uint2 of = *(const uint2*)(codes + start);
        unsigned words[4];
        UNROLL
        for (int i = 0; i < 4; ++i) {
            const unsigned two = (i < 2 ? of.x : of.y) >> 16 * (i % 2);
            words[i] = value(two) | value(two >> 8) << 16;
        }
        *(uint4*)(out + start) = {words[0], words[1], words[2], words[3]};
    } else {
        for (index_t i = start; i < count && i < start + EACH; ++i) out[i] = (Out::word)value(codes[i]);
    }
}
