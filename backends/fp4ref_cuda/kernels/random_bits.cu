// Random bytes by the counter map.
//
//   out  uint8  [rows, columns], a part of the direction's matrix
//
// The seed is read from `seed_at` unless that is null, when the kernel runs: a graph of launches draws new bytes each time.
// `first` is the index of the part's first block in the whole, `across` the blocks of a whole row. A thread makes EACH
// blocks of 16; those of a part of whole rows follow each other. Rules: SR-7, SR-8. Certificates: random-counters,
// random-parts.
#include "common.cuh"

constexpr int BLOCK = 16, EACH = 4;

DEVICE void part_of_row(byte* out, index_t columns, index_t row, index_t column, const fp4ref::RandomBlock& of)
{
    byte* to = out + row * columns + column;
    if (aligned(out, columns, BLOCK)) {
        *(uint4*)to = {of.word[0], of.word[1], of.word[2], of.word[3]};
        return;
    }
    UNROLL
    for (int i = 0; i < BLOCK; ++i)
        if (column + i < columns) to[i] = (byte)(of.word[i / 4] >> 8 * (i % 4));
}

extern "C" __global__ void __launch_bounds__(THREADS) random_bits(
    byte* __restrict__ out, index_t rows, index_t columns, fp4ref::u64 first, fp4ref::u64 across, fp4ref::u64 seed,
    fp4ref::u64 upper, const fp4ref::u64* seed_at)
{
    const index_t blocks = (columns + BLOCK - 1) / BLOCK, units = rows * blocks;
    const index_t begin = (index_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    const bool follow = across == (fp4ref::u64)blocks && aligned(out, columns, BLOCK);
    wait_for_previous_kernel();
    if (seed_at) seed = *seed_at;
    UNROLL
    for (int k = 0; k < EACH; ++k) {
        const index_t unit = begin + k * THREADS;
        if (unit >= units) return;
        if (follow) {
            const fp4ref::RandomBlock of = fp4ref::random_block(first + unit, seed, upper);
            ((uint4*)out)[unit] = {of.word[0], of.word[1], of.word[2], of.word[3]};
        } else {
            const index_t row = unit / blocks, block = unit % blocks;
            part_of_row(out, columns, row, block * BLOCK, fp4ref::random_block(first + row * across + block, seed, upper));
        }
    }
}
