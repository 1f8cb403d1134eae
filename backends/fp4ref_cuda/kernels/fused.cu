// Quantize rows and Hadamard-transformed columns from one read of x, both scale sets in 128x4 tiles.
//
//   x               bfloat16  [rows, columns], rows a multiple of 64, columns of 128, 16 bytes apart
//   row_partials, column_partials  float32 [parts] partial maxima
//   row_data        uint8     [rows, columns / 2];   row_scales     uint8, tiles of [rows, columns / 16]
//   column_data     uint8     [columns, rows / 2];   column_scales  uint8, tiles of [columns, rows / 16]
//   row_amax, column_amax          float32 [1] their maxima
//
// S and BLOCKS (on a multiprocessor) come before this file. A block of threads takes boxes of 128 rows and 64 columns
// in turn, the last ones first, because the pass for the maxima left them in the cache; two boxes down, then one
// across, so that neighbouring pieces of a column's codes are written close in time. While it works on one box, the
// next one is on its way to shared memory, and the column codes and scales of the one before leave it. A warp takes 16
// rows as columns, two a lane; then a lane takes blocks of rows. The transform is kept 4 times too large, which the
// thresholds of the columns allow for. Blocks that the thresholds do not cover are read again and take the plain path.
#include "common.cuh"
#include <fp4ref/thresholds.h>

using In = fp4ref::bfloat16;
namespace thresholds = fp4ref::thresholds;

// The compiler would compute these again in every turn.
#define KEEP(value) asm volatile("" : "+r"(value))
#define KEEP_ADDRESS(value) asm volatile("" : "+l"(value))

constexpr int ROWS = 128, COLUMNS = 64;
constexpr int PITCH = COLUMNS * 2 + 16;  // bytes of a row in shared memory: no bank conflicts by row or column
constexpr int STAGE = ROWS * PITCH;
constexpr int CODE_PITCH = ROWS / 2 + 8;  // bytes of a column's codes
constexpr int ROW_SCALES = COLUMNS * CODE_PITCH, COLUMN_SCALES = ROW_SCALES + 512, LEAVING = COLUMN_SCALES + 512;
constexpr int SHARED = 2 * STAGE + 2 * LEAVING + 2 * 128 * sizeof(thresholds::Entry);
// A sum that is 4 times too large may overflow only where a transformed value is beyond the thresholds' patterns.
static_assert(thresholds::COVERED < 0x7d80u, "2^125");

struct Box {
    int down, across;
};

// Boxes in turn, without a division: what `gridDim.x` boxes are, in strips and boxes of a strip of two rows of boxes.
struct Turn {
    unsigned strip, inside;

    __device__ __forceinline__ Box box(unsigned down) const
    {
        const bool tall = strip * 2 + 1 < down;
        return {(int)(strip * 2 + (tall ? inside & 1 : 0)), (int)(tall ? inside / 2 : inside)};
    }
    __device__ __forceinline__ void back(const Turn& step, unsigned length)
    {
        strip -= step.strip + (inside < step.inside);
        inside += (inside < step.inside ? length : 0) - step.inside;
    }
};

DEVICE void copy_to_shared(unsigned to, const void* from, bool exists)
{
    const unsigned bytes = exists ? 16 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}

DEVICE unsigned plain_scale(unsigned amax, float g, fp4ref::Scale& scale)
{
    scale = fp4ref::stored_scale<S, In>(fp4ref::block_scale<S, In>(fp4ref::float_of(amax), g), g);
    return scale.byte;
}

// A block of any 16 values; the lower and the upper eight codes.
DEVICE uint2 plain_block(const float (&x)[16], float g, byte* scale_byte)
{
    unsigned amax = 0, packed[2] = {0, 0};
    UNROLL
    for (int i = 0; i < 16; ++i) amax = fp4ref::running_amax<S::block_keeps_nan>(amax, fp4ref::magnitude_bits(x[i]));
    fp4ref::Scale scale;
    *scale_byte = plain_scale(amax, g, scale);
    UNROLL
    for (int i = 0; i < 16; i += 2)
        packed[i / 8] |= fp4ref::encode_pair<S::Element>(fp4ref::scaled<S, In>(x[i], scale, g), fp4ref::scaled<S,
            In>(x[i + 1], scale, g)) << i % 8 * 4;
    return {packed[0], packed[1]};
}

DEVICE uint2 plain_row(const byte* from, float g, byte* scale_byte)
{
    float x[16];
    UNROLL
    for (int i = 0; i < 16; ++i) x[i] = In::widen(((const In::word*)from)[i]);
    return plain_block(x, g, scale_byte);
}

DEVICE uint2 plain_column(const byte* from, float g, byte* scale_byte)
{
    float y[16][1], x[16];
    UNROLL
    for (int i = 0; i < 16; ++i) y[i][0] = In::widen(*(const In::word*)(from + i * PITCH));
    fp4ref::hadamard<S::signs>(y);
    UNROLL
    for (int i = 0; i < 16; ++i) x[i] = y[i][0];
    return plain_block(x, g, scale_byte);
}

// 16 codes of words that hold elements (k, k + 4) of the lower and the upper eight.
DEVICE uint2 packed_block(const unsigned (&pairs)[8], const unsigned (&magnitudes)[8], const thresholds::Entry& entry)
{
    const auto half = [](const unsigned (&w)[8],
        int i) -> const unsigned (&)[4] { return *(const unsigned(*)[4])(w + i); };
    return {thresholds::packed_codes(half(pairs, 0), half(magnitudes, 0), entry), thresholds::packed_codes(half(pairs,
        4), half(magnitudes, 4), entry)};
}

// Two neighbouring columns of 16 rows; `to` gets their codes, 32 code pitches apart, `scales` their scales. Result:
// whether they need the plain path.
DEVICE bool two_columns(
    const byte* from, float g, unsigned minus_zero, const thresholds::Entry* table, byte* to, byte* scales)
{
    unsigned words[16], pairs[2][8], magnitudes[2][8], amax[2];
    bool plain = false;
    UNROLL
    for (int i = 0; i < 16; ++i) words[i] = *(const unsigned*)(from + i * PITCH);
    UNROLL
    for (int h = 0; h < 2; ++h) {
        float y[16];
        UNROLL
        for (int i = 0; i < 16; ++i) y[i] = fp4ref::float_of(h ? words[i] & 0xffff0000u : words[i] << 16);
        fp4ref::unscaled_hadamard<S::signs>(y);
        UNROLL
        for (int k = 0; k < 8; ++k) {
            const int e = k % 4 + k / 4 * 8;
            pairs[h][k] = thresholds::bfloat16_pair(y[e], y[e + 4]);
            magnitudes[h][k] = thresholds::magnitudes_of(pairs[h][k], minus_zero);
        }
        amax[h] = thresholds::largest(magnitudes[h]);
    }
    const unsigned bytes = thresholds::scale_bytes<S>(In::widen((In::word)amax[0]) * 0.25f,
        In::widen((In::word)amax[1]) * 0.25f, g);
    UNROLL
    for (int h = 0; h < 2; ++h) {
        const unsigned scale_byte = h ? bytes >> 8 : bytes & 255u;
        const thresholds::Entry entry = table[scale_byte];
        scales[h * 8] = scale_byte;
        const uint2 codes = packed_block(pairs[h], magnitudes[h], entry);
        *(uint2*)(to + h * 32 * CODE_PITCH) = amax[h] ? codes : uint2{0, 0};  // exact zeros have no sign
        plain |= (!entry.ramp && amax[h]) || amax[h] > thresholds::COVERED;
    }
    return plain;
}

// Blocks of two rows that lie 64 rows apart, side by side for the sake of latency; `scales` gets their bytes. Result:
// whether they need the plain path.
DEVICE bool two_rows(
    const byte* from, float g, unsigned minus_zero, const thresholds::Entry* table, uint2 (&codes)[2], byte* scales)
{
    unsigned pairs[2][8], magnitudes[2][8], amax[2];
    bool plain = false;
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const uint4 a = *(const uint4*)(from + i * 64 * PITCH), b = *(const uint4*)(from + i * 64 * PITCH + 16);
        const unsigned words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        UNROLL
        for (int k = 0; k < 8; ++k) {
            const int w = k / 4 * 4 + k % 4 / 2;
            pairs[i][k] = __byte_perm(words[w], words[w + 2], k % 2 ? 0x7632 : 0x5410);
            magnitudes[i][k] = thresholds::magnitudes_of(pairs[i][k], minus_zero);
        }
        amax[i] = thresholds::largest(magnitudes[i]);
    }
    const unsigned bytes = thresholds::scale_bytes<S>(In::widen((In::word)amax[0]), In::widen((In::word)amax[1]), g);
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const unsigned scale_byte = i ? bytes >> 8 : bytes & 255u;
        const thresholds::Entry entry = table[scale_byte];
        scales[i * 8] = scale_byte;
        codes[i] = packed_block(pairs[i], magnitudes[i], entry);
        plain |= (!entry.ramp && amax[i]) || amax[i] > thresholds::COVERED;
    }
    return plain;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) fused(
    const byte* __restrict__ x, index_t rows, index_t columns, const float* row_partials,
        const float* column_partials, index_t parts,
    float* row_amax, float* column_amax, byte* __restrict__ row_data, byte* __restrict__ row_scales,
    byte* __restrict__ column_data, byte* __restrict__ column_scales, const unsigned* noop)
{
    extern __shared__ __align__(128) byte memory[];
    byte* const leaving = memory + 2 * STAGE;
    thresholds::Entry* const row_table = (thresholds::Entry*)(leaving + 2 * LEAVING);
    thresholds::Entry* const column_table = row_table + 128;
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned down = (unsigned)((rows + ROWS - 1) / ROWS), across = (unsigned)(columns / COLUMNS), boxes =
        down * across, length = across * 2;
    const index_t pitch = columns * 2, column_pitch = rows / 2, row_pitch = columns / 2;
    const unsigned shared = (unsigned)__cvta_generic_to_shared(memory);

    // What depends on the thread alone is kept: addresses in the first box, and places in shared memory.
    const unsigned r = threadIdx.x / 8, piece = threadIdx.x % 8;
    const byte* from = x + r * pitch + piece * 16;
    unsigned to_stage = shared + r * PITCH + piece * 16;
    byte* column_to = column_data + 2 * r * column_pitch + piece * 8;
    byte* row_to = row_data + threadIdx.x / 4 * row_pitch + threadIdx.x % 4 * 8;
    KEEP_ADDRESS(from);
    KEEP_ADDRESS(column_to);
    KEEP_ADDRESS(row_to);
    KEEP(to_stage);
    const index_t box_down = ROWS * pitch, column_box = COLUMNS * column_pitch, row_box = ROWS * row_pitch;

    const auto load = [&](const Box& box, unsigned stage) {
        const byte* at = from + (box.down * box_down + box.across * (COLUMNS * 2));
        const int left = (int)(rows - (index_t)box.down * ROWS);
        UNROLL
        for (int i = 0; i < ROWS; i += 32) copy_to_shared(to_stage + stage + i * PITCH, at + i * pitch,
            (int)r + i < left);
    };
    const auto commit = [] { asm volatile("cp.async.commit_group;" ::: "memory"); };

    const unsigned first = boxes - 1 - blockIdx.x;
    Turn turn = {first / length, first % length};
    const Turn step = {gridDim.x / length, gridDim.x % length};
    load(turn.box(down), 0);
    commit();
    wait_for_previous_kernel();
    if (noop && *noop) return;
    const float row_A = amax_of_parts(row_partials, parts);
    __syncthreads();
    const float column_A = amax_of_parts(column_partials, parts);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *row_amax = row_A;
        *column_amax = column_A;
    }
    const float row_g = fp4ref::global_scale<S, In>(row_A), column_g = fp4ref::global_scale<S, In>(column_A);
    if (threadIdx.x < 128) row_table[threadIdx.x] = thresholds::entry<S>(threadIdx.x, row_g);
    else column_table[threadIdx.x - 128] = thresholds::entry<S>(threadIdx.x - 128, column_g, 256);

    unsigned codes_from = r * CODE_PITCH + piece * 8, scales_from = warp ? COLUMN_SCALES + (warp
        - 1) * 256 + lane * 8 : ROW_SCALES + lane * 16;
    KEEP(codes_from);
    KEEP(scales_from);
    const auto drain = [&](const Box& box, const byte* held) {
        const unsigned left = (unsigned)(rows - (index_t)box.down * ROWS);
        if (piece * 16 < left) {
            byte* to = column_to + (box.across * column_box + box.down * (ROWS / 2));
            *(uint2*)to = *(const uint2*)(held + codes_from);
            *(uint2*)(to + column_pitch) = *(const uint2*)(held + codes_from + 32 * CODE_PITCH);
        }
        if (warp == 0) {
            *(uint4*)(row_scales + ((index_t)box.down * across + box.across) * 512 + lane * 16) =
                *(const uint4*)(held + scales_from);
        } else if (warp < 3 && warp * 64 <= left) {
            const index_t tile = box.across / 2 * (rows / 64) + (box.down * 2 + (int)warp - 1);
            *(uint2*)(column_scales + tile * 512 + lane * 16 + box.across % 2 * 8) =
                *(const uint2*)(held + scales_from);
        }
    };

    unsigned columns_from = warp * 16 * PITCH + lane * 4, columns_to = lane * CODE_PITCH + warp * 8;
    unsigned columns_scales = COLUMN_SCALES + warp / 4 * 256 + lane % 16 * 16 + lane / 16 * 4 + warp % 4;
    const unsigned row = threadIdx.x / 4;
    unsigned rows_from = row * PITCH + threadIdx.x % 4 * 32, rows_scales =
        ROW_SCALES + row % 32 * 16 + row / 32 * 4 + threadIdx.x % 4;
    unsigned minus_zero = thresholds::MINUS_ZERO;
    KEEP(minus_zero);
    KEEP(columns_from);
    KEEP(columns_to);
    KEEP(columns_scales);
    KEEP(rows_from);
    KEEP(rows_scales);
    unsigned stage = 0, side = 0;
    Box before = {-1, 0};
    _Pragma("unroll 1")
    for (unsigned index = blockIdx.x; index < boxes; index += gridDim.x) {
        const Box box = turn.box(down);
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        turn.back(step, length);
        if (index + gridDim.x < boxes) load(turn.box(down), STAGE - stage);
        commit();
        byte* const held = leaving + side;
        side = LEAVING - side;
        if (before.down >= 0) drain(before, leaving + side);
        before = box;

        const byte* here = memory + stage;
        stage = STAGE - stage;
        const bool plain_columns = two_columns(here + columns_from, column_g, minus_zero, column_table,
            held + columns_to, held + columns_scales);
        uint2 codes[2];
        const bool plain_rows = two_rows(here + rows_from, row_g, minus_zero, row_table, codes, held + rows_scales);
        byte* to = row_to + (box.down * row_box + box.across * (COLUMNS / 2));
        const int left = (int)(rows - (index_t)box.down * ROWS);
        UNROLL
        for (int i = 0; i < 2; ++i)
            if ((int)row + i * 64 < left) *(uint2*)(to + i * 64 * row_pitch) = codes[i];
        if (plain_columns) {
            _Pragma("unroll 1")
            for (int h = 0; h < 2; ++h)
                *(uint2*)(held + columns_to + h * 32 * CODE_PITCH) =
                    plain_column(here + columns_from + h * 2, column_g, held + columns_scales + h * 8);
        }
        if (plain_rows) {
            _Pragma("unroll 1")
            for (int i = 0; i < 2; ++i) {
                const uint2 again = plain_row(here + rows_from + i * 64 * PITCH, row_g, held + rows_scales + i * 8);
                if ((int)row + i * 64 < left) *(uint2*)(to + i * 64 * row_pitch) = again;
            }
        }
    }
    __syncthreads();
    if (before.down >= 0) drain(before, leaving + (LEAVING - side));
}
