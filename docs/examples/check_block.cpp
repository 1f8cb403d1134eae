// Check a kernel's output for one NVFP4 block against the standard: its scale byte and its sixteen codes.
//
//   fp4ref header --dir include
//   c++ -std=c++17 -ffp-contract=off -DFP4_CONTRACTION_IS_OFF -Iinclude check_block.cpp && ./a.out
#include <fp4ref/specs.h>

#include <cstdio>
#include <cstring>

using Spec = fp4ref::specs::nvfp4;
using Input = fp4ref::bfloat16;

struct Block {
    unsigned char scale, codes[8];
};

Block expected(const float (&x)[16], float tensor_amax)
{
    unsigned amax = 0;
    for (const float value : x) amax = fp4ref::running_amax<false>(amax, fp4ref::magnitude_bits(value));

    const float g = fp4ref::global_scale<Spec, Input>(tensor_amax);
    const auto element = [&](int, int column) { return x[column]; };
    const fp4ref::Scale scale = fp4ref::choose_scale<Spec, Input>(fp4ref::float_of(amax), g, tensor_amax, element);

    Block block{(unsigned char)scale.byte, {}};
    for (int i = 0; i < 16; ++i) block.codes[i / 2] |= fp4ref::encode<Spec, Input>(x[i], scale, g) << i % 2 * 4;
    return block;
}

int main()
{
    const float x[16] = {1, -6, 0.25f, 0, -0.0f, 0.75f, 2.5f, 5, 3.5f, -1, 1.5f, 2, 3, 4, -0.5f, 6};
    const Block kernel = {126, {0xf2, 0x00, 0x28, 0x64, 0xa6, 0x43, 0x65, 0x79}};  // as a device would return it

    const Block block = expected(x, 6.0f);
    const bool same = !std::memcmp(&block, &kernel, sizeof block);
    std::printf("scale %02x, codes", block.scale);
    for (const unsigned char pair : block.codes) std::printf(" %02x", pair);
    std::printf(": %s\n", same ? "as expected" : "DIFFERENT");
    return same ? 0 : 1;
}
