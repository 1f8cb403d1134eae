// Values of codes of 8 bits whose blocks lie down the columns, where the codes lie row after row.
//
//   codes   uint8  [rows, columns]
//   scales  uint8  of the transpose, in the layout that `layout` numbers, or in Layout; if ACROSS, the transpose of
//                  linear scales, `pitch` bytes from one block's to the next one's; padding is never read
//   out     Out    [rows, columns]
//
// S, Out, ACROSS and VECTORS (codes, values and, if ACROSS, scales begin at multiples of 16 bytes, and rows of each are
// whole vectors of 8) come before this file. A thread takes 8 neighbours of a row. Rules: DEQ-2, DEQ-3, TEL-8.
#include "maps.cuh"

using word = Out::word;
constexpr int EACH = 8;
static_assert(S::Element::Format::bits == 8 && S::global == fp4ref::Global::none, "a byte for an element");

extern "C" __global__ void __launch_bounds__(THREADS) column_values(
    const byte* __restrict__ codes, const byte* __restrict__ scales, index_t rows, index_t columns, index_t layout,
    index_t pitch, word* __restrict__ out)
{
    const index_t across = (columns + EACH - 1) / EACH, unit = (index_t)blockIdx.x * THREADS + threadIdx.x;
    const bool small = unit < 1ll << 32 && across < 1ll << 32;  // a division of 32 bits is several times faster
    const index_t row = small ? (unsigned)unit / (unsigned)across : unit / across, column = (unit - row * across) * EACH;
    if (row >= rows) return;
    wait_for_previous_kernel();
    const index_t block = row / S::columns, blocks = (rows + S::columns - 1) / S::columns, start = row * columns + column;
    const int valid = columns - column < EACH ? (int)(columns - column) : EACH;
    union { byte each[EACH]; uint2 vector; } code, scale;
    code.vector = scale.vector = {0, 0};
    if (VECTORS) {
        code.vector = *(const uint2*)(codes + start);
    } else {
        UNROLL
        for (int i = 0; i < EACH; ++i)
            if (i < valid) code.each[i] = codes[start + i];
    }
    if constexpr (ACROSS) {
        const byte* from = scales + block * pitch + column;
        if (VECTORS) {
            scale.vector = *(const uint2*)from;
        } else {
            UNROLL
            for (int i = 0; i < EACH; ++i)
                if (i < valid) scale.each[i] = from[i];
        }
    } else {
        in_layout(layout, [&](auto order) {
            UNROLL
            for (int i = 0; i < EACH; ++i)
                if (i < valid) scale.each[i] = scales[order.offset(column + i, block, blocks, columns)];
            return 0;
        });
    }
    union { word words[EACH]; uint4 vectors[sizeof(word) / 2]; } made;
    UNROLL
    for (int i = 0; i < EACH; ++i) {
        const float by = fp4ref::decoded_scale<S, Out>(scale.each[i], 0.0f);
        made.words[i] = Out::round(fp4ref::dequantized<S, Out>(code.each[i], by, 0.0f));
    }
    if (VECTORS) {
        UNROLL
        for (int i = 0; i < (int)sizeof(word) / 2; ++i) ((uint4*)(out + start))[i] = made.vectors[i];
    } else {
        UNROLL
        for (int i = 0; i < EACH; ++i)
            if (i < valid) out[start + i] = made.words[i];
    }
}
