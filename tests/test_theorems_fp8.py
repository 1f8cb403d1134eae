"""MXFP4 bytes as FP8: values stay, and no exact move is missed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import fp4ref
from fp4ref.errors import DomainError, ShapeError
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, CUDA_E5M2
from fp4ref.packing import pack
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.theorems.moving import Inexact
from fp4ref.theorems.to_fp8 import Fp8, fp8_from_mxfp4

ALL = np.tile(np.arange(16, dtype=np.uint8), (1, 4))
VALUES = [Fraction(value) for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
SPANS = {"e4m3": (CUDA_E4M3, 14, -6), "e5m2": (CUDA_E5M2, 28, -13)}


def numbers(codec):
    """Return the positive values of a format, as fractions."""
    return {Fraction(value) for value in codec.decode(np.arange(128, dtype=np.uint8)).tolist() if np.isfinite(value)}


@pytest.mark.rule("THM-12")
@pytest.mark.example("THM-12")
@pytest.mark.parametrize("name", SPANS)
def test_two_blocks_with_all_codes_move_within_a_span(name):
    codec, most, exponent = SPANS[name]
    for span in range(40):
        found = fp8_from_mxfp4(ALL, np.uint8([[127, 127 - span]]), codec)
        assert isinstance(found, Fp8) == (span <= most)
        if isinstance(found, Inexact):
            assert (found.row, found.block, found.blocks) == (0, 1, 1)
            continue
        assert found.exponent == exponent
        want = np.float64([0, 0.5, 1, 1.5, 2, 3, 4, 6])[ALL & 7] * np.repeat([1.0, 2.0**-span], 32)
        got = codec.decode(found.codes).astype(np.float64) * 2.0**exponent
        np.testing.assert_array_equal(got, np.where(ALL & 8, -want, want))
        np.testing.assert_array_equal(np.signbit(got), ALL >= 8)


@pytest.mark.rule("THM-12")
@pytest.mark.parametrize("name", SPANS)
def test_no_exact_move_is_missed(name):
    """Every pair of magnitudes in two blocks, at every distance: an exponent exists exactly if one is found."""
    codec = SPANS[name][0]
    held = numbers(codec)
    for one in (1, 3, 7):
        for other in (1, 2, 3, 5, 6):
            for span in (*range(10, 20), *range(24, 34)):
                codes = np.zeros((1, 64), np.uint8)
                codes[0, [0, 63]] = one, other
                found = fp8_from_mxfp4(codes, np.uint8([[127, 127 - span]]), codec)
                values = VALUES[one], VALUES[other] / 2**span
                able = [m for m in range(-40, 40) if all(value / Fraction(2) ** m in held for value in values)]
                assert isinstance(found, Fp8) == bool(able)
                assert not able or found.exponent == min(able)


@pytest.mark.rule("THM-12")
def test_blocks_of_zeros_and_nan_do_not_count():
    codes = np.repeat(np.uint8([0, 8, 7, 7]), 32)[None]
    found = fp8_from_mxfp4(codes, np.uint8([[0, 254, 127, 255]]))
    assert found.codes[0, ::32].tolist() == [0, 0x80, 0x7C, 0x7F]
    assert fp8_from_mxfp4(codes[:, :64], np.uint8([[0, 255]])).codes[0, ::32].tolist() == [0, 0x7F]
    with pytest.raises(ShapeError):
        fp8_from_mxfp4(codes, np.uint8([[0]]))
    with pytest.raises(DomainError, match="THM-12"):
        fp8_from_mxfp4(codes, np.uint8([[0] * 4]), CUDA_E2M1)


def through(spec, codes, scales):
    """Return the values of MXFP4 bytes, and what is left of them after another specification."""
    parts = DirectionData(pack(codes, CUDA_E2M1.format), scales, None)
    values = fp4ref.dequantize(Quantized(fp4ref.MXFP4, codes.shape, "float32", "linear", parts), backend="numpy")
    return values, fp4ref.dequantize(fp4ref.quantize(values, spec, backend="numpy"), backend="numpy")


@pytest.mark.rule("THM-13")
@pytest.mark.example("THM-13")
@pytest.mark.parametrize("spec", ["mxfp8-e4m3", "mxfp8-e5m2"])
def test_finite_values_of_mxfp4_are_those_of_mxfp8(spec):
    """Every scale byte with every largest code, beside all smaller ones."""
    tops = np.repeat(np.arange(8, dtype=np.uint8), 255)[:, None]
    codes = np.minimum(np.tile(np.arange(8, dtype=np.uint8), 4), tops) | (np.arange(32, dtype=np.uint8) & 8)
    scales = np.tile(np.arange(255, dtype=np.uint8), 8)[:, None]
    values, after = through(spec, codes, scales)
    finite = np.isfinite(values).all(axis=1)
    np.testing.assert_array_equal(after[finite].view(np.uint32), values[finite].view(np.uint32))
    infinite = {(int(byte), int(top)) for (byte,), (top,) in zip(scales[~finite], tops[~finite], strict=True)}
    assert infinite == {(0xFD, 6), (0xFD, 7), *((0xFE, top) for top in (4, 5, 6, 7))}
