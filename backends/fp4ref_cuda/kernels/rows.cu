// Quantize rows of bfloat16 by thresholds, even rounding to E2M1: blocks of 16 under one global scale, or blocks of 32.
//
//   x       bfloat16  [rows, columns], fewer than 2^31 each, columns a multiple of 8, rows 16 bytes apart
//   amax    float32   [parts] partial maxima; amax_out gets their maximum; both unused without a global scale
//   data    uint8     [rows, columns / 2]
//   scales  uint8     in Layout, padding written as zero
//
// S, Layout, WARPS and SEARCHED (amax was, by the kernel before this one) come before this file. One block of threads on
// a multiprocessor; its warps share a table of thresholds and work alone otherwise. A warp takes units of 512 columns in
// four rows that lie 32 apart, whose scales lie side by side in 128x4 tiles: it reads and writes whole lines of memory,
// and has the rows of the next unit on their way to shared memory meanwhile. A lane takes 16 elements of every row.
// Certificates: rows-bfloat16, quantize-nvfp4-bfloat16, quantize-mxfp4-bfloat16.
#include "blocks.cuh"
#include "units.cuh"

constexpr int STEP = 2 * LINE, STAGES = 2;
constexpr int ENTRIES = fp4ref::same_type<typename S::Scale::Format, fp4ref::e8m0> ? 256 : 128;
constexpr int TABLE = ENTRIES * sizeof(thresholds::Entry), OF_WARP = STAGES * STEP;

// A byte for each of four rows that lie 32 apart: ones where the row is inside.
DEVICE unsigned inside_rows(unsigned row, unsigned rows)
{
    const unsigned count = row < rows ? (rows - row + 31) / 32 : 0;
    return count < 4 ? (1u << 8 * count) - 1u : ~0u;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) rows(
    const byte* __restrict__ x, index_t row_count, index_t column_count, index_t unit_count, index_t strips,
    index_t factor, index_t shift, const float* amax, index_t parts, float* amax_out, byte* __restrict__ data,
    byte* __restrict__ scales, const unsigned* noop)
{
    extern __shared__ __align__(128) byte memory[];
    thresholds::Entry* const table = (thresholds::Entry*)memory;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, all = gridDim.x * WARPS;
    const unsigned rows = (unsigned)row_count, columns = (unsigned)column_count, units = (unsigned)unit_count;
    const unsigned pitch = columns * 2, half = columns / 2;
    const unsigned blocks = (columns + S::columns - 1) / S::columns;
    const size band = (size)pitch * 32;
    const Divisor of_strips = {(unsigned)strips, (unsigned)factor, (unsigned)shift};
    const bool whole = columns % 16 == 0;

    // The first of a unit's rows, and the column of a unit.
    const auto place = [&](unsigned index, unsigned& column) {
        if (SEARCHED) index = units - 1 - index;  // the pass for the maximum left the end of x in the cache
        const unsigned line = of_strips.quotient(index);
        column = (index - line * of_strips.divisor) * WIDTH;
        return line / 32 * 128 + line % 32;
    };
    // The two vectors of every second quad of blocks change places: no two lanes of a quarter of a warp meet in a bank.
    byte* const mine = memory + TABLE + warp * OF_WARP;
    unsigned to_stage = (unsigned)__cvta_generic_to_shared(mine) + (lane ^ (lane >> 3 & 1)) * 16;
    KEEP(to_stage);
    const auto load = [&](const byte* from, unsigned slot, unsigned left, unsigned columns_left) {
        UNROLL
        for (int i = 0; i < 2; ++i)
            UNROLL
            for (int part = 0; part < 2; ++part)
                copy_to_shared(to_stage + slot * STEP + i * LINE + part * (LINE / 2), from + i * band + part * (LINE / 2),
                    i * 32 < left && part * (WIDTH / 2) < columns_left);
        commit_copies();
    };
    const auto load_unit_step = [&](unsigned index, int step) {
        unsigned column;
        const unsigned row = index < units ? place(index, column) + step * 64 : rows, at = index < units ? column + lane * 8 : 0;
        const unsigned left = row < rows ? rows - row : 0, columns_left = at < columns ? columns - at : 0;
        load(x + ((size)row * pitch + at * 2), step, left, columns_left);
    };

    const unsigned first = blockIdx.x + warp * gridDim.x;
    if (!SEARCHED) wait_for_previous_kernel();  // else x was there before that one
    UNROLL
    for (int step = 0; step < STAGES; ++step) load_unit_step(first, step);
    if (SEARCHED) wait_for_previous_kernel();
    if (noop && *noop) return;
    float A = 0.0f;
    if constexpr (S::global == fp4ref::Global::tensor) {
        A = amax_of_parts<WARPS * 32>(amax, parts);
        if (blockIdx.x == 0 && threadIdx.x == 0) *amax_out = A;
    }
    const float g = fp4ref::global_scale<S, In>(A);
    if (threadIdx.x < ENTRIES) table[threadIdx.x] = thresholds::entry<S>(threadIdx.x, g);
    __syncthreads();

    unsigned swap = (lane >> 2 & 1) * 16, minus_zero = thresholds::MINUS_ZERO;
    const byte* from_stage = mine + lane * 32;
    KEEP(swap);
    KEEP(minus_zero);
    _Pragma("unroll 1")
    for (unsigned index = first; index < units; index += all) {
        unsigned column, next_column = 0, bytes[2];
        const unsigned row = place(index, column), next = index + all;
        const unsigned next_row = next < units ? place(next, next_column) : rows;
        const unsigned next_left = next_row < rows ? rows - next_row : 0, at = next_column + lane * 8;
        const unsigned next_columns = at < columns ? columns - at : 0;
        const byte* from = x + ((size)next_row * pitch + at * 2);
        const unsigned mine_first = column + lane * 16, left = mine_first < columns ? columns - mine_first : 0;
        byte* to = data + ((size)row * half + mine_first / 2);
        UNROLL
        for (int step = 0; step < 2; ++step) {
            wait_for_copies<STAGES - 1>();
            __syncwarp();
            const byte *here = from_stage + step * STEP + swap, *other = from_stage + step * STEP + (swap ^ 16);
            uint4 v[2][2];
            UNROLL
            for (int i = 0; i < 2; ++i) {
                v[i][0] = *(const uint4*)(here + i * LINE);
                v[i][1] = *(const uint4*)(other + i * LINE);
            }
            uint2 codes[2];
            if (two_blocks(blocks_of_rows(v, minus_zero), g, 1.0f, table, codes, bytes[step])) {
                const auto again = [&](int i, float (&x)[16]) {
                    widen_row({*(const uint4*)(here + i * LINE), *(const uint4*)(other + i * LINE)}, x);
                };
                plain_blocks<ALONE.lanes, ALONE.both>(again, [](int) { return uint4(); }, g, [&](int i, const uint2& made, byte scale) {
                    codes[0] = i ? codes[0] : made;
                    codes[1] = i ? made : codes[1];
                    bytes[step] = i ? (bytes[step] & 255u) | scale << 8 : (bytes[step] & ~255u) | scale;
                });
            }
            UNROLL
            for (int i = 0; i < 2; ++i)
                store_codes(to + (size)half * 32 * (step * 2 + i), codes[i], row + (step * 2 + i) * 32 < rows ? left : 0, whole);
            __syncwarp();
            load(from + step * 2 * band, step, next_left > step * 64 ? next_left - step * 64 : 0, next_columns);
        }
        unsigned four = bytes[0] | bytes[1] << 16;
        if constexpr (HALVES) {  // those of every second lane; a byte of a zero block is not that of the padding
            four = left ? four & inside_rows(row, rows) : 0;
            four = __shfl_sync(~0u, four, lane * 2 % 32);
        }
        four = transposed(four, lane);
        if (!HALVES || lane < 16) store_scales(scales, four, row, lane % 4, column / (4 * S::columns) + lane / 4, rows, blocks);
    }
}
