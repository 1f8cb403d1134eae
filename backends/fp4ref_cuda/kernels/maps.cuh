// Layouts that a kernel is told by number, so that it need not be compiled for each; any other one is compiled in.
#pragma once
#include "common.cuh"

// Does something in layout `number` of the header, or in Layout if a kernel was compiled for a map that the header lacks.
template <class Do> DEVICE auto in_layout(index_t number, const Do& act)
{
    if constexpr (OWN_LAYOUT) return act(Layout());
    else {
        switch (number) {
        case 0: return act(fp4ref::layout::linear());
        case 1: return act(fp4ref::layout::linear_padded());
        case 2: return act(fp4ref::layout::tiled_128x4());
        default: return act(fp4ref::layout::tiled_8x4());
        }
    }
}

// The byte of the padding at a row and column, one of which is past the last.
template <class Map> DEVICE byte padding(index_t row, index_t rows)
{
    return (byte)(row >= rows ? Map::row_fill : Map::column_fill);
}
