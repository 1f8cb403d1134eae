// A matrix of bytes into other memory, as it is or turned.
//
//   from  uint8  [rows, columns]
//   to    uint8  [rows, columns], or [columns, rows] if TURNED
//   noop  one word or null: unless all its bits are zero, nothing is written (LAY-12)
//
// TURNED comes before this file.
#include "common.cuh"

constexpr int SIDE = 128, WORDS = SIDE / 4, EACH = 4;
constexpr int PIECE = THREADS * EACH * 16;  // bytes that a block of threads copies

// Shared memory holds words of four neighbours of a row. A word's place is exclusive-or-ed by its row's quarter, so that
// a warp meets every bank once, with words of one row as with those of 32 rows.
DEVICE int place(int row, int word) { return row * WORDS + (word ^ row / 4); }

DEVICE void copy(const byte* from, byte* to, index_t count)
{
    const index_t first = (index_t)blockIdx.x * PIECE;
    if (((size_t)from | (size_t)to) % 16) {
        for (index_t at = first + threadIdx.x; at < first + PIECE && at < count; at += THREADS) to[at] = from[at];
        return;
    }
    UNROLL
    for (int i = 0; i < EACH; ++i) {
        const index_t at = first + 16 * (i * THREADS + threadIdx.x);
        if (at + 16 <= count) *(uint4*)(to + at) = load_vector(from + at);
        else for (index_t k = at; k < count; ++k) to[k] = from[k];
    }
}

// The bytes of four rows as those of four columns.
DEVICE void turn_words(const unsigned (&of)[4], unsigned (&made)[4])
{
    const unsigned a = __byte_perm(of[0], of[1], 0x5140), b = __byte_perm(of[0], of[1], 0x7362);
    const unsigned c = __byte_perm(of[2], of[3], 0x5140), d = __byte_perm(of[2], of[3], 0x7362);
    made[0] = __byte_perm(a, c, 0x5410), made[1] = __byte_perm(a, c, 0x7632);
    made[2] = __byte_perm(b, d, 0x5410), made[3] = __byte_perm(b, d, 0x7632);
}

DEVICE void turn_tile(unsigned (&tile)[SIDE * WORDS], const byte* from, byte* to, index_t rows, index_t columns)
{
    const index_t across = (columns + SIDE - 1) / SIDE;
    const index_t row = blockIdx.x / across * SIDE, column = blockIdx.x % across * SIDE;
    const int high = rows - row < SIDE ? (int)(rows - row) : SIDE;
    const int wide = columns - column < SIDE ? (int)(columns - column) : SIDE;
    const bool whole = !(((size_t)from | columns) % 4), turned_whole = !(((size_t)to | rows) % 4);
    from += row * columns + column, to += column * rows + row;
    for (int i = threadIdx.x; i < SIDE * WORDS; i += THREADS) {
        const int r = i / WORDS, c = i % WORDS;
        unsigned word = 0;
        if (r < high && 4 * c < wide) {
            const byte* at = from + r * columns + 4 * c;
            if (whole) word = *(const unsigned*)at;
            else for (int k = 0; k < 4 && 4 * c + k < wide; ++k) word |= (unsigned)at[k] << 8 * k;
        }
        tile[place(r, c)] = word;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SIDE * WORDS / 4; i += THREADS) {
        const int r = i % WORDS * 4, c = i / WORDS;
        if (r >= high) continue;
        unsigned of[4], made[4];
        UNROLL
        for (int k = 0; k < 4; ++k) of[k] = tile[place(r + k, c)];
        turn_words(of, made);
        UNROLL
        for (int k = 0; k < 4; ++k) {
            byte* at = to + (4 * c + k) * rows + r;
            if (4 * c + k >= wide) continue;
            if (turned_whole) *(unsigned*)at = made[k];
            else for (int j = 0; j < 4 && r + j < high; ++j) at[j] = (byte)(made[k] >> 8 * j);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) turn(
    const byte* __restrict__ from, byte* to, index_t rows, index_t columns, const unsigned* noop)
{
    wait_for_previous_kernel();
    if (noop && *noop) return;
    if constexpr (TURNED) {
        __shared__ unsigned tile[SIDE * WORDS];
        turn_tile(tile, from, to, rows, columns);
    } else {
        copy(from, to, rows * columns);
    }
}
