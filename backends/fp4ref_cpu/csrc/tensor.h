// A tensor of 8-bit floats under one scale: that scale, codes of x times it, and values of codes. S, whose element counts
// alone; T is the type of x, or that of the values.
#pragma once
#include "strips.h"

namespace fp4ref_cpu {

struct ScaleJob {
    const float* amax;  // [1], not NaN
    float* scale;       // [1]
    float* inverse;     // [1]
    float least, most;  // the least amax; the largest number of x's type
    size power_of_two;
};

struct CodesJob {
    const void* x;       // [count]
    const float* scale;  // [1]
    byte* out;           // [count]
    size count, next;
};

struct ValuesJob {
    const byte* codes;   // [count]
    const float* scale;  // [1]
    void* out;           // [count]
    size count, next;
};

template <class S, class T> struct Tensor {
    using word = typename T::word;
    static constexpr int WIDTH = 512, SPAN = 32 * WIDTH;  // elements at a time, and of a unit

    // The scale of what has an amax, a number or infinity. Rules: TEL-21, TEL-61, TEL-62, TEL-63.
    static float scale_of(float amax, float least, float most, bool power_of_two)
    {
        const float a = amax < least ? least : amax, quotient = S::element_max / a;
        float scale = is_finite(quotient) ? quotient : most;
        if (a == 0.0f || !is_finite(a)) scale = 1.0f;
        return power_of_two ? float_of(bits_of(scale) & 0x7f800000u) : scale;
    }

    // The scale, and 1 over it.
    static void scale(ScaleJob& job)
    {
        *job.scale = scale_of(*job.amax, job.least, job.most, job.power_of_two);
        *job.inverse = 1.0f / *job.scale;
    }

    static void some_codes(const word* __restrict x, float factor, byte* __restrict out)
    {
        alignas(64) unsigned codes[WIDTH];  // narrowed afterwards: before, a compiler narrows every term
        for (int i = 0; i < WIDTH; ++i) codes[i] = S::Element::encode(T::widen(x[i]) * factor);
        for (int i = 0; i < WIDTH; ++i) out[i] = (byte)codes[i];
    }
    static void some_values(const byte* __restrict codes, float factor, word* __restrict out)
    {
        alignas(64) unsigned wide[WIDTH];
        for (int i = 0; i < WIDTH; ++i) wide[i] = codes[i];
        for (int i = 0; i < WIDTH; ++i) out[i] = T::round(S::Element::decode(wide[i]) * factor);
    }

    // All of a job, WIDTH elements at a time.
    template <class Job, class From, class To> static void each(Job& job, const From* from, To* to, void (*some)(const From*, float, To*))
    {
        const float factor = *job.scale;
        in_strips<1, SPAN, WIDTH>(&job.next, 1, job.count, [&](size, size at, int width) { some_of<WIDTH>(from + at, factor, to + at, width, some); });
    }

    // Rules: TEL-21.
    static void codes(CodesJob& job) { each(job, (const word*)job.x, job.out, some_codes); }

    // Rules: DEQ-2, DEQ-3.
    static void values(ValuesJob& job) { each(job, job.codes, (word*)job.out, some_values); }
};

}  // namespace fp4ref_cpu
