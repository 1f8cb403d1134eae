"""Bytes that move between block formats: values stay, and no exact move is missed."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import fp4ref
from fp4ref.errors import ShapeError
from fp4ref.formats import CUDA_E4M3, E2M1, grid
from fp4ref.packing import pack
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.theorems import moving

E4M3_VALUES = [Fraction(value) for value in CUDA_E4M3.decode(np.arange(1, 0x7F, dtype=np.uint8)).tolist()]
VALUES = [Fraction(value) for value in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
RANDOM = np.random.default_rng(20261122)


def floats(spec, codes, scales, amax=None):
    q = Quantized(spec, codes.shape, "float32", "linear", DirectionData(pack(codes, E2M1), scales, amax))
    return fp4ref.dequantize(q, backend="numpy").view(np.uint32)


def mxfp4_values(codes, scales):
    return floats(fp4ref.MXFP4, codes, scales)


def nvfp4_values(moved):
    return floats(fp4ref.NVFP4, moved.codes, moved.scales, moved.amax)


def drawn(rows, columns, choices):
    return RANDOM.choice(np.array(choices, np.uint8), (rows, columns)) | (
        RANDOM.integers(0, 2, (rows, columns), np.uint8) << 3
    )


@pytest.mark.rule("THM-4")
@pytest.mark.parametrize("lowest, span", [(0, 17), (60, 17), (110, 17), (226, 17), (100, 3), (127, 0)])
def test_mxfp4_within_17_binades_moves_with_its_codes(lowest, span):
    codes = drawn(20, 72, range(8))
    scales = RANDOM.integers(lowest, lowest + span + 1, (20, 3), np.uint8)
    scales[0, :2] = lowest, lowest + span
    moved = moving.nvfp4_from_mxfp4(codes, scales)
    assert moved.kept
    np.testing.assert_array_equal(moved.codes, codes)
    assert moved.exponent == lowest + span - 127 - 8
    np.testing.assert_array_equal(nvfp4_values(moved), mxfp4_values(codes, scales))


@pytest.mark.rule("THM-4")
def test_mxfp4_over_18_binades_does_not_move():
    codes = np.tile(np.arange(16, dtype=np.uint8), (3, 4))
    scales = np.uint8([[120, 120], [120, 102], [120, 119]])
    moved = moving.nvfp4_from_mxfp4(codes, scales)
    assert moved == ("block scales from 2^-25 to 2^-7 do not fit under one global scale", 2, 1, 2)


@pytest.mark.rule("THM-4")
def test_a_scale_past_the_floats_does_not_move():
    codes = np.full((1, 32), 1, np.uint8)
    assert isinstance(moving.nvfp4_from_mxfp4(codes, np.uint8([[127 + 121]])), moving.Inexact)
    moved = moving.nvfp4_from_mxfp4(codes, np.uint8([[127 + 116]]))
    np.testing.assert_array_equal(nvfp4_values(moved), mxfp4_values(codes, np.uint8([[127 + 116]])))


@pytest.mark.rule("THM-4", "THM-5")
def test_nan_and_zero_blocks_move():
    codes = np.concatenate([drawn(4, 32, [0]), drawn(4, 32, range(8)), drawn(4, 32, range(8))], axis=1)
    scales = np.uint8([[3, 255, 127]] * 4)
    moved = moving.nvfp4_from_mxfp4(codes, scales)
    np.testing.assert_array_equal(nvfp4_values(moved), mxfp4_values(codes, scales))


def spans(sets):
    """Return whether some E4M3 scales give two sets of magnitudes at a distance of binades, by search.

    The inverse of the global scale is a power of two, or a third of one.
    """
    able = {}
    for (which, values), power, unit in product(enumerate(sets), range(-40, 41), (1, Fraction(1, 3))):
        able[which, power, unit] = any(
            all(value * unit * Fraction(2) ** power / scale in VALUES for value in values) for scale in E4M3_VALUES
        )
    return lambda distance: any(
        able[0, power, unit] and able[1, power - distance, unit]
        for power in range(-40 + distance, 41)
        for unit in (1, Fraction(1, 3))
    )


@pytest.mark.sampled(4)
@pytest.mark.rule("THM-5")
@pytest.mark.parametrize(
    "high, low",
    [
        ([0.5], [4]),
        ([0.5, 4], [0.5, 4]),
        ([1.5], [1.5]),
        ([1.5, 6], [3]),
        ([1.5, 4], [3]),
        ([1, 2], [3, 6]),
        ([0.5, 1, 1.5, 2, 3, 4, 6], [2]),
        ([3], [0.5, 1.5]),
    ],
)
def test_no_exact_move_to_nvfp4_is_missed(high, low):
    expected = spans([[Fraction(value) for value in values] for values in (high, low)])
    codes = np.array([[VALUES.index(Fraction(v)) for v in np.resize(part, 32)] for part in (high, low)], np.uint8)
    for distance in range(14, 24):
        scales = np.uint8([[120], [120 - distance]])
        moved = moving.nvfp4_from_mxfp4(codes, scales)
        assert isinstance(moved, moving.Exact) == expected(distance), distance
        if isinstance(moved, moving.Exact):
            np.testing.assert_array_equal(nvfp4_values(moved), mxfp4_values(codes, scales))


@pytest.mark.rule("THM-5")
def test_the_spans_of_the_127_sets_are_those_of_the_rule():
    counts: dict[int, int] = {}
    for mask in range(1, 128):
        codes = np.uint8([[code for code in range(1, 8) if mask >> (code - 1) & 1]])
        codes = np.resize(codes, (2, 32))
        span = 16
        while isinstance(moving.nvfp4_from_mxfp4(codes, np.uint8([[120], [119 - span]])), moving.Exact):
            span += 1
        counts[span] = counts.get(span, 0) + 1
    assert counts == {17: 70, 18: 36, 19: 14, 20: 7}


@pytest.mark.sampled(4)
@pytest.mark.rule("THM-6")
@pytest.mark.parametrize("mantissa", range(8, 16))
def test_nvfp4_moves_exactly_where_a_search_finds_a_power_of_two(mantissa):
    for mask in range(1, 128) if mantissa % 4 == 0 else (1, 2, 4, 127):
        codes = np.uint8([[0, *(code for code in range(1, 8) if mask >> (code - 1) & 1)]])
        codes = np.resize(codes, (1, 16)) | np.uint8([0, 8] * 8)
        moved = moving.mxfp4_from_nvfp4(codes, np.float32([[mantissa / 8]]))
        products = [Fraction(mantissa, 8) * VALUES[code & 7] for code in codes[0]]
        able = any(all(value / Fraction(2) ** power in VALUES for value in products) for power in range(-12, 13))
        assert isinstance(moved, moving.Exact) == able, (mask, moved)
        if able:
            signs = np.where(codes & 8, -1, 1)
            expected = np.float32([[float(value) for value in products]]) * signs
            np.testing.assert_array_equal(mxfp4_values(moved.codes, moved.scales), np.float32(expected).view(np.uint32))


@pytest.mark.rule("THM-6")
def test_two_halves_share_a_power_of_two_or_do_not_move():
    full, ones = np.tile(np.arange(16, dtype=np.uint8), (1, 1)), np.full((1, 16), 2, np.uint8)
    both = np.concatenate([full, full], axis=1)
    assert moving.mxfp4_from_nvfp4(both, np.float32([[2, 2]])).kept
    found = moving.mxfp4_from_nvfp4(both, np.float32([[2, 4]]))
    assert found == ("no power of two can be the scale of a block's values", 1, 0, 0)
    moved = moving.mxfp4_from_nvfp4(np.concatenate([full, ones], axis=1), np.float32([[2, 4]]))
    assert (int(moved.scales[0, 0]), moved.codes[0, 16]) == (128, 4)
    assert moving.mxfp4_from_nvfp4(both[:, :20], np.float32([[2, 2]])).scales.shape == (1, 1)


@pytest.mark.rule("THM-6")
@pytest.mark.parametrize(
    "factors, moves",
    [([np.nan, np.nan], True), ([np.nan, 1], False), ([np.inf, 1], False), ([-1, 1], False), ([0, 1], True)],
)
def test_special_factors(factors, moves):
    codes = drawn(1, 32, range(8))
    moved = moving.mxfp4_from_nvfp4(codes, np.float32([factors]))
    assert isinstance(moved, moving.Exact) == moves
    if moves:
        values = mxfp4_values(moved.codes, moved.scales).view(np.float32)
        with np.errstate(invalid="ignore"):
            wanted = grid(E2M1)[codes & 7] * np.where(codes & 8, -1, 1) * np.repeat(np.float32([factors]), 16, axis=1)
        np.testing.assert_array_equal(values, wanted.astype(np.float32))
        assert (np.signbit(values) == np.signbit(wanted))[~np.isnan(wanted)].all()


@pytest.mark.rule("THM-4", "THM-6")
def test_moving_there_and_back_returns_the_values():
    codes, scales = drawn(50, 128, range(8)), RANDOM.integers(118, 135, (50, 4), np.uint8)
    there = moving.nvfp4_from_mxfp4(codes, scales)
    back = moving.mxfp4_from_nvfp4(there.codes, moving.nvfp4_factors(there.scales, there.amax))
    np.testing.assert_array_equal(back.codes, codes)
    np.testing.assert_array_equal(back.scales, scales)


@pytest.mark.rule("DEQ-1")
def test_factors_are_those_of_dequantization():
    scales = np.arange(128, dtype=np.uint8).reshape(8, 16)
    amax = np.float32([3.7])
    ones = np.full((8, 256), 2, np.uint8)
    values = floats(fp4ref.NVFP4, ones, scales, amax)[:, ::16]
    np.testing.assert_array_equal(moving.nvfp4_factors(scales, amax).view(np.uint32), values)


def test_scales_of_another_shape_are_refused():
    with pytest.raises(ShapeError, match=r"scales \[2, 2\] of codes \[2, 32\], need \[2, 1\]"):
        moving.nvfp4_from_mxfp4(np.zeros((2, 32), np.uint8), np.zeros((2, 2), np.uint8))
