// The walk over a matrix in strips: short pieces of rows, each of which is computed by itself.
#pragma once
#include "matrix.h"

namespace fp4ref_cpu {

// Every strip once, by all threads together: strip(row, column, width), where width < WIDTH at the end of a row alone.
template <int LINES, int SPAN, int WIDTH, class Strip> inline void in_strips(size* next, size rows, size columns, Strip strip)
{
    static_assert(SPAN % WIDTH == 0, "whole strips");
    const Units units(next, rows, columns, LINES, SPAN);
    for (size unit; units.take(unit);) {
        const size top = unit / units.across * LINES, left = unit % units.across * SPAN;
        const size bottom = top + LINES < rows ? top + LINES : rows;
        const size right = left + SPAN < columns ? left + SPAN : columns;
        for (size row = top; row < bottom; ++row)
            for (size column = left; column < right; column += WIDTH)
                strip(row, column, right - column < WIDTH ? (int)(right - column) : WIDTH);
    }
}

// some(from, factor, to) takes WIDTH elements; a shorter strip goes by way of memory that holds as many.
template <int WIDTH, class From, class To, class Some> inline void some_of(const From* from, float factor, To* to, int width, Some some)
{
    if (width == WIDTH) return some(from, factor, to);
    alignas(64) From whole[WIDTH] = {};
    alignas(64) To made[WIDTH];
    __builtin_memcpy(whole, from, sizeof(From) * (unsigned)width);
    some(whole, factor, made);
    __builtin_memcpy(to, made, sizeof(To) * (unsigned)width);
}

}  // namespace fp4ref_cpu
