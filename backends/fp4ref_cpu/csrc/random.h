// Random bytes by the counter map, several blocks side by side. Certificates: random-counters, random-parts.
#pragma once
#include "strips.h"

namespace fp4ref_cpu {

struct RandomJob {
    byte* out;                           // [rows, columns]
    size rows, columns;                  // of this part
    u64 first_row, first_block, across;  // where it begins in the whole, and blocks of a whole row
    u64 seed, upper;
    size next;
};

typedef u64 words4 __attribute__((vector_size(32), may_alias));

// Products of the low halves, which compilers multiply in full where they are not told.
inline words4 low_products(words4 x, unsigned m)
{
#if defined(__AVX2__) && !defined(__clang__)
    typedef int ints8 __attribute__((vector_size(32)));
    return (words4)__builtin_ia32_pmuludq256((ints8)x, (ints8)((words4){} + (u64)m));
#else
    return (x & 0xffffffffull) * (u64)m;
#endif
}

struct Randoms {
    static constexpr int BLOCK = 16, VECTORS = 4, WIDTH = 4 * VECTORS * BLOCK, LINES = 64, SPAN = 1 << 14;

    static void random(RandomJob& job)
    {
        in_strips<LINES, SPAN, WIDTH>(&job.next, job.rows, job.columns, [&](size row, size column, int width) {
            const u64 index = (job.first_row + row) * job.across + job.first_block + column / BLOCK;
            byte* const out = job.out + row * job.columns + column;
            if (width == WIDTH) return blocks(index, job.seed, job.upper, out);
            byte all[WIDTH];
            blocks(index, job.seed, job.upper, all);
            __builtin_memcpy(out, all, (unsigned)width);
        });
    }

    // Blocks with consecutive indices.
    static void blocks(u64 index, u64 seed, u64 upper, byte* out)
    {
        words4 c[VECTORS][4];
        for (int i = 0; i < VECTORS; ++i) {
            const words4 indices = (words4){0, 1, 2, 3} + (index + 4 * (u64)i);
            c[i][0] = indices, c[i][1] = indices >> 32;
            c[i][2] = (words4){} + upper, c[i][3] = (words4){} + (upper >> 32);
            philox4x32(c[i], (unsigned)seed, (unsigned)(seed >> 32), low_products);
        }
        for (int i = 0; i < VECTORS; ++i) {
            const words4 low = (c[i][0] & 0xffffffffull) | c[i][1] << 32, high = (c[i][2] & 0xffffffffull) | c[i][3] << 32;
            for (int l = 0; l < 4; ++l) {
                store(out + (4 * i + l) * BLOCK, low[l]);
                store(out + (4 * i + l) * BLOCK + 8, high[l]);
            }
        }
    }

    // Eight bytes, the low one first.
    static void store(byte* to, u64 word)
    {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        __builtin_memcpy(to, &word, 8);
#else
        for (int i = 0; i < 8; ++i) to[i] = (byte)(word >> 8 * i);
#endif
    }
};

}  // namespace fp4ref_cpu
