// The Hadamard transform of 16 rows of 64 columns of bfloat16 by tensor cores: one multiplication by signs.
//
// Where that is the butterfly's transform: let the magnitudes of a column, zeros aside, be below 2^(b + 1) and not below
// 2^a. They are multiples of 2^(a - 7), and so is every sum. No value of the butterfly is larger than the largest result,
// because the larger of |u + v| and |u - v| is |u| + |v|: if all results are below 2^(a + 17), all its values have 24
// bits, and it rounds nothing. A tensor core shifts products to the exponent of the largest, keeping 23 bits or more
// below its leading one, and adds them as integers; with b - a <= 14 it needs 21, and cuts off nothing before its result,
// which is below 2^(a + 17) if and only if the exact one is. An exact zero is +0, for the sum begins with it.
// Rules: HAD-2, HAD-3.
#pragma once
#include "blocks.cuh"

namespace matrices {

// The lane's part of the matrix of signs, for outputs 0 to 7 and 8 to 15 in the order 0, 4, 1, 5, 2, 6, 3, 7.
template <unsigned Signs> DEVICE void transform(unsigned lane, unsigned (&part)[4])
{
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const unsigned output = i / 2 * 8 + lane / 8 + lane / 4 % 2 * 4;
        part[i] = 0;
        UNROLL
        for (int h = 0; h < 2; ++h) {
            const unsigned input = lane % 4 * 2 + i % 2 * 8 + h, negative = (__popc(input & output) + (Signs >> input)) & 1;
            part[i] |= (0x3f80u | negative << 15) << 16 * h;
        }
    }
}

// The pattern of 2^(a + 17), below which the largest result of a column must stay, from the magnitudes of a warp's 16 rows;
// 0 if exponents spread too far, or come near subnormal numbers. A magnitude beyond COVERED, or a NaN, counts as the
// largest, and what becomes of it is beyond COVERED too.
constexpr unsigned SPREAD = 14, SAFE = 16, ROOM = 17, EXPONENT = 0x7f80u;

DEVICE unsigned exact_below(const Blocks& blocks)
{
    unsigned two = ~0u;
    UNROLL
    for (int i = 0; i < 2; ++i)
        UNROLL
        for (int k = 0; k < 8; k += 2) two = __vimin3_u16x2(two, blocks.magnitudes[i][k], blocks.magnitudes[i][k + 1]);
    const unsigned largest = __reduce_max_sync(~0u, fp4ref::larger(blocks.amax[0], blocks.amax[1])) & EXPONENT;
    unsigned smallest = __reduce_min_sync(~0u, fp4ref::smaller(two & 0xffffu, two >> 16));
    if (smallest == 0) {  // without zeros, which turn around
        two = ~0u;
        UNROLL
        for (int i = 0; i < 2; ++i)
            UNROLL
            for (int k = 0; k < 8; ++k) two = __vminu2(two, __vsub2(blocks.magnitudes[i][k], 0x00010001u));
        smallest = __reduce_min_sync(~0u, fp4ref::smaller(two & 0xffffu, two >> 16)) + 1;
    }
    const bool near = smallest + (SPREAD << 7) >= largest && smallest >= SAFE << 7;
    return near ? (smallest & EXPONENT) + (ROOM << 7) : 0;
}

// Transformed columns: 16 bytes of the lower eight values of each, then those of the upper eight.
constexpr unsigned HALVES = 64 * 16;

DEVICE void store_column(unsigned to, unsigned column, const unsigned (&pairs)[8])
{
    UNROLL
    for (int h = 0; h < 2; ++h)
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" :: "r"(to + column * 16 + h * HALVES), "r"(pairs[4 * h]),
            "r"(pairs[4 * h + 1]), "r"(pairs[4 * h + 2]), "r"(pairs[4 * h + 3]) : "memory");
}
DEVICE void load_column(unsigned from, unsigned column, unsigned (&pairs)[8])
{
    UNROLL
    for (int h = 0; h < 2; ++h)
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(pairs[4 * h]), "=r"(pairs[4 * h + 1]),
            "=r"(pairs[4 * h + 2]), "=r"(pairs[4 * h + 3]) : "r"(from + column * 16 + h * HALVES) : "memory");
}

// A product of 16 columns, upright, with eight outputs of the transform.
DEVICE void multiply(const unsigned (&a)[4], unsigned low, unsigned high, float (&d)[4])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high), "f"(0.0f));
}

// 16 rows, Pitch bytes apart, to transformed columns.
template <int Pitch> DEVICE void transform_columns(unsigned from, const unsigned (&signs)[4], unsigned to, unsigned lane)
{
    from += (lane % 8 + lane / 16 * 8) * Pitch + lane / 8 % 2 * 16;
    to += lane % 16 * 16 + lane / 16 * HALVES;
    UNROLL
    for (int piece = 0; piece < 4; ++piece) {
        unsigned a[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
            : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(from + piece * 32) : "memory");
        float low[4], high[4];
        multiply(a, signs[0], signs[1], low);
        multiply(a, signs[2], signs[3], high);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" :: "r"(to + piece * 256),
            "r"(thresholds::bfloat16_pair(low[0], low[1])), "r"(thresholds::bfloat16_pair(low[2], low[3])),
            "r"(thresholds::bfloat16_pair(high[0], high[1])), "r"(thresholds::bfloat16_pair(high[2], high[3])) : "memory");
    }
}

}  // namespace matrices
