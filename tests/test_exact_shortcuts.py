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
"""


@pytest.fixture(scope="module")
def native():
    return build.library(SOURCE)


@pytest.mark.rule("FOS-3", "NUM-1")
@pytest.mark.parametrize("constant", [2688.0, 1536.0])
@pytest.mark.parametrize("exponent", [-60, 0, 119])
def test_two_products_are_a_quotient_for_every_significand(native, constant, exponent):
    assert native.quotients(ctypes.c_float(constant), exponent) == 0


@pytest.mark.rule("FOS-3", "E2M1-3")
def test_the_nearest_magnitude_is_that_of_the_code(native):
    """Every float from 1/8 to 16, and around zero, infinity and NaN."""
    assert native.nearest(0x3E000000, 0x41800000) == 0
    for start in (0, 0x00800000, 0x7F7FFF00, 0x7FBFFF00):
        assert native.nearest(start, start + 0x200) == 0


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
