// A flag as the word that kernels read, which is not 0 where nothing changes.
//
//   flag  [1], of one byte or of four
//   word  uint32  [1]
//
// expected: 0 where every other value keeps all (LAY-12), else the bits of the only one that does (TEL-24).
#include "common.cuh"

extern "C" __global__ void flag(const byte* __restrict__ flag, index_t bytes, index_t expected, unsigned* word)
{
    wait_for_previous_kernel();
    if (threadIdx.x) return;
    const unsigned value = bytes == 1 ? *flag : *(const unsigned*)flag;
    *word = expected ? value == (unsigned)expected : value;
}
