// Histories of maxima, moved on by one step, and the scales that they give; a block of threads for each operand.
//
//   history  float32  [length, operands]: row 0 the maximum of this step, row 1 the oldest one
//   current  float32  [operands]: the maxima of this step, 0 where row 0 counts; may be row 0
//   scale    float32  [operands]
//
// `numerator` holds the bits of what is divided by the amax. LATEST, where the new maximum alone gives the amax, comes
// before this file. Rules: TEL-45, TEL-46, TEL-65, TEL-67, TEL-93.
#include "common.cuh"

constexpr unsigned INFINITE = 0x7f800000u, MOST = INFINITE - 1;

// The bits of a positive number, which are in its order; 0 for all else: no other number gives a scale.
DEVICE unsigned positive(float value) { return value > 0.0f ? fp4ref::bits_of(value) : 0; }

extern "C" __global__ void histories(
    float* history, const float* current, float* scale, index_t length, index_t operands, index_t numerator)
{
    wait_for_previous_kernel();
    const index_t operand = blockIdx.x;
    const float newest = current[operand] != 0.0f ? current[operand] : history[operand];
    if (newest == 0.0f) return;
    unsigned largest = positive(newest);
    for (index_t first = 0; first < length; first += THREADS) {
        const index_t row = first + threadIdx.x;
        const float next = row + 1 < length ? history[(row + 1) * operands + operand] : newest;
        __syncthreads();  // all is read that is written now
        if (row < length) history[row * operands + operand] = row ? next : 0.0f;
        if (!LATEST) largest = fp4ref::larger(largest, positive(next));
    }
    largest = block_max(largest);
    if (threadIdx.x || largest == 0 || largest >= INFINITE) return;
    const float wanted = fp4ref::float_of((unsigned)numerator) / fp4ref::float_of(largest);
    scale[operand] = fp4ref::bits_of(wanted) >= INFINITE ? fp4ref::float_of(MOST) : wanted;
}
