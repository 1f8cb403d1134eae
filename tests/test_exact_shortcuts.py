"""Shortcuts of the shared header, against what they stand for, over every case; the host's instructions decide."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from fp4ref.formats import STOCHASTIC_E2M1, F
from fp4ref_cpu import build

SOURCE = """
#include <fp4ref/fp4ref.h>
using namespace fp4ref;
using Stochastic = Codec<e2m1, Rounding::stochastic, Sign::bit, 7, 7, -1>;
extern "C" __attribute__((visibility("default"))) unsigned quotients(float constant, int exponent)
{
    unsigned wrong = 0;
    for (unsigned m = 0; m < 1u << 23; ++m) {
        const float x = float_of((unsigned)(exponent + 127) << 23 | m);
        volatile float divisor = constant;
        wrong += bits_of(over_constant<true>(x, constant)) != bits_of(x / divisor);
    }
    return wrong + (bits_of(over_constant<true>(0.0f, constant)) != 0);
}
extern "C" __attribute__((visibility("default"))) void stochastic(
    const float* x, const unsigned char* random, unsigned char* codes, long long n)
{
    for (long long i = 0; i < n; ++i) codes[i] = (unsigned char)Stochastic::encode(x[i], random[i]);
}
extern "C" __attribute__((visibility("default"))) unsigned nearest(unsigned from, unsigned to)
{
    unsigned wrong = 0;
    for (unsigned bits = from; bits < to; ++bits) {
        const float a = float_of(bits), exact = hardware_e2m1::decode(hardware_e2m1::encode(a));
        wrong += bits_of(hardware_e2m1::nearest_magnitude(a)) != bits_of(exact);
    }
    return wrong;
}
extern "C" __attribute__((visibility("default"))) unsigned nearest_or_tied(
    unsigned from, unsigned to, unsigned unit)
{
    unsigned wrong = 0;
    const unsigned up = hardware_e2m1::binades_up(float_of(unit));
    for (unsigned bits = from; bits < to; ++bits) {
        const float a = float_of(bits), exact = hardware_e2m1::nearest_magnitude(a);
        const float q = hardware_e2m1::nearest_or_tied(a, 1.0f, up);
        wrong += q != exact && (magnitude(q - a) != magnitude(exact - a) || magnitude(q - exact) > 2.0f);
    }
    return wrong;
}
extern "C" __attribute__((visibility("default"))) unsigned packed(unsigned from, unsigned to)
{
    unsigned wrong = 0;
    for (unsigned bits = from; bits < to; bits += 4) {
        float x[8];
        unsigned expected = 0;
        for (unsigned i = 0; i < 8; ++i) {
            x[i] = float_of(bits + i / 2 | i % 2 << 31);
            expected |= hardware_e2m1::encode(x[i]) << 4 * i;
        }
        wrong += packed_narrow<hardware_e2m1>(x) != expected;
    }
    return wrong;
}
template <int Max, Metric M> struct Searching {
    using Element = hardware_e2m1;
    using Scale = hardware_e4m3;
    using Arithmetic = arithmetic::te_division;
    using Search = four_over_six<M, difference::dequantized, total::rows_by_tree>;
    static constexpr float element_max = 6.0f, scale_max = Max;
    static constexpr int rows = 1, columns = 16;
    static constexpr Global global = Global::tensor;
    static constexpr bool block_keeps_nan = false, amax_keeps_nan = false, has_hadamard = false;
};
template <int Max> unsigned units()
{
    using S = Searching<Max, Metric::mae>;
    unsigned wrong = 0;
    for (int m = 8; m < 16; ++m)
        for (unsigned a = 0; a < 1u << 23; ++a) {
            const float s = (float)m, A = float_of(0x3f800000u | a), unit = estimate_unit<S>(s, 0.0f, A);
            const double value = S::Search::Difference::template of<S, true>(1.5f, s, 0.0f, A, 0.0f);
            const double estimate = 1.5 * unit;
            wrong += __builtin_fabs(value - estimate) > 4.01 * 0x1p-24 * estimate;
        }
    return wrong;
}
// bfloat16 inputs under the factors and units of a search.
extern "C" __attribute__((visibility("default"))) unsigned products()
{
    using S = Searching<448, Metric::mae>;
    unsigned wrong = 0;
    for (int m = 8; m < 16; ++m)
        for (unsigned a = 0; a < 1u << 23; a += 1009) {
            const float s = (float)m, A = float_of(0x3f800000u | a), g = global_scale<S, bfloat16>(A);
            const float factor = S::Arithmetic::factor<S, bfloat16>(s, g), unit = estimate_unit<S>(s, g, A);
            const unsigned up = S::Element::binades_up(unit);
            for (unsigned word = (bits_of(unit) >> 16) - 512u;; ++word) {
                const float x = float_of(word << 16), y = x * factor, exact = S::Element::nearest_magnitude(y);
                if (!(y < S::Element::narrow_limit)) break;
                const float q = S::Element::nearest_or_tied(x, factor, up);
                wrong += q != exact && (magnitude(q - y) != magnitude(exact - y) || magnitude(q - exact) > 2.0f);
            }
        }
    return wrong;
}
// The same of float32 inputs: some of all, and those near the ties.
extern "C" __attribute__((visibility("default"))) unsigned wide_products()
{
    using S = Searching<448, Metric::mae>;
    unsigned wrong = 0;
    for (int m = 8; m < 16; ++m)
        for (unsigned a = 0; a < 1u << 23; a += 600011) {
            const float s = (float)m, A = float_of(0x3f800000u | a), g = global_scale<S, float32>(A);
            const float factor = S::Arithmetic::factor<S, float32>(s, g), unit = estimate_unit<S>(s, g, A);
            const unsigned up = S::Element::binades_up(unit);
            const auto check = [&](unsigned from, unsigned to, unsigned step) {
                for (unsigned bits = from; bits < to; bits += step) {
                    const float x = float_of(bits), y = x * factor, exact = S::Element::nearest_magnitude(y);
                    const float q = S::Element::nearest_or_tied(x, factor, up);
                    wrong += q != exact && (magnitude(q - y) != magnitude(exact - y) || magnitude(q - exact) > 2.0f);
                }
            };
            check(bits_of(0x1p-9f * unit), bits_of(6.99f * unit), 997);
            constexpr float middles[10] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 1.0f, 2.0f, 4.0f};
            for (const float middle : middles)
                check(bits_of(middle * unit) - 4096u, bits_of(middle * unit) + 4096u, 1);
        }
    return wrong;
}
extern "C" __attribute__((visibility("default"))) unsigned units_448() { return units<448>(); }
extern "C" __attribute__((visibility("default"))) unsigned units_256() { return units<256>(); }
extern "C" __attribute__((visibility("default"))) unsigned searched()
{
    unsigned wrong = 0;
    for (unsigned bits = 0; bits < 0x7fc00001u; ++bits) {
        const bool subnormal = bits >= 0x3a000000u && bits < 0x3d000000u;
        const bool last = bits >= 0x43000000u && bits < 0x44100000u;
        if (!subnormal && !last) bits += 996;  // in between, every binade is rounded as its neighbour
        const float t = float_of(bits), s = searched_scale<Searching<448, Metric::mae>>(t, t);
        wrong += bits_of(s) != bits_of(hardware_e4m3::decode(hardware_e4m3::encode(t)));
    }
    return wrong;
}
// Blocks that the estimates decide, or -1 if they decide one otherwise than the errors do.
template <class S> int decided(const float* x, int blocks, float A)
{
    int count = 0;
    const float g = global_scale<S, float32>(A);
    for (int b = 0; b < blocks; ++b, x += 16) {
        const auto load = [&](int c, int) { return magnitude(x[c]); };
        unsigned amax = 0;
        for (int c = 0; c < 16; ++c) amax = larger(amax, magnitude_bits(x[c]));
        const float before = block_scale<S, float32>(float_of(amax), g);
        float exact[2][1], estimate[2][1], unit[2][1];
        bool narrow = true;
        for (int k = 0; k < 2; ++k) {
            const Scale scale = stored_scale<S, float32>(k ? before * 1.5f : before, g, float_of(amax));
            const Scales<1> scales{{scale.byte}, {scale.s}, {scale.factor}};
            unit[k][0] = estimate_unit<S>(scale.s, g, A);
            narrow &= is_narrow<S, float32>(float_of(amax), scale);
            row_errors<S, float32, false>(scales, g, A, load, exact[k]);
            row_estimates<S, float32>(scales, unit[k], load, estimate[k]);
        }
        if (!narrow || !estimates_decide<S>(estimate[0][0], estimate[1][0], unit[0][0], unit[1][0])) continue;
        if ((exact[1][0] < exact[0][0]) != (estimate[1][0] < estimate[0][0])) return -1;
        ++count;
    }
    return count;
}
extern "C" __attribute__((visibility("default"))) int decided_mae(const float* x, int n, float A)
{
    return decided<Searching<256, Metric::mae>>(x, n, A);
}
extern "C" __attribute__((visibility("default"))) int decided_mse(const float* x, int n, float A)
{
    return decided<Searching<448, Metric::mse>>(x, n, A);
}
"""


@pytest.fixture(scope="module")
def native():
    return build.library(SOURCE)


@pytest.mark.rule("FOS-3", "NUM-1")
@pytest.mark.parametrize("constant", [2688.0, 1536.0, 6.0])
@pytest.mark.parametrize("exponent", [-60, 0, 119])
def test_two_products_are_a_quotient_for_every_significand(native, constant, exponent):
    assert native.quotients(ctypes.c_float(constant), exponent) == 0


@pytest.mark.rule("FOS-3", "E2M1-3")
def test_the_nearest_magnitude_is_that_of_the_code(native):
    """Every float from 1/8 to 16, and around zero, infinity and NaN."""
    assert native.nearest(0x3E000000, 0x41800000) == 0
    for start in (0, 0x00800000, 0x7F7FFF00, 0x7FBFFF00):
        assert native.nearest(start, start + 0x200) == 0


@pytest.mark.rule("FOS-3", "E2M1-3")
def test_the_nearest_magnitude_but_for_ties(native):
    """Every float from 1/8 to 7, and from 0 on, also where the unit is off by 16 last places."""
    for unit in (0x3F800000, 0x3F7FFFF0, 0x3F800010):
        assert native.nearest_or_tied(0x3E000000, 0x40E00000, unit) == 0
        for start in (0, 0x00800000, 0x30000000):
            assert native.nearest_or_tied(start, start + 0x200, unit) == 0


@pytest.mark.rule("FOS-3", "E2M1-3")
def test_the_nearest_magnitude_to_a_product_but_for_ties(native):
    """Every significand of a scale and of bfloat16, from 1/16 on; every 1009th one of a maximum."""
    assert native.products() == 0


@pytest.mark.rule("FOS-3", "E2M1-3")
def test_the_nearest_magnitude_to_a_float32_product_but_for_ties(native):
    """Every significand of a scale, 14 maxima, inputs near the ties and the ends of binades, every 997th other one."""
    assert native.wide_products() == 0


@pytest.mark.rule("FOS-3", "PACK-1")
def test_eight_narrow_codes_are_packed_as_one_by_one(native):
    """Every float from 1/8 to 7, and around zero, with both signs."""
    assert native.packed(0x3E000000, 0x40E00000) == 0
    for start in (0, 0x00800000):
        assert native.packed(start, start + 0x200) == 0


@pytest.mark.rule("FOS-3")
@pytest.mark.parametrize("scale_max", [448, 256])
def test_multiples_of_a_unit_are_as_near_to_the_values_as_claimed(native, scale_max):
    """Every significand of the scale and of the maximum; q = 1.5 stands for 3 and 6, and powers of two are exact."""
    assert getattr(native, f"units_{scale_max}")() == 0


@pytest.mark.rule("FOS-1", "E4M3-2", "E4M3-3", "E4M3-5")
def test_a_searched_scale_is_what_its_byte_means(native):
    assert native.searched() == 0


@pytest.mark.rule("FOS-5", "FOS-6")
@pytest.mark.parametrize("metric", ["mae", "mse"])
def test_estimates_that_decide_agree_with_the_errors(native, metric):
    rng, run = np.random.default_rng(5), getattr(native, f"decided_{metric}")
    few = rng.integers(0, 40, (1 << 16, 16)) * (rng.random((1 << 16, 16)) < 0.3)  # many errors are nearly equal
    for kind, least, x in (("normal", 0.99, rng.standard_normal((1 << 16, 16))), ("near ties", 0.5, few)):
        for scale in (2.0**-25, 1.0, 3.0e9):
            values = np.ascontiguousarray(x * scale, F)
            amax = ctypes.c_float(float(np.abs(values).max() * 3))
            decided = run(values.ctypes.data_as(ctypes.c_void_p), len(values), amax)
            assert least * len(values) < decided <= len(values), (kind, scale)


@pytest.mark.rule("SR-2", "SR-3")
def test_every_16_bit_value_rounds_by_every_byte_as_in_the_model(native):
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for low in (0, 1, 0xFFFF):
        values = (upper | low).view(F)
        for byte in range(0, 256, 1 if low == 0 else 51):
            random, got = np.full(len(values), byte, np.uint8), np.empty(len(values), np.uint8)
            pointers = [part.ctypes.data_as(ctypes.c_void_p) for part in (values, random, got)]
            native.stochastic(*pointers, ctypes.c_longlong(len(values)))
            assert np.array_equal(got, STOCHASTIC_E2M1.encode(values, random)), (low, byte)
