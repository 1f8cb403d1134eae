// Dequantize E2M1 in blocks of 16 to a 16-bit type through a table of all values of every scale byte.
//
//   data    uint8    [lines, length / 2], length a multiple of 8
//   scales  uint8    in Layout; padding is never used
//   amax    float32  [1]; unused without a global scale
//   out     Out      [lines, length], lines 16 bytes apart
//
// S, In (the type that was quantized), Out and Layout come before this file. A warp takes 256 columns of four lines: in
// 128x4 tiles those whose scales lie side by side, else neighbours. A lane makes 8 values of each: 16 bytes, so that a
// warp stores whole segments. The 8 magnitudes under one scale are 16 bytes; a byte permutation with the codes as its
// selector looks up four at once, and the sign is the code's.
#include "common.cuh"

using word = Out::word;
constexpr bool TILED = fp4ref::same_type<Layout, fp4ref::layout::tiled_128x4>;
constexpr int LINES = 4, GAP = TILED ? 32 : 1;

// High bytes of the values of codes 0 to 3 and 4 to 7, then their low bytes.
DEVICE uint4 values_of(unsigned scale_byte, float A)
{
    const float scale = fp4ref::decoded_scale<S, In>(scale_byte, A);
    unsigned high[2] = {0, 0}, low[2] = {0, 0};
    UNROLL
    for (int c = 0; c < 8; ++c) {
        const unsigned bits = Out::round(fp4ref::dequantized<S, In>(c, scale, A));
        high[c / 4] |= (bits >> 8) << 8 * (c % 4);
        low[c / 4] |= (bits & 255u) << 8 * (c % 4);
    }
    return {high[0], high[1], low[0], low[1]};
}

DEVICE uint4 decoded(unsigned codes, const uint4& t)
{
    const unsigned first = codes & 0x77777777u, second = first >> 16, shifted = codes << 4;
    const unsigned h0 = __byte_perm(t.x, t.y, first) ^ (__byte_perm(shifted, codes, 0x5140) & 0x80808080u);
    const unsigned h1 = __byte_perm(t.x, t.y, second) ^ (__byte_perm(shifted, codes, 0x7362) & 0x80808080u);
    const unsigned l0 = __byte_perm(t.z, t.w, first), l1 = __byte_perm(t.z, t.w, second);
    return {__byte_perm(l0, h0, 0x5140), __byte_perm(l0, h0, 0x7362), __byte_perm(l1, h1, 0x5140), __byte_perm(l1, h1,
        0x7362)};
}

// The same where the scale is not finite, and a NaN has a sign of its own.
DEVICE uint4 decoded_plainly(unsigned codes, unsigned scale_byte, float A)
{
    const float scale = fp4ref::decoded_scale<S, In>(scale_byte, A);
    unsigned w[4] = {0, 0, 0, 0};
    UNROLL
    for (int i = 0; i < 8; ++i)
        w[i / 2] |= (unsigned)Out::round(fp4ref::dequantized<S, In>(codes >> 4 * i & 15u, scale, A)) << 16 * (i % 2);
    return {w[0], w[1], w[2], w[3]};
}

extern "C" __global__ void __launch_bounds__(THREADS) decode(
    const byte* __restrict__ data, const byte* __restrict__ scales, const float* __restrict__ amax,
    index_t lines, index_t length, index_t units, word* __restrict__ out)
{
    __shared__ uint4 table[256];
    wait_for_previous_kernel();
    const unsigned strips = (unsigned)((length + 255) / 256), lane = threadIdx.x % 32;
    const index_t blocks = (length + 15) / 16;
    index_t line, column;
    unsigned codes[LINES], bytes[LINES];
    const auto load = [&](unsigned unit) {
        const unsigned group = unit / strips;
        column = (index_t)(unit - group * strips) * 256 + lane * 8;
        line = TILED ? (index_t)(group / 32) * 128 + group % 32 : (index_t)group * LINES;
        const bool inside = unit < units && column < length;
        UNROLL
        for (int i = 0; i < LINES; ++i)
            codes[i] = inside && line + i * GAP < lines
                ? __ldg((const unsigned*)(data + ((line + i * GAP) * length + column) / 2)) : 0;
        if constexpr (TILED) {
            const uint4 quads = inside && line < lines
                ? __ldg((const uint4*)(scales + Layout::offset(line, column / 64 * 4, blocks))) : uint4{0, 0, 0, 0};
            const unsigned four[4] = {quads.x, quads.y, quads.z, quads.w};
            UNROLL
            for (int i = 0; i < LINES; ++i) bytes[i] = four[i] >> 8 * (column / 16 % 4) & 255u;
        } else {
            UNROLL
            for (int i = 0; i < LINES; ++i) bytes[i] = inside && line + i < lines ? scales[Layout::offset(line + i, column / 16,
                blocks)] : 0;
        }
    };
    unsigned unit = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    load(unit);  // on its way while the table is made
    float A = 0.0f;
    if constexpr (S::global != fp4ref::Global::none) A = *amax;
    table[threadIdx.x] = values_of(threadIdx.x, A);
    __syncthreads();

    while (unit < units) {
        UNROLL
        for (int i = 0; i < LINES; ++i) {
            if (line + i * GAP >= lines || column >= length) continue;
            const uint4 entry = table[bytes[i]];
            const uint4 values = entry.x & 0x7fu ? decoded_plainly(codes[i], bytes[i], A) : decoded(codes[i], entry);
            __stcs((uint4*)(out + (line + i * GAP) * length + column), values);
        }
        unit += gridDim.x * (THREADS / 32);
        if (unit < units) load(unit);
    }
}
