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

#if defined(__AVX512F__)
constexpr int LANES = 8;
typedef u64 lanes __attribute__((vector_size(64), may_alias));
constexpr lanes FIRST = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr int LANES = 4;
typedef u64 lanes __attribute__((vector_size(32), may_alias));
constexpr lanes FIRST = {0, 1, 2, 3};
#endif

// Products of the low halves, which compilers multiply in full where they are not told.
inline lanes low_products(lanes x, unsigned m)
{
#if defined(__AVX512F__) && !defined(__clang__)
    typedef int ints __attribute__((vector_size(64)));
    typedef long long kept __attribute__((vector_size(64)));
    return (lanes)__builtin_ia32_pmuludq512_mask((ints)x, (ints)((lanes){} + (u64)m), kept{}, (unsigned char)-1);
#elif defined(__AVX2__) && !defined(__clang__)
    typedef int ints __attribute__((vector_size(32)));
    return (lanes)__builtin_ia32_pmuludq256((ints)x, (ints)((lanes){} + (u64)m));
#else
    return (x & 0xffffffffull) * (u64)m;
#endif
}

struct Randoms {
    static constexpr int BLOCK = 16, VECTORS = 4, WIDTH = LANES * VECTORS * BLOCK, LINES = 64, SPAN = 1 << 14;

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
        lanes c[VECTORS][4];
        for (int i = 0; i < VECTORS; ++i) {
            const lanes indices = FIRST + (index + LANES * (u64)i);
            c[i][0] = indices, c[i][1] = indices >> 32;
            c[i][2] = (lanes){} + upper, c[i][3] = (lanes){} + (upper >> 32);
            philox4x32(c[i], (unsigned)seed, (unsigned)(seed >> 32), low_products);
        }
        for (int i = 0; i < VECTORS; ++i) {
            const lanes low = (c[i][0] & 0xffffffffull) | c[i][1] << 32, high = (c[i][2] & 0xffffffffull) | c[i][3] << 32;
            store(out + LANES * i * BLOCK, low, high);
        }
    }

    // The blocks of two vectors: eight bytes of the one, the low byte first, and eight of the other, by turns.
    __attribute__((always_inline)) static void store(byte* to, lanes low, lanes high)
    {
#if defined(__AVX512F__)
        const lanes half[2] = {__builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11), __builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15)};
        __builtin_memcpy(to, half, sizeof half);
#else
        for (int l = 0; l < LANES; ++l) store(to + l * BLOCK, low[l]), store(to + l * BLOCK + 8, high[l]);
#endif
    }
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
