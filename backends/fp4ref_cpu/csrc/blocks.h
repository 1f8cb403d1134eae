// Values of a matrix of 8-bit floats under a float32 scale of every 128 elements of a row, or of every square of 128x128.
// S, whose element counts alone; T is the type of the values.
#pragma once
#include "matrix.h"

namespace fp4ref_cpu {

struct BlockValuesJob {
    const byte* codes;    // [rows, columns]
    const float* scales;  // [blocks of columns, pitch], pitch >= rows; of squares [blocks of rows, pitch]
    void* out;            // [rows, columns]
    size rows, columns, pitch, squares;
    size next;
};

template <class S, class T> struct Blocks {
    using word = typename T::word;
    static constexpr int WIDTH = 128;  // of a block, and height of a square
    static constexpr size LINES = 32, SPAN = 32 * (size)WIDTH;

    static void some(const byte* __restrict codes, float factor, word* __restrict out)
    {
        alignas(64) unsigned wide[WIDTH];
        for (int i = 0; i < WIDTH; ++i) wide[i] = codes[i];
        for (int i = 0; i < WIDTH; ++i) out[i] = T::round(S::Element::decode(wide[i]) * factor);
    }

    // Rules: DEQ-2, DEQ-3, TEL-49.
    static void block_values(BlockValuesJob& job)
    {
        const Units units(&job.next, job.rows, job.columns, LINES, SPAN);
        for (size unit; units.take(unit);) {
            const size top = unit / units.across * LINES, left = unit % units.across * SPAN;
            const size bottom = top + LINES < job.rows ? top + LINES : job.rows;
            const size right = left + SPAN < job.columns ? left + SPAN : job.columns;
            for (size row = top; row < bottom; ++row)
                for (size column = left; column < right; column += WIDTH) {
                    const size block = column / WIDTH, at = row * job.columns + column, count = right - column;
                    const float factor = job.scales[job.squares ? row / WIDTH * job.pitch + block : block * job.pitch + row];
                    const byte* const codes = job.codes + at;
                    word* const out = (word*)job.out + at;
                    if (count >= WIDTH) {
                        some(codes, factor, out);
                        continue;
                    }
                    alignas(64) byte whole[WIDTH] = {};
                    alignas(64) word made[WIDTH];
                    __builtin_memcpy(whole, codes, (unsigned long)count);
                    some(whole, factor, made);
                    __builtin_memcpy(out, made, sizeof(word) * (unsigned long)count);
                }
        }
    }
};

}  // namespace fp4ref_cpu
