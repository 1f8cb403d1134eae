// Formats whose codes are not a sign and a magnitude: without a sign, with a second zero, and of two's complement.
#pragma once
#include <fp4ref/codec.h>

namespace fp4ref {

// The grid of a signed format without the sign. Rules: UE5M3-1.
template <int ExponentBits, int MantissaBits, int Bias, int Codes, bool HasInfinity>
struct Unsigned : Format<ExponentBits, MantissaBits, Bias, Codes, HasInfinity> {
    static constexpr int bits = ExponentBits + MantissaBits;
    static constexpr unsigned sign_bit = 0;
};

// The code past the finite ones is zero. In every other code the highest bit has no meaning. Rules: UE4M3-1.
template <int ExponentBits, int MantissaBits, int Bias, int Codes>
struct SecondZero : Unsigned<ExponentBits, MantissaBits, Bias, Codes, false> {
    static constexpr int bits = 1 + ExponentBits + MantissaBits;
};
template <int E, int M, int Bias, int Codes, Rounding R, Sign S, int NaN, int NegativeNaN, int Overflow, int Infinity = Overflow>
struct SecondZeroCodec : Codec<SecondZero<E, M, Bias, Codes>, R, S, NaN, NegativeNaN, Overflow, Infinity> {
    using Magnitudes = Codec<SecondZero<E, M, Bias, Codes>, R, S, NaN, NegativeNaN, Overflow, Infinity>;
    // Rules: UE4M3-1. Certificates: values-ue4m3.
    FP4_API float decode(unsigned code) { return code == Codes ? 0.0f : Magnitudes::value(code & ((1u << (E + M)) - 1u)); }
};

// A codec of sign and magnitude whose codes are turned into numbers of two's complement, which count steps of
// 2^(1 - Bias - MantissaBits).
template <int MantissaBits, int Bias, Rounding R, Sign S, int NaN, int NegativeNaN, int Overflow, int Infinity = Overflow>
struct ComplementCodec : Codec<Format<0, MantissaBits, Bias, 1 << MantissaBits, false>, R, S, NaN, NegativeNaN, Overflow, Infinity> {
    using SignMagnitude = Codec<Format<0, MantissaBits, Bias, 1 << MantissaBits, false>, R, S, NaN, NegativeNaN, Overflow, Infinity>;
    static constexpr unsigned sign_bit = 1u << MantissaBits, codes = 2u * sign_bit;

    // Rules: INT8-2, INT8-3, INT8-4, INT8-5.
    FP4_API unsigned encode(float x, unsigned random_bits = 0)
    {
        const unsigned code = SignMagnitude::encode(x, random_bits);
        if (is_nan(x)) return code;
        return code & sign_bit ? (codes + sign_bit - code) & (codes - 1u) : code;
    }
    FP4_API unsigned encode_narrow(float x, unsigned random_bits) { return encode(x, random_bits); }
    // Rules: INT8-1. Certificates: values-int8.
    FP4_API float decode(unsigned code)
    {
        const int number = (int)code - (code & sign_bit ? (int)codes : 0);
        return (float)number * power_of_two(1 - Bias - MantissaBits);
    }
};

template <class C> constexpr bool is_complement = false;
template <int M, int Bias, Rounding R, Sign S, int NaN, int NegativeNaN, int Overflow, int Infinity>
constexpr bool is_complement<ComplementCodec<M, Bias, R, S, NaN, NegativeNaN, Overflow, Infinity>> = true;

}  // namespace fp4ref
