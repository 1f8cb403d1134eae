// Quantize rows of bfloat16 by thresholds: blocks of 16, one global scale, even rounding to E2M1.
//
//   x       bfloat16  [rows, columns], columns a multiple of 8, rows 16 bytes apart
//   amax    float32   [parts] partial maxima; amax_out gets their maximum
//   data    uint8     [rows, columns / 2]
//   scales  uint8     in Layout, padding written as zero
//
// S, Layout, WIDTH (columns of a tile), BATCH (rows that a thread reads ahead), BLOCKS (on a
// multiprocessor) and REVERSE come before this file. A tile has 128 rows; a thread takes 8 elements
// of each of its rows, so that two lanes share a block and a warp reads and writes whole segments. Blocks of threads
// take tiles in turn, and ask for the next rows as soon as they have taken up the present ones. Scales leave as whole
// tiles.
#include "common.cuh"
#include <fp4ref/thresholds.h>

using In = fp4ref::bfloat16;
namespace thresholds = fp4ref::thresholds;

constexpr int TILE_ROWS = 128, LANES = WIDTH / 8, STRIDE = THREADS / LANES;
constexpr int BATCHES = TILE_ROWS / STRIDE / BATCH, QUADS = WIDTH / 64;
static_assert(BATCHES > 0, "a batch of rows fits a tile");

struct Tile {
    index_t row, column;
};

DEVICE Tile tile_at(index_t index, index_t tiles, index_t across)
{
    if (REVERSE) index = tiles - 1 - index;  // the pass for the maximum left the end of x in the cache
    return {index / across * TILE_ROWS, index % across * WIDTH};
}

// This lane's way down a tile: where its present row lies in a matrix, and how many rows of the tile are left from
// there.
struct Walk {
    const byte* at;
    int left;
};

// Of a matrix whose lines are `pitch` bytes long; a lane takes `each` bytes of a line.
DEVICE Walk walk_down(const void* matrix, const Tile& tile, index_t rows, index_t columns, index_t pitch, int each)
{
    const int r = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const index_t row = tile.row + r, left = rows - row;
    const byte* at = (const byte*)matrix + row * pitch + (tile.column / 8 + lane) * each;
    return {at, tile.column + lane * 8 >= columns ? 0 : left < TILE_ROWS ? (int)left : TILE_ROWS};
}

// This lane's next two rows, that is `STRIDE` rows apart; those past the end are zero.
DEVICE void load_two(uint4* words, Walk& walk, index_t step)
{
    UNROLL
    for (int i = 0; i < 2; ++i) {
        words[i] = {0, 0, 0, 0};
        if (walk.left > 0) words[i] = load_vector(walk.at);
        walk = {walk.at + step, walk.left - STRIDE};
    }
}

// Where the scale of this lane's block lies in a tile that is held in the order of 128x4 tiles, in its first row; and
// how far on it lies some rows further down.
constexpr int BAND = 32 / STRIDE;
static_assert(BATCH % BAND == 0, "a batch is whole bands of 32 rows");
DEVICE int place_of_lane()
{
    return threadIdx.x % LANES / 8 * 512 + threadIdx.x / LANES * 16 + threadIdx.x % LANES / 2 % 4;
}
DEVICE constexpr int place_of(int i) { return i % BAND * STRIDE * 16 + i / BAND * 4; }

// Two rows by thresholds, side by side for the sake of latency. Result: whether they need the plain path.
DEVICE bool two_rows(const uint4* words, float g, const thresholds::Entry* table, unsigned (&packed)[2],
    unsigned (&bytes)[2])
{
    unsigned pairs[2][4], magnitudes[2][4], amax[2];
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const uint4& w = words[i];
        pairs[i][0] = __byte_perm(w.x, w.z, 0x5410);
        pairs[i][1] = __byte_perm(w.x, w.z, 0x7632);
        pairs[i][2] = __byte_perm(w.y, w.w, 0x5410);
        pairs[i][3] = __byte_perm(w.y, w.w, 0x7632);
        UNROLL
        for (int k = 0; k < 4; ++k) magnitudes[i][k] = pairs[i][k] & 0x7fff7fffu;
        amax[i] = thresholds::largest(magnitudes[i]);
    }
    UNROLL
    for (int i = 0; i < 2; ++i) amax[i] = fp4ref::larger(amax[i], __shfl_xor_sync(~0u, amax[i], 1));
    const unsigned both = thresholds::scale_bytes<S>(In::widen((In::word)amax[0]), In::widen((In::word)amax[1]), g);
    bytes[0] = both & 255u;
    bytes[1] = both >> 8;
    bool plain = fp4ref::larger(amax[0], amax[1]) > In::infinity;
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const thresholds::Entry entry = table[bytes[i]];
        plain |= !entry.ramp && amax[i];
        packed[i] = thresholds::packed_codes(pairs[i], magnitudes[i], entry);
    }
    return plain;
}

// Codes of 8 elements of any block; its other half is in the neighbouring lane.
DEVICE unsigned plain_codes(const uint4& words, float g, unsigned& scale_byte)
{
    const unsigned w[4] = {words.x, words.y, words.z, words.w}, pair = 3u << (threadIdx.x & 30);
    float x[8];
    unsigned amax = 0;
    UNROLL
    for (int i = 0; i < 8; ++i) {
        x[i] = In::widen((In::word)(w[i / 2] >> 16 * (i % 2)));
        amax = fp4ref::running_amax<S::block_keeps_nan>(amax, fp4ref::magnitude_bits(x[i]));
    }
    amax = fp4ref::running_amax<S::block_keeps_nan>(amax, __shfl_xor_sync(pair, amax, 1));
    const fp4ref::Scale scale = fp4ref::stored_scale<S, In>(fp4ref::block_scale<S, In>(fp4ref::float_of(amax), g), g);
    scale_byte = scale.byte;
    unsigned packed = 0;
    UNROLL
    for (int i = 0; i < 8; i += 2)
        packed |= fp4ref::encode_pair<S::Element>(fp4ref::scaled<S, In>(x[i], scale, g), fp4ref::scaled<S,
            In>(x[i + 1], scale, g)) << 4 * i;
    return packed;
}

// A batch again, for every input: its rows are read once more, and what the thresholds made is replaced.
DEVICE void plain_batch(const In::word* x, byte* data, byte* held, Walk walk, index_t step, float g)
{
    _Pragma("unroll 1")
    for (int i = 0; i < BATCH; ++i) {
        const bool inside = walk.left > 0;
        uint4 words = {0, 0, 0, 0};
        if (inside) words = *(const uint4*)(x + (walk.at - data) * 2);
        unsigned scale_byte;
        const unsigned packed = plain_codes(words, g, scale_byte);
        if (inside) *(unsigned*)walk.at = packed;
        held[place_of(i)] = inside ? scale_byte : 0;
        walk = {walk.at + step, walk.left - STRIDE};
    }
}

// Scales of a finished tile, held in the order of 128x4 tiles.
DEVICE void store_scales(const byte* held, byte* scales, const Tile& tile, index_t rows, index_t columns)
{
    const index_t blocks = (columns + 15) / 16, first = tile.column / 16;
    if constexpr (fp4ref::same_type<Layout, fp4ref::layout::tiled_128x4>) {
        const index_t padded = (blocks + 3) / 4 * 4;
        const int quad = threadIdx.x / 32;
        if (quad < QUADS && first + quad * 4 < padded)
            ((uint4*)(scales + Layout::offset(tile.row, first + quad * 4, blocks)))[threadIdx.x % 32] =
                ((const uint4*)held)[threadIdx.x];
    } else {
        const index_t high = (rows + Layout::row_multiple - 1) / Layout::row_multiple * Layout::row_multiple;
        const index_t wide = (blocks + Layout::column_multiple - 1) / Layout::column_multiple * Layout::column_multiple;
        for (int i = threadIdx.x; i < TILE_ROWS * WIDTH / 16; i += THREADS) {
            const int r = i / (WIDTH / 16), b = i % (WIDTH / 16);
            if (tile.row + r < high && first + b < wide)
                scales[Layout::offset(tile.row + r, first + b, blocks)] = held[fp4ref::layout::tiled_128x4::offset(r,
                    b, WIDTH / 16)];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) rows(
    const In::word* __restrict__ x, index_t rows, index_t columns, index_t tiles, index_t across, const float* amax,
    index_t parts, float* amax_out, byte* __restrict__ data, byte* __restrict__ scales, const unsigned* noop)
{
    __shared__ thresholds::Entry table[128];
    // Of two turns; the second lane of a block writes to a copy that nobody reads, since a branch would cost more.
    __shared__ __align__(16) byte staging[2][2][TILE_ROWS * WIDTH / 16];
    const index_t pitch = columns * 2, half = columns / 2, step = STRIDE * pitch, half_step = STRIDE * half;
    Tile tile = tile_at(blockIdx.x, tiles, across);
    Walk ahead = walk_down(x, tile, rows, columns, pitch, 16);
    uint4 words[BATCH];
    UNROLL
    for (int i = 0; i < BATCH; i += 2) load_two(words + i, ahead, step);
    wait_for_previous_kernel();
    if (noop && *noop) return;
    const float A = amax_of_parts(amax, parts), g = fp4ref::global_scale<S, In>(A);
    if (blockIdx.x == 0 && threadIdx.x == 0) *amax_out = A;
    if (threadIdx.x < 128) table[threadIdx.x] = thresholds::entry<S>(threadIdx.x, g);
    __syncthreads();

    int side = 0;
    for (index_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile following = tile_at(index + gridDim.x < tiles ? index + gridDim.x : index, tiles, across);
        Walk walk = walk_down(data, tile, rows, columns, half, 4);
        byte* held = staging[side][threadIdx.x % 2] + place_of_lane();
        _Pragma("unroll 1")
        for (int batch = 0; batch < BATCHES; ++batch) {
            if (batch + 1 == BATCHES) ahead = walk_down(x, following, rows, columns, pitch, 16);
            const Walk start = walk;
            bool plain = false;
            UNROLL
            for (int i = 0; i < BATCH; i += 2) {
                unsigned packed[2], bytes[2];
                plain |= two_rows(words + i, g, table, packed, bytes);
                load_two(words + i, ahead, step);
                UNROLL
                for (int k = 0; k < 2; ++k) {
                    if (walk.left > 0) *(unsigned*)walk.at = packed[k];
                    held[place_of(i + k)] = walk.left > 0 ? bytes[k] : 0;
                    walk = {walk.at + half_step, walk.left - STRIDE};
                }
            }
            if (plain) plain_batch(x, data, held, start, half_step, g);
            held += BATCH / BAND * 4;
        }
        __syncthreads();
        store_scales(staging[side][0], scales, tile, rows, columns);
        tile = following;
        side ^= 1;
    }
}
