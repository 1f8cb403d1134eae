// The scale of a tensor of 8-bit floats, from its largest magnitude; one thread.
//
//   amax  float32  [1], not NaN
//   scale_out, inverse_out  float32  [1]: the scale, and 1 over it
//
// `least` holds the bits of the least amax, `largest` those of the largest number of x's type. S, whose element counts
// alone, and POWER_OF_TWO come before this file. Rules: TEL-21.
#include "tensor_scale.cuh"

extern "C" __global__ void tensor_scale(
    const float* amax, index_t least, index_t largest, float* scale_out, float* inverse_out)
{
    wait_for_previous_kernel();
    const float floor = fp4ref::float_of((unsigned)least), most = fp4ref::float_of((unsigned)largest);
    const float scale = tensor_scale_of<POWER_OF_TWO>(*amax, floor, most);
    *scale_out = scale;
    *inverse_out = 1.0f / scale;
}
