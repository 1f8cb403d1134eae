// Quantize rows and columns of bfloat16 to 8-bit elements from one read of x: blocks of 32, no global scale, both scale
// sets in 128x4 tiles.
//
//   x            bfloat16  [rows, columns], both multiples of 16, 16 bytes apart
//   row_data     uint8     [rows, columns];   row_scales     uint8, tiles of [rows, columns / 32]
//   column_data  uint8     [columns, rows];   column_scales  uint8, tiles of [columns, rows / 32]
//
// S and TEAMS come before this file. One block of threads on a multiprocessor, in teams of 256. A team takes boxes of 128
// rows and 128 columns in turn. While it works on one box, the next one is on its way to shared memory, and the column
// codes and all scales of the one before leave it, in whole lines of memory. A lane takes half a block of two lines; the
// lane that has the other half is its neighbour, and each of the two chooses the scale of one line.
#include "copies.cuh"

constexpr int SIDE = 128, HALF = 16;
constexpr int PITCH = SIDE * 2 + 16, SHIFT = 64;  // bytes; every second 16 rows lie SHIFT further: no bank conflicts
constexpr int STAGE = SIDE * PITCH + SHIFT;
constexpr int CODE_PITCH = SIDE + 16, ROW_SCALES = SIDE * CODE_PITCH, COLUMN_SCALES = ROW_SCALES + 512;
constexpr int LEAVING = COLUMN_SCALES + 512, OF_TEAM = 2 * STAGE + 2 * LEAVING;

struct Pair {
    fp4ref::Scale low, high;
};

// Scales of two lines, from the magnitudes in both halves of `amax` and in those of the lane `other` away. The first of
// the two lanes chooses that of the low line, the second that of the high one.
DEVICE Pair choose(unsigned amax, unsigned other, bool second)
{
    amax = __vmaxu2(amax & 0x7fff7fffu, __shfl_xor_sync(~0u, amax & 0x7fff7fffu, other));
    const float mine = In::widen((In::word)(second ? amax >> 16 : amax));
    const fp4ref::Scale own = fp4ref::stored_scale<S, In>(fp4ref::block_scale<S, In>(mine, 1.0f), 1.0f);
    const unsigned byte = __shfl_xor_sync(~0u, own.byte, other);
    const fp4ref::Scale theirs = {byte, S::Scale::decode(byte), __shfl_xor_sync(~0u, own.factor, other)};
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
    for (int i = 0; i < N; ++i) amax = thresholds::running_amax_pair(amax, words[i]);
    return fp4ref::larger(amax & 0x7fffu, amax >> 16 & 0x7fffu);
}

extern "C" __global__ void __launch_bounds__(TEAMS * 256, 1) bytes(
    const byte* __restrict__ x, index_t row_count, index_t column_count, byte* __restrict__ row_data,
    byte* __restrict__ row_scales, byte* __restrict__ column_data, byte* __restrict__ column_scales,
    const unsigned* noop)
{
    extern __shared__ __align__(128) byte memory[];
    const unsigned team = threadIdx.x / 256, thread = threadIdx.x % 256, lane = thread % 32, warp = thread / 32;
    byte* const mine = memory + team * OF_TEAM;
    byte* const leaving = mine + 2 * STAGE;
    const unsigned rows = (unsigned)row_count, columns = (unsigned)column_count;
    const unsigned down = (rows + SIDE - 1) / SIDE, across = (columns + SIDE - 1) / SIDE, boxes = down * across;
    const unsigned all = gridDim.x * TEAMS;
    wait_for_previous_kernel();
    if (noop && *noop) return;

    const auto load = [&](unsigned index, unsigned stage) {
        const unsigned r = thread / 16, piece = thread % 16;
        const unsigned row = index / across * SIDE + r, column = index % across * SIDE + piece * 8;
        const byte* from = x + ((size)row * columns + column) * 2;
        const unsigned to = (unsigned)__cvta_generic_to_shared(mine) + stage + r * PITCH + piece * 16;
        UNROLL
        for (int i = 0; i < SIDE; i += 16)
            copy_to_shared(to + i * PITCH + i / 16 % 2 * SHIFT, from + (size)columns * (2 * i), row + i < rows && column < columns);
    };
    const auto drain = [&](unsigned index, const byte* held) {
        const unsigned row = index / across * SIDE, column = index % across * SIDE, r = thread / 8, piece = thread % 8 * 16;
        byte* to = column_data + (size)(column + r) * rows + (row + piece);
        UNROLL
        for (int i = 0; i < SIDE; i += 32)
            if (column + r + i < columns && row + piece < rows)
                *(uint4*)(to + (size)rows * i) = *(const uint4*)(held + (r + i) * CODE_PITCH + piece);
        if (warp == 0) *(uint4*)(row_scales + (size)index * 512 + lane * 16) = *(const uint4*)(held + ROW_SCALES + lane * 16);
        if (warp == 1)
            *(uint4*)(column_scales + (size)(column / SIDE * down + row / SIDE) * 512 + lane * 16) =
                *(const uint4*)(held + COLUMN_SCALES + lane * 16);
    };

    const unsigned begin = blockIdx.x + team * gridDim.x;
    if (begin < boxes) load(begin, 0);
    commit_copies();
    unsigned stage = 0, side = 0;
    _Pragma("unroll 1")
    for (unsigned index = begin; index < boxes; index += all) {
        wait_for_copies<0>();
        team_barrier(team);
        if (index + all < boxes) load(index + all, STAGE - stage);
        commit_copies();
        byte* const held = leaving + side;
        side = LEAVING - side;
        if (index != begin) drain(index - all, leaving + side);
        const byte* here = mine + stage;
        stage = STAGE - stage;
        const unsigned row = index / across * SIDE, column = index % across * SIDE;

        // 32 rows of 64 columns: a warp takes 16 pairs of columns at a time, half of the rows in either half of its lanes.
        const bool second = lane >= 16;
        _Pragma("unroll 1")
        for (unsigned turn = 0; turn < 2; ++turn) {
            const unsigned group = warp % 4, first = warp / 4 * 64 + turn * 32 + lane % 16 * 2;
            const byte* from = here + (group * 32 + (second ? HALF : 0)) * PITCH + (second ? SHIFT : 0) + first * 2;
            unsigned words[HALF], amax = 0;
            UNROLL
            for (int i = 0; i < HALF; ++i) words[i] = *(const unsigned*)(from + i * PITCH);
            UNROLL
            for (int i = 0; i < HALF; ++i) amax = thresholds::running_amax_pair(amax, words[i]);
            const Pair scales = choose(amax, 16, second);
            byte* to = held + first * CODE_PITCH + group * 32 + (second ? HALF : 0);
            *(uint4*)to = column_codes<false>(words, scales.low);
            *(uint4*)(to + CODE_PITCH) = column_codes<true>(words, scales.high);
            const unsigned line = first + second;
            held[COLUMN_SCALES + line % 32 * 16 + line / 32 * 4 + group] =
                column + line < columns && row + group * 32 < rows ? (second ? scales.high : scales.low).byte : 0;
        }

        // 16 rows: a warp takes two times four at once, a lane 16 columns of two.
        _Pragma("unroll 1")
        for (unsigned turn = 0; turn < 2; ++turn) {
            const unsigned r = warp * 16 + turn * 8 + lane / 8, piece = lane % 8 * HALF;
            const byte* from = here + r * PITCH + (warp % 2 ? SHIFT : 0) + piece * 2;
            unsigned words[2][8], amax = 0;
            UNROLL
            for (int i = 0; i < 2; ++i) {
                const uint4 a = *(const uint4*)(from + i * 4 * PITCH), b = *(const uint4*)(from + i * 4 * PITCH + 16);
                const unsigned eight[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
                UNROLL
                for (int k = 0; k < 8; ++k) words[i][k] = eight[k];
                amax |= largest(words[i]) << 16 * i;
            }
            const bool odd = lane % 2;
            const Pair scales = choose(amax, 1, odd);
            byte* to = row_data + ((size)(row + r) * columns + (column + piece));
            const bool inside = column + piece < columns;
            if (inside && row + r < rows) *(uint4*)to = row_codes(words[0], scales.low);
            if (inside && row + r + 4 < rows) *(uint4*)(to + (size)columns * 4) = row_codes(words[1], scales.high);
            const unsigned line = r + odd * 4;
            held[ROW_SCALES + line % 32 * 16 + line / 32 * 4 + piece / 32] =
                row + line < rows && column + piece / 32 * 32 < columns ? (odd ? scales.high : scales.low).byte : 0;
        }
    }
    team_barrier(team);
    if (begin < boxes) drain(begin + (boxes - 1 - begin) / all * all, leaving + (LEAVING - side));
}
