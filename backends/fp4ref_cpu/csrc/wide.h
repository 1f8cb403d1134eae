// Operands of a GEMM and their rows, read element by element.
#pragma once
#include "matrix.h"
#include <fp4ref/products.h>

namespace fp4ref_cpu {

using namespace fp4ref::products;

struct Side {
    const byte* data;   // [rows, ceil(K * bits / 8)]
    byte* scales;       // the whole buffer of the layout, only read
    const float* amax;  // [1], [rows], or null
    size rows;
    Map map;
};

enum class ResultType : int { float32, bfloat16, float16 };

struct GemmJob {
    Side a, b;
    size columns;  // K
    float alpha, factor;
    int division;
    ResultType type;
    const float* bias;       // [N] or null
    const void* accumulate;  // [M, N] of that type, or null
    const float* sums;       // [M, N], of `finish` only
    void* out;               // [M, N]
    size next;
};

// One row of an operand.
template <class S> struct Row {
    static constexpr int BITS = S::Element::Format::bits, W = S::columns;
    const byte* const data;
    const ScaleRow scales;

    Row(const Side& side, size row, size columns)
        : data(side.data + row * ((columns * BITS + 7) / 8)),
          scales(ScaleRow::of(side.scales, side.map, row))
    {
    }
    float element(size k) const { return element_of<S>(data, k); }
    unsigned scale_byte(size block) const { return scales.at(block); }
    float scale(size block) const { return S::Scale::decode(scale_byte(block)); }
    bool is_finite_at(size k) const { return is_finite(element(k)) && is_finite(scale(k / W)); }

    // -1, 0 or 1, infinite or NaN, as the value is.
    float sign(size k) const { return sign_of(element(k)) * sign_of(scale(k / W)); }
};

}  // namespace fp4ref_cpu
