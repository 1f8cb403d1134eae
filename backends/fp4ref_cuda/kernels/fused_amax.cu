// Global maxima of rows and of Hadamard-transformed columns from one read of x: partial ones, per block of threads.
//
//   x         bfloat16  [rows, columns], columns a multiple of 64, 4 bytes apart; a member of a group is a range of rows
//   partials  float32   [2, members, parts]: of x, then of the transform of its columns; parts is the grid's width
//
// S comes before this file. Blocks (part, member). Rows of a member are a multiple of 16. A warp takes 16 rows of 64 columns at a time; a lane has two columns of them.
#include "common.cuh"
#include <fp4ref/thresholds.h>

using In = fp4ref::bfloat16;

extern "C" __global__ void __launch_bounds__(THREADS, 4) fused_amax(
    const unsigned* __restrict__ x, index_t rows, index_t columns, const Member* members, float* partials,
    const unsigned* noop)
{
    wait_for_previous_kernel();
    if (noop && *noop) return;
    const Member member = members ? members[blockIdx.y] : Member{0, rows, 0, 0, 0, 0};
    const int lane = threadIdx.x % 32;
    const unsigned across = (unsigned)(columns / 64), warps = gridDim.x * (THREADS / 32);
    const index_t pitch = columns / 2, units = member.rows / 16 * across;
    x += member.first_row * pitch;
    unsigned of_rows = 0;
    float of_columns = 0.0f;
    _Pragma("unroll 1")
    for (index_t unit = blockIdx.x * (THREADS / 32) + threadIdx.x / 32; unit < units; unit += warps) {
        const unsigned group = (unsigned)unit / across, column = (unsigned)unit - group * across;
        const unsigned* from = x + (index_t)group * 16 * pitch + column * 32 + lane;
        unsigned words[16];
        UNROLL
        for (int i = 0; i < 16; ++i) words[i] = __ldg(from + i * pitch);
        UNROLL
        for (int i = 0; i < 16; ++i) of_rows = fp4ref::thresholds::running_amax_pair(of_rows, words[i]);
        UNROLL
        for (int half = 0; half < 2; ++half) {
            float y[16];
            UNROLL
            for (int i = 0; i < 16; ++i) y[i] = fp4ref::float_of(half ? words[i] & 0xffff0000u : words[i] << 16);
            of_columns = fp4ref::hadamard_amax<S::signs>(of_columns, y);
        }
    }
    const unsigned low = of_rows & 0x7fffu, high = of_rows >> 16 & 0x7fffu;
    const unsigned row = block_max(fp4ref::larger(low, high) << 16);
    __syncthreads();
    const unsigned column = block_max(fp4ref::bits_of(In::narrow(of_columns)));
    if (threadIdx.x == 0) {
        partials += blockIdx.y * gridDim.x + blockIdx.x;
        partials[0] = fp4ref::float_of(row);
        partials[gridDim.y * gridDim.x] = fp4ref::float_of(column);
    }
}
