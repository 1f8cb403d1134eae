// The target's approximate reciprocal against the recorded one: every mantissa, at exponents of every kind.
//
//   first  uint32  [1] the smallest pattern of a float32 on which they differ, or as it was
//
// A thread takes one mantissa. Rules: APX-1.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) reciprocal_check(unsigned* first)
{
    const unsigned mantissa = blockIdx.x * THREADS + threadIdx.x;
    if (mantissa > 0x7fffffu) return;
    for (unsigned kind = 0; kind < 16; ++kind) {
        const unsigned k = kind % 8, field = k < 4 ? k : k < 6 ? 122 + k : 247 + k;  // 0 to 3, 126, 127, 253, 254
        const float x = fp4ref::float_of(kind / 8 << 31 | field << 23 | mantissa);
        const unsigned got = fp4ref::bits_of(fp4ref::approximate_reciprocal(x));
        if (got != fp4ref::bits_of(fp4ref::modelled_reciprocal(x))) atomicMin(first, fp4ref::bits_of(x));
    }
}
