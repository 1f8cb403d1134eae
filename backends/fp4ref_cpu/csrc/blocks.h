// Values of a matrix of 8-bit floats under a float32 scale of every 128 elements of a row, or of every square of 128x128.
// S, whose element counts alone; T is the type of the values.
#pragma once
#include "strips.h"

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
    static constexpr int WIDTH = 128, LINES = 32, SPAN = 32 * WIDTH;  // WIDTH: of a block, and height of a square

    static void some(const byte* __restrict codes, float factor, word* __restrict out)
    {
        alignas(64) unsigned wide[WIDTH];
        for (int i = 0; i < WIDTH; ++i) wide[i] = codes[i];
        for (int i = 0; i < WIDTH; ++i) out[i] = T::round(S::Element::decode(wide[i]) * factor);
    }

    // Rules: DEQ-2, DEQ-3, TEL-49.
    static void block_values(BlockValuesJob& job)
    {
        in_strips<LINES, SPAN, WIDTH>(&job.next, job.rows, job.columns, [&](size row, size column, int width) {
            const size block = column / WIDTH, at = row * job.columns + column;
            const float factor = job.scales[job.squares ? row / WIDTH * job.pitch + block : block * job.pitch + row];
            some_of<WIDTH>(job.codes + at, factor, (word*)job.out + at, width, some);
        });
    }
};

}  // namespace fp4ref_cpu
