// Hadamard-transformed columns as rows.
//
//   x    bfloat16  [rows, columns], rows a multiple of 16, columns of 8, 16 bytes apart
//   out  bfloat16  [columns, rows], 16 bytes apart
//
// S comes before this file. Blocks (tiles of 64 columns, tiles of 128 rows). A thread takes 16 rows of one column. Rules:
// HAD-1, HAD-2, HAD-3.
#include "common.cuh"

using In = fp4ref::bfloat16;
using word = In::word;
constexpr int ROWS = 128, COLUMNS = 64;

extern "C" __global__ void __launch_bounds__(THREADS) transform(
    const word* __restrict__ x, index_t rows, index_t columns, word* __restrict__ out, const unsigned* noop)
{
    __shared__ __align__(16) word tile[ROWS][COLUMNS + 8];
    __shared__ __align__(16) word turned[COLUMNS][ROWS + 8];
    wait_for_previous_kernel();
    if (noop && *noop) return;
    const index_t row = (index_t)blockIdx.y * ROWS, column = (index_t)blockIdx.x * COLUMNS;
    UNROLL
    for (int i = 0; i < ROWS * COLUMNS / 8 / THREADS; ++i) {
        const int r = i * (THREADS / 8) + threadIdx.x / 8, c = threadIdx.x % 8 * 8;
        if (row + r < rows && column + c < columns)
            *(uint4*)&tile[r][c] = load_vector(x + (row + r) * columns + column + c);
    }
    __syncthreads();
    UNROLL
    for (int i = 0; i < ROWS / 16 * COLUMNS / THREADS; ++i) {
        const int c = threadIdx.x % COLUMNS, first = (i * (THREADS / COLUMNS) + threadIdx.x / COLUMNS) * 16;
        float y[16][1];
        UNROLL
        for (int k = 0; k < 16; ++k) y[k][0] = In::widen(tile[first + k][c]);
        fp4ref::hadamard<S::signs>(y);
        __align__(16) word words[16];
        UNROLL
        for (int k = 0; k < 16; ++k) words[k] = In::round(y[k][0]);
        *(uint4*)&turned[c][first] = *(const uint4*)words;
        *(uint4*)&turned[c][first + 8] = *(const uint4*)(words + 8);
    }
    __syncthreads();
    UNROLL
    for (int i = 0; i < ROWS * COLUMNS / 8 / THREADS; ++i) {
        const int c = i * (THREADS / 16) + threadIdx.x / 16, r = threadIdx.x % 16 * 8;
        if (row + r < rows && column + c < columns)
            *(uint4*)(out + (column + c) * rows + row + r) = *(const uint4*)&turned[c][r];
    }
}
