// Move scale bytes from one layout to another, for one or many tensors in one launch.
//
//   from    uint8  in Source; padding is never read
//   to      uint8  in Layout, padding is written
//   shapes  int64  [members, 5]: rows, columns, start in `from`, start in `to`, first unit
//
// Source, Layout and QUARTERS come before this file. A thread moves 4 neighbouring columns of one row: a unit; with
// QUARTERS, where one of the layouts is in 128x4 tiles, of the four rows that lie 32 apart, side by side in a tile: a unit
// is a block of threads then, for 128 rows of 8 tiles. Rules: LAY-5, LAY-6.
// Certificates: offset-*, padding-written.
#include "maps.cuh"
#include "places.cuh"

constexpr bool FROM_TILES = fp4ref::same_type<Source, fp4ref::layout::tiled_128x4>;
constexpr bool TO_TILES = fp4ref::same_type<Layout, fp4ref::layout::tiled_128x4>;
constexpr unsigned TILES = 8;  // of a unit: 32 bytes of every row

struct Grid {
    index_t rows, columns, from, to, first_unit;
};

// Four neighbouring scales of a row, zeros outside.
DEVICE unsigned load_four(const byte* from, const Grid& grid, index_t row, index_t column)
{
    if (row >= grid.rows) return 0;
    from += grid.from + Source::offset(row, column, grid.columns, grid.rows);
    if (column + 3 < grid.columns && (index_t)from % 4 == 0) return __ldg((const unsigned*)from);
    unsigned four = 0;
    UNROLL
    for (int i = 0; i < 4; ++i)
        if (column + i < grid.columns) four |= (unsigned)from[i] << 8 * i;
    return four;
}

// A block of threads for 128 rows of 8 tiles: neighbouring lanes take neighbouring tiles, so a row's bytes fill sectors
// of memory, and so do the rows of a tile.
DEVICE void move_quarters(const byte* from, byte* to, const Grid& grid, index_t inside)
{
    const unsigned strips = (unsigned)((grid.columns + 4 * TILES - 1) / (4 * TILES));
    const index_t tall = inside / strips, row = tall * 128 + threadIdx.x / TILES;
    const index_t column = ((inside - tall * strips) * TILES + threadIdx.x % TILES) * 4;
    if (column >= grid.columns) return;
    unsigned four[4];
    const byte* tile = from + grid.from + Source::offset(row, column, grid.columns, grid.rows);
    if (FROM_TILES && (index_t)tile % 16 == 0) {
        const uint4 all = load_vector(tile);
        const unsigned words[4] = {all.x, all.y, all.z, all.w};
        const unsigned kept = column + 3 < grid.columns ? ~0u : (1u << 8 * (grid.columns - column)) - 1u;
        UNROLL
        for (int k = 0; k < 4; ++k) four[k] = row + k * 32 < grid.rows ? words[k] & kept : 0;
    } else {
        UNROLL
        for (int k = 0; k < 4; ++k) four[k] = load_four(from, grid, row + k * 32, column);
    }
    byte* target = to + grid.to + Layout::offset(row, column, grid.columns, grid.rows);
    if (TO_TILES && (index_t)target % 16 == 0) {
        *(uint4*)target = {four[0], four[1], four[2], four[3]};
        return;
    }
    UNROLL
    for (int k = 0; k < 4; ++k) store_neighbours<4>(to + grid.to, row + k * 32, column, grid.rows, grid.columns, four[k]);
}

extern "C" __global__ void __launch_bounds__(THREADS) layout(
    const byte* __restrict__ from, byte* __restrict__ to, const Grid* shapes, index_t count, index_t units,
    index_t rows, index_t columns)
{
    const index_t unit = QUARTERS ? blockIdx.x : (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (unit >= units) return;
    wait_for_previous_kernel();
    int which = 0;
    for (index_t above = count; above - which > 1;) {
        const int middle = (int)((which + above) / 2);
        if (shapes[middle].first_unit <= unit) which = middle;
        else above = middle;
    }
    const Grid grid = shapes ? shapes[which] : Grid{rows, columns, 0, 0, 0};
    if constexpr (QUARTERS) return move_quarters(from, to, grid, unit - grid.first_unit);
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
