// Codes of 8-bit floats under one scale of the whole tensor: x times the scale, rounded to the element, saturating.
//
//   x      In       [count]
//   scale  float32  [1]
//   out    uint8    [count]
//
// S, whose element counts alone, In and VECTORS (both begin at multiples of 16 bytes) come before this file. A thread
// takes 16 neighbours. Rules: TEL-21.
#include "byte_codes.cuh"

constexpr int EACH = 16;

extern "C" __global__ void __launch_bounds__(THREADS) tensor_codes(
    const word* __restrict__ x, index_t count, const float* scale, byte* __restrict__ out)
{
    const index_t start = ((index_t)blockIdx.x * THREADS + threadIdx.x) * EACH;
    wait_for_previous_kernel();
    if (start >= count) return;
    const float factor = *scale;
    if (VECTORS && start + EACH <= count) {
        union { uint4 loaded[sizeof(word)]; word words[EACH]; } of;
        UNROLL
        for (int i = 0; i < (int)sizeof(word); ++i) of.loaded[i] = load_vector((const uint4*)(x + start) + i);
        unsigned packed[4];
        UNROLL
        for (int i = 0; i < 4; ++i)
            packed[i] = two_codes(of.words[4 * i], of.words[4 * i + 1], factor)
                | two_codes(of.words[4 * i + 2], of.words[4 * i + 3], factor) << 16;
        *(uint4*)(out + start) = {packed[0], packed[1], packed[2], packed[3]};
    } else {
        for (index_t i = start; i < count && i < start + EACH; ++i)
            out[i] = (byte)S::Element::encode(In::widen(x[i]) * factor);
    }
}
