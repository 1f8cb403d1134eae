// rcp.approx.ftz.f32 of SM90: the instruction where FP4_NATIVE_RECIPROCAL says so, else the arithmetic that it does.
//
// The upper 7 bits of a mantissa choose a quadratic, the lower 16 are its argument x. Its sum, in 2^-15 of the result's
// last place, is constant * 2^13 - slope * x + curvature * square(x), and a rounding constant; what lies below the last
// place is cut off. The coefficients were found from the measured table, of which they give all 2^23 entries.
// Rules: APX-1. Certificates: reciprocal, reciprocal-instruction.
#pragma once
#include <fp4ref/bits.h>

namespace fp4ref {

struct Quadratic {
    unsigned constant, slope, curvature;
};

// The highest 17 bits of x * x, x below 2^16, as a multiplier without its lower columns has them: partial products below
// 2^17 are not added. Bit i meets itself and, twice, every higher bit.
template <unsigned I = 1> FP4_API unsigned partial_products(unsigned x)  // of bits I and above: no loop, so side by side
{
    constexpr unsigned first = I < 8 ? 16 - I : I + 1, itself = I < 9 ? 0u : 1u << (2 * I);
    const unsigned row = (0u - (x >> I & 1u)) & ((x >> first << first << (I + 1)) + itself);
    if constexpr (I < 15) return row + partial_products<I + 1>(x);
    else return row;
}
FP4_API unsigned truncated_square(unsigned x) { return partial_products(x) >> 17; }

// 1 / 1.mantissa in units of 2^-24, from just above 2^23 to 2^24.
FP4_API unsigned approximate_significand(unsigned mantissa)
{
    static constexpr Quadratic QUADRATICS[128] = {
        {67108864, 65534, 1013}, {66588642, 64522, 989}, {66076422, 63533, 966}, {65572021, 62567, 945},
        {65075262, 61622, 923}, {64585976, 60699, 902}, {64103992, 59797, 883}, {63629146, 58914, 863},
        {63161284, 58051, 845}, {62700254, 57207, 827}, {62245905, 56381, 809}, {61798091, 55572, 791},
        {61356677, 54781, 774}, {60921524, 54007, 758}, {60492499, 53249, 742}, {60069474, 52507, 727},
        {59652325, 51780, 711}, {59240930, 51068, 696}, {58835170, 50371, 682}, {58434930, 49688, 669},
        {58040099, 49019, 656}, {57650569, 48363, 642}, {57266231, 47721, 631}, {56886986, 47091, 618},
        {56512729, 46473, 605}, {56143366, 45868, 594}, {55778798, 45274, 582}, {55418934, 44692, 572},
        {55063686, 44121, 561}, {54712961, 43560, 549}, {54366677, 43011, 540}, {54024747, 42471, 529},
        {53687093, 41942, 519}, {53353633, 41423, 510}, {53024288, 40913, 501}, {52698987, 40412, 490},
        {52377651, 39921, 482}, {52060212, 39439, 474}, {51746596, 38965, 465}, {51436737, 38500, 457},
        {51130565, 38043, 449}, {50828017, 37594, 441}, {50529029, 37153, 433}, {50233538, 36720, 426},
        {49941482, 36294, 418}, {49652803, 35876, 412}, {49367442, 35464, 403}, {49085342, 35060, 397},
        {48806449, 34663, 390}, {48530705, 34272, 383}, {48258060, 33888, 377}, {47988464, 33511, 371},
        {47721861, 33140, 366}, {47458204, 32774, 358}, {47197444, 32415, 353}, {46939534, 32062, 348},
        {46684429, 31714, 341}, {46432082, 31373, 337}, {46182446, 31036, 331}, {45935480, 30705, 326},
        {45691143, 30379, 320}, {45449392, 30059, 316}, {45210185, 29743, 310}, {44973481, 29432, 305},
        {44739244, 29127, 302}, {44507436, 28826, 297}, {44278016, 28529, 291}, {44050948, 28237, 287},
        {43826199, 27950, 283}, {43603730, 27667, 279}, {43383510, 27388, 274}, {43165503, 27114, 271},
        {42949675, 26843, 266}, {42735995, 26577, 263}, {42524430, 26314, 258}, {42314950, 26056, 256},
        {42107525, 25801, 251}, {41902122, 25550, 248}, {41698714, 25302, 243}, {41497270, 25058, 240},
        {41297764, 24818, 237}, {41100168, 24581, 233}, {40904453, 24348, 231}, {40710593, 24117, 226},
        {40518561, 23890, 223}, {40328333, 23667, 222}, {40139883, 23446, 218}, {39953186, 23228, 214},
        {39768218, 23014, 212}, {39584955, 22802, 208}, {39403371, 22593, 205}, {39223448, 22388, 204},
        {39045159, 22184, 199}, {38868484, 21984, 197}, {38693401, 21787, 196}, {38519888, 21592, 193},
        {38347924, 21399, 189}, {38177489, 21209, 186}, {38008563, 21022, 184}, {37841123, 20837, 182},
        {37675154, 20655, 180}, {37510633, 20475, 178}, {37347543, 20297, 175}, {37185866, 20122, 173},
        {37025582, 19949, 171}, {36866673, 19778, 169}, {36709124, 19609, 166}, {36552915, 19443, 165},
        {36398030, 19278, 161}, {36244452, 19116, 160}, {36092164, 18956, 159}, {35941151, 18797, 155},
        {35791396, 18641, 154}, {35642884, 18487, 153}, {35495599, 18334, 150}, {35349528, 18184, 149},
        {35204652, 18035, 147}, {35060959, 17888, 145}, {34918436, 17743, 143}, {34777064, 17600, 143},
        {34636835, 17458, 140}, {34497732, 17318, 138}, {34359741, 17180, 137}, {34222849, 17043, 135},
        {34087044, 16908, 133}, {33952313, 16775, 132}, {33818641, 16643, 131}, {33686019, 16513, 130}};
    constexpr long long rounding = 2023;
    const Quadratic q = QUADRATICS[mantissa >> 16];
    const unsigned x = mantissa & 0xffffu;
    const long long sum = ((long long)q.constant << 13) + (long long)q.curvature * truncated_square(x);
    return (unsigned)((sum - (long long)q.slope * x + rounding) >> 15);
}

// Subnormals, of either side, count as zero of their sign; so the exponent never decides the mantissa.
// Certificates: reciprocal.
FP4_API float modelled_reciprocal(float v)
{
    const unsigned m = magnitude_bits(v), sign = bits_of(v) & 0x80000000u;
    const int field = 253 - (int)(m >> 23);  // of a result in [1/2, 1), before 2^24 carries into it
    const int bits = field * (1 << 23) + (int)(approximate_significand(m & 0x7fffffu) - 0x800000u);
    const unsigned normal = bits < 0x800000 ? 0u : (unsigned)bits;
    const unsigned result = m < 0x800000u ? 0x7f800000u : m > 0x7f800000u ? 0x7fc00000u : normal;
    return float_of(result | sign);
}

FP4_API float approximate_reciprocal(float v)
{
#if FP4_NATIVE_RECIPROCAL
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
    return result;
#else
    return modelled_reciprocal(v);
#endif
}

}  // namespace fp4ref
