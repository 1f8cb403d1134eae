// What codes of 8-bit floats mean under a float32 scale of every 128 neighbours, or of every square of 128x128: their
// product as a float, rounded once.
//
//   codes   uint8    [rows, columns]
//   scales  float32  [columns / 128, pitch] with one of each row, or [rows / 128, pitch] of squares
//   out     Out      [rows, columns]
//
// S, whose element counts alone, Out, SQUARES, SCALED, which is true, and VECTORS (codes and values begin at multiples of 16
// bytes, and rows are whole vectors of 8 codes) come before this file. A thread takes 8 neighbours of a row. Rules: TEL-8, TEL-49.
#include "byte_values.cuh"

constexpr int SIDE = 128;

extern "C" __global__ void __launch_bounds__(THREADS) block_values(
    const byte* __restrict__ codes, const float* __restrict__ scales, index_t rows, index_t columns, index_t pitch,
    word* __restrict__ out)
{
    const index_t across = (columns + EACH - 1) / EACH, unit = (index_t)blockIdx.x * THREADS + threadIdx.x;
    wait_for_previous_kernel();
    const bool small = unit < 1ll << 32 && across < 1ll << 32;  // a division of 32 bits is several times faster
    const index_t row = small ? (unsigned)unit / (unsigned)across : unit / across, column = (unit - row * across) * EACH;
    if (row >= rows) return;
    const index_t beside = column / SIDE;
    const float scale = __ldg(scales + (SQUARES ? row / SIDE * pitch + beside : beside * pitch + row));
    const index_t start = row * columns + column;
    if (VECTORS) {
        store_values(out + start, __ldg((const uint2*)(codes + start)), scale);
    } else {
        for (int i = 0; i < EACH && column + i < columns; ++i) out[start + i] = plain(codes[start + i], scale);
    }
}
