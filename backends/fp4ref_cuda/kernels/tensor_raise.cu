// What a tensor with a given scale leaves beside its codes; one thread.
//
//   found    float32  [1]: its largest magnitude, not NaN
//   scale    float32  [1]
//   amax     float32  [1], raised to `found`; a NaN stays
//   noop     one word or null: unless all its bits are zero, the amax stays as it is (LAY-12)
//   inverse  float32  [1]: 1 over the scale
//
// Rules: TEL-44.
#include "common.cuh"

extern "C" __global__ void tensor_raise(
    const float* found, const float* scale, float* amax, const unsigned* noop, float* inverse)
{
    wait_for_previous_kernel();
    *inverse = 1.0f / *scale;
    const bool larger = (int)fp4ref::bits_of(*found) > (int)fp4ref::bits_of(*amax);  // subnormal numbers, too
    if (!(noop && *noop) && larger && !fp4ref::is_nan(*amax)) *amax = *found;
}
