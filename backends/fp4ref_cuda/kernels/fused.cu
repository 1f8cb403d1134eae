// Quantize rows and columns from one read of x, by thresholds or by random bytes, both scale sets in Layout: blocks of 16
// or of 16x16 under one global scale, or blocks of 32.
//
//   x               bfloat16  [rows, columns], rows and columns multiples of 64, 16 bytes apart
//   row_bits        uint8     [rows, columns], 16 bytes apart, for stochastic rounding;   column_bits  [columns, rows]
//   row_partials, column_partials  float32 [members, parts] partial maxima
//   row_data        uint8     [rows, columns / 2];   row_scales     uint8, [rows, columns / block]
//   column_data     uint8     [columns, rows / 2];   column_scales  uint8, [columns, rows / block]
//   row_amax, column_amax          float32 [members] their maxima; these and the partial ones are unused without a global scale
//
// S, Layout, TEAMS, SEARCHED (the maxima were, by the kernel before this one), GROUPED (members are ranges of rows,
// multiples of 128, each with column data and scales of its own) and HAS_COLUMN come before this file. Columns are
// Hadamard-transformed where S says so. One block of threads on a multiprocessor, in teams of 256. A team takes boxes
// of 128 rows and 64 columns in turn, in the order of `box_of`, the last ones first, because the pass for the maxima left
// them in the cache. While it works on one box, the next one is on its way to shared memory, with its random bytes, and the column codes and scales
// of the one before leave it. A warp takes 16 rows, as rows and as columns, two blocks a lane. The transform is kept 4
// times too large, which the thresholds or factors of the columns allow for. Blocks that these do not cover are read
// again and take the plain path. Certificates: fused-bfloat16, fused-columns-bfloat16, fused-linear-*, squares-*,
// drawn-fused-bfloat16, both-mxfp4-bfloat16.
#include "blocks.cuh"
#include "places.cuh"

constexpr int ROWS = 128, COLUMNS = 64;
constexpr int PITCH = COLUMNS * 2 + 16;  // bytes of a row in shared memory: no bank conflicts by row or column
constexpr bool STOCHASTIC = S::Element::stochastic;
constexpr int ROW_BITS = ROWS * PITCH, COLUMN_BITS = ROW_BITS + ROWS * COLUMNS, BIT_PITCH = ROWS + 16;  // random bytes
constexpr int STAGE = STOCHASTIC ? COLUMN_BITS + COLUMNS * BIT_PITCH : ROW_BITS;
constexpr int CODE_PITCH = ROWS / 2 + 8;  // bytes of a column's codes
constexpr int ROW_SCALES = COLUMNS * CODE_PITCH, COLUMN_SCALES = ROW_SCALES + 512, LEAVING = COLUMN_SCALES + 512;
constexpr bool TRANSFORMED = S::has_hadamard, TILED = fp4ref::same_type<Layout, fp4ref::layout::tiled_128x4>;
static_assert(Layout::adjacent && !Layout::row_fill && !Layout::column_fill, "a word of four scales, zeros behind");
constexpr int OF_TEAM = 2 * STAGE + 2 * LEAVING, TABLES = 2 * 128 * sizeof(thresholds::Entry);
constexpr bool SCALED = S::global == fp4ref::Global::tensor;
// Powers of two have one table of 256 entries for both directions; else each has 128 entries of its own.
constexpr bool POWERS = fp4ref::same_type<typename S::Scale::Format, fp4ref::e8m0>;
static_assert(!SQUARE || !TRANSFORMED, "the maxima of a square are those of x");
static_assert(HAS_COLUMN || !STOCHASTIC, "random bytes of both");
// Two neighbouring lanes make an entry of a table: the kernel waits for it with nothing else to do.
constexpr bool PAIRED = !GROUPED && TEAMS > 1;
static_assert(!POWERS || !(SCALED || STOCHASTIC || TRANSFORMED), "one table, of thresholds");
// A lane has parts of rows r and r + 8, four lanes for a row; and of columns c and c + 1 where eight have a square's 16,
// or where the lanes 16 apart have 16 rows each.
constexpr Sharing OF_ROWS = {SQUARE ? 4 + 8 + 16 : HALVES, SQUARE}, OF_COLUMNS = {SQUARE ? 1 + 2 + 4 : HALVES * 16, SQUARE};
template <bool Drawn> struct Table {
    using entry = thresholds::Entry;
};
template <> struct Table<true> {
    using entry = float;
};
using Entry = Table<STOCHASTIC>::entry;
constexpr float SIZE = TRANSFORMED ? 0.25f : 1.0f;  // of a transformed value, as a part of what is kept
// A sum that is 4 times too large may overflow only where a transformed value is beyond the thresholds' patterns.
static_assert(thresholds::COVERED < 0x7d80u, "2^125");

// What the boxes of one member share: where its columns and their scales go, the boxes down that it has, bytes of a
// column's codes, and its global scales.
struct Present {
    byte *column_data, *column_scales;
    unsigned top, bottom, column_pitch;
    float row_g, column_g;
};

// The member that a row belongs to, by bisection.
DEVICE unsigned member_with_row(const Member* members, index_t count, index_t row)
{
    unsigned which = 0;
    for (unsigned above = (unsigned)count; above - which > 1;) {
        const unsigned middle = (which + above) / 2;
        if (members[middle].first_row <= row) which = middle;
        else above = middle;
    }
    return which;
}

// The largest of partial maxima, in every lane of a warp.
DEVICE float amax_of_warp(const float* partials, index_t parts)
{
    unsigned largest = 0;
    for (index_t i = threadIdx.x % 32; i < parts; i += 32) largest = fp4ref::larger(largest, fp4ref::bits_of(partials[i]));
    return fp4ref::float_of(__reduce_max_sync(~0u, largest));
}

// Boxes in turn, without a division: what `gridDim.x` boxes are, in strips and boxes of a strip of two rows of boxes.
struct Turn {
    unsigned strip, inside;

    __device__ __forceinline__ Box box(unsigned tall) const { return box_of(strip, inside, tall); }
    __device__ __forceinline__ void back(const Turn& step, unsigned length)
    {
        strip -= step.strip + (inside < step.inside);
        inside += (inside < step.inside ? length : 0) - step.inside;
    }
};

// An entry of the table of rows, or of columns; the patterns of the transform are 4 times too large.
constexpr unsigned UP = 256;
DEVICE void make_entry(thresholds::Entry* table, unsigned byte, float g, bool transformed)
{
    table[byte] = thresholds::entry<S>(byte, g, transformed ? UP : 0);
}
// The same, by all lanes of a warp: the odd ones have the upper two thresholds of their neighbours' entries.
DEVICE void make_entry_of_two(thresholds::Entry* table, unsigned byte, float g, bool transformed)
{
    const bool upper = threadIdx.x % 2;
    const thresholds::Two mine = thresholds::two_thresholds<S>(upper, byte, g);
    const unsigned both = mine.odd | mine.even << 16, other = __shfl_xor_sync(~0u, both, 1);
    if (!upper)
        table[byte] = thresholds::entry_of(mine.odd, mine.even, other & 0xffffu, other >> 16, transformed ? UP : 0);
}
DEVICE void make_entry(float* table, unsigned byte, float g, bool transformed)
{
    table[byte] = fp4ref::drawn::factor<S>(byte, g, transformed ? SIZE : 1.0f);
}
DEVICE void make_entry_of_two(float* table, unsigned byte, float g, bool transformed)
{
    if (threadIdx.x % 2 == 0) make_entry(table, byte, g, transformed);
}

// Two blocks of a lane; the random bytes of the second one lie `apart` from those of the first one.
DEVICE bool lane_blocks(const Blocks& blocks, const byte*, int, float g, float size, const thresholds::Entry* table,
    uint2 (&codes)[2], unsigned& bytes)
{
    return two_blocks(blocks, g, size, table, codes, bytes);
}
DEVICE bool lane_blocks(const Blocks& blocks, const byte* bits, int apart, float g, float size, const float* table,
    uint2 (&codes)[2], unsigned& bytes)
{
    const uint4 random[2] = {*(const uint4*)bits, *(const uint4*)(bits + apart)};
    return two_blocks(blocks, random, g, size, table, codes, bytes);
}
DEVICE uint4 random_of(const byte* bits)
{
    if constexpr (STOCHASTIC) return *(const uint4*)bits;
    else return {0, 0, 0, 0};
}

// The same number; what follows from it is not computed before, where all would wait for it.
DEVICE float here_alone(float g)
{
    unsigned bits = fp4ref::bits_of(g);
    KEEP(bits);
    return fp4ref::float_of(bits);
}

DEVICE void load_column(const byte* from, float (&x)[16])
{
    float y[16][1];
    UNROLL
    for (int i = 0; i < 16; ++i) y[i][0] = In::widen(*(const In::word*)(from + i * PITCH));
    if constexpr (TRANSFORMED) fp4ref::hadamard<S::signs>(y);
    UNROLL
    for (int i = 0; i < 16; ++i) x[i] = y[i][0];
}

// A lane's two columns of 16 rows. swapped: lanes whose fours of rows change places, so that these meet no other lane in a
// bank.
DEVICE void read_columns(const byte* from, bool swapped, unsigned (&words)[16])
{
    const int up = HALVES && swapped ? 4 * PITCH : 0;
    UNROLL
    for (int i = 0; i < 16; ++i) words[i] = *(const unsigned*)((i & 4 ? from - up : from + up) + i * PITCH);
}

// The same as pairs, transformed where S says so.
DEVICE void columns_of(const unsigned (&words)[16], bool swapped, unsigned (&pairs)[2][8])
{
    const unsigned low = HALVES && swapped ? 0x1054 : 0x5410, high = HALVES && swapped ? 0x3276 : 0x7632;
    UNROLL
    for (int h = 0; h < 2; ++h) {
        float y[16];
        if constexpr (TRANSFORMED) {
            UNROLL
            for (int i = 0; i < 16; ++i) y[i] = fp4ref::float_of(h ? words[i] & 0xffff0000u : words[i] << 16);
            fp4ref::unscaled_hadamard<S::signs>(y);
        }
        UNROLL
        for (int k = 0; k < 8; ++k) {
            const int e = k % 4 + k / 4 * 8;
            if constexpr (TRANSFORMED) pairs[h][k] = thresholds::bfloat16_pair(y[e], y[e + 4]);
            else pairs[h][k] = __byte_perm(words[e], words[e + 4], h ? high : low);
        }
    }
}

extern "C" __global__ void __launch_bounds__(TEAMS * 256, 1) fused(
    const byte* __restrict__ x, index_t row_count, index_t column_count, const byte* __restrict__ row_bits,
    const byte* __restrict__ column_bits, const Member* members, index_t count,
    const float* row_partials, const float* column_partials, index_t parts, float* row_amax, float* column_amax,
    byte* __restrict__ row_data, byte* __restrict__ row_scales, byte* column_data, byte* column_scales,
    const unsigned* noop)
{
    extern __shared__ __align__(128) byte memory[];
    const unsigned team = threadIdx.x / 256, thread = threadIdx.x % 256, lane = thread % 32, warp = thread / 32;
    const unsigned mine = team * OF_TEAM, leaving = mine + 2 * STAGE;  // offsets into shared memory
    Entry* const row_table = (Entry*)(memory + TEAMS * OF_TEAM + (GROUPED ? team * TABLES : 0));
    Entry* const column_table = row_table + (POWERS ? 0 : 128);
    const unsigned rows = (unsigned)row_count, columns = (unsigned)column_count, pitch = columns * 2, row_pitch = columns / 2;
    const unsigned down = (rows + ROWS - 1) / ROWS, across = columns / COLUMNS, boxes = down * across, length = across * 2;
    const unsigned all = gridDim.x * TEAMS, tall = down / 2;
    const unsigned shared = to_shared(memory) + mine;

    // What depends on the thread alone is kept, and made here: behind the tables, all would wait for it.
    const unsigned r = thread / 8, piece = thread % 8;
    const byte* from = x + (r * pitch + piece * 16);
    KEEP_ADDRESS(from);
    byte* row_to = row_data + ((warp * 16 + lane / 4) * row_pitch + lane % 4 * 8);
    KEEP_ADDRESS(row_to);
    unsigned to_stage = shared + r * PITCH + piece * 16;
    KEEP(to_stage);
    unsigned codes_from = leaving + r * CODE_PITCH + piece * 8;
    unsigned scales_from = leaving + (warp ? COLUMN_SCALES + (warp - 1) * 256 + lane * 8 : ROW_SCALES + lane * 16);
    KEEP(codes_from);
    KEEP(scales_from);
    constexpr int LOWER = 8 * PITCH;  // a lane's second row is 8 below its first one
    // A warp has 16 rows of 64 columns, or 32 rows of 32 columns; `sixteen` of rows is where a lane's columns are.
    const unsigned row = warp * 16 + lane / 4, sixteen = HALVES ? warp / 2 * 2 + lane / 16 : warp;
    const unsigned column = HALVES ? warp % 2 * 32 + lane % 16 * 2 : lane * 2, block = HALVES ? warp / 2 : warp;
    unsigned columns_from = mine + sixteen * 16 * PITCH + column * 2, columns_to = leaving + column / 2 * CODE_PITCH + sixteen * 8;
    unsigned columns_scales = leaving + COLUMN_SCALES + block / 4 * 256 + column % 32 * 8 + column / 32 * 4 + block % 4;
    unsigned rows_from = mine + row * PITCH + lane % 4 * 32;
    unsigned rows_scales = leaving + ROW_SCALES + row % 32 * 16 + row / 32 * 4 + lane % 4 / (HALVES ? 2 : 1);
    unsigned minus_zero = thresholds::MINUS_ZERO;
    KEEP(minus_zero);
    KEEP(columns_from);
    KEEP(columns_to);
    KEEP(columns_scales);
    KEEP(rows_from);
    KEEP(rows_scales);

    const auto load = [&](const Box& box, unsigned stage) {
        const byte* at = from + ((size)box.down * (ROWS * pitch) + box.across * (COLUMNS * 2));
        const unsigned left = rows - box.down * ROWS;
        UNROLL
        for (int i = 0; i < ROWS; i += 32)
            copy_to_shared(to_stage + stage + i * PITCH, at + (size)pitch * i, i < 64 || left > 64);
        if constexpr (STOCHASTIC) {
            const unsigned quarter = thread % 4 * 16, q = thread / 4;
            const unsigned top = box.down * ROWS, first = box.across * COLUMNS;
            const byte* of_rows = row_bits + ((size)(top + q) * columns + (first + quarter));
            const byte* of_columns = column_bits + ((size)(first + r) * rows + (top + piece * 16));
            const unsigned to_rows = shared + stage + ROW_BITS + q * COLUMNS + quarter;
            const unsigned to_columns = shared + stage + COLUMN_BITS + r * BIT_PITCH + piece * 16;
            UNROLL
            for (int i = 0; i < 2; ++i) {
                copy_to_shared(to_rows + i * 64 * COLUMNS, of_rows + (size)columns * (i * 64), i < 1 || left > 64);
                copy_to_shared(to_columns + i * 32 * BIT_PITCH, of_columns + (size)rows * (i * 32), piece * 16 < left);
            }
        }
    };

    const unsigned begin = blockIdx.x + team * gridDim.x;
    const unsigned first = begin < boxes ? boxes - 1 - begin : 0;
    Turn turn = {first / length, first % length};
    Turn step = {all / length, all % length};
    KEEP(step.strip);
    KEEP(step.inside);
    if (!SEARCHED) wait_for_previous_kernel();  // else x was there before that one
    if (begin < boxes) load(turn.box(tall), 0);
    commit_copies();
    if (SEARCHED) wait_for_previous_kernel();
    if (noop && *noop) return;

    const auto keep = [&](unsigned member, float row_A, float column_A) {
        if (!SCALED || (GROUPED ? thread : threadIdx.x)) return;
        row_amax[member] = row_A;
        if (HAS_COLUMN) column_amax[member] = column_A;
    };
    // The tables of a member, and its maxima.
    const auto enter = [&](unsigned member, float row_A, float column_A, Present& present) {
        present.row_g = fp4ref::global_scale<S, In>(row_A);
        present.column_g = fp4ref::global_scale<S, In>(column_A);
        if (GROUPED || team == 0) {
            const unsigned entry = thread % 128;
            if (POWERS || thread < 128) make_entry(row_table, POWERS ? thread : entry, present.row_g, false);
            else make_entry(column_table, entry, present.column_g, TRANSFORMED);
        }
        keep(member, row_A, column_A);
    };
    __shared__ Present of_team[GROUPED ? TEAMS : 1];
    Present whole = {column_data, column_scales, 0, down, rows / 2, 0.0f, 0.0f};
    if constexpr (GROUPED) {
        if (SCALED && blockIdx.x == 0 && team == 0) {
            for (index_t i = thread; i < count; i += 256) {  // members without a box; all their parts are equal
                if (members[i].rows) continue;
                row_amax[i] = row_partials[i * parts];
                column_amax[i] = column_partials[i * parts];
            }
        }
        if (thread == 0) of_team[team].top = of_team[team].bottom = 0;  // no member yet
        team_barrier(team);
    } else {
        const float2 A = amaxes_of_parts<TEAMS * 256>(row_partials, column_partials, parts);  // 0 of no parts
        if constexpr (PAIRED) {  // a thread of two teams makes what one half of an entry needs, and the global scale for that
            __shared__ float global_scales[2];
            if (team < 2) {
                const float g = fp4ref::global_scale<S, In>(team ? A.y : A.x);
                if (POWERS) make_entry_of_two(row_table, threadIdx.x / 2, g, false);
                else make_entry_of_two(team ? column_table : row_table, thread / 2, g, team && TRANSFORMED);
                if (thread == 0) global_scales[team] = g;
            }
            keep(0, A.x, A.y);
            __syncthreads();
            whole.row_g = global_scales[0], whole.column_g = global_scales[1];
        } else {
            enter(0, A.x, A.y, whole);
            __syncthreads();
        }
    }
    const Present& now = GROUPED ? of_team[team] : whole;

    const auto drain = [&](const Box& box, unsigned side) {
        const byte* held = memory + side;
        const unsigned left = rows - box.down * ROWS, below = box.down - now.top;
        if constexpr (HAS_COLUMN) {
            const uint2 one = *(const uint2*)(held + codes_from), other = *(const uint2*)(held + codes_from + 32 * CODE_PITCH);
            byte* to = now.column_data
                + ((size)(box.across * COLUMNS + r * 2) * now.column_pitch + (below * (ROWS / 2) + piece * 8));
            if (piece * 16 < left) {
                *(uint2*)to = one;
                *(uint2*)(to + now.column_pitch) = other;
            }
        }
        if constexpr (!TILED) {
            constexpr int OF_BOX = COLUMNS / S::columns;  // blocks of a row
            const bool last = box.across == across - 1;
            const index_t top = (index_t)box.down * ROWS, edge = (index_t)box.across * COLUMNS;
            if (warp == 0) {
                const index_t blocks = columns / S::columns, at = edge / S::columns;
                UNROLL
                for (int k = 0; k < 4; ++k) {  // LAY-5: rows past the end were loaded as zeros, and the scale of these is 0
                    const unsigned row_of = lane + k * 32, four = *(const unsigned*)(held + scales_from + k * 4);
                    store_neighbours<OF_BOX>(row_scales, top + row_of, at, rows, blocks, four);
                    if (HALVES && last) store_neighbours<OF_BOX>(row_scales, top + row_of, at + OF_BOX, rows, blocks, 0);
                }
            } else if (HAS_COLUMN && (HALVES ? warp == 1 : warp < 3 && warp * 64 <= left)) {
                const index_t blocks = now.column_pitch * 2 / S::columns;
                const index_t at = HALVES ? below * 4 : (below * 2 + warp - 1) * 4;
                const uint2 of = *(const uint2*)(held + scales_from);
                UNROLL
                for (int h = 0; h < 2; ++h) {  // LAY-5
                    const index_t column_of = edge + lane + h * 32;
                    store_neighbours<4>(now.column_scales, column_of, at, columns, blocks, h ? of.y : of.x);
                    if (last) store_neighbours<4>(now.column_scales, column_of + COLUMNS, at, columns, blocks, 0);
                }
            }
        } else if constexpr (HALVES) {  // a box has two blocks of four of a row's tile, and one tile's lines of columns
            const unsigned side_of = box.across % 2, wide = (across + 1) / 2;
            const bool last = across % 2 && box.across == across - 1;
            if (warp == 0) {
                byte* to = row_scales + (size)(box.down * wide + box.across / 2) * 512 + (lane * 16 + side_of * 2);
                UNROLL
                for (int k = 0; k < 4; ++k) {  // LAY-5
                    const unsigned two = (unsigned)k * 32 < left ? *(const unsigned short*)(held + scales_from + k * 4) : 0;
                    if (last) *(unsigned*)(to + k * 4) = two;
                    else *(unsigned short*)(to + k * 4) = (unsigned short)two;
                }
            } else if (HAS_COLUMN && warp == 1) {
                const unsigned tile = box.across / 2 * ((now.column_pitch + 63) / 64) + below;
                byte* to = now.column_scales + (size)tile * 512 + (lane * 16 + side_of * 8);
                uint2 of = *(const uint2*)(held + scales_from);
                if (left <= 64) of = {of.x & 0xffffu, of.y & 0xffffu};  // LAY-5
                *(uint2*)to = of;
                if (last) *(uint2*)(to + 8) = {0, 0};
            }
        } else if (warp == 0) {
            *(uint4*)(row_scales + (size)(box.down * across + box.across) * 512 + lane * 16) =
                *(const uint4*)(held + scales_from);
        } else if (HAS_COLUMN && warp < 3 && warp * 64 <= left) {
            const unsigned tile = box.across / 2 * (now.column_pitch / 32) + (below * 2 + warp - 1);
            byte* to = now.column_scales + (size)tile * 512 + (lane * 16 + box.across % 2 * 8);
            *(uint2*)to = *(const uint2*)(held + scales_from);
            if (across % 2 && box.across == across - 1) *(uint2*)(to + 8) = {0, 0};  // LAY-5
        }
    };

    unsigned stage = 0, side = 0;
    Box before = turn.box(tall);
    _Pragma("unroll 1")
    for (unsigned index = begin; index < boxes; index += all) {
        const Box box = turn.box(tall);
        wait_for_copies<0>();
        team_barrier(team);
        turn.back(step, length);
        if (index + all < boxes) load(turn.box(tall), STAGE - stage);
        commit_copies();
        byte* const held = memory + side;
        side = LEAVING - side;
        const auto leave = [&] {
            if (index >= all) drain(before, side);  // not in the first turn
            before = box;
        };
        if constexpr (GROUPED) {
            leave();  // while its member is the present one
            if (box.down < now.top || box.down >= now.bottom) {
                const unsigned which = member_with_row(members, count, (index_t)box.down * ROWS);
                const Member at = members[which];
                const unsigned top = (unsigned)(at.first_row / ROWS);
                Present next = {column_data + at.column_data, column_scales + at.column_scales, top,
                    top + (unsigned)(at.rows / ROWS), (unsigned)at.rows / 2, 0.0f, 0.0f};
                enter(which, amax_of_warp(row_partials + which * parts, parts),
                    amax_of_warp(column_partials + which * parts, parts), next);
                team_barrier(team);  // everybody has left the member before
                if (thread == 0) of_team[team] = next;
                team_barrier(team);
            }
        }

        const byte* here = memory + stage;
        stage = STAGE - stage;
        const byte *const row_random = here + mine + ROW_BITS + row * COLUMNS + lane % 4 * 16;
        const byte *const column_random = here + mine + COLUMN_BITS + column * BIT_PITCH + sixteen * 16;
        uint4 v[2][2];
        UNROLL
        for (int i = 0; i < 2; ++i) {
            v[i][0] = *(const uint4*)(here + rows_from + i * LOWER);
            v[i][1] = *(const uint4*)(here + rows_from + i * LOWER + 16);
        }
        uint2 codes[2];
        unsigned bytes;
        const bool inside = warp < 4 || rows - box.down * ROWS > 64;  // there are 64 or 128 of them
        byte* to = row_to + ((size)box.down * (ROWS * row_pitch) + box.across * (COLUMNS / 2));
        const bool plain_rows = lane_blocks(blocks_of_rows<OF_ROWS.lanes, OF_ROWS.both>(v, minus_zero), row_random, 8 * COLUMNS,
            now.row_g, 1.0f, row_table, codes, bytes);
        const byte* const columns_here = here + columns_from;
        unsigned words[16];
        // Before anything is stored: the compiler lets no read of shared memory pass a write.
        if (HAS_COLUMN) read_columns(columns_here, lane / 16, words);
        if constexpr (!GROUPED) leave();  // here, beside what the columns wait for
        held[rows_scales] = bytes;
        held[rows_scales + 8 * 16] = bytes >> 8;
        if (inside) {
            *(uint2*)to = codes[0];
            *(uint2*)(to + (size)row_pitch * 8) = codes[1];
        }

        bool plain_columns = false;
        if constexpr (HAS_COLUMN) {
            Blocks blocks;
            columns_of(words, lane / 16, blocks.pairs);
            blocks.measure<OF_COLUMNS.lanes, OF_COLUMNS.both>(minus_zero);
            plain_columns = lane_blocks(blocks, column_random, BIT_PITCH, now.column_g, SIZE, column_table, codes, bytes);
            UNROLL
            for (int i = 0; i < 2; ++i) {
                held[columns_scales + i * 8] = bytes >> 8 * i;
                *(uint2*)(held + columns_to + i * 32 * CODE_PITCH) = codes[i];
            }
        }
        if (!(plain_rows | plain_columns)) continue;
        if (plain_rows) {
            const auto again = [&](int i, float (&x)[16]) {
                const byte* of = here + rows_from + i * LOWER;
                widen_row({*(const uint4*)of, *(const uint4*)(of + 16)}, x);
            };
            const auto random = [&](int i) { return random_of(row_random + i * (8 * COLUMNS)); };
            plain_blocks<OF_ROWS.lanes, OF_ROWS.both>(again, random, here_alone(now.row_g), [&](int i, const uint2& made, byte scale) {
                held[rows_scales + i * (8 * 16)] = scale;
                if (inside) *(uint2*)(to + (size)row_pitch * (i * 8)) = made;
            });
        }
        if (HAS_COLUMN && plain_columns) {
            const auto again = [&](int i, float (&x)[16]) { load_column(columns_here + i * 2, x); };
            const auto random = [&](int i) { return random_of(column_random + i * BIT_PITCH); };
            const float g = here_alone(now.column_g);
            plain_blocks<OF_COLUMNS.lanes, OF_COLUMNS.both>(again, random, g, [&](int i, const uint2& made, byte scale) {
                held[columns_scales + i * 8] = scale;
                *(uint2*)(held + columns_to + i * 32 * CODE_PITCH) = made;
            });
        }
    }
    team_barrier(team);
    if (begin < boxes) drain(before, LEAVING - side);
}
