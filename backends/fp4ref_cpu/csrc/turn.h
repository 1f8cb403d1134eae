// The transpose of a matrix of bytes: tiles of 16 x 16 in registers, columns of tiles so long that whole lines are written.
#pragma once
#include "matrix.h"

namespace fp4ref_cpu {

struct TurnJob {
    const byte* from;  // [rows, columns]
    byte* to;          // [columns, rows]
    size rows, columns;
    size next;
};

struct Turned {
    static constexpr int TILE = 16, LINES = 128, SPAN = 512;
    typedef byte bytes16 __attribute__((vector_size(16), may_alias));

    static void turn(TurnJob& job)
    {
        const Units units(&job.next, job.rows, job.columns, LINES, SPAN);
        for (size unit; units.take(unit);) {
            const size top = unit / units.across * LINES, left = unit % units.across * SPAN;
            const size bottom = top + LINES < job.rows ? top + LINES : job.rows;
            const size right = left + SPAN < job.columns ? left + SPAN : job.columns;
            for (size column = left; column < right; column += TILE)
                for (size row = top; row < bottom; row += TILE) {
                    const byte* const from = job.from + row * job.columns + column;
                    byte* const to = job.to + column * job.rows + row;
                    if (bottom - row >= TILE && right - column >= TILE) tile(from, job.columns, to, job.rows);
                    else part(from, job.columns, to, job.rows, bottom - row, right - column);
                }
        }
    }

    static void tile(const byte* from, size pitch, byte* to, size its_pitch)
    {
        bytes16 x[TILE], y[TILE];
        IN_REGISTERS
        for (int i = 0; i < TILE; ++i) __builtin_memcpy(&x[i], from + i * pitch, TILE);
        halve(x, y), halve(y, x), halve(x, y), halve(y, x);
        IN_REGISTERS
        for (int i = 0; i < TILE; ++i) __builtin_memcpy(to + i * its_pitch, &x[i], TILE);
    }

    // The bytes of each row and of the one eight below it by turns: four times over, rows are columns.
    __attribute__((always_inline)) static void halve(const bytes16 (&x)[TILE], bytes16 (&y)[TILE])
    {
        IN_REGISTERS
        for (int i = 0; i < TILE / 2; ++i) {
            y[2 * i] = __builtin_shufflevector(x[i], x[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
    }

    static void part(const byte* from, size pitch, byte* to, size its_pitch, size rows, size columns)
    {
        for (size c = 0; c < columns && c < TILE; ++c)
            for (size r = 0; r < rows && r < TILE; ++r) to[c * its_pitch + r] = from[r * pitch + c];
    }
};

}  // namespace fp4ref_cpu
