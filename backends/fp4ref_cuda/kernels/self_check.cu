// The target's conversion to E2M1 against the plain codec: all of bfloat16, and every midpoint with its float
// neighbours.
//
//   first  uint32  [1] the smallest pattern of a float32 on which they differ, or as it was
//
// A thread takes one input in both places of a pair. Rules: E2M1-2, E2M1-3, E2M1-4, E2M1-5.
#include "common.cuh"

using Codec = fp4ref::hardware_e2m1;
constexpr unsigned MIDPOINTS = 7, NEIGHBOURS = 3;

// Input i: a bfloat16 pattern, or the midpoint between two codes, its neighbours, and their negatives.
DEVICE float input(unsigned i)
{
    if (i < 0x10000u) return fp4ref::float_of(i << 16);
    const unsigned k = (i - 0x10000u) / 2, code = k / NEIGHBOURS;
    const float middle = (Codec::value(code) + Codec::value(code + 1)) * 0.5f;
    const float near = fp4ref::float_of(fp4ref::bits_of(middle) + k % NEIGHBOURS - 1u);
    return i % 2 ? -near : near;
}

extern "C" __global__ void __launch_bounds__(THREADS) self_check(unsigned* first)
{
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= 0x10000u + MIDPOINTS * NEIGHBOURS * 2) return;
    const float x = input(i), other = 1.5f;
    const unsigned low = fp4ref::encode_pair<Codec>(x, other), high = fp4ref::encode_pair<Codec>(other, x);
    const unsigned code = Codec::encode(x), rest = Codec::encode(other);
    if (low != (code | rest << 4) || high != (rest | code << 4)) atomicMin(first, fp4ref::bits_of(x));
}
