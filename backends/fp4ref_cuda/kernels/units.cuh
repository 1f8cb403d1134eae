// Units of 512 columns in four rows that lie 32 apart: how a warp finds them and writes what it made of them.
#pragma once
#include "places.cuh"

constexpr int WIDTH = 512, LINE = WIDTH * 2;

// A division by what the host knows: n / divisor for n < 2^31.
struct Divisor {
    unsigned divisor, factor, shift;
    __device__ __forceinline__ unsigned quotient(unsigned n) const { return (__umulhi(n, factor) + n) >> shift; }
};

// Bytes of the four blocks of this lane, rows upwards, to those of four neighbouring blocks of row `lane % 4`.
DEVICE unsigned transposed(unsigned bytes, unsigned lane)
{
    const unsigned pairs = __byte_perm(bytes, __shfl_xor_sync(~0u, bytes, 1), lane & 1 ? 0x3715 : 0x6240);
    return __byte_perm(pairs, __shfl_xor_sync(~0u, pairs, 2), lane & 2 ? 0x3276 : 0x5410);
}

// Scales of four neighbouring blocks, the quad that many from the left, in the row that lies `quarter` times 32 below
// the first row of a unit.
DEVICE void store_scales(
    byte* scales, unsigned four, unsigned first_row, unsigned quarter, unsigned quad, unsigned rows, unsigned blocks)
{
    if constexpr (fp4ref::same_type<Layout, fp4ref::layout::tiled_128x4>) {
        const unsigned wide = (blocks + 3) / 4;
        if (quad < wide)
            *(unsigned*)(scales + (size)(first_row / 128 * wide + quad) * 512 + (first_row % 32 * 16 + quarter * 4)) = four;
    } else {
        static_assert(Layout::adjacent && !Layout::row_fill && !Layout::column_fill, "a word of four scales, zeros behind");
        store_neighbours<4>(scales, first_row + quarter * 32, quad * 4, rows, blocks, four);
    }
}

// Codes of a block of which `left` elements are inside, as two words: for rows whose blocks are not 8 bytes apart.
DEVICE void store_words(byte* to, const uint2& codes, unsigned left)
{
    if (left) *(unsigned*)to = codes.x;
    if (left > 8) *(unsigned*)(to + 4) = codes.y;
}
DEVICE void store_codes(byte* to, const uint2& codes, unsigned left, bool whole)
{
    if (whole) {
        if (left) *(uint2*)to = codes;
    } else store_words(to, codes, left);
}
