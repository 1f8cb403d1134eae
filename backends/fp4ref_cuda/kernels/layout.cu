// Move scale bytes from one layout to another, for one or many tensors in one launch.
//
//   from    uint8  in Source; padding is never read
//   to      uint8  in Layout, padding written as zero
//   shapes  int64  [members, 5]: rows, columns, start in `from`, start in `to`, first unit
//
// Source and Layout come before this file. A thread moves 4 neighbouring columns of one row: a unit. Rules: LAY-5,
// LAY-6.
#include "common.cuh"

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
    const index_t across = (padded_columns + 3) / 4, row = (unit - grid.first_unit) / across;
    UNROLL
    for (int i = 0; i < 4; ++i) {
        const index_t column = (unit - grid.first_unit) % across * 4 + i;
        if (column >= padded_columns) return;
        const bool valid = row < grid.rows && column < grid.columns;
        to[grid.to + Layout::offset(row, column, grid.columns)] =
            valid ? from[grid.from + Source::offset(row, column, grid.columns)] : (byte)0;
    }
}
