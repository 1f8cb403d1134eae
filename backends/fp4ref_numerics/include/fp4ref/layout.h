// Where a scale byte is stored. Certificates: offset-*. Columns and rows count scales, before padding; no map here depends on the rows.
//   quads     four columns from a multiple of 4 are one aligned word, padding included
//   adjacent  they are side by side
//   fill      the bytes of the padding after the rows, and after the columns
#pragma once
#include <fp4ref/config.h>

namespace fp4ref {
namespace layout {

using offset_t = unsigned long long;

// Rules: LAY-1.
struct linear {
    static constexpr unsigned row_multiple = 1, column_multiple = 1, row_fill = 0, column_fill = 0;
    static constexpr bool quads = false, adjacent = true;
    FP4_API offset_t offset(offset_t row, offset_t column, offset_t columns, offset_t = 0) { return row * columns + column; }
};

// Rules: LAY-2.
struct linear_padded {
    static constexpr unsigned row_multiple = 128, column_multiple = 4, row_fill = 0, column_fill = 0;
    static constexpr bool quads = true, adjacent = true;
    FP4_API offset_t offset(offset_t row, offset_t column, offset_t columns, offset_t = 0) { return row * ((columns + 3) / 4 * 4) + column; }
};

// Tiles of Rows rows and 4 columns, row tiles outermost; inside, row r has its 4 bytes in group r / Lanes of line r % Lanes.
template <unsigned Rows, unsigned Lanes> struct tiled {
    static constexpr unsigned row_multiple = Rows, column_multiple = 4, row_fill = 0, column_fill = 0, groups = Rows / Lanes;
    static constexpr bool quads = true, adjacent = true;
    FP4_API offset_t offset(offset_t row, offset_t column, offset_t columns, offset_t = 0)
    {
        const offset_t tile = row / Rows * ((columns + 3) / 4) + column / 4;
        const unsigned inside = (unsigned)(row % Rows);
        return tile * (Rows * 4) + inside % Lanes * (groups * 4) + inside / Lanes * 4 + column % 4;
    }
};
using tiled_128x4 = tiled<128, 32>;  // Rules: LAY-3.
using tiled_8x4 = tiled<8, 8>;       // Rules: LAY-4.

}  // namespace layout
}  // namespace fp4ref
