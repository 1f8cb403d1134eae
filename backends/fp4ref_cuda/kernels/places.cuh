// Neighbouring scales of a row, to the bytes where Layout keeps them.
#pragma once
#include "common.cuh"

// `Count` scales of a row from a column on, a multiple of Count: those inside of the rows and columns or of their padding,
// the first one in the lowest byte. Layout keeps 4 neighbours side by side.
template <int Count> DEVICE void store_neighbours(
    byte* scales, index_t row, index_t column, index_t rows, index_t columns, unsigned bytes)
{
    static_assert(Count == 2 || Count == 4, "a word or half of one");
    constexpr index_t high = Layout::row_multiple, wide = Layout::column_multiple;
    if (row >= (rows + high - 1) / high * high) return;
    const index_t end = (columns + wide - 1) / wide * wide;
    byte* to = scales + Layout::offset(row, column, columns, rows);
    if (column + Count <= end && (index_t)to % Count == 0) {
        if constexpr (Count == 4) *(unsigned*)to = bytes;
        else *(unsigned short*)to = (unsigned short)bytes;
        return;
    }
    UNROLL
    for (int i = 0; i < Count; ++i)
        if (column + i < end) to[i] = (byte)(bytes >> 8 * i);
}
