// E2M1 codes of bfloat16 inputs without a multiplication or a conversion, two inputs a word.
//
// Under one encode scale, an input's code depends on its bit pattern only: code k is reached from a smallest pattern T_k
// on. Doubling an input adds 128 to its pattern, and codes 5, 6 and 7 are reached at twice the inputs of 3, 4 and at four
// times that of 3: T5 = T3 + 128, T6 = T4 + 128, T7 = T3 + 256. So three clamped differences hold all seven thresholds:
// {T4, T6}, {T3, T5, T7}, {T1, T2}. Each is a small integer, which as a pattern of float16 is a subnormal number; one
// float16 fused multiply-add onto 2^-13, whose last place counts codes, divides it, rounds it and adds it up.
//
// An entry's `ramp` also holds the largest pattern that its thresholds are for, in the upper half. It is 0 where they do
// not fit that form (near subnormals or overflow). Blocks with a larger one, or a NaN, take the plain path.
// Certificates: thresholds, thresholds-all.
#pragma once
#include <fp4ref/block.h>

namespace fp4ref {
namespace thresholds {

struct alignas(16) Entry {
    unsigned fours, threes, ones, ramp;
};

// 16-bit lanes: clamp(a + b, 0, top) of signed integers.
FP4_API unsigned clamped_sums(unsigned a, unsigned b, unsigned top)
{
#if defined(__CUDACC__)
    return __viaddmin_s16x2_relu(a, b, top);
#else
    unsigned result = 0;
    for (int h = 0; h < 32; h += 16) {
        const int sum = (short)((a >> h) + (b >> h)), held = sum > (short)(top >> h) ? (short)(top >> h) : sum;
        result |= (unsigned)(held < 0 ? 0 : held) << h;
    }
    return result;
#endif
}

// float16 lanes: a * b + c rounded once. On the host for the operands of `codes` only: a float holds these sums.
FP4_API unsigned halves_fma(unsigned a, unsigned b, unsigned c)
{
#if defined(__CUDACC__)
    unsigned d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    unsigned result = 0;
    for (int h = 0; h < 32; h += 16) {
        const auto of = [h](unsigned w) { return float16::widen((unsigned short)(w >> h)); };
        result |= (unsigned)float16::round(of(a) * of(b) + of(c)) << h;
    }
    return result;
#endif
}

constexpr unsigned BOTH = 0x00010001u;                // a number in both lanes
constexpr unsigned COVERED = 0x7c00u;                 // a float16's infinity, and 2^121 as a bfloat16
constexpr unsigned BASE = 0x0800u * BOTH;             // 2^-13: the pattern counts up by 1 for every 2^-23
constexpr unsigned STEP_OF_128 = 0x2401u * BOTH;      // 2^-6 (1 + 2^-10): 128 places of 2^-24 are one of 2^-23, off ties

// The lower lane in both.
FP4_API unsigned both_lanes(unsigned a)
{
#if defined(__CUDACC__)
    unsigned d;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }" : "=r"(d) : "r"(a));
    return d;  // part of the instruction that uses it
#else
    return (a & 0xffffu) * BOTH;
#endif
}

// Codes of two magnitudes, each lane 0x0800 + code. Certificates: thresholds, thresholds-all.
FP4_API unsigned codes(unsigned magnitudes, const Entry& t)
{
    const unsigned fours = clamped_sums(magnitudes, t.fours, 0x13fu * BOTH);
    const unsigned threes = clamped_sums(magnitudes, t.threes, 0x17fu * BOTH);
    const unsigned ones = clamped_sums(magnitudes, t.ones, 0x17fu * BOTH);
    return halves_fma(ones, both_lanes(t.ramp), halves_fma(threes, STEP_OF_128, halves_fma(fours, STEP_OF_128, BASE)));
}

// The difference from T1 - ceil(d / 2) times this rounds to 0, 1 and 2 with steps at T1 and at T2 = T1 + d.
FP4_API unsigned ramp(unsigned d)
{
    const unsigned middle = (d + 1) / 2;
    return float16::round(3.0f / ((float)(middle + d) - 0.5f));
}

// Whether the input with this pattern gets at least code k, 1 to 4: midpoints go to the even code. Rules: E2M1-3.
template <class S> FP4_API bool reaches(unsigned k, unsigned pattern, const Scale& scale, float g)
{
    const float y = scaled<S, bfloat16>(bfloat16::widen((bfloat16::word)pattern), scale, g);
    const float middle = (float)(2 * k - 1) * 0.25f;
    return k % 2 ? y > middle : y >= middle;
}

// The smallest pattern that reaches code k, given one at most 2 away from it; 0 if it is elsewhere. Without a branch:
// what is compared does not wait for what was.
template <class S> FP4_API unsigned threshold(unsigned k, float guess, const Scale& scale, float g)
{
    const unsigned near = bits_of(guess) >> 16;
    const bool inside = unsigned(near > 0x100u) & unsigned(near < 0x7d00u);
    const unsigned p = inside ? near : 0x3f80u;
    const auto reached = [&](unsigned pattern) { return (unsigned)reaches<S>(k, pattern, scale, g); };
    const unsigned below = reached(p - 2), above = reached(p + 2);
    const unsigned found = p + 2 - reached(p + 1) - reached(p) - reached(p - 1);
    return (inside & (above > below)) ? found : 0;
}

// The entry of four thresholds, 0 for one that is none; `up` is added to every pattern that it will be compared with.
FP4_API Entry entry_of(unsigned t1, unsigned t2, unsigned t3, unsigned t4, unsigned up)
{
    const unsigned d = t2 - t1;
    if (!t1 || !t2 || !t3 || !t4 || t4 - t3 >= 128u || d < 154u || d > 249u) return {0, 0, 0, 0};
    const unsigned fours = 0x10040u - t4 - up, threes = 0x10040u - t3 - up, ones = 0x10000u + (d + 1) / 2 - t1 - up;
    return {(fours & 0xffffu) * BOTH, (threes & 0xffffu) * BOTH, (ones & 0xffffu) * BOTH, COVERED << 16 | ramp(d)};
}

// Thresholds of a scale byte: of codes 1 and 2, or 3 and 4. Where it is 0 or no number there are none, and its divisions,
// which take long, are not made.
struct Two {
    unsigned odd, even;
};
template <class S> FP4_API Two two_thresholds(bool upper, unsigned byte, float g)
{
    const float meant = S::Scale::decode(byte), s = meant > 0.0f ? meant : 1.0f;
    const Scale scale = {byte, s, S::Arithmetic::template factor<S, bfloat16>(s, g)};
    const float unit = 1.0f / scaled<S, bfloat16>(1.0f, scale, g);
    const unsigned k = upper ? 3 : 1;
    const unsigned odd = threshold<S>(k, (upper ? 1.25f : 0.25f) * unit, scale, g);
    const unsigned even = threshold<S>(k + 1, (upper ? 1.75f : 0.75f) * unit, scale, g);
    return {meant > 0.0f ? odd : 0, meant > 0.0f ? even : 0};
}

// The entry of a scale byte.
template <class S> FP4_API Entry entry(unsigned byte, float g, unsigned up = 0)
{
    const Two lower = two_thresholds<S>(false, byte, g), upper = two_thresholds<S>(true, byte, g);
    return entry_of(lower.odd, lower.even, upper.odd, upper.even, up);
}

// Whether the thresholds of an entry do not do for a block with this maximum, bits of a bfloat16 as a float.
FP4_API bool beyond(unsigned amax, const Entry& t) { return amax > t.ramp; }

// The bytes of two blocks' scales; neither maximum is NaN. Rules: BLK-3.
template <class S> FP4_API unsigned scale_bytes(float low, float high, float g)
{
    const unsigned both = encode_pair<typename S::Scale>(block_scale<S, bfloat16>(low, g), block_scale<S, bfloat16>(high, g));
    unsigned bytes = both & 0x7f7fu;
#if defined(__CUDACC__)
    asm("" : "+r"(bytes));  // else what each one selects is masked again
#endif
    return bytes;
}

// Whether a specification's codes have thresholds of that form.
template <class S> constexpr bool apply = same_type<typename S::Element, hardware_e2m1> && !S::Search::enabled;

#if defined(__CUDACC__)
FP4_API unsigned bytes_of(unsigned a, unsigned b, unsigned selector) { return __byte_perm(a, b, selector); }

// Bytes 1, 3 of a and b as masks of their top bits, in the order a1, b1, a3, b3.
FP4_API unsigned sign_masks(unsigned a, unsigned b)
{
    unsigned d;
    asm("prmt.b32 %0, %1, %2, 0xfbd9;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// (a & mask) | (b & ~mask), as one instruction.
FP4_API unsigned choose_bits(unsigned a, unsigned b, unsigned mask)
{
    unsigned d;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
    return d;
}

// Eight codes without signs, and the signs of the elements. Rules: PACK-1, E2M1-2.
FP4_API unsigned with_signs(unsigned codes, const unsigned (&pairs)[4])
{
    const unsigned signs = choose_bits(sign_masks(pairs[1], pairs[3]), sign_masks(pairs[0], pairs[2]), 0x80808080u);
    return choose_bits(codes, signs, 0x77777777u);
}

// Eight elements: word k of `pairs` holds elements k and k + 4. Result: their packed codes. Rules: PACK-1, E2M1-2.
FP4_API unsigned packed_codes(const unsigned (&pairs)[4], const unsigned (&magnitudes)[4], const Entry& t)
{
    unsigned sum = codes(magnitudes[3], t);
    FP4_UNROLL
    for (int k = 2; k >= 0; --k) sum = sum * 16u + codes(magnitudes[k], t);  // the bases fall on sign positions
    return with_signs(sum, pairs);
}

// The largest of eight words of magnitudes, each lane for itself; a pattern above COVERED if a NaN is among them.
FP4_API unsigned largest_lanes(const unsigned (&m)[8])
{
    return __vmaxu2(__vimax3_u16x2(m[3], m[4], m[5]), __vimax3_u16x2(__vimax3_u16x2(m[0], m[1], m[2]), m[6], m[7]));
}
FP4_API unsigned largest(const unsigned (&m)[8])
{
    const unsigned two = largest_lanes(m);
    return larger(two & 0xffffu, two >> 16);
}

// Magnitudes of two bfloat16 by a float16 addition of -0, which leaves their patterns as they are up to COVERED and
// makes a larger one of what lies beyond. The adders have time where the logic units have none. `minus_zero` is
// MINUS_ZERO in a register that the compiler cannot see through, else it takes the logic unit all the same.
constexpr unsigned MINUS_ZERO = 0x8000u * BOTH;
FP4_API unsigned magnitudes_of(unsigned pair, unsigned minus_zero)
{
    unsigned magnitudes;
    asm("{ .reg .b32 m; abs.f16x2 m, %1; add.rn.f16x2 %0, m, %2; }" : "=r"(magnitudes) : "r"(pair), "r"(minus_zero));
    return magnitudes;
}

// Two floats rounded to bfloat16, `low` in the lower half; a NaN has another pattern than `bfloat16::round` gives it.
FP4_API unsigned bfloat16_pair(float low, float high)
{
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// A running maximum of magnitudes, both lanes; a NaN is ignored, or wins. The signs of the result mean nothing.
template <bool KeepNaN = false> FP4_API unsigned running_amax_pair(unsigned amax, unsigned pair)
{
    if constexpr (KeepNaN) return __vmaxu2(amax & 0x7fff7fffu, pair & 0x7fff7fffu);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
    unsigned larger_one;
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger_one) : "r"(amax), "r"(pair));
    return larger_one;
#else
    const unsigned magnitudes = pair & 0x7fff7fffu;
    return __vmaxu2(amax & 0x7fff7fffu, magnitudes & ~__vcmpgtu2(magnitudes, 0x7f807f80u));
#endif
}
#endif

}  // namespace thresholds
}  // namespace fp4ref
