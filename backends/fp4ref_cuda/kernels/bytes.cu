// Quantize rows and columns of bfloat16 to 8-bit elements from one read of x: blocks of 32, no global scale, both scale
// sets in 128x4 tiles.
//
//   x            bfloat16  [rows, columns], both multiples of 16, 16 bytes apart
//   row_data     uint8     [rows, columns];   row_scales     uint8, tiles of [rows, columns / 32]
//   column_data  uint8     [columns, rows];   column_scales  uint8, tiles of [columns, rows / 32]
//
// S and RESIDENT (blocks of threads on a multiprocessor) come before this file. A block of 256 threads takes two boxes
// of 128 rows and 64 columns, side by side: both are on their way to shared memory at once, and the second one while
// the first one is quantized. Pairs of boxes follow each other in the order of `box_of`. A lane takes half a block of
// two lines; another lane of its warp has the other half, and each of the two chooses the scale of one line.
// Certificates: both-*, quantize-mxfp8-*.
#include "copies.cuh"

constexpr int ROWS = 128, COLUMNS = 64, HALF = 16;
constexpr int PITCH = COLUMNS * 2 + 16, GROUP = 16 * PITCH + 64;  // bytes of a row, and of 16: no bank conflicts
constexpr int STAGE = ROWS / 16 * GROUP;
constexpr int CODE_PITCH = ROWS + 16, COLUMN_CODES = 2 * STAGE, COLUMN_SCALES = COLUMN_CODES + COLUMNS * CODE_PITCH;
constexpr int ROW_SCALES = COLUMN_SCALES + 512;

struct Pair {
    fp4ref::Scale low, high;
};

// Scales of two lines, from the magnitudes in both halves of `amax` and in those of the lane `other` away. The first of
// the two lanes chooses that of the low line, the second that of the high one.
DEVICE Pair choose(unsigned amax, unsigned other, bool second)
{
    amax = __vmaxu2(amax & 0x7fff7fffu, __shfl_xor_sync(~0u, amax & 0x7fff7fffu, other));
    const float mine = In::widen((In::word)(second ? amax >> 16 : amax));
    const fp4ref::Scale own = fp4ref::stored_scale<S, In>(fp4ref::block_scale<S, In>(mine, 1.0f), 1.0f, mine);
    const auto from_other = [&](auto value) { return __shfl_xor_sync(~0u, value, other); };
    const fp4ref::Scale theirs = {from_other(own.byte), from_other(own.s), from_other(own.factor)};
    return second ? Pair{theirs, own} : Pair{own, theirs};
}

// Two codes of one line.
DEVICE unsigned codes(unsigned low, unsigned high, const fp4ref::Scale& scale)
{
    return fp4ref::encode_pair<S::Element>(fp4ref::scaled<S, In>(fp4ref::float_of(low), scale, 1.0f),
        fp4ref::scaled<S, In>(fp4ref::float_of(high), scale, 1.0f));
}

// 16 codes of 16 columns' words, of the lower or of the upper halves.
template <bool Upper> DEVICE uint4 column_codes(const unsigned (&words)[HALF], const fp4ref::Scale& scale)
{
    unsigned packed[4];
    const auto bits = [&](int i) { return Upper ? words[i] & 0xffff0000u : words[i] << 16; };
    UNROLL
    for (int k = 0; k < 4; ++k)
        packed[k] = codes(bits(4 * k), bits(4 * k + 1), scale) | codes(bits(4 * k + 2), bits(4 * k + 3), scale) << 16;
    return {packed[0], packed[1], packed[2], packed[3]};
}

// 16 codes of 16 neighbours in a row.
DEVICE uint4 row_codes(const unsigned (&words)[8], const fp4ref::Scale& scale)
{
    unsigned packed[4];
    const auto pair = [&](int i) { return codes(words[i] << 16, words[i] & 0xffff0000u, scale); };
    UNROLL
    for (int k = 0; k < 4; ++k) packed[k] = pair(2 * k) | pair(2 * k + 1) << 16;
    return {packed[0], packed[1], packed[2], packed[3]};
}

// The largest magnitude of some words, of both halves together.
template <int N> DEVICE unsigned largest(const unsigned (&words)[N])
{
    unsigned amax = 0;
    UNROLL
    for (int i = 0; i < N; ++i) amax = thresholds::running_amax_pair<S::block_keeps_nan>(amax, words[i]);
    return fp4ref::larger(amax & 0x7fffu, amax >> 16 & 0x7fffu);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) bytes(
    const byte* __restrict__ x, index_t row_count, index_t column_count, byte* __restrict__ row_data,
    byte* __restrict__ row_scales, byte* __restrict__ column_data, byte* __restrict__ column_scales,
    const unsigned* noop)
{
    extern __shared__ __align__(128) byte memory[];
    const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const unsigned rows = (unsigned)row_count, columns = (unsigned)column_count, wide = (columns + 2 * COLUMNS - 1) / (2 * COLUMNS);
    const unsigned down = (rows + ROWS - 1) / ROWS, strip = blockIdx.x / (2 * wide);
    const Box tile = box_of(strip, blockIdx.x - strip * 2 * wide, down / 2);
    const unsigned tile_row = tile.down, tile_column = tile.across, top = tile_row * ROWS;
    if (thread < ROWS && top + thread < rows) {
        const unsigned left = tile_column * 2 * COLUMNS;
        const byte* line = x + ((size)(top + thread) * columns + left) * 2;
        fetch(line);
        if (left + COLUMNS < columns) fetch(line + COLUMNS * 2);
    }
    wait_for_previous_kernel();
    if (noop && *noop) return;

    UNROLL
    for (int stage = 0; stage < 2; ++stage) {
        const unsigned r = thread / 8, row = top + r, column = (tile_column * 2 + stage) * COLUMNS + thread % 8 * 8;
        const byte* from = x + ((size)row * columns + column) * 2;
        const unsigned to = (unsigned)__cvta_generic_to_shared(memory) + stage * STAGE + r / 16 * GROUP + r % 16 * PITCH + thread % 8 * 16;
        UNROLL
        for (int i = 0; i < ROWS; i += 32)
            copy_to_shared(to + i / 16 * GROUP, from + (size)columns * (2 * i), row + i < rows && column < columns);
        commit_copies();
    }
    _Pragma("unroll 1")
    for (unsigned stage = 0; stage < 2; ++stage) {
        const unsigned left = (tile_column * 2 + stage) * COLUMNS;
        const byte* here = memory + stage * STAGE;
        if (stage == 0) wait_for_copies<1>();
        else wait_for_copies<0>();
        __syncthreads();

        // 32 rows of 32 columns: 16 pairs of columns, half of the rows in either half of a warp's lanes.
        {
            const bool second = lane >= 16;
            const unsigned group = warp % 4, first = warp / 4 * 32 + lane % 16 * 2;
            const byte* from = here + (group * 2 + second) * GROUP + first * 2;
            unsigned words[HALF], amax = 0;
            UNROLL
            for (int i = 0; i < HALF; ++i) words[i] = *(const unsigned*)(from + i * PITCH);
            UNROLL
            for (int i = 0; i < HALF; ++i) amax = thresholds::running_amax_pair<S::block_keeps_nan>(amax, words[i]);
            const Pair scales = choose(amax, 16, second);
            byte* to = memory + COLUMN_CODES + first * CODE_PITCH + group * 32 + (second ? HALF : 0);
            *(uint4*)to = column_codes<false>(words, scales.low);
            *(uint4*)(to + CODE_PITCH) = column_codes<true>(words, scales.high);
            const unsigned line = first + second, of_tile = stage * COLUMNS + line;
            memory[COLUMN_SCALES + of_tile % 32 * 16 + of_tile / 32 * 4 + group] =
                left + line < columns && top + group * 32 < rows ? (second ? scales.high : scales.low).byte : 0;
        }

        // 16 rows of a warp, two of a lane.
        {
            const unsigned r = warp * 16 + lane / 4, piece = lane % 4 * HALF;
            const byte* from = here + warp * GROUP + lane / 4 * PITCH + piece * 2;
            unsigned words[2][8], amax = 0;
            UNROLL
            for (int i = 0; i < 2; ++i) {
                const uint4 a = *(const uint4*)(from + i * 8 * PITCH), b = *(const uint4*)(from + i * 8 * PITCH + 16);
                const unsigned eight[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
                UNROLL
                for (int k = 0; k < 8; ++k) words[i][k] = eight[k];
                amax |= largest(words[i]) << 16 * i;
            }
            const bool odd = lane % 2;
            const Pair scales = choose(amax, 1, odd);
            const unsigned row = top + r, column = left + piece;
            byte* to = row_data + ((size)row * columns + column);
            if (column < columns && row < rows) *(uint4*)to = row_codes(words[0], scales.low);
            if (column < columns && row + 8 < rows) *(uint4*)(to + (size)columns * 8) = row_codes(words[1], scales.high);
            const unsigned line = r + odd * 8, block = stage * 2 + piece / 32;
            memory[ROW_SCALES + line % 32 * 16 + line / 32 * 4 + block] =
                top + line < rows && column / 32 * 32 < columns ? (odd ? scales.high : scales.low).byte : 0;
        }
        __syncthreads();

        const unsigned r = thread / 8, piece = thread % 8 * 16;
        if (top + piece < rows) {
            byte* to = column_data + (size)(left + r) * rows + (top + piece);
            const byte* from = memory + COLUMN_CODES + r * CODE_PITCH + piece;
            if (left + r < columns) *(uint4*)to = *(const uint4*)from;
            if (left + r + 32 < columns) *(uint4*)(to + (size)rows * 32) = *(const uint4*)(from + 32 * CODE_PITCH);
        }
    }
    if (warp == 0)
        *(uint4*)(row_scales + (size)(tile_row * wide + tile_column) * 512 + lane * 16) = *(const uint4*)(memory + ROW_SCALES + lane * 16);
    if (warp == 1)
        *(uint4*)(column_scales + (size)(tile_column * down + tile_row) * 512 + lane * 16) =
            *(const uint4*)(memory + COLUMN_SCALES + lane * 16);
}
