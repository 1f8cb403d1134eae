// The factor of a product, from FACTORS numbers: number i is read from its address if bit i of READ is set, else its bits
// are the argument. Rules: GEM-5, TEL-12.
#pragma once
#include "common.cuh"

struct Factors { index_t argument[4]; };

// The numbers multiplied from the left; 1 without any.
DEVICE float product_of_factors(const Factors& of)
{
    float product = 1.0f;
    UNROLL
    for (int i = 0; i < FACTORS; ++i) {
        const float number = READ >> i & 1 ? *(const float*)of.argument[i] : fp4ref::float_of((unsigned)of.argument[i]);
        product = i ? product * number : number;
    }
    return product;
}
