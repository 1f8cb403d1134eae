// Global maxima, first pass: every block of threads leaves partial maxima, which `amax_finish` reduces.
//
//   x         In       [rows, columns], row-major; a member of a group is a range of its rows
//   partials  float32  as bit patterns: [members, parts] of the whole, or [members, parts, columns] of every column
//   amax      float32  [rows], one warp per row
//
// S, In, KIND and EARLY (ask for the first lines before the kernel before this one ends, which pays where another one
// follows) come before this file. Nothing is accumulated between launches, so nothing has to be cleared.
// Rules: BLK-2, GLB-1, GLB-5, HAD-4.
#include "common.cuh"

using word = In::word;
constexpr int LANES = 16 / sizeof(word);

DEVICE unsigned running(unsigned amax, word w)
{
    return fp4ref::running_amax<S::amax_keeps_nan>(amax, fp4ref::magnitude_bits(In::widen(w)));
}

// Threads that share words: `lane` of `lanes`, which take EACH vectors each of a piece of memory, and pieces `piece`,
// `piece + pieces`, ...
struct Share { unsigned lane, lanes; index_t piece, pieces; };
constexpr int EACH = 4;

// Do something with every vector of a thread's share, zeros behind the last one; EACH are on their way at once.
template <class Act> DEVICE void each_vector(const uint4* x, index_t vectors, const Share& of, Act act)
{
    for (index_t at = of.piece * of.lanes * EACH + of.lane; at < vectors; at += of.pieces * of.lanes * EACH) {
        uint4 v[EACH];
        UNROLL
        for (int k = 0; k < EACH; ++k) v[k] = at + k * of.lanes < vectors ? __ldg(x + at + k * of.lanes) : uint4{0, 0, 0, 0};
        UNROLL
        for (int k = 0; k < EACH; ++k) act(v[k]);
    }
}

// The largest magnitude of vectors of words of 16 bits, two words at a time: numbers are in the order of their patterns.
// False if one is a NaN.
DEVICE bool amax_of_numbers(const uint4* x, index_t vectors, const Share& of, unsigned& amax)
{
    if constexpr (sizeof(word) != 2) return false;
    else {
        constexpr unsigned magnitudes = 0x7fff7fffu;
        unsigned two = 0;
        each_vector(x, vectors, of, [&](const uint4& v) {
            two = __vimax3_u16x2(two, v.x & magnitudes, v.y & magnitudes);
            two = __vimax3_u16x2(two, v.z & magnitudes, v.w & magnitudes);
        });
        const unsigned largest = fp4ref::larger(two & 0xffffu, two >> 16);
        amax = fp4ref::magnitude_bits(In::widen((word)largest));
        return largest <= In::infinity;
    }
}

// The largest magnitude of a share of `count` consecutive words.
DEVICE unsigned amax_of(const word* x, index_t count, const Share& of)
{
    unsigned amax = 0;
    index_t done = 0;
    if (aligned(x, 0, 16)) {
        const index_t vectors = count / LANES;
        if (!amax_of_numbers((const uint4*)x, vectors, of, amax)) {
            amax = 0;
            each_vector((const uint4*)x, vectors, of, [&](const uint4& v) {
                const word* words = (const word*)&v;
                UNROLL
                for (int k = 0; k < LANES; ++k) amax = running(amax, words[k]);
            });
        }
        done = vectors * LANES;
    }
    for (index_t i = done + of.piece * of.lanes + of.lane; i < count; i += of.pieces * of.lanes) amax = running(amax, x[i]);
    return amax;
}

// Blocks (part, member): the whole of each member.
DEVICE void whole(const word* x, index_t rows, index_t columns, const Member* members, unsigned* partials)
{
    const Member member = members ? members[blockIdx.y] : Member{0, rows, 0, 0, 0, 0};
    const Share share = {threadIdx.x, THREADS, blockIdx.x, gridDim.x};
    const unsigned amax = block_max(amax_of(x + member.first_row * columns, member.rows * columns, share));
    if (threadIdx.x == 0) partials[blockIdx.y * gridDim.x + blockIdx.x] = amax;
}

// Blocks (8 rows each, 1).
DEVICE void each_row(const word* x, index_t rows, index_t columns, unsigned* amax)
{
    const index_t row = (index_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    const unsigned largest = __reduce_max_sync(~0u, amax_of(x + row * columns, columns, {threadIdx.x % 32, 32, 0, 1}));
    if (threadIdx.x % 32 == 0) amax[row] = largest;
}

// Blocks (256 columns, part, member): every column, transformed in groups of 16 rows where S has a Hadamard transform;
// reduced to one number per block of threads unless the scale is one per row of the transpose.
DEVICE void each_column(const word* x, index_t rows, index_t columns, const Member* members, unsigned* partials)
{
    const Member member = members ? members[blockIdx.z] : Member{0, rows, 0, 0, 0, 0};
    const index_t column = (index_t)blockIdx.x * THREADS + threadIdx.x;
    const word* from = x + member.first_row * columns + column;
    unsigned amax = 0;
    for (index_t row = blockIdx.y * 16; row < member.rows && column < columns; row += gridDim.y * 16) {
        float y[16];
        UNROLL
        for (int i = 0; i < 16; ++i) y[i] = row + i < member.rows ? In::widen(from[(row + i) * columns]) : 0.0f;
        if constexpr (S::has_hadamard) fp4ref::hadamard<S::signs>(*(float(*)[16][1])y);
        UNROLL
        for (int i = 0; i < 16; ++i) amax = fp4ref::running_amax<S::amax_keeps_nan>(amax, fp4ref::magnitude_bits(y[i]));
    }
    const index_t part = (index_t)blockIdx.z * gridDim.y + blockIdx.y;
    if constexpr (S::global == fp4ref::Global::row) {
        if (column < columns) partials[part * columns + column] = amax;
    } else {
        amax = block_max(amax);
        if (threadIdx.x == 0) partials[part * gridDim.x + blockIdx.x] = amax;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) amax(
    const word* __restrict__ x, index_t rows, index_t columns, const Member* members, unsigned* out,
        const unsigned* noop)
{
    if (EARLY && KIND == 0 && !members) {
        UNROLL
        for (int k = 0; k < EACH; ++k) {
            const index_t word = (((index_t)blockIdx.x * EACH + k) * THREADS + threadIdx.x) * LANES;
            if (threadIdx.x % 8 == 0 && word < rows * columns) fetch(x + word);
        }
    }
    wait_for_previous_kernel();
    if (noop && *noop) return;
    if constexpr (KIND == 0) whole(x, rows, columns, members, out);
    if constexpr (KIND == 1) each_row(x, rows, columns, out);
    if constexpr (KIND == 2) each_column(x, rows, columns, members, out);
}
