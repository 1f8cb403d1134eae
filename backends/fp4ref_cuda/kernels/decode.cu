// Dequantize codes of 4 or 8 bits to a 16-bit type.
//
//   data    uint8    [lines, bytes of a line], length a multiple of 8
//   scales  uint8    in Layout; padding is never used
//   amax    float32  [1]; unused without a global scale
//   out     Out      [lines, length], lines 16 bytes apart
//
// S, In (the type that was quantized), Out and Layout come before this file. A warp takes 256 columns of four lines: in
// 128x4 tiles those whose scales lie side by side, else neighbours. A lane makes 8 values of each: 16 bytes, so that a
// warp stores whole segments, which the cache gives up first. Warps on a multiprocessor: as measured for both layouts.
// Certificates: dequantize-*.
#include "decoders.cuh"

constexpr bool TILED = fp4ref::same_type<Layout, fp4ref::layout::tiled_128x4>;
constexpr int LINES = 4, GAP = TILED ? 32 : 1, WIDTH = S::columns;

// What a warp works on: a lane's codes of each line, and the bytes of their scales.
struct Unit {
    index_t line, column;
    D::codes codes[LINES];
    unsigned bytes[LINES];
};

extern "C" __global__ void __launch_bounds__(THREADS, TILED ? 8 : 6) decode(
    const byte* __restrict__ data, const byte* __restrict__ scales, const float* __restrict__ amax,
    index_t lines, index_t length, index_t units, word* __restrict__ out)
{
    __shared__ uint4 table[D::entries + 1];
    const unsigned strips = (unsigned)((length + 255) / 256), lane = threadIdx.x % 32;
    unsigned number = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    wait_for_previous_kernel();
    const index_t blocks = (length + WIDTH - 1) / WIDTH;
    const auto load = [&](Unit& u) {
        const unsigned group = number / strips;
        u.column = (index_t)(number - group * strips) * 256 + lane * 8;
        u.line = TILED ? (index_t)(group / 32) * 128 + group % 32 : (index_t)group * LINES;
        const bool inside = number < units && u.column < length;
        UNROLL
        for (int i = 0; i < LINES; ++i)
            u.codes[i] = inside && u.line + i * GAP < lines
                ? __ldg((const D::codes*)(data + ((u.line + i * GAP) * length + u.column) * Format::bits / 8)) : D::codes{};
        if constexpr (TILED) {
            const uint4 quads = inside && u.line < lines
                ? __ldg((const uint4*)(scales + Layout::offset(u.line, u.column / (4 * WIDTH) * 4, blocks))) : uint4{0, 0, 0, 0};
            const unsigned four[4] = {quads.x, quads.y, quads.z, quads.w};
            UNROLL
            for (int i = 0; i < LINES; ++i) u.bytes[i] = four[i] >> 8 * (u.column / WIDTH % 4) & 255u;
        } else {
            UNROLL
            for (int i = 0; i < LINES; ++i) u.bytes[i] = inside && u.line + i < lines ? scales[Layout::offset(u.line + i, u.column / WIDTH,
                blocks)] : 0;
        }
    };
    Unit u;
    load(u);  // on its way while the table is made
    float A = 0.0f;
    if constexpr (S::global != fp4ref::Global::none) A = *amax;
    if constexpr (D::entries > 0) {
        table[threadIdx.x] = D::entry(threadIdx.x, A);
        __syncthreads();
    }

    while (number < units) {
        UNROLL
        for (int i = 0; i < LINES; ++i) {
            if (u.line + i * GAP >= lines || u.column >= length) continue;
            const bool plain = D::plain(u.codes[i], u.bytes[i], table);
            const uint4 values = plain ? decoded_plainly(u.codes[i], u.bytes[i], A) : D::values(u.codes[i], u.bytes[i], table);
            __stcs((uint4*)(out + (u.line + i * GAP) * length + u.column), values);
        }
        number += gridDim.x * (THREADS / 32);
        if (number >= units) break;
        load(u);
    }
}
