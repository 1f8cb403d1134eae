// Random bytes by the counter map.
//
//   out  uint8  [rows, columns], a part of the direction's matrix
//
// `first` is the index of the part's first block in the whole, `across` the blocks of a whole row. One thread per block
// of 16. Rules: SR-7, SR-8.
#include "common.cuh"

constexpr int BLOCK = 16;

extern "C" __global__ void __launch_bounds__(THREADS) random_bits(
    byte* __restrict__ out, index_t rows, index_t columns, fp4ref::u64 first, fp4ref::u64 across, fp4ref::u64 seed,
    fp4ref::u64 upper)
{
    const index_t blocks = (columns + BLOCK - 1) / BLOCK, unit = (index_t)blockIdx.x * THREADS + threadIdx.x;
    const index_t row = unit / blocks, column = unit % blocks * BLOCK;
    if (row >= rows) return;
    const fp4ref::RandomBlock of = fp4ref::random_block(first + row * across + column / BLOCK, seed, upper);
    byte* to = out + row * columns + column;
    if (aligned(out, columns, BLOCK)) {
        *(uint4*)to = {of.word[0], of.word[1], of.word[2], of.word[3]};
        return;
    }
    UNROLL
    for (int i = 0; i < BLOCK; ++i)
        if (column + i < columns) to[i] = (byte)(of.word[i / 4] >> 8 * (i % 4));
}
