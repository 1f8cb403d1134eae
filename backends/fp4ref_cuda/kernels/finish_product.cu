// Finish a product: multiplied by a factor, then a bias is added, then rounded once to the type of the result.
//
//   product   float32  [rows, columns]
//   first ... fourth   float32  FACTORS numbers, multiplied from the left into the factor: number i is read from its
//                      address if bit i of READ is set, else its bits are the argument
//   bias      In       [columns], if HAS_BIAS
//   out       Out      [rows, columns], of 16 bits
//
// In, Out, FACTORS, READ, HAS_BIAS and VECTORS (columns are a multiple of 8, and every row begins at a multiple of 16
// bytes) come before this file. A thread takes 8 neighbours of a row; `strips` blocks of threads lie side by side.
// Certificates: product-finished-*.
#include "factors.cuh"

constexpr int EACH = 8;

DEVICE float finished(float sum, float factor, float bias)
{
    const float scaled = FACTORS ? sum * factor : sum;
    return HAS_BIAS ? scaled + bias : scaled;
}

extern "C" __global__ void __launch_bounds__(THREADS) finish_product(const float* __restrict__ product, index_t columns,
    index_t strips, index_t first, index_t second, index_t third, index_t fourth, const In::word* __restrict__ bias,
    Out::word* __restrict__ out)
{
    const unsigned line = blockIdx.x / (unsigned)strips;
    const index_t column = ((index_t)(blockIdx.x - line * (unsigned)strips) * THREADS + threadIdx.x) * EACH;
    wait_for_previous_kernel();
    if (column >= columns) return;
    const index_t start = line * columns + column;
    const float f = product_of_factors({first, second, third, fourth});
    const auto of_bias = [&](int i) { return HAS_BIAS ? In::widen(bias[column + i]) : 0.0f; };
    if constexpr (VECTORS) {
        const float4 a = *(const float4*)(product + start), b = *(const float4*)(product + start + 4);
        const float sums[EACH] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        unsigned words[EACH / 2];
        UNROLL
        for (int i = 0; i < EACH; i += 2)
            words[i / 2] = Out::round(finished(sums[i], f, of_bias(i))) | (unsigned)Out::round(finished(sums[i + 1], f, of_bias(i + 1))) << 16;
        *(uint4*)(out + start) = {words[0], words[1], words[2], words[3]};
    } else {
        for (int i = 0; i < EACH && column + i < columns; ++i)
            out[start + i] = Out::round(finished(product[start + i], f, of_bias(i)));
    }
}
