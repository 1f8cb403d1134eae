"""Theorems on tensors: they hold where their conditions are met, and their witnesses fail without them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from fp4ref.cli import main
from fp4ref.formats import CUDA_E4M3, E2M1
from fp4ref.packing import pack, unpack
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.theorems import returning

RANDOM = np.random.default_rng(20261123)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def found(x, spec):
    return {each.rule: each for each in returning.evaluate(x, spec)}


def again(codes, byte):
    """Return codes and scale byte of the values of one MXFP4 block."""
    codes = np.uint8([codes + [0] * (32 - len(codes))])
    q = Quantized(
        fp4ref.MXFP4, (1, 32), "float32", "linear", DirectionData(pack(codes, E2M1), np.uint8([[byte]]), None)
    )
    values = fp4ref.dequantize(q)
    second = fp4ref.quantize(values, "mxfp4")
    np.testing.assert_array_equal(fp4ref.dequantize(second), values)
    return unpack(second.row.data, 32, E2M1)[0].tolist()[: len(codes[0])], int(second.row.scales[0, 0])


@pytest.mark.rule("THM-1", "THM-2", "THM-3", "THM-4", "THM-8", "THM-9", "THM-10", "THM-11")
@pytest.mark.parametrize(
    "spec, rules",
    [
        ("nvfp4", {"THM-2", "THM-3", "THM-6", "THM-9", "THM-10", "THM-11"}),
        ("mxfp4", {"THM-1", "THM-3", "THM-4", "THM-9", "THM-12"}),
        ("mxfp8-e4m3", {"THM-1", "THM-3", "THM-9"}),
        ("nvfp4-2d", {"THM-2", "THM-8", "THM-9", "THM-10", "THM-11"}),
        ("nvfp4-row-scaled", {"THM-2", "THM-3", "THM-6", "THM-9", "THM-11"}),
    ],
)
def test_theorems_hold_on_random_tensors(spec, rules):
    results = found(normal(64, 128), spec)
    assert set(results) == rules
    assert all(each.holds for each in results.values() if each.applies), results


@pytest.mark.rule("THM-1")
@pytest.mark.parametrize("top", range(1, 8))
@pytest.mark.parametrize("byte", [0, 1, 0x7F, 0x80])
def test_an_mx_block_returns_if_its_top_is_above_half(top, byte):
    codes, other = again([top, 1], byte)
    returned = (codes[:2], other) == ([top, 1], byte)
    assert returned == (byte == 0 or top >= 6)


@pytest.mark.rule("THM-2")
def test_a_small_nvfp4_block_changes_its_value():
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 16] = 2688, 0.01758
    q = fp4ref.quantize(x, "nvfp4")
    first = fp4ref.dequantize(q)
    second = fp4ref.dequantize(fp4ref.quantize(first, "nvfp4", amax=q.row.amax))
    assert (first[0, 16], second[0, 16]) == (0.015625, 0.01171875)
    assert not found(x, "nvfp4")["THM-2"].applies


@pytest.mark.rule("THM-3")
def test_a_larger_neighbour_can_make_a_value_smaller():
    values = [
        fp4ref.dequantize(fp4ref.quantize(np.float32([[top, 0.5] + [0] * 30]), "mxfp4"))[0, 1] for top in (6, 6.5)
    ]
    assert values == [0.5, 0]


@pytest.mark.rule("THM-8")
def test_4over6_by_squares_fails():
    spec = fp4ref.NVFP4_4OVER6.replace(name="squares", block=(16, 16), four_over_six=fp4ref.FourOverSix(scale_max=256))
    x = np.zeros((16, 16), np.float32)
    for row, column, value in (
        *((1, 3, 3.875), (1, 14, 0.875), (5, 4, -2), (5, 10, -5), (6, 4, 2.125), (7, 6, 0.375)),
        *((10, 13, 3.375), (13, 15, -4.75), (15, 0, 4.625)),
    ):
        x[row, column] = value
    result = found(x, spec)["THM-8"]
    assert (result.applies, result.holds) == (False, False)


@pytest.mark.rule("THM-9")
def test_parts_by_their_own_amax_differ():
    x = normal(64, 64)
    x[0, 0] = 100
    whole, part = (fp4ref.quantize(each, "nvfp4").row for each in (x, x[32:]))
    assert found(x, "nvfp4")["THM-9"].holds
    assert not np.array_equal(part.data, whole.data[32:])


@pytest.mark.rule("THM-10")
@pytest.mark.parametrize("scale, ratio, new, change", [(1, 0.5, 0.5, 0), (1, 1.0625, 1, 1 / 17), (2**-9, 0.5, 0, 1)])
def test_another_global_scale(scale, ratio, new, change):
    byte = CUDA_E4M3.encode(np.float32([scale]))
    made, most = returning.rescaled(byte, CUDA_E4M3, ratio, 1.0)
    assert (float(CUDA_E4M3.decode(made)[0]), most) == (new, pytest.approx(change))


@pytest.mark.rule("THM-10")
def test_no_ratio_changes_a_normal_scale_by_more_than_a_sixteenth():
    byte = np.arange(8, 0x7F, dtype=np.uint8)
    for ratio in np.linspace(1, 2, 300):
        scales = CUDA_E4M3.decode(byte) * ratio
        _, change = returning.rescaled(byte[scales <= 448], CUDA_E4M3, ratio, 1.0)
        assert change <= 1 / 16


@pytest.mark.rule("THM-10")
@pytest.mark.parametrize("top", [2.0**-149, 1.0, 2.0**127, 3e38])
def test_the_other_amax_is_a_float32(top):
    x = normal(32, 64)
    result = found((x / np.abs(x).max() * top).astype(np.float32), "nvfp4")["THM-10"]
    other = np.float32(re.search(r"amax (\S+):", result.text)[1])
    assert np.frexp(np.float64(other) / 2688)[0] == 0.5
    assert result.holds


@pytest.mark.rule("THM-11")
def test_the_longest_sum_is_sharp():
    assert returning.LONGEST_SUM * 2752512**2 < 1 << 63 < (returning.LONGEST_SUM + 1) * 2752512**2


def test_the_command_evaluates_tensors_of_a_file(tmp_path):
    np.savez(tmp_path / "model.npz", weight=normal(32, 64), bias=normal(8), nan=np.float32([[np.nan]]))
    result = CliRunner().invoke(main, ["theorems", str(tmp_path / "model.npz"), "--spec", "mxfp4"])
    assert result.exit_code == 0, result.output
    assert "weight:\n  THM-1 a second MX quantization: " in result.output
    assert "THM-3 order: holds: 64 of 64 blocks in order" in result.output
    assert "bias" not in result.output
    found = CliRunner().invoke(
        main, ["theorems", str(tmp_path / "model.npz"), "--spec", "nvfp4", "--tensors", "w*", "--json"]
    )
    assert {each["rule"] for each in json.loads(found.stdout)["weight"]} >= {"THM-2", "THM-6"}
    assert CliRunner().invoke(main, ["theorems", str(tmp_path / "model.npz"), "--spec", "nvfp4-sr"]).exit_code == 2
    none = CliRunner().invoke(
        main, ["theorems", str(tmp_path / "model.npz"), "--spec", "nvfp4", "--tensors", "b*", "--tensors", "n*"]
    )
    assert (none.exit_code, "no tensor to evaluate named b*, n*" in none.output) == (2, True)


def test_the_command_reads_the_shards_of_a_checkpoint(tmp_path):
    from safetensors.numpy import save_file

    empty = CliRunner().invoke(main, ["theorems", str(tmp_path), "--spec", "mxfp4"])
    assert (empty.exit_code, "a directory without shards" in empty.output) == (2, True)
    for number in (1, 2):
        save_file({f"{number}.weight": normal(2, 32)}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    found = CliRunner().invoke(main, ["theorems", str(tmp_path), "--spec", "mxfp4"])
    assert found.exit_code == 0, found.output
    assert [line for line in found.output.splitlines() if line[0] != " "] == ["1.weight:", "2.weight:", "2 tensors"]
