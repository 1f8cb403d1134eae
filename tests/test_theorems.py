"""Theorems on tensors: they hold where their conditions are met, and their witnesses fail without them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from covering import names_by_parts
from fp4ref import registry
from fp4ref.cli import main
from fp4ref.formats import CUDA_E4M3, E2M1
from fp4ref.model import BACKEND, gemm
from fp4ref.packing import pack, unpack
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.rules import RuleKind, defined
from fp4ref.specs import OWN
from fp4ref.theorems import bounds, returning

GOLDEN = {"numpy": BACKEND}
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


ALWAYS = {"THM-3", "THM-9"}
OF_NVFP4 = ALWAYS | {"THM-2", "THM-6", "THM-10", "THM-11"}
OF_MXFP4 = ALWAYS | {"THM-1", "THM-4", "THM-12", "THM-13"}
CONCERNED = {
    **dict.fromkeys(("nvfp4", "nvfp4-row-scaled", "nvfp4-rht", "nvfp4-4over6", "nvfp4-fast"), OF_NVFP4),
    **dict.fromkeys(("mxfp8-e4m3", "mxfp8-e5m2", "mxfp6-e2m3", "mxfp6-e3m2", "mxint8"), ALWAYS | {"THM-1"}),
    "nvfp4-2d": OF_NVFP4 | {"THM-8"},
    "mxfp4": OF_MXFP4,
    "mxfp4-2d": OF_MXFP4 | {"THM-8"},
    "mxfp8-2d": ALWAYS | {"THM-1", "THM-8"},
}


@pytest.mark.rule(*sorted(OF_NVFP4 | OF_MXFP4 | {"THM-8"}))
@pytest.mark.parametrize("spec, rules", CONCERNED.items())
def test_theorems_hold_on_random_tensors(spec, rules):
    results = returning.evaluate(normal(64, 128), spec)
    assert {each.rule for each in results} == rules
    assert all(each.holds for each in results if each.applies), results


def test_every_theorem_is_evaluated_for_a_specification_that_is_asked_about():
    """THM-5 takes the place of THM-4 where codes change. Those of other chapters have tests of their own."""
    stated = {rule.id for rule in defined().values() if rule.kind is RuleKind.THEOREM and rule.prefix == "THM"}
    assert set.union(*CONCERNED.values()) | {"THM-5"} == stated
    assert set(CONCERNED) == {spec.name for spec in OWN if not spec.stochastic}


@pytest.mark.sampled(4)
@pytest.mark.rule("THM-1", "THM-2", "THM-3")
@pytest.mark.parametrize("spec", names_by_parts(spec for spec in fp4ref.profiles.values() if not spec.stochastic))
def test_no_theorem_is_promised_for_the_arithmetic_of_others_and_fails(spec, monkeypatch):
    monkeypatch.setattr(registry, "backends", lambda: GOLDEN)  # a compiler needs a minute for all of them
    wide = normal(48, 80) * np.exp2(RANDOM.integers(-20, 20, (48, 80)))
    for x in (wide, normal(48, 80) * 1e-38, RANDOM.integers(-7, 8, (48, 80))):
        wrong = [each for each in returning.evaluate(x.astype(np.float32), spec) if each.state == "FAILS"]
        assert not wrong


@pytest.mark.rule("THM-1")
@pytest.mark.parametrize("spec, applies", [("mxfp4", True), ("mxint8", True), ("compressed_tensors.mxfp4", False)])
def test_the_theorem_of_mx_is_promised_for_its_own_scales(spec, applies):
    x = np.full((32, 32), 1.5, np.float32)
    x[0, 0] = -1.984375
    result = found(x, spec)["THM-1"]
    assert result.applies is applies
    assert ("not promised" in result.text) is not applies


@pytest.mark.rule("THM-2")
def test_a_block_of_byte_00_keeps_its_value_and_no_code():
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 16] = 2688, 0.0001
    q = fp4ref.quantize(x, "nvfp4")
    first = fp4ref.dequantize(q)
    second = fp4ref.quantize(first, "nvfp4", amax=q.row.amax)
    assert [(int(each.row.scales[0, 1]), int(each.row.data[0, 8])) for each in (q, second)] == [(0, 7), (0, 0)]
    assert first[0, 16] == 0
    result = found(x, "nvfp4")["THM-2"]
    assert (result.applies, result.holds) == (True, True)
    assert "1 of 2 blocks return their bytes, 2 their values" in result.text


@pytest.mark.rule("THM-13")
def test_values_that_are_infinite_are_no_mxfp8():
    """A maximum of 3.4e38 has the byte FD and the code of 4: 4 * 2^126 is infinite."""
    x = np.full((1, 32), 3.4e38, np.float32)
    assert int(fp4ref.quantize(x, "mxfp4").row.scales[0, 0]) == 0xFD
    results = [each for each in returning.evaluate(x, "mxfp4") if each.rule == "THM-13"]
    assert [each.title for each in results] == ["through mxfp8-e4m3", "through mxfp8-e5m2"]
    assert not any(each.applies for each in results)
    fine = [each for each in returning.evaluate(x / 4, "mxfp4") if each.rule == "THM-13"]
    assert all(each.applies and each.holds and "0 of 32 values change" in each.text for each in fine)


@pytest.mark.rule("THM-11")
def test_sums_of_blocks_are_within_their_bound(monkeypatch):
    x = normal(16, 160)
    assert found(x, "nvfp4")["THM-11"].text == "64 of 64 products of 8 rows are within the bound of 10 blocks"
    right = gemm.blockwise
    monkeypatch.setattr(bounds.gemm, "blockwise", lambda a, b: right(a, b) * np.float32(1 + 2**-18))
    assert found(x, "nvfp4")["THM-11"].state == "FAILS"


@pytest.mark.rule("THM-9")
def test_one_block_of_rows_cannot_be_cut():
    assert found(normal(16, 64), "nvfp4-2d")["THM-9"].state == "does not apply"
    assert found(normal(17, 64), "nvfp4-2d")["THM-9"].text == "rows 0 to 15 and the others, by the amax of all"


@pytest.mark.rule("THM-6")
def test_values_that_are_no_products_are_not_moved():
    """This peer divides by a number that is no factor: its values are other ones than code times factor."""
    result = found(normal(16, 64), "fouroversix.nvfp4_static_6")["THM-6"]
    assert (result.state, result.text[:24]) == ("does not apply", "values are no products o")


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
    assert "1 of 2 blocks return their bytes, 1 their values" in found(x, "nvfp4")["THM-2"].text


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
    made, most = bounds.rescaled(byte, CUDA_E4M3, ratio, 1.0)
    assert (float(CUDA_E4M3.decode(made)[0]), most) == (new, pytest.approx(change))


@pytest.mark.rule("THM-10")
def test_no_ratio_changes_a_normal_scale_by_more_than_a_sixteenth():
    byte = np.arange(8, 0x7F, dtype=np.uint8)
    for ratio in np.linspace(1, 2, 300):
        scales = CUDA_E4M3.decode(byte) * ratio
        _, change = bounds.rescaled(byte[scales <= 448], CUDA_E4M3, ratio, 1.0)
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
    assert bounds.LONGEST_SUM * 2752512**2 < 1 << 63 < (bounds.LONGEST_SUM + 1) * 2752512**2


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
