// Codes of 8-bit floats under a float32 scale of every 128 neighbours, or of every square of 128x128, of a matrix and of
// its transpose, from one read of x: x times a scale, rounded to the element, saturating.
//
//   x               In       [rows, columns]
//   row_codes       uint8    [rows, columns];   column_codes  [columns, rows]
//   row_scales      float32  1 over each scale: [columns / 128, row_pitch], or [rows / 128, row_pitch] of squares
//   column_scales   float32  the same of the transpose, [rows / 128, column_pitch] or [columns / 128, column_pitch]
//
// Pitches are rows, or squares side by side, in whole fours; what is behind the last one is zero. `least` holds the bits of
// the least amax, `largest` those of the largest number of x's type. S, whose element counts alone, In, SQUARES,
// POWER_OF_TWO, HAS_ROW, HAS_COLUMN and VECTORS (every row of x and of the codes begins at a multiple of 16 bytes) come
// before this file. A block of threads takes a square. Rules: TEL-48, TEL-49, TEL-50, TEL-73.
#include "byte_codes.cuh"
#include "tensor_scale.cuh"

constexpr int SIDE = 128, PER_VECTOR = 16 / sizeof(word), PITCH = SIDE * sizeof(word) + 16, CODE_PITCH = SIDE + 4;
constexpr int PARTS = 4, PART = SIDE / PARTS;  // of a column

DEVICE unsigned magnitude_of(word w)
{
    const unsigned bits = fp4ref::magnitude_bits(In::widen(w));
    return bits > 0x7f800000u ? 0 : bits;  // NaN is ignored
}

DEVICE float scale_of(unsigned amax, float floor, float largest)
{
    return tensor_scale_of<POWER_OF_TWO>(fp4ref::float_of(amax), floor, largest);
}

DEVICE unsigned four_codes(const word (&of)[4], float scale)
{
    return two_codes(of[0], of[1], scale) | two_codes(of[2], of[3], scale) << 16;
}

// Neighbours in shared memory, read at once.
template <int Bytes> struct Vector;
template <> struct Vector<4> { using type = unsigned; };
template <> struct Vector<8> { using type = uint2; };
template <> struct Vector<16> { using type = uint4; };
template <int Count> DEVICE void load(const byte* from, word (&to)[Count])
{
    using Read = typename Vector<Count * sizeof(word)>::type;
    union { Read vector; word words[Count]; } of;
    of.vector = *(const Read*)from;
    UNROLL
    for (int i = 0; i < Count; ++i) to[i] = of.words[i];
}

// Four codes to neighbouring bytes, of which `left` are inside.
DEVICE void store(byte* to, unsigned codes, int left)
{
    if (VECTORS && left > 0) {
        *(unsigned*)to = codes;
        return;
    }
    UNROLL
    for (int i = 0; i < 4; ++i)
        if (i < left) to[i] = (byte)(codes >> 8 * i);
}

extern "C" __global__ void __launch_bounds__(THREADS) block_codes(
    const word* __restrict__ x, index_t rows, index_t columns, index_t least, index_t largest, byte* __restrict__ row_codes,
    float* row_scales, index_t row_pitch, byte* __restrict__ column_codes, float* column_scales, index_t column_pitch)
{
    extern __shared__ __align__(16) byte held[];
    byte* const turned = held + SIDE * PITCH;
    __shared__ unsigned of_parts[PARTS][SIDE];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const index_t across = (columns + SIDE - 1) / SIDE, down = (rows + SIDE - 1) / SIDE;
    const index_t below = blockIdx.x / across, beside = blockIdx.x - below * across;
    const index_t top = below * SIDE, edge = beside * SIDE;
    const int high = rows - top < SIDE ? (int)(rows - top) : SIDE, wide = columns - edge < SIDE ? (int)(columns - edge) : SIDE;
    const float floor = fp4ref::float_of((unsigned)least), most = fp4ref::float_of((unsigned)largest);
    wait_for_previous_kernel();

    if constexpr (VECTORS) {
        constexpr int of_row = SIDE / PER_VECTOR;
        UNROLL
        for (int i = 0; i < SIDE * of_row / THREADS; ++i) {
            const int at = i * THREADS + threadIdx.x, r = at / of_row, c = at % of_row * PER_VECTOR;
            const bool inside = r < high && c < wide;
            *(uint4*)(held + r * PITCH + c * sizeof(word)) = inside
                ? load_vector(x + (top + r) * columns + (edge + c)) : uint4{0, 0, 0, 0};
        }
    } else {
        for (int at = threadIdx.x; at < SIDE * SIDE; at += THREADS) {
            const int r = at / SIDE, c = at % SIDE;
            *(word*)(held + r * PITCH + c * sizeof(word)) = r < high && c < wide ? x[(top + r) * columns + (edge + c)] : (word)0;
        }
    }
    __syncthreads();

    float of_square = 0.0f;
    if constexpr (SQUARES) {
        unsigned amax = 0;
        for (int at = threadIdx.x; at < SIDE * SIDE; at += THREADS)
            amax = fp4ref::larger(amax, magnitude_of(*(const word*)(held + at / SIDE * PITCH + at % SIDE * sizeof(word))));
        of_square = scale_of(block_max(amax), floor, most);
        const float inverse = 1.0f / of_square;
        if (HAS_ROW && threadIdx.x < row_pitch - beside && (threadIdx.x == 0 || beside == across - 1))
            row_scales[below * row_pitch + beside + threadIdx.x] = threadIdx.x ? 0.0f : inverse;
        if (HAS_COLUMN && threadIdx.x < column_pitch - below && (threadIdx.x == 0 || below == down - 1))
            column_scales[beside * column_pitch + below + threadIdx.x] = threadIdx.x ? 0.0f : inverse;
    }

    if constexpr (HAS_ROW) {  // a warp takes a row, a lane four neighbours of it
        _Pragma("unroll 4")
        for (int r = warp; r < SIDE; r += THREADS / 32) {
            word four[4];
            load(held + r * PITCH + lane * 4 * sizeof(word), four);
            float scale = of_square;
            if constexpr (!SQUARES) {
                unsigned amax = 0;
                UNROLL
                for (int i = 0; i < 4; ++i) amax = fp4ref::larger(amax, magnitude_of(four[i]));
                scale = scale_of(__reduce_max_sync(~0u, amax), floor, most);
                if (lane == 0 && top + r < row_pitch) row_scales[beside * row_pitch + top + r] = r < high ? 1.0f / scale : 0.0f;
            }
            if (r < high) store(row_codes + (top + r) * columns + edge + lane * 4, four_codes(four, scale), wide - (int)lane * 4);
        }
    }

    if constexpr (HAS_COLUMN) {  // a thread takes a part of two columns
        const int part = threadIdx.x / (SIDE / 2), c = threadIdx.x % (SIDE / 2) * 2;
        const byte* from = held + part * PART * PITCH + c * sizeof(word);
        float scales[2] = {of_square, of_square};
        if constexpr (!SQUARES) {
            unsigned amax[2] = {0, 0};
            UNROLL
            for (int i = 0; i < PART; ++i) {
                word two[2];
                load(from + i * PITCH, two);
                amax[0] = fp4ref::larger(amax[0], magnitude_of(two[0]));
                amax[1] = fp4ref::larger(amax[1], magnitude_of(two[1]));
            }
            of_parts[part][c] = amax[0];
            of_parts[part][c + 1] = amax[1];
            __syncthreads();
            UNROLL
            for (int k = 0; k < 2; ++k) {
                unsigned whole = 0;
                UNROLL
                for (int i = 0; i < PARTS; ++i) whole = fp4ref::larger(whole, of_parts[i][c + k]);
                scales[k] = scale_of(whole, floor, most);
                if (part == 0 && edge + c + k < column_pitch)
                    column_scales[below * column_pitch + edge + c + k] = c + k < wide ? 1.0f / scales[k] : 0.0f;
            }
        }
        UNROLL
        for (int i = 0; i < PART; i += 4) {
            word two[4][2];
            UNROLL
            for (int j = 0; j < 4; ++j) load(from + (i + j) * PITCH, two[j]);
            UNROLL
            for (int k = 0; k < 2; ++k) {
                const word four[4] = {two[0][k], two[1][k], two[2][k], two[3][k]};
                *(unsigned*)(turned + (c + k) * CODE_PITCH + part * PART + i) = four_codes(four, scales[k]);
            }
        }
        __syncthreads();
        _Pragma("unroll 4")
        for (int k = warp; k < wide; k += THREADS / 32) {
            const unsigned codes = *(const unsigned*)(turned + k * CODE_PITCH + lane * 4);
            store(column_codes + (edge + k) * rows + top + lane * 4, codes, high - (int)lane * 4);
        }
    }
}
