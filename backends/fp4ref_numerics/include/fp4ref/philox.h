// Random bytes for stochastic rounding: a counter-based generator, and the standard's map from blocks to counters.
#pragma once
#include <fp4ref/config.h>

namespace fp4ref {

using u64 = unsigned long long;

// The rounds on words that lie in the low halves of 64-bit lanes, whose high halves mean nothing; a lane is a u64 or a
// vector of them, and product(x, m) multiplies low halves. Rules: SR-6. Certificates: philox-bijection.
template <int Rounds = 10, class Lane, class Product>
FP4_API void philox4x32(Lane (&c)[4], unsigned k0, unsigned k1, Product product)
{
    FP4_UNROLL
    for (int round = 0; round < Rounds; ++round) {
        const Lane a = product(c[0], 0xd2511f53u), b = product(c[2], 0xcd9e8d57u);
        c[0] = (b >> 32) ^ c[1] ^ (u64)k0;
        c[1] = b;
        c[2] = (a >> 32) ^ c[3] ^ (u64)k1;
        c[3] = a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

// 16 random bytes as words; byte i, the low one of a word first, is that of element i.
struct RandomBlock {
    unsigned word[4];
};

// Those of the block with an index in its direction of the whole tensor. `upper` is 2 * stream, and 1 more for columns.
// Rules: SR-7. Certificates: random-block.
FP4_API RandomBlock random_block(u64 index, u64 seed, u64 upper)
{
    u64 c[4] = {index, index >> 32, upper, upper >> 32};
    philox4x32(c, (unsigned)seed, (unsigned)(seed >> 32), [](u64 x, unsigned m) { return (u64)(unsigned)x * m; });
    return {{(unsigned)c[0], (unsigned)c[1], (unsigned)c[2], (unsigned)c[3]}};
}

}  // namespace fp4ref
