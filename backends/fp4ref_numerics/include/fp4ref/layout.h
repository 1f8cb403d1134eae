// Where a scale byte lies. Columns counts scale columns, before padding.
#pragma once
#include <fp4ref/config.h>

namespace fp4ref {
namespace layout {

using offset_t = unsigned long long;

// Rules: LAY-1.
struct linear {
    static constexpr unsigned row_multiple = 1, column_multiple = 1;
    FP4_API offset_t offset(offset_t row, offset_t column, offset_t columns) { return row * columns + column; }
};

// Rules: LAY-2.
struct linear_padded {
    static constexpr unsigned row_multiple = 128, column_multiple = 4;
    FP4_API offset_t offset(offset_t row, offset_t column, offset_t columns) { return row * ((columns + 3) / 4 * 4) + column; }
};

// Tiles of Rows rows and 4 columns, row tiles outermost; inside, row r has its 4 bytes in group r / Lanes of line r % Lanes.
template <unsigned Rows, unsigned Lanes> struct tiled {
    static constexpr unsigned row_multiple = Rows, column_multiple = 4, groups = Rows / Lanes;
    FP4_API offset_t offset(offset_t row, offset_t column, offset_t columns)
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
