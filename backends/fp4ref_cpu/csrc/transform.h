// The transformed direction of a small matrix, written out once: its maximum and its codes are then those of plain rows,
// and the transform is not computed for each of them. Rules: HAD-1, HAD-2, HAD-3. Certificates: hadamard-column-amax.
#pragma once
#include "walk.h"

namespace fp4ref_cpu {

struct TransformJob {
    Input input;
    unsigned short* out;  // [rows, columns]
    size next;
};

// S: its signs alone. Every value is of bfloat16 (HAD-5).
template <class S> struct Transformed {
    using word = bfloat16::word;
    static constexpr int TILE = 16;  // columns and rows that are transformed together
    static constexpr int LINES = 256, SPAN = 64;  // rows and columns of a unit: whole lines of a cache

    // TILE rows of one column each, in registers.
    typedef float floats __attribute__((vector_size(64), may_alias));
    typedef unsigned lanes __attribute__((vector_size(64), may_alias));

    // TILE words, widened in one instruction; GCC makes four of __builtin_convertvector.
    static lanes widened(const word* from)
    {
#if defined(__AVX512F__) && !defined(__clang__)
        typedef short halves __attribute__((vector_size(32), may_alias, aligned(2)));
        return (lanes)__builtin_ia32_pmovzxwd512_mask(*(const halves*)from, ints16{}, (unsigned short)-1);
#else
        typedef word halves __attribute__((vector_size(32), may_alias, aligned(2)));
        return __builtin_convertvector(*(const halves*)from, lanes);
#endif
    }

    // bfloat16::round of each, widened, but for the payload of a NaN, which nothing reads: its lower 16 bits are 0, as
    // those of the elements and of the processor's own NaN, so that it stays a NaN of its sign.
    static lanes rounded(floats y)
    {
        const lanes bits = (lanes)y;
        return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    }

    // `hadamard` of TILE columns; TILE values of each row go to `out`, and so on for `lines` rows. A word of `pairs` holds
    // two neighbours of a row.
    static void square(const word* const (&columns)[TILE], word* out, size pitch, int lines)
    {
        floats y[TILE];
#pragma GCC unroll 16
        for (int c = 0; c < TILE; ++c)
            y[c] = (floats)(widened(columns[c]) << 16) * (S::signs >> c & 1u ? -0.25f : 0.25f);
#pragma GCC unroll 4
        for (int stride = 1; stride < TILE; stride *= 2)
#pragma GCC unroll 16
            for (int i = 0; i < TILE; ++i)
                if (!(i & stride)) {
                    const floats low = y[i], high = y[i + stride];
                    y[i] = low + high;
                    y[i + stride] = low - high;
                }
        alignas(64) unsigned pairs[TILE / 2][TILE];
#pragma GCC unroll 8
        for (int p = 0; p < TILE / 2; ++p) *(lanes*)pairs[p] = rounded(y[2 * p] + 0.0f) | rounded(y[2 * p + 1] + 0.0f) << 16;
        for (int half = 0; half < TILE; half += 8) {
            words8 rows[8];
            for (int p = 0; p < 8; ++p) __builtin_memcpy(&rows[p], pairs[p] + half, 32);
            transpose(rows);
            for (int i = 0; i < 8 && half + i < lines; ++i) __builtin_memcpy(out + (half + i) * pitch, &rows[i], 32);
        }
    }

    // TILE columns of TILE rows, or of those above `bottom`.
    static void piece(const TransformJob& job, size row, size bottom, size column)
    {
        const Input& in = job.input;
        const int lines = bottom - row < TILE ? (int)(bottom - row) : TILE;
        const bool in_place = in.down.unit() && lines == TILE;
        const word* columns[TILE];
        alignas(64) word gathered[TILE][TILE];
        for (int c = 0; c < TILE; ++c) {
            const word* from = (const word*)in.x + in.along.at(column + c);
            columns[c] = in_place ? from + row : gathered[c];
            for (int l = 0; !in_place && l < TILE; ++l) gathered[c][l] = l < lines ? from[in.down.at(row + l)] : word(0);
        }
        square(columns, job.out + row * in.columns + column, in.columns, lines);
    }

    static void transform(TransformJob& job)
    {
        const Input& in = job.input;
        const Units units(&job.next, in.rows, in.columns, LINES, SPAN);
        for (size unit; units.take(unit);) {
            const size top = unit / units.across * LINES, left = unit % units.across * SPAN;
            const size bottom = top + LINES < in.rows ? top + LINES : in.rows;
            const size right = left + SPAN < in.columns ? left + SPAN : in.columns;
            for (size row = top; row < bottom; row += TILE)
                for (size column = left; column < right; column += TILE) piece(job, row, bottom, column);
        }
    }
};

}  // namespace fp4ref_cpu
