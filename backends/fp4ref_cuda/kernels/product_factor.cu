// The factor of a product: numbers multiplied from the left; one thread.
//
//   first ... fourth   float32  FACTORS numbers: number i is read from its address if bit i of READ is set, else its
//                      bits are the argument
//   out                float32  [2]: the factor, and 0
//
// FACTORS and READ come before this file. Rules: GEM-5, TEL-12. Certificates: product-factor.
#include "factors.cuh"

extern "C" __global__ void product_factor(
    index_t first, index_t second, index_t third, index_t fourth, float* __restrict__ out)
{
    wait_for_previous_kernel();
    out[0] = product_of_factors({first, second, third, fourth});
    out[1] = 0.0f;
}
