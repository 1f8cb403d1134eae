// A flag of one byte as the word that kernels read.
//
//   flag  uint8   [1]
//   word  uint32  [1]
#include "common.cuh"

extern "C" __global__ void flag(const byte* __restrict__ flag, unsigned* word)
{
    wait_for_previous_kernel();
    if (threadIdx.x == 0) *word = *flag;
}
