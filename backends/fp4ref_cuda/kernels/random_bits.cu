// Random bytes by the counter map, of one part of a direction's matrix, or of two at once.
//
// The blocks of a grid's second row make the second part. The seed is read from `seed_at` unless that is null, when the
// kernel runs: a graph of launches draws new bytes each time. A thread makes EACH blocks of 16; those of a part of whole
// rows follow each other. Rules: SR-7, SR-8. Certificates: random-counters, random-parts.
#include "common.cuh"

constexpr int BLOCK = 16, EACH = 4;

struct Part
{
    byte* out;  // uint8 [rows, columns]
    index_t rows, columns;
    fp4ref::u64 first, across;  // the part's first block in the whole, and the blocks of a whole row
    fp4ref::u64 upper;          // the upper word of the key
};

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

extern "C" __global__ void __launch_bounds__(THREADS)
    random_bits(const Part one, const Part other, fp4ref::u64 seed, const fp4ref::u64* seed_at)
{
    const bool second = blockIdx.y;
    const Part p = {
        second ? other.out : one.out, second ? other.rows : one.rows, second ? other.columns : one.columns,
        second ? other.first : one.first, second ? other.across : one.across, second ? other.upper : one.upper};
    const index_t blocks = (p.columns + BLOCK - 1) / BLOCK, units = p.rows * blocks;
    const index_t begin = (index_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    const bool follow = p.across == (fp4ref::u64)blocks && aligned(p.out, p.columns, BLOCK);
    wait_for_previous_kernel();
    if (seed_at) seed = *seed_at;
    UNROLL
    for (int k = 0; k < EACH; ++k) {
        const index_t unit = begin + k * THREADS;
        if (unit >= units) return;
        if (follow) {
            const fp4ref::RandomBlock of = fp4ref::random_block(p.first + unit, seed, p.upper);
            ((uint4*)p.out)[unit] = {of.word[0], of.word[1], of.word[2], of.word[3]};
        } else {
            const index_t row = unit / blocks, block = unit % blocks;
            const fp4ref::RandomBlock of = fp4ref::random_block(p.first + row * p.across + block, seed, p.upper);
            part_of_row(p.out, p.columns, row, block * BLOCK, of);
        }
    }
}
