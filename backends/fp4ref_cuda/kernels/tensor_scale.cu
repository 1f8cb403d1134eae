// The scale of a tensor of 8-bit floats, from its largest magnitude; one thread.
//
//   amax  float32  [1], not NaN
//   scale_out, inverse_out  float32  [1]: the scale, and 1 over it
//
// `least` holds the bits of the least amax, `largest` those of the largest number of x's type. S, whose element counts
// alone, and POWER_OF_TWO come before this file. Rules: TEL-21.
#include "common.cuh"

extern "C" __global__ void tensor_scale(
    const float* amax, index_t least, index_t largest, float* scale_out, float* inverse_out)
{
    wait_for_previous_kernel();
    const float floor = fp4ref::float_of((unsigned)least), found = *amax, a = found < floor ? floor : found;
    const float quotient = S::element_max / a;
    float scale = fp4ref::is_finite(quotient) ? quotient : fp4ref::float_of((unsigned)largest);
    if (a == 0.0f || !fp4ref::is_finite(a)) scale = 1.0f;
    if (POWER_OF_TWO) scale = fp4ref::float_of(fp4ref::bits_of(scale) & 0x7f800000u);
    *scale_out = scale;
    *inverse_out = 1.0f / scale;
}
