// Dequantize one direction.
//
//   data    uint8    [lines, bytes of a line]
//   scales  uint8    in the layout that `layout` numbers, or in Layout; padding is never read
//   amax    float32  [1], or [lines] for a row scale; unused without a global scale
//   out     Out      [lines, length]
//
// S, In (the type that was quantized), Out and INVERSE come before this file. A thread makes 16 bytes of
// output, or one group of 16 elements where it undoes the Hadamard transform, so that a warp stores whole lines of
// memory. Certificates: dequantize-*, rows-decoded-by-amax, columns-inverted.
#include "maps.cuh"

using word = Out::word;
constexpr int ELEMENT_BITS = S::Element::Format::bits;
constexpr int EACH = INVERSE ? 16 : 16 / sizeof(word);  // elements of a thread
constexpr int BYTES = EACH * ELEMENT_BITS / 8;

// `BYTES` bytes of codes, of which `valid` exist.
DEVICE void load_codes(byte (&codes)[BYTES], const byte* from, index_t valid, bool vector)
{
    if (ELEMENT_BITS != 6 && vector && valid >= BYTES) {
        if constexpr (BYTES == 2) *(unsigned short*)codes = *(const unsigned short*)from;
        if constexpr (BYTES == 4) *(unsigned*)codes = *(const unsigned*)from;
        if constexpr (BYTES == 8) *(uint2*)codes = *(const uint2*)from;
        if constexpr (BYTES == 16) *(uint4*)codes = *(const uint4*)from;
    } else {
        UNROLL
        for (int i = 0; i < BYTES; ++i) codes[i] = i < valid ? from[i] : 0;
    }
}

// Code `i` of those, packed from the lowest bits. Rules: PACK-1, PACK-3, PACK-4.
DEVICE unsigned code_of(const byte (&codes)[BYTES], int i)
{
    const int at = i * ELEMENT_BITS / 8, from = i * ELEMENT_BITS % 8;
    const unsigned next = from + ELEMENT_BITS > 8 ? codes[at + 1] : 0u;  // a code of 6 bits may reach into the next byte
    return (codes[at] | next << 8) >> from & ((1u << ELEMENT_BITS) - 1u);
}

DEVICE void store(word* out, const word (&values)[EACH], index_t valid, bool vector)
{
    if (vector && valid >= EACH) {
        UNROLL
        for (int i = 0; i < EACH * (int)sizeof(word) / 16; ++i) ((uint4*)out)[i] = ((const uint4*)values)[i];
    } else {
        UNROLL
        for (int i = 0; i < EACH; ++i)
            if (i < valid) out[i] = values[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) dequantize(
    const byte* __restrict__ data, const byte* __restrict__ scales, const float* __restrict__ amax,
    index_t lines, index_t length, index_t layout, word* __restrict__ out)
{
    const index_t across = (length + EACH - 1) / EACH, unit = (index_t)blockIdx.x * THREADS + threadIdx.x;
    const index_t line = unit / across, first = unit % across * EACH;
    if (line >= lines) return;
    wait_for_previous_kernel();

    const index_t pitch = (length * ELEMENT_BITS + 7) / 8, blocks = (length + S::columns - 1) / S::columns;
    float A = 0.0f;
    if constexpr (S::global == fp4ref::Global::tensor) A = *amax;
    if constexpr (S::global == fp4ref::Global::row) A = amax[line];
    __align__(16) byte codes[BYTES];
    const index_t start = line * pitch + first * ELEMENT_BITS / 8;
    load_codes(codes, data + start, pitch - first * ELEMENT_BITS / 8, aligned(data, pitch, BYTES));
    const index_t at = in_layout(layout, [&](auto order) { return order.offset(line, first / S::columns, blocks, lines); });
    const float scale = fp4ref::decoded_scale<S, In>(scales[at], A);
    float y[EACH];
    UNROLL
    for (int i = 0; i < EACH; ++i) {
        y[i] = fp4ref::dequantized<S, In>(code_of(codes, i), scale, A);
    }
    if constexpr (INVERSE) fp4ref::inverse_hadamard<S::signs>(*(float(*)[16][1])y);
    __align__(16) word values[EACH];
    UNROLL
    for (int i = 0; i < EACH; ++i) values[i] = Out::round(y[i]);
    store(out + line * length + first, values, length - first, aligned(out, length * sizeof(word), 16));
}
