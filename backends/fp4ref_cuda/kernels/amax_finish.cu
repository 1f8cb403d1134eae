// Global maxima, second pass.
//
//   partials  float32  as bit patterns, [members, parts, width]
//   amax      float32  [members, width]
//
// Blocks (256 columns, member) where width > 1, a thread per column; else blocks (1, member), all threads share the
// parts.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) amax_finish(
    const unsigned* __restrict__ partials, index_t parts, index_t width, unsigned* amax, const unsigned* noop)
{
    wait_for_previous_kernel();
    if (noop && *noop) return;
    const unsigned* from = partials + blockIdx.y * parts * width;
    unsigned largest = 0;
    if (width == 1) {
        for (index_t p = threadIdx.x; p < parts; p += THREADS) largest = fp4ref::larger(largest, from[p]);
        largest = block_max(largest);
        if (threadIdx.x == 0) amax[blockIdx.y] = largest;
        return;
    }
    const index_t column = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (column >= width) return;
    for (index_t p = 0; p < parts; ++p) largest = fp4ref::larger(largest, from[p * width + column]);
    amax[blockIdx.y * width + column] = largest;
}
