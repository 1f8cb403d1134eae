// The scale of values that share one, from their largest magnitude, which is not NaN. Rules: TEL-21.
#pragma once
#include "common.cuh"

// floor: the least amax. most: the largest number of the values' type.
template <bool PowerOfTwo> DEVICE float tensor_scale_of(float amax, float floor, float most)
{
    const float a = amax < floor ? floor : amax, quotient = S::element_max / a;
    float scale = fp4ref::is_finite(quotient) ? quotient : most;
    if (a == 0.0f || !fp4ref::is_finite(a)) scale = 1.0f;
    return PowerOfTwo ? fp4ref::float_of(fp4ref::bits_of(scale) & 0x7f800000u) : scale;
}
