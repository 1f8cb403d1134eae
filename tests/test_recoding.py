"""Recoding of weights whose values another format has exactly, against rules CNV-21 to CNV-23 computed in fractions."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from fp4ref.cli import main

Exact = Fraction | None


def e2m1(code: int) -> Fraction:
    value = [Fraction(each) / 2 for each in (0, 1, 2, 3, 4, 6, 8, 12)][code & 7]
    return -value if code & 8 else value


def e4m3(byte: int) -> Fraction:
    exponent, fraction = byte >> 3 & 15, byte & 7
    value = Fraction(fraction, 512) if exponent == 0 else (8 + fraction) * Fraction(2) ** (exponent - 10)
    return -value if byte & 0x80 else value


def e8m0(byte: int) -> Fraction:
    return Fraction(2) ** (byte - 127)


MAGNITUDES = {"e2m1": [e2m1(code) for code in range(8)], "e4m3": [e4m3(byte) for byte in range(0x7F)]}
SCALES = {
    "e4m3": {e4m3(byte): byte for byte in range(1, 0x7F)},
    "e8m0": {e8m0(byte): byte for byte in range(255)},
}


class Oracle:
    """A cast by CNV-21 and CNV-22: every global factor, every scale and every element is tried."""

    def __init__(self, values: Any, sources: Any, element: str, scale: str, block: tuple[int, int]) -> None:
        self.elements, self.scales = MAGNITUDES[element], SCALES[scale] if scale else None
        self.grid = frozenset(self.elements)
        self.rows, self.columns = len(values), len(values[0])
        self.block = block
        self.blocks = {}
        for top in range(0, self.rows, block[0]):
            for left in range(0, self.columns, block[1]):
                places = [
                    (row, column)
                    for row in range(top, min(top + block[0], self.rows))
                    for column in range(left, min(left + block[1], self.columns))
                ]
                self.blocks[top, left] = places
        self.values, self.sources = values, sources

    def candidates(self, factor: Fraction) -> list[Fraction]:
        """The numbers that a scale can be together with the global factor."""
        if self.scales is None:
            return [odd * Fraction(2) ** e for odd in range(1, 16, 2) for e in range(-60, 60)]
        return [factor * each for each in self.scales]

    def of(self, places: list[tuple[int, int]], factor: Fraction) -> tuple[bool, Exact]:
        """Return whether a block keeps its scale, and its scale; None if no scale makes it exact."""
        magnitudes = {abs(self.values[row][column]) for row, column in places} - {0}
        own = {self.sources[row][column] for row, column in places if self.values[row][column]}
        fits = [
            each for each in self.candidates(factor) if all(magnitude / each in self.grid for magnitude in magnitudes)
        ]
        kept = [each for each in fits if {each} == own]
        return bool(kept) or not magnitudes, kept[0] if kept else min(fits, default=None)

    def factor(self, *, free: bool) -> Fraction | None:
        """The global factor; None if there is none with which all blocks are exact."""
        factors = [one * Fraction(2) ** m for one in (1, 3) for m in range(-36, 2)] if free else [Fraction(1)]
        found = []
        for factor in factors:
            kept = True
            for places in self.blocks.values():
                keeps, scale = self.of(places, factor)
                if scale is None:
                    break
                kept &= keeps
            else:
                if kept:
                    return factor
                found.append(factor)
        return found[0] if found else None

    def codes(self, signs: Any, factor: Fraction, zero: int) -> tuple[Any, Any]:
        """Codes [rows, columns], with the signs of the source's, and a scale for each block."""
        codes, scales = np.zeros((self.rows, self.columns), np.uint8), {}
        sign = 8 if len(self.elements) == 8 else 0x80
        for start, places in self.blocks.items():
            _, scale = self.of(places, factor)
            empty = not any(self.values[row][column] for row, column in places)
            assert scale is not None
            scales[start] = (zero if empty else self.scales[scale / factor]) if self.scales else (1 if empty else scale)
            for row, column in places:
                magnitude = 0 if empty else self.elements.index(abs(self.values[row][column]) / scale)
                codes[row, column] = magnitude | (sign if signs[row][column] else 0)
        return codes, scales


def stored_mxfp4(codes: Any, scales: Any) -> dict[str, Any]:
    rows, columns = codes.shape
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8).reshape(1, rows, columns // 32, 16)
    return {"m.down_proj_blocks": packed, "m.down_proj_scales": scales.reshape(1, rows, -1).astype(np.uint8)}


def values_of_mxfp4(codes: Any, scales: Any) -> tuple[Any, Any, Any]:
    sources = [[e8m0(int(scales[row, column // 32])) for column in range(codes.shape[1])] for row in range(len(codes))]
    values = [
        [e2m1(int(code)) * source for code, source in zip(*pair, strict=True)]
        for pair in zip(codes, sources, strict=True)
    ]
    return values, sources, codes & 8


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The bytes of each tensor of a file."""
    with (folder / "model.safetensors").open("rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {name: data[slice(*each["data_offsets"])] for name, each in head.items() if name != "__metadata__"}


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def codes_from(rng: Any, rows: int, columns: int, magnitudes: list[int]) -> Any:
    codes = rng.choice(magnitudes, (rows, columns)) | rng.integers(0, 2, (rows, columns)) * 8
    codes[0, :32] = 0
    codes[1, 16:32] &= 8  # a half of zeros, some negative
    return codes.astype(np.uint8)


ALL = [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.sampled(4)
@pytest.mark.rule("CNV-21", "CNV-22", "THM-4", "THM-5", "CNV-52")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("magnitudes", "span", "exact"),
    [
        (ALL, 17, True),
        (ALL, 18, False),
        ([1, 2, 4], 18, True),
        ([1, 2, 4], 19, False),
        ([3, 5, 7], 20, False),  # exact, but for each block with all three
        ([3], 20, True),
        ([2], 20, True),
    ],
)
def test_mxfp4_becomes_nvfp4_byte_for_byte(
    tmp_path: Path, magnitudes: list[int], span: int, exact: bool, seed: int
) -> None:
    rng = np.random.default_rng([seed, span])
    codes = codes_from(rng, 4, 64, magnitudes)
    scales = rng.integers(110, 110 + span + 1, (4, 2))
    scales[2], scales[3] = (110, 110 + span), (110 + span, 110)
    codes[2:] = np.resize(np.array(magnitudes, np.uint8), 64)
    (tmp_path / "in").mkdir()
    save_file(stored_mxfp4(codes, scales), tmp_path / "in/model.safetensors")
    result = run("convert", tmp_path / "in", tmp_path / "out", "--to", "modelopt", "--spec", "nvfp4")
    values, sources, signs = values_of_mxfp4(codes, scales)
    oracle = Oracle(values, sources, "e2m1", "e4m3", (1, 16))
    factor = oracle.factor(free=True)
    assert (factor is not None) is exact
    assert result.exit_code == (0 if exact else 2), result.output
    if factor is None:
        assert "decoded values differ, SQNR" in result.output
        assert "not exact: row " in result.output or "not exact: matrix " in result.output
        assert not (tmp_path / "out").exists()
        return
    wanted, bytes_ = oracle.codes(signs, factor, zero=0)
    stored = bytes_of(tmp_path / "out")
    assert stored["m.down_proj.weight"] == (wanted[:, 0::2] | wanted[:, 1::2] << 4).tobytes()
    grid = [bytes_[row, column] for row in range(4) for column in range(0, 64, 16)]
    assert stored["m.down_proj.weight_scale"] == bytes(grid)
    assert stored["m.down_proj.weight_scale_2"] == np.float32(float(factor)).tobytes()
    assert "every value is the same" in result.output


@pytest.mark.rule("CNV-21", "CNV-22", "THM-6", "CNV-52")
@pytest.mark.parametrize("seed", range(3))
def test_nvfp4_becomes_mxfp4_byte_for_byte(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns, factor = 4, 64, Fraction(1, 8)
    codes, powers = codes_from(rng, rows, columns, ALL), np.array([0x30, 0x38, 0x40])  # 0.5, 1, 2
    scales = np.repeat(rng.choice(powers, (rows, 2)), 2, -1).astype(np.uint8)
    codes[2, :16], scales[2, 0] = [1, 2, 4, 9] * 4, 0x44  # 3: other codes under the scale 1
    codes[2, 16:32], scales[2, 1] = 7, 0x38
    scales[3] = (0x38, 0x40, 0x40, 0x38)  # halves under one scale that either has
    codes[3, :] = [2, 4] * 32
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    (tmp_path / "in").mkdir()
    stored = {
        "m.down_proj.weight": packed,
        "m.down_proj.weight_scale": scales,
        "m.down_proj.weight_scale_2": np.float32(float(factor)),
    }
    from fp4ref.files import write_tensors

    kinds = [("m.down_proj.weight", "U8", packed.shape), ("m.down_proj.weight_scale", "F8_E4M3", scales.shape)]
    kinds.append(("m.down_proj.weight_scale_2", "F32", ()))
    write_tensors(tmp_path / "in/model.safetensors", kinds, {"format": "pt"}, [*stored.values()])
    result = run("convert", tmp_path / "in", tmp_path / "out", "--to", "gpt-oss", "--spec", "mxfp4")
    assert result.exit_code == 0, result.output
    sources = [[e4m3(int(scales[row, column // 16])) * factor for column in range(columns)] for row in range(rows)]
    values = [
        [e2m1(int(code)) * source for code, source in zip(*pair, strict=True)]
        for pair in zip(codes, sources, strict=True)
    ]
    wanted, bytes_ = Oracle(values, sources, "e2m1", "e8m0", (1, 32)).codes(codes & 8, Fraction(1), zero=0)
    found = bytes_of(tmp_path / "out")
    assert found["m.down_proj_blocks"] == (wanted[:, 0::2] | wanted[:, 1::2] << 4).tobytes()
    grid = [bytes_[row, column] for row in range(rows) for column in range(0, columns, 32)]
    assert found["m.down_proj_scales"] == bytes(grid)


@pytest.mark.rule("CNV-22", "CNV-23", "THM-12")
@pytest.mark.parametrize(("span", "exact"), [(14, True), (15, False)])
def test_mxfp4_becomes_block_fp8_byte_for_byte(tmp_path: Path, span: int, exact: bool) -> None:
    rng = np.random.default_rng(span)
    codes = codes_from(rng, 130, 160, ALL)  # four squares, three of them cut off
    scales = rng.integers(120, 120 + span + 1, (130, 5))
    codes[4], scales[4] = np.resize(np.array(ALL, np.uint8), 160), np.resize([120, 120 + span], 5)
    (tmp_path / "in").mkdir()
    save_file(stored_mxfp4(codes, scales), tmp_path / "in/model.safetensors")
    lossy = () if exact else ("--lossy",)
    result = run("convert", tmp_path / "in", tmp_path / "out", "--to", "deepseek", "--spec", "block-fp8", *lossy)
    assert result.exit_code == (0 if exact else 2), result.output
    if not exact:
        assert "block-fp8 has no quantizer" in result.output
        return
    values, sources, signs = values_of_mxfp4(codes, scales)
    wanted, squares = Oracle(values, sources, "e4m3", "", (128, 128)).codes(signs, Fraction(1), zero=0)
    stored = bytes_of(tmp_path / "out")
    numbers = [np.float32(float(squares[row, column])) for row in (0, 128) for column in (0, 128)]
    assert stored["m.down_proj.weight_scale_inv"] == np.array(numbers, "<f4").tobytes()
    assert stored["m.down_proj.weight"] == wanted.tobytes()
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["quantization_config"]["weight_block_size"] == [128, 128]


@pytest.mark.rule("CNV-53")
@pytest.mark.parametrize("zero", [0, 8])
def test_a_square_of_zeros_has_the_scale_1(tmp_path: Path, zero: int) -> None:
    codes = np.full((130, 160), 2, np.uint8)  # 1.0
    codes[:128, 128:] = zero  # of either sign, the second of four squares
    scales = np.full((130, 5), 120)
    scales[:128, 4] = 9
    (tmp_path / "in").mkdir()
    save_file(stored_mxfp4(codes, scales), tmp_path / "in/model.safetensors")
    result = run("convert", tmp_path / "in", tmp_path / "out", "--to", "deepseek", "--spec", "block-fp8")
    assert result.exit_code == 0, result.output
    stored = bytes_of(tmp_path / "out")
    numbers = np.frombuffer(stored["m.down_proj.weight_scale_inv"], "<f4").reshape(2, 2)
    assert numbers[0, 1] == 1
    assert (numbers.ravel()[[0, 2, 3]] != 1).all()
    written = np.frombuffer(stored["m.down_proj.weight"], np.uint8).reshape(130, 160)
    assert not (written[:128, 128:] & 0x7F).any()
    assert written[:128, :128].all()


@pytest.mark.rule("CNV-50")
def test_members_of_a_fused_set_get_one_global_scale_or_are_refused(tmp_path: Path) -> None:
    def member(low: int, high: int) -> tuple[Any, Any]:
        return np.resize(np.array(ALL, np.uint8), (2, 32)), np.array([[low], [high]])

    for name, second, status in (("near", (105, 120), 0), ("far", (100, 101), 2)):
        stored = {}
        for module, ends in (("gate_proj", (110, 122)), ("up_proj", second)):
            codes, scales = member(*ends)
            packed = codes[:, 0::2] | codes[:, 1::2] << 4
            stored |= {f"m.{module}.weight_packed": packed, f"m.{module}.weight_scale": scales.astype(np.uint8)}
        folder = tmp_path / name
        folder.mkdir()
        save_file(stored, folder / "model.safetensors")
        group = {"weights": {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group"}}
        group |= {"targets": ["Linear"], "format": "mxfp4-pack-quantized"}
        config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": []}
        (folder / "config.json").write_text(json.dumps({"quantization_config": {**config, "format": group["format"]}}))
        result = run("convert", folder, tmp_path / f"{name}-out", "--to", "modelopt", "--spec", "nvfp4")
        assert result.exit_code == status, result.output
        if status:
            assert "not exact: m.up_proj, row 0" in result.output or "not exact: m.gate_proj, row" in result.output
            continue
        found = bytes_of(tmp_path / f"{name}-out")
        scales = {found[f"m.{module}.weight_scale_2"] for module in ("gate_proj", "up_proj")}
        assert scales == {np.float32(2.0 ** (122 - 127 - 8)).tobytes()}


@pytest.mark.rule("CNV-21")
def test_a_divisor_that_is_no_float_is_no_exact_cast(tmp_path: Path) -> None:
    """A factor of 3 * 2^m has no float32 reciprocal, so that compressed-tensors cannot store it."""
    codes, statuses = np.full((2, 32), 3, np.uint8), []  # 1.5 everywhere
    for span, to in ((20, "modelopt"), (20, "compressed-tensors"), (19, "compressed-tensors")):
        folder = tmp_path / f"{to}-{span}"
        folder.mkdir()
        save_file(stored_mxfp4(codes, np.array([[110], [110 + span]])), folder / "model.safetensors")
        statuses.append(run("convert", folder, tmp_path / f"out-{to}-{span}", "--to", to, "--spec", "nvfp4").exit_code)
    assert statuses == [0, 2, 0]
