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
#include "byte_values.cuh"

constexpr int PARTS = 2;

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
            store_values(out + start, of[part], by);
        } else {
            for (index_t i = start; i < count && i < start + EACH; ++i) out[i] = plain(codes[i], by);
        }
    }
}
