// Sums of a product to its result, by the steps after them.
//
//   sums    float32  [M, N]
//   amax_*, alpha, factor, division, bias, added, out  as in gemm.cu
//
// A, B, In (of the bias) and Out come before this file. A thread makes one result. Rules: GEM-5, GEM-6, GEM-7, GEM-8.
#include "common.cuh"
#include <fp4ref/products.h>

extern "C" __global__ void __launch_bounds__(THREADS) gemm_finish(
    const float* __restrict__ sums, const float* __restrict__ amax_a, const float* __restrict__ amax_b, index_t columns,
    index_t count, index_t alpha, index_t factor, index_t division, const In::word* __restrict__ bias,
    const Out::word* __restrict__ added, Out::word* __restrict__ out)
{
    using Steps = fp4ref::products::Finishing<A, B>;
    wait_for_previous_kernel();
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const float total = Steps::total_alpha(fp4ref::float_of((unsigned)alpha), fp4ref::float_of((unsigned)factor), division,
        amax_a, amax_b);
    const float down = Steps::by_row ? amax_a[Steps::rows_a ? i / columns : 0] : 1.0f;
    const float across = Steps::by_row ? amax_b[Steps::rows_b ? i % columns : 0] : 1.0f;
    out[i] = Steps::template result<Out>(sums[i], total, down, across, bias, bias ? In::widen(bias[i % columns]) : 0.0f,
        added, added ? added[i] : 0);
}
