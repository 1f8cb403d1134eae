// Dequantize 8-bit codes to a 16-bit type, of whole blocks with linear scales: one run, whatever its lines.
//
//   data    uint8  [count], count a multiple of 32, 16 bytes apart
//   scales  uint8  [count / 32]
//   out     Out    [count], 16 bytes apart
//
// S, In (the type that was quantized) and Out come before this file. A lane takes 16 codes; a pair of lanes stores its 64
// bytes as two times 32, side by side, because a segment that is written in one go costs less. Certificates:
// dequantize-mxfp8-*.
#include "decoders.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 8) decode_run(
    const byte* __restrict__ data, const byte* __restrict__ scales, index_t count, word* __restrict__ out)
{
    wait_for_previous_kernel();
    const index_t at = ((index_t)blockIdx.x * THREADS + threadIdx.x) * 16;
    const bool inside = at < count;  // and so is the other lane of the pair, in the same block of codes
    const uint4 codes = inside ? load_vector(data + at) : uint4{0, 0, 0, 0};
    const unsigned scale = inside ? scales[at / S::columns] : 0;
    const uint2 halves[2] = {{codes.x, codes.y}, {codes.z, codes.w}};
    const uint4 first = D::values(halves[0], scale, nullptr), second = D::values(halves[1], scale, nullptr);

    const bool odd = threadIdx.x % 2;
    const uint4 given = odd ? first : second;
    const auto taken = [](unsigned part) { return __shfl_xor_sync(~0u, part, 1); };
    const uint4 other = {taken(given.x), taken(given.y), taken(given.z), taken(given.w)};
    uint4* const to = (uint4*)(out + at);
    if (inside) {
        to[odd ? -1 : 0] = odd ? other : first;
        to[odd ? 1 : 2] = odd ? second : other;
    }
    __syncwarp();  // what a lane stores below comes after what the other one stored in the same place
    _Pragma("unroll 1")
    for (int i = 0; i < 2; ++i)
        if (inside && D::plain(halves[i], scale, nullptr)) to[i] = decoded_plainly(halves[i], scale, 0.0f);
}
