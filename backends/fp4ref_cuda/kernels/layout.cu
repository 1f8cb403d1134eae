// Move scale bytes from one layout to another, for one or many tensors in one launch.
//
//   from    uint8  in Source; padding is never read
//   to      uint8  in Layout, padding is written
//   shapes  int64  [members, 5]: rows, columns, start in `from`, start in `to`, first unit
//
// Source and Layout come before this file. A thread moves 4 neighbouring columns of one row: a unit. Rules: LAY-5,
// LAY-6.
#include "maps.cuh"

struct Grid {
    index_t rows, columns, from, to, first_unit;
};

extern "C" __global__ void __launch_bounds__(THREADS) layout(
    const byte* __restrict__ from, byte* __restrict__ to, const Grid* shapes, index_t count, index_t units,
    index_t rows, index_t columns)
{
    const index_t unit = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (unit >= units) return;
    wait_for_previous_kernel();
    int which = 0;
    for (index_t above = count; above - which > 1;) {
        const int middle = (int)((which + above) / 2);
        if (shapes[middle].first_unit <= unit) which = middle;
        else above = middle;
    }
    const Grid grid = shapes ? shapes[which] : Grid{rows, columns, 0, 0, 0};
    const index_t padded_columns = (grid.columns + Layout::column_multiple
        - 1) / Layout::column_multiple * Layout::column_multiple;
    const unsigned across = (unsigned)((padded_columns + 3) / 4);
    const index_t inside = unit - grid.first_unit;
    const bool small = inside < 1ll << 32;  // a division of 32 bits is several times faster
    const index_t row = small ? (unsigned)inside / across : inside / across, column = (inside - row * across) * 4;
    if constexpr (!Source::adjacent || !Layout::adjacent || Layout::row_fill || Layout::column_fill) {
        UNROLL
        for (int i = 0; i < 4; ++i) {
            if (column + i >= padded_columns) return;
            const bool valid = row < grid.rows && column + i < grid.columns;
            to[grid.to + Layout::offset(row, column + i, grid.columns, grid.rows)] = valid
                ? from[grid.from + Source::offset(row, column + i, grid.columns, grid.rows)]
                : padding<Layout>(row, grid.rows);
        }
        return;
    }
    byte* target = to + grid.to + Layout::offset(row, column, grid.columns, grid.rows);
    const byte* source = from + grid.from + Source::offset(row, column, grid.columns, grid.rows);
    const bool whole = row < grid.rows && column + 3 < grid.columns;  // four neighbours are side by side in both
    if (whole && ((index_t)target | (index_t)source) % 4 == 0) {
        *(unsigned*)target = __ldg((const unsigned*)source);
        return;
    }
    UNROLL
    for (int i = 0; i < 4; ++i) {
        if (column + i >= padded_columns) return;
        const bool valid = row < grid.rows && column + i < grid.columns;
        target[i] = valid ? source[i] : (byte)0;
    }
}
