// The 16-point Hadamard transform with signs, of Lanes groups side by side.
#pragma once
#include <fp4ref/bits.h>

namespace fp4ref {

// Sums and differences at strides 1, 2, 4, 8. Rules: HAD-2, HAD-3.
template <int Lanes> FP4_API void butterfly(float (&y)[16][Lanes])
{
    FP4_UNROLL
    for (int stride = 1; stride < 16; stride *= 2)
        FP4_UNROLL
        for (int i = 0; i < 16; ++i)
            if (!(i & stride))
                FP4_UNROLL
                for (int l = 0; l < Lanes; ++l) {
                    const float low = y[i][l], high = y[i + stride][l];
                    y[i][l] = low + high;
                    y[i + stride][l] = low - high;
                }
    FP4_UNROLL
    for (int i = 0; i < 16; ++i)
        FP4_UNROLL
        for (int l = 0; l < Lanes; ++l) y[i][l] = y[i][l] + 0.0f;
}

// 16 bfloat16 values in place: signs and 1/4, butterfly, bfloat16. Bit i of Signs negates element i.
// Rules: HAD-1, HAD-2, HAD-3. Certificates: hadamard-signs, hadamard-order, hadamard-zeros, hadamard-masks.
template <unsigned Signs, int Lanes> FP4_API void hadamard(float (&y)[16][Lanes])
{
    FP4_UNROLL
    for (int i = 0; i < 16; ++i)
        FP4_UNROLL
        for (int l = 0; l < Lanes; ++l) y[i][l] = y[i][l] * (Signs >> i & 1u ? -0.25f : 0.25f);
    butterfly(y);
    FP4_UNROLL
    for (int i = 0; i < 16; ++i)
        FP4_UNROLL
        for (int l = 0; l < Lanes; ++l) y[i][l] = bfloat16::narrow(y[i][l]);
}

// The same before rounding and 4 times as large: equal to it as long as nothing overflows, because both are then the same
// sums of the same integers at another exponent. No result is -0, though sums on the way can be: element 0 is not -0, and
// a sum or difference is -0 only if its lower operand is. So after the stage of stride h, the first 2h elements are not -0.
// Rules: HAD-2.
template <unsigned Signs> FP4_API void unscaled_hadamard(float (&y)[16])
{
    FP4_UNROLL
    for (int i = 0; i < 16; ++i) y[i] = Signs >> i & 1u ? -y[i] : y[i];
    y[0] = y[0] + 0.0f;
    FP4_UNROLL
    for (int stride = 1; stride < 16; stride *= 2)
        FP4_UNROLL
        for (int i = 0; i < 16; ++i)
            if (!(i & stride)) {
                const float low = y[i], high = y[i + stride];
                y[i] = low + high;
                y[i + stride] = low - high;
            }
}

// The largest magnitude of 16 transformed values before they are rounded to bfloat16, or `amax`; NaN is ignored.
// The last stage needs no differences: the larger of |a + b| and |a - b| is |a| + |b|. Rules: HAD-4, BLK-2.
// Certificates: hadamard-amax.
template <unsigned Signs> FP4_API float hadamard_amax(float amax, float (&y)[16])
{
    FP4_UNROLL
    for (int i = 0; i < 16; ++i) y[i] = y[i] * (Signs >> i & 1u ? -0.25f : 0.25f);
    FP4_UNROLL
    for (int stride = 1; stride < 8; stride *= 2)
        FP4_UNROLL
        for (int i = 0; i < 16; ++i)
            if (!(i & stride)) {
                const float low = y[i], high = y[i + stride];
                y[i] = low + high;
                y[i + stride] = low - high;
            }
    FP4_UNROLL
    for (int i = 0; i < 8; ++i) {
        amax = running_max(amax, magnitude(y[i]) + magnitude(y[i + 8]));
    }
    return amax;
}

// Rules: HAD-6. Certificates: hadamard-inverse, hadamard-zeros-inverse, hadamard-masks-inverse.
template <unsigned Signs, int Lanes> FP4_API void inverse_hadamard(float (&y)[16][Lanes])
{
    FP4_UNROLL
    for (int i = 0; i < 16; ++i)
        FP4_UNROLL
        for (int l = 0; l < Lanes; ++l) y[i][l] = y[i][l] * 0.25f;
    butterfly(y);
    FP4_UNROLL
    for (int i = 0; i < 16; ++i)
        FP4_UNROLL
        for (int l = 0; l < Lanes; ++l) y[i][l] = y[i][l] * (Signs >> i & 1u ? -1.0f : 1.0f);
}

}  // namespace fp4ref
