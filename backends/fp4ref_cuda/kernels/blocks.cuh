// Blocks of bfloat16 to E2M1 codes: by thresholds, two side by side for the sake of latency, or by the plain path. A lane
// holds 16 elements twice: blocks, or parts of blocks whose other parts other lanes hold.
#pragma once
#include "copies.cuh"

constexpr bool HALVES = S::columns == 32, SQUARE = S::rows == 16;
static_assert((HALVES || S::columns == 16) && (SQUARE ? !HALVES : S::rows == 1), "one or two lanes, or a square");

// What shares a block: bits of the numbers of the lanes that hold parts of it, and whether a lane's two are of one.
struct Sharing {
    unsigned lanes;
    bool both;
};
constexpr Sharing ALONE = {HALVES, false};  // rows, where a block has one

// All lanes that share with lane 0.
constexpr unsigned sharing(unsigned lanes)
{
    unsigned mask = 0;
    for (unsigned lane = 0; lane < 32; ++lane) mask |= (unsigned)((lane & ~lanes) == 0) << lane;
    return mask;
}

// The largest of a block, from that of a lane's elements; all lanes that share it are here.
template <unsigned Lanes, class Larger> DEVICE unsigned of_block(unsigned amax, const Larger& larger)
{
    UNROLL
    for (unsigned lanes = 1; lanes < 32; lanes *= 2)
        if (Lanes & lanes) amax = larger(amax, __shfl_xor_sync(sharing(Lanes) << (threadIdx.x % 32 & ~Lanes), amax, lanes));
    return amax;
}

// The bytes of two blocks' scales, the second one above the first. Rules: BLK-3, MXS-1.
template <class T> DEVICE unsigned scale_bytes(float low, float high, float g)
{
    if constexpr (fp4ref::same_type<typename T::Scale, fp4ref::hardware_e4m3>) return thresholds::scale_bytes<T>(low, high, g);
    else return T::Scale::encode(fp4ref::block_scale<T, In>(low, g)) | T::Scale::encode(fp4ref::block_scale<T, In>(high, g)) << 8;
}

// 16 codes of words that hold elements (k, k + 4) of the lower and the upper eight.
DEVICE uint2 packed_block(const unsigned (&pairs)[8], const unsigned (&magnitudes)[8], const thresholds::Entry& entry)
{
    const auto half = [](const unsigned (&w)[8], int i) -> const unsigned (&)[4] { return *(const unsigned(*)[4])(w + i); };
    return {thresholds::packed_codes(half(pairs, 0), half(magnitudes, 0), entry),
        thresholds::packed_codes(half(pairs, 4), half(magnitudes, 4), entry)};
}

// Two blocks side by side: words of their elements, as `packed_block` wants them, magnitudes and maxima.
struct Blocks {
    unsigned pairs[2][8], magnitudes[2][8], amax[2];  // maxima as patterns of floats

    template <unsigned Lanes, bool Both> __device__ __forceinline__ void measure(unsigned minus_zero)
    {
        UNROLL
        for (int i = 0; i < 2; ++i) {
            UNROLL
            for (int k = 0; k < 8; ++k) magnitudes[i][k] = thresholds::magnitudes_of(pairs[i][k], minus_zero);
        }
        const unsigned first = thresholds::largest_lanes(magnitudes[0]), second = thresholds::largest_lanes(magnitudes[1]);
        const unsigned mine = __vmaxu2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
        const unsigned both = of_block<Lanes>(Both ? __vmaxu2(mine, __byte_perm(mine, mine, 0x1032)) : mine,
            [](unsigned a, unsigned b) { return __vmaxu2(a, b); });
        amax[0] = both << 16, amax[1] = both & 0xffff0000u;
    }
};

// Those of rows, two vectors each.
template <unsigned Lanes = ALONE.lanes, bool Both = ALONE.both> DEVICE Blocks blocks_of_rows(const uint4 (&v)[2][2], unsigned minus_zero)
{
    Blocks blocks;
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const uint4 a = v[i][0], b = v[i][1];
        const unsigned words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        UNROLL
        for (int k = 0; k < 8; ++k) {
            const int w = k / 4 * 4 + k % 4 / 2;
            blocks.pairs[i][k] = __byte_perm(words[w], words[w + 2], k % 2 ? 0x7632 : 0x5410);
        }
    }
    blocks.measure<Lanes, Both>(minus_zero);
    return blocks;
}

// Their codes; `bytes` gets their scales, the second one above the first, and `size` is what a unit of the elements
// stands for. Result: whether they need the plain path.
DEVICE bool two_blocks(const Blocks& blocks, float g, float size, const thresholds::Entry* table, uint2 (&codes)[2],
    unsigned& bytes)
{
    bool plain = false;
    const auto amax = [&](int i) { return fp4ref::float_of(blocks.amax[i]) * size; };
    bytes = scale_bytes<S>(amax(0), amax(1), g);
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const thresholds::Entry entry = table[i ? bytes >> 8 : bytes & 255u];
        codes[i] = packed_block(blocks.pairs[i], blocks.magnitudes[i], entry);
        plain |= thresholds::beyond(blocks.amax[i], entry);
    }
    return plain;
}

// The same by random bytes, a vector for a block; the table holds factors, which include the size.
DEVICE bool two_blocks(const Blocks& blocks, const uint4 (&random)[2], float g, float size, const float* table,
    uint2 (&codes)[2], unsigned& bytes)
{
    bool plain = false;
    const auto amax = [&](int i) { return fp4ref::float_of(blocks.amax[i]); };
    const auto half = [](const unsigned (&w)[8], int i) -> const unsigned (&)[4] { return *(const unsigned(*)[4])(w + i); };
    bytes = scale_bytes<S>(amax(0) * size, amax(1) * size, g);
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const float factor = table[i ? bytes >> 8 : bytes & 255u];
        codes[i] = {fp4ref::drawn::packed_codes(half(blocks.pairs[i], 0), random[i].x, random[i].y, factor),
            fp4ref::drawn::packed_codes(half(blocks.pairs[i], 4), random[i].z, random[i].w, factor)};
        plain |= (factor == 0.0f && blocks.amax[i]) || blocks.amax[i] > thresholds::COVERED << 16
            || !(amax(i) * factor < fp4ref::FLOAT_MAX);
    }
    return plain;
}

// The largest of 16 values, its bits.
DEVICE unsigned plain_amax(const float (&x)[16])
{
    unsigned amax = 0;
    UNROLL
    for (int i = 0; i < 16; ++i) amax = fp4ref::running_amax<S::block_keeps_nan>(amax, fp4ref::magnitude_bits(x[i]));
    return amax;
}
DEVICE unsigned plain_larger(unsigned a, unsigned b) { return fp4ref::running_amax<S::block_keeps_nan>(a, b); }

// Any 16 values of a block with this maximum; the lower and the upper eight codes.
DEVICE uint2 plain_block(const float (&x)[16], unsigned amax, float g, byte* scale_byte, const uint4& drawn = {0, 0, 0, 0})
{
    unsigned packed[2] = {0, 0};
    const float a = fp4ref::float_of(amax);
    const fp4ref::Scale scale = fp4ref::stored_scale<S, In>(fp4ref::block_scale<S, In>(a, g), g, a);
    *scale_byte = scale.byte;
    const unsigned random[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
    const auto bits = [&](int i) { return random[i / 4] >> 8 * (i % 4) & 255u; };
    UNROLL
    for (int i = 0; i < 16; i += 2)
        packed[i / 8] |= fp4ref::encode_pair<S::Element>(fp4ref::scaled<S, In>(x[i], scale, g),
            fp4ref::scaled<S, In>(x[i + 1], scale, g), bits(i), bits(i + 1)) << i % 8 * 4;
    return {packed[0], packed[1]};
}

// The values of a row's two vectors.
DEVICE void widen_row(const uint4 (&v)[2], float (&x)[16])
{
    UNROLL
    for (int i = 0; i < 16; ++i) {
        const unsigned words[4] = {v[i / 8].x, v[i / 8].y, v[i / 8].z, v[i / 8].w};
        x[i] = In::widen((In::word)(words[i % 8 / 2] >> 16 * (i % 2)));
    }
}

// The plain path of a lane's two: load(i, x) reads the values, write(i, ...) takes codes and the byte of the scale, and
// random(i) the random bytes.
template <unsigned Lanes, bool Both, class Load, class Random, class Write>
DEVICE void plain_blocks(const Load& load, const Random& random, float g, const Write& write)
{
    float x[16];
    unsigned both = 0;
    if (Both) {
        load(1, x);
        both = plain_amax(x);
    }
    _Pragma("unroll 1")
    for (int i = 0; i < 2; ++i) {
        load(i, x);
        if (!Both || !i) both = of_block<Lanes>(plain_larger(Both ? both : 0, plain_amax(x)), plain_larger);
        byte scale;
        const uint2 codes = plain_block(x, both, g, &scale, random(i));
        write(i, codes, scale);
    }
}
