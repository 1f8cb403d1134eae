// Values of a matrix of bytes whose blocks are pieces of its columns: rows share a row of scales. S is the specification of
// the columns, without a global scale; In the type that was quantized, Out the type of the values.
#pragma once
#include "matrix.h"

namespace fp4ref_cpu {

struct ColumnValuesJob {
    const byte* codes;   // [rows, columns]
    const byte* scales;  // [blocks of rows, pitch], pitch >= columns
    void* out;           // [rows, columns]
    size rows, columns, pitch;
    size next;
};

template <class S, class In, class Out> struct Columns {
    using word = typename Out::word;
    static constexpr int WIDTH = 128;
    static constexpr size SPAN = 32 * (size)WIDTH;

    static void line(const byte* __restrict codes, const float* __restrict scales, word* __restrict out)
    {
        alignas(64) unsigned wide[WIDTH];
        for (int i = 0; i < WIDTH; ++i) wide[i] = codes[i];
        for (int i = 0; i < WIDTH; ++i) out[i] = Out::round(value_of<S, In>(S::Element::decode(wide[i]), scales[i], 1.0f));
    }

    // Rules: DEQ-2, DEQ-3.
    static void column_values(ColumnValuesJob& job)
    {
        const Units units(&job.next, job.rows, job.columns, S::columns, SPAN);
        for (size unit; units.take(unit);) {
            const size block = unit / units.across, top = block * S::columns, left = unit % units.across * SPAN;
            const size bottom = top + S::columns < job.rows ? top + S::columns : job.rows;
            const size right = left + SPAN < job.columns ? left + SPAN : job.columns;
            for (size column = left; column < right; column += WIDTH) {
                const int count = right - column < WIDTH ? (int)(right - column) : WIDTH;
                alignas(64) float scales[WIDTH] = {};
                for (int i = 0; i < count; ++i) scales[i] = decoded_scale<S, In>(job.scales[block * job.pitch + column + i], 1.0f);
                for (size row = top; row < bottom; ++row) {
                    const byte* const codes = job.codes + row * job.columns + column;
                    word* const out = (word*)job.out + row * job.columns + column;
                    if (count == WIDTH) {
                        line(codes, scales, out);
                        continue;
                    }
                    alignas(64) byte whole[WIDTH] = {};
                    alignas(64) word made[WIDTH];
                    __builtin_memcpy(whole, codes, (unsigned long)count);
                    line(whole, scales, made);
                    __builtin_memcpy(out, made, sizeof(word) * (unsigned long)count);
                }
            }
        }
    }
};

}  // namespace fp4ref_cpu
