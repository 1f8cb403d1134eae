"""Casts without loss, against the theorems and against quantizing by enumeration."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from fp4ref.checkpoints.convention import Direction, ScaleWay
from fp4ref.checkpoints.lossless import BLOCK_FP8, judge, ranges, target_of
from fp4ref.checkpoints.round_trips import requantize
from fp4ref.checkpoints.transfer.scales import StoredScale
from fp4ref.checkpoints.transfer.weights import Weight, WeightPiece
from fp4ref.cli import main
from fp4ref.errors import DomainError
from fp4ref.files import write_tensors

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
CODE = {value: code for code, value in enumerate(E2M1)}


def weight(values: Any, scales: Any, scale: str = "e8m0", factor: float | None = None) -> Weight:
    """A weight of E2M1 magnitudes [rows, columns] and scale bytes [rows, blocks]."""
    codes = np.vectorize(CODE.__getitem__)(np.asarray(values, np.float64)).astype(np.uint8)
    packed, bytes_ = codes[:, 0::2] | codes[:, 1::2] << 4, np.asarray(scales, np.uint8)
    given = None if factor is None else StoredScale(np.float32([factor]), Direction(ScaleWay.MULTIPLIER))
    block = (1, codes.shape[1] // bytes_.shape[1])
    piece = WeightPiece(0, 0, packed, bytes_)
    return Weight(
        module="w",
        element="e2m1",
        scale=scale,
        block=block,
        shape=codes.shape,
        read=lambda multiple: iter([piece]),
        global_scale=given,
    )


def blocks_of(magnitudes: tuple[float, ...], exponents: tuple[int, ...]) -> Weight:
    """MXFP4 rows whose blocks have all of some magnitudes, one exponent of the scale for each row."""
    row = [magnitudes[index % len(magnitudes)] for index in range(32)]
    return weight([row] * len(exponents), [[127 + exponent] for exponent in exponents])


@pytest.mark.rule("CNV-18", "THM-5")
@pytest.mark.parametrize(
    ("magnitudes", "span"),
    [
        ((0.5, 1, 1.5, 2, 3, 4, 6), 17),
        ((0.5, 4), 17),
        ((0.5, 1, 2), 18),
        ((0.5,), 20),
        ((1,), 20),
        ((2,), 20),
        ((4,), 20),
    ],
)
def test_mxfp4_becomes_nvfp4_within_the_span_of_the_theorem(magnitudes: tuple[float, ...], span: int) -> None:
    target = target_of(fp4ref.profiles["nvfp4"])
    assert judge(blocks_of(magnitudes, (0, -span)), target).lossless
    verdict = judge(blocks_of(magnitudes, (0, -span - 1)), target)
    assert (verdict.lossless, verdict.exact, verdict.blocks) == (False, 2, 4)
    assert verdict.witness.endswith(": its scale is out of the format's range")


@pytest.mark.rule("CNV-18", "THM-6")
@pytest.mark.parametrize(
    ("scale", "magnitudes", "exact"),
    [(2, E2M1, True), (3, [0.5, 1, 2], True), (3, [0.5, 3], False), (1.125, [1], False), (0.75, [2, 4], True)],
)
def test_a_block_of_nvfp4_is_mxfp4_as_the_theorem_says(scale: float, magnitudes: list[float], exact: bool) -> None:
    row = [magnitudes[index % len(magnitudes)] for index in range(32)]
    byte = int(fp4ref.profiles["nvfp4"].scale.encode(np.float32([scale]))[0])
    verdict = judge(weight([row], [[byte, byte]], "e4m3"), target_of(fp4ref.profiles["mxfp4"]))
    assert verdict.lossless is exact
    assert verdict.witness == ("" if exact else "row 0, column 0: no scale makes all its elements exact")


@pytest.mark.rule("CNV-18")
def test_two_halves_need_one_scale() -> None:
    both = [each for each in E2M1 for _ in range(2)]
    target = target_of(fp4ref.profiles["mxfp4"])
    assert not judge(weight([both + both], [[0x40, 0x48]], "e4m3"), target).lossless
    assert judge(weight([both + [1] * 16], [[0x40, 0x48]], "e4m3"), target).lossless


@pytest.mark.rule("CNV-18")
def test_the_ranges_of_a_format_are_its_grid() -> None:
    for name, top in (("e2m1", 6), ("e4m3", 448)):
        values = {Fraction(odd) * Fraction(2) ** e for odd, low, high in ranges(name) for e in range(low, high + 1)}
        count = {"e2m1": 7, "e4m3": 126}[name]
        assert len(values) == count
        assert max(values) == top


@pytest.mark.rule("CNV-18")
def test_every_pair_of_elements_agrees_with_enumeration() -> None:
    """All pairs of E2M1 magnitudes times E4M3 scales, cast to MXFP4: try every power of two."""
    target = target_of(fp4ref.profiles["mxfp4"])
    grid = {Fraction(value) for value in E2M1}
    scale_values = fp4ref.profiles["nvfp4"].scale.decode(np.arange(127, dtype=np.uint8))
    rng = np.random.default_rng(3)
    for one, two in product(E2M1[1:], E2M1[1:]):
        byte = int(rng.integers(1, 127))
        scale = Fraction(float(scale_values[byte]))
        values = [Fraction(one) * scale, Fraction(two) * scale]
        expected = any(all(value / Fraction(2) ** k in grid for value in values) for k in range(-20, 12))
        row = [one, two] * 16
        assert judge(weight([row], [[byte, byte]], "e4m3"), target).lossless is expected


@pytest.mark.rule("CNV-18")
def test_block_fp8_needs_the_exponents_of_a_square() -> None:
    target = target_of(BLOCK_FP8)
    row = [E2M1[1 + index % 7] for index in range(32)]
    near, far = (judge(weight([row] * 2, [[127], [127 - apart]]), target) for apart in (14, 15))
    assert (near.lossless, far.lossless) == (True, False)
    assert (far.blocks, far.exact) == (1, 0)
    with pytest.raises(DomainError, match="not finite"):
        judge(weight([row], [[255]]), target)
    with pytest.raises(DomainError, match="one global scale per tensor"):
        target_of(fp4ref.profiles["nvfp4-row-scaled"])


@pytest.mark.rule("CNV-48")
def test_the_witness_is_the_first_block_that_is_not_exact() -> None:
    good, low, high = [1.0] * 32, [6.0, 0.5] * 16, [6.0, 4.0] * 16
    scales, target = [[0x38] * 2, [0x39] * 2, [0x39] * 2], target_of(fp4ref.profiles["mxfp4"])  # 1 and 9/8
    found, swapped = (judge(weight(rows, scales, "e4m3"), target) for rows in ([good, high, low], [good, low, high]))
    assert found.exact == swapped.exact < found.blocks
    assert found.witness.startswith("row 1, column 0: ")
    assert swapped.witness.startswith("row 1, column 0: ")


@pytest.mark.rule("CNV-18")
def test_the_command_names_what_is_exact(tmp_path: Any) -> None:
    from safetensors.numpy import save_file

    codes, scales = np.full((4, 16), 0x21, np.uint8), np.full((4, 1), 120, np.uint8)
    scales[2] = 90
    stored = {"a.down_proj_blocks": codes.reshape(1, 4, 1, 16), "a.down_proj_scales": scales.reshape(1, 4, 1)}
    save_file(stored, tmp_path / "model.safetensors")
    result = CliRunner().invoke(main, ["lossless", str(tmp_path), "--to", "nvfp4"])
    assert result.exit_code == 1, result.output
    assert "a.down_proj: 6 of 8 blocks exact; row 2, column 0: its scale is out of the format's range" in result.stdout
    same = CliRunner().invoke(main, ["lossless", str(tmp_path), "--to", "mxfp4"])
    assert (same.exit_code, same.stdout.splitlines()[-1]) == (0, "1 of 1 weights are exactly mxfp4")


@pytest.mark.rule("CNV-49")
def test_a_second_quantization_moves_scales_without_values(tmp_path: Any) -> None:
    """MXFP8 is not idempotent in bytes: a block without an element near the largest gets a smaller scale."""
    e4m3 = {0.0: 0x00, 1.0: 0x38, 256.0: 0x78}
    codes = np.full((3, 64), e4m3[1.0], np.uint8)
    codes[0, 0], codes[0, 32], codes[1, 5], codes[2] = e4m3[256.0], e4m3[256.0], e4m3[256.0], e4m3[0.0]
    scales = np.full((3, 2), 127, np.uint8)
    scales[2] = 0  # as the quantizer's scale of zeros
    write_tensors(
        tmp_path / "model.safetensors",
        [("a.weight", "F8_E4M3", codes.shape), ("a.weight_scale_inv", "U8", scales.shape)],
        {"format": "pt"},
        [codes, scales],
    )
    result = CliRunner().invoke(main, ["lossless", str(tmp_path), "--to", "mxfp8-e4m3", "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["weights"]
    assert (row["lossless"], row["moved"], row["rescaled"], row["first"]) == (True, 0, 1, "row 1, column 32")
    text = CliRunner().invoke(main, ["lossless", str(tmp_path), "--to", "mxfp8-e4m3"]).stdout
    assert "exact; its quantizer changes values of 0 blocks and the scale of 1, the first at row 1, column 32" in text


@pytest.mark.rule("CNV-49")
def test_a_second_quantization_moves_values_that_a_coarser_scale_does_not_have() -> None:
    codes = weight([[4.0] * 31 + [0.5], [6.0] * 31 + [3.0]], [[127], [127]], "e8m0")
    verdict = judge(codes, target_of(fp4ref.profiles["nvfp4"]))
    requantize(codes, fp4ref.profiles["nvfp4"], verdict)
    assert verdict.lossless
    assert (verdict.moved, verdict.first) == (2, "row 0, column 0")
