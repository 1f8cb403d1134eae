// Scale bytes between rows and the lines of memory that hold four bytes of each of sixteen rows, as tiled layouts store
// them: whole lines at once, because a line costs a visit of memory each time that a part of it is written.
#pragma once
#include "matrix.h"

namespace fp4ref_cpu {

struct Lines {
    static constexpr int ROWS = 128, PIECE = 32;  // a piece of columns is eight groups, which eight rows make a square
    byte* first;
    size step;
    bool whole;      // whether each group of ROWS rows, from `top` on, is stored without a gap
    byte row[ROWS];  // the row of each place, counted from `top`

    Lines(byte* scales, const Map& map, size top) : first(scales + map.row(top)), step(map.step), whole(map.is_sum() && step > 4)
    {
        for (int l = 0; l < ROWS && whole; ++l) {
            const size at = map.row(top + l) - map.row(top);
            whole = at >= 0 && at < 4 * ROWS && at % 4 == 0;
            if (whole) row[at / 4] = (byte)l;
        }
    }

    // A piece from `column` on, from or to ROWS rows whose columns are stored side by side.
    void write(const SumRow* rows, size column) const
    {
        byte* to = first + column / 4 * step;
        for (int place = 0; place < ROWS; place += 8, to += 32) {
            words8 x[8];
            IN_REGISTERS
            for (int i = 0; i < 8; ++i) __builtin_memcpy(&x[i], rows[row[place + i]].group(column), 32);
            transpose(x);
            IN_REGISTERS
            for (int i = 0; i < 8; ++i) __builtin_memcpy(to + i * step, &x[i], 32);
        }
    }
    void read(const SumRow* rows, size column) const
    {
        const byte* from = first + column / 4 * step;
        for (int place = 0; place < ROWS; place += 8, from += 32) {
            words8 x[8];
            IN_REGISTERS
            for (int i = 0; i < 8; ++i) __builtin_memcpy(&x[i], from + i * step, 32);
            transpose(x);
            IN_REGISTERS
            for (int i = 0; i < 8; ++i) __builtin_memcpy(rows[row[place + i]].group(column), &x[i], 32);
        }
    }
};

}  // namespace fp4ref_cpu
