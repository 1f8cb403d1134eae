from __future__ import annotations

import dataclasses
import io
import json
import re
import shlex
import zipfile
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fp4ref
from covering import names_by_parts
from fp4ref.cli import main
from fp4ref.conformance.explain.codec_notes import rounding
from fp4ref.conformance.explain.formulas import formula
from fp4ref.conformance.explain.notation import parse_values, write_values
from fp4ref.conformance.explain.steps import lines, sections
from fp4ref.conformance.explain.way import explain
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, CUDA_E8M0, OCP_INT8, STOCHASTIC_E2M1, Codec, Format
from fp4ref.packing import unpack

RUNNER = CliRunner()
EXAMPLES = [line.strip() for line in main.get_command(None, "explain").epilog.splitlines() if "fp4ref explain" in line]
SHAPE = (32, 96)
OWN_E1M4 = Codec(format=Format("acme.e1m4", 1, 4, bias=1, codes=32), nan=(0x1F, 0x1F))
FOUROVERSIX = fp4ref.profiles["fouroversix.nvfp4_mse"]


def aimed(seed: int, dtype: str) -> np.ndarray:
    """Normals of many sizes, ties, zeros of both signs, NaN, infinities and subnormals."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(SHAPE) * 2.0 ** rng.integers(-9, 9, (SHAPE[0], 1))
    x = x.astype(np.float32)
    specials = np.float32([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 2.5, -5.0, 3.5])
    where = rng.random(SHAPE) < 0.05
    x[where] = rng.choice(specials[:2] if seed % 2 else specials, where.sum())
    with np.errstate(over="ignore"):
        return x.astype(fp4ref.arrays.INPUT_DTYPES[dtype])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", names_by_parts(spec for spec in fp4ref.profiles.values() if not spec.stochastic))
def test_agrees_with_quantizer(name: str) -> None:
    spec = fp4ref.profiles[name]
    rng = np.random.default_rng(len(name))
    for seed, dtype in enumerate(("bfloat16", "bfloat16", "float32")):
        x = aimed(seed, dtype)
        for direction in ("row", "column"):
            if spec.hadamard and direction == "column" and dtype != "bfloat16":
                continue
            q = fp4ref.quantize(x, spec, direction, backend="numpy")
            got, shape = q.direction(direction)
            codes = unpack(got.data, shape[1], spec.element.format)
            values = fp4ref.dequantize(q, "float32", direction, backend="numpy")
            for _ in range(2):
                row, column = (int(rng.integers(size)) for size in SHAPE)
                at = (row, column) if direction == "row" else (column, row)
                stages = explain(x, spec, row, column, direction)
                assert stages.code == codes[at]
                assert stages.scale == got.scales[at[0], at[1] // spec.block.columns]
                assert stages.value.tobytes() == values[at].tobytes()
                assert lines(sections(stages), 80)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8-e4m3", "nvfp4-2d", "nvfp4-row-scaled"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 47), (2, 3, 33)])
def test_ragged_shapes(name: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    matrix = x.reshape(-1, shape[-1])
    spec = fp4ref.profiles[name]
    codes = unpack(fp4ref.quantize(x, spec, backend="numpy").row.data, shape[-1], spec.element.format)
    for row, column in {(0, 0), (matrix.shape[0] - 1, shape[-1] - 1)}:
        assert explain(x, spec, row, column).code == codes[row, column]


def test_blocks_of_odd_width() -> None:
    spec = fp4ref.NVFP4.replace(name="odd", block=(1, 5))
    x = np.random.default_rng(1).standard_normal((2, 23)).astype(np.float32)
    codes = unpack(fp4ref.quantize(x, spec, backend="numpy").row.data, 23, spec.element.format)
    assert [explain(x, spec, 1, column).code for column in range(23)] == list(codes[1])


@pytest.mark.rule("SR-1", "SR-2")
def test_stochastic() -> None:
    spec = fp4ref.NVFP4.replace(name="stochastic", element=STOCHASTIC_E2M1)
    x = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    bits = np.random.default_rng(2).integers(0, 256, x.shape, np.uint8)
    codes = unpack(fp4ref.quantize(x, spec, random_bits=bits, backend="numpy").row.data, 32, spec.element.format)
    for row, column in ((0, 0), (1, 7), (3, 31)):
        stages = explain(x, spec, row, column, random_bits=bits)
        assert stages.code == codes[row, column]
    assert "truncated to the grid" in "\n".join(lines(sections(stages), 200))
    with pytest.raises(fp4ref.DomainError, match="SR-1"):
        explain(x, spec, 0, 0)


@pytest.mark.rule("GLB-4", "GLB-5")
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4-row-scaled", "nvfp4-4over6"])
def test_given_amax(name: str) -> None:
    x = np.random.default_rng(1).standard_normal((4, 32)).astype(np.float32)
    spec = fp4ref.profiles[name]
    amax = np.full(4, 1.5) if name == "nvfp4-row-scaled" else np.full(1, 1.5)
    q = fp4ref.quantize(x, spec, amax=amax.astype(np.float32), backend="numpy")
    stages = explain(x, spec, 2, 9, amax=1.5)
    assert stages.code == unpack(q.row.data, 32, spec.element.format)[2, 9]
    assert stages.scale == q.row.scales[2, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"row": 2}, r"element \[2, 0\], need 0 <= row < 2 and 0 <= column < 16 \[NUM-4\]"),
        ({"amax": -1.0}, r"amax -1.0, need >= 0 and not NaN \[GLB-4\]"),
        ({"amax": float("nan")}, r"GLB-4"),
        ({"spec": "mxfp4", "amax": 1.0}, r"GLB-6"),
        ({"spec": "nvfp4-rht", "direction": "column"}, r"HAD-5"),
        ({"x": np.ones((2, 16))}, r"NUM-3"),
        ({"spec": "nothing"}, r"SPC-4"),
    ],
)
def test_refuses(arguments: dict, message: str) -> None:
    usual = {"x": np.ones((2, 16), np.float32), "spec": "nvfp4", "row": 0, "column": 0}
    with pytest.raises(fp4ref.Fp4Error, match=message):
        explain(**usual | arguments)


def cited(step: str, x: np.ndarray, column: int, spec: str) -> tuple[str, ...]:
    (found,) = (
        each.rules for part in sections(explain(x, spec, 0, column)) for each in part.steps if each.name == step
    )
    return found


@pytest.mark.rule("E2M1-2", "E4M3-6", "E5M2-6")
@pytest.mark.parametrize(
    ("spec", "rule"),
    [("nvfp4", "E2M1-2"), ("mxfp4", "E2M1-2"), ("mxfp8-e4m3", "E4M3-6"), ("mxfp8-e5m2", "E5M2-6")],
)
def test_the_rule_of_the_sign_bit_is_cited_for_every_element(spec: str, rule: str) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = -1.34, 1.34, 6, -6, 0.0, -0.0
    for column in range(6):
        assert rule in cited("code", x, column, spec)


@pytest.mark.rule("BLK-6")
def test_the_rule_of_a_zero_byte_is_cited_for_one_alone() -> None:
    usual = np.ones((1, 32), np.float32)
    small = np.full((1, 32), 1e-9, np.float32)
    small[0, 31] = 1e4  # of another block: the first one's scale becomes 0x00
    for step in ("factor", "scaled value y"):
        assert cited(step, usual, 0, "nvfp4") == ("BLK-4", "BLK-5")
        assert cited(step, small, 0, "nvfp4") == ("BLK-4", "BLK-5", "BLK-6")


@pytest.mark.parametrize(
    ("codec", "value", "note", "rules"),
    [
        (CUDA_E2M1, 2.5, "between 2 and 3, a tie at 2.5: to the even code", ("E2M1-3", "E2M1-2")),
        (CUDA_E2M1, -2.6, "between 2 and 3, above the midpoint 2.5", ("E2M1-3", "E2M1-2")),
        (CUDA_E2M1, 7.0, "above the largest value 6: saturates", ("E2M1-4", "E2M1-2")),
        (CUDA_E2M1, np.inf, "above the largest value 6: saturates", ("E2M1-4", "E2M1-2")),
        (CUDA_E2M1, np.nan, "NaN", ("E2M1-5",)),
        (CUDA_E2M1, -0.0, "exact; the sign of zero stays", ("E2M1-1", "E2M1-2")),
        (CUDA_E2M1, 1.5, "exact", ("E2M1-1", "E2M1-2")),
        (fp4ref.peers.ZERO_NAN, -0.0, "exact; sign bit dropped (sign negative)", ("E2M1-1", "E2M1-6")),
        (fp4ref.peers.ZERO_NAN, -1.0, "exact", ("E2M1-1", "E2M1-6")),
        (fp4ref.peers.ZERO_NAN, np.nan, "NaN", ("E2M1-6",)),
        (fp4ref.peers.DOWN_E2M1, 2.5, "between 2 and 3, a tie at 2.5: toward zero", ("E2M1-6",)),
        (FOUROVERSIX.element, 7.0, "rounds past the largest value 6: code 0x8", ("E2M1-6",)),
        (FOUROVERSIX.element, 6.5, "between 6 and 8, below the midpoint 7", ("E2M1-3", "E2M1-6")),
        (CUDA_E4M3, 464.0, "above the largest value 448: saturates", ("E4M3-3", "E4M3-6")),
        (CUDA_E4M3, -0.0, "exact; the sign of zero stays", ("E4M3-1", "E4M3-6")),
        (OCP_INT8, -1.0, "exact", ("INT8-1",)),
        (OCP_INT8, -0.0, "exact", ("INT8-1", "INT8-5")),
        (OCP_INT8, -2.0, "above the largest value 1.984375: saturates", ("INT8-3", "INT8-1")),
        (OWN_E1M4, -1.0, "exact", ("SPC-7",)),
        (CUDA_E8M0, 3.0, "between 2 and 4, rounded up", ("E8M0-2",)),
        (CUDA_E8M0, 0.0, "below the smallest value 5.877472e-39", ("E8M0-3",)),
    ],
)
def test_rounding_in_words(codec: fp4ref.Codec, value: float, note: str, rules: tuple[str, ...]) -> None:
    code = int(codec.encode(np.float32([value]))[0])
    assert rounding(codec, np.float32(value), code) == (note, rules)


@pytest.mark.heavy
@given(arrays(np.uint32, st.integers(1, 40)), st.sampled_from(["float32", "bfloat16", "float16"]))
def test_values_as_text_come_back(bits: np.ndarray, dtype: str) -> None:
    kind = fp4ref.arrays.INPUT_DTYPES[dtype]
    values = bits.astype(f"uint{8 * kind.itemsize}").view(kind)
    assert parse_values(write_values(values), dtype).tobytes() == values.tobytes()


@pytest.mark.parametrize("text", ["", "one", "0x3f80", "1*", "*3", "1e60", "1*99999999", "0*1048576 1"])
def test_bad_values(text: str) -> None:
    with pytest.raises(fp4ref.DomainError):
        parse_values(text)


@pytest.mark.parametrize("line", EXAMPLES)
def test_help_examples_run(line: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(3).standard_normal((8, 160)).astype(ml_dtypes.bfloat16)
    fp4ref.files.write_tensors("model.safetensors", [("lm_head.weight", "BF16", x.shape)], {}, [x])
    result = RUNNER.invoke(main, shlex.split(line)[1:])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].startswith("code 0x")
    as_json = RUNNER.invoke(main, [*shlex.split(line)[1:], "--json"])
    assert json.loads(as_json.output)["code"] == int(result.output.splitlines()[-1].split()[1].rstrip(","), 16)


@pytest.mark.parametrize("width", [56, 60, 80, 100, 140])
@pytest.mark.parametrize("line", EXAMPLES[:-1])
def test_fits_the_terminal(width: int, line: str, monkeypatch) -> None:
    """Every rule is there, whatever the width."""
    monkeypatch.setenv("COLUMNS", str(width))
    result = RUNNER.invoke(main, shlex.split(line)[1:])
    assert max(map(len, result.output.splitlines()[1:])) <= width
    monkeypatch.setenv("COLUMNS", "200")
    wide = RUNNER.invoke(main, shlex.split(line)[1:])
    rules = [sorted(re.findall(r"\b[A-Z0-9]+-\d+\b", found.output)) for found in (result, wide)]
    assert rules[0] == rules[1] != []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give either"),
        ("--values 1 file", "give either"),
        ("file w", "FILE needs TENSOR ROW COLUMN"),
        ("--values 1 --index 5", "--index 5 of 1 values"),
        ("--values '1 2 3' --columns 2", "a multiple of --columns 2"),
        ("--values 1 --spec nvfp5", "unknown name 'nvfp5'"),
        ("missing.npz w 0 0", "missing.npz"),
        ("--values 1 --spec missing.json", "missing.json"),
        ("--values 1 --random-byte 3", "SR-1"),
    ],
)
def test_bad_arguments(arguments: str, message: str) -> None:
    result = RUNNER.invoke(main, ["explain", *shlex.split(arguments)])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_spec_from_json_file(tmp_path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(fp4ref.NVFP4.replace(name="mine", element=STOCHASTIC_E2M1).to_json())
    arguments = ["explain", "--values", "6 2.75", "--index", "1", "--spec", str(path), "--random-byte"]
    codes = [RUNNER.invoke(main, [*arguments, byte]).output.splitlines()[-1].split(",")[0] for byte in ("63", "64")]
    assert codes == ["code 0x4", "code 0x5"]


@pytest.mark.rule("PACK-7", "PACK-8")
@pytest.mark.parametrize(
    "arguments, said",
    [
        ("--spec mxfp4 --packing ggml.mxfp4_data", "in ggml.mxfp4_data: data byte 2 high nibble"),
        ("--spec mxfp4 --packing pairs_16 --direction column --columns 2", "in pairs_16: data byte 24 low nibble"),
        (
            "--spec mxfp6-e2m3 --packing six_low_first",
            "in six_low_first: data byte 12 bits 6 to 7 and, in the next byte",
        ),
        ("--spec mxfp6-e2m3 --packing pairs_16", "'pairs_16' with units of 4 bits, need units of 6 bits [PACK-7]"),
        ("--spec mxfp4 --packing vllm.marlin_fp4", "1 x 32 units, need a multiple of 64 along n [LAY-43]"),
    ],
)
def test_the_place_of_the_code_in_another_packing(arguments, said):
    command = ["explain", "--values", "1*32", "--index", "17", *arguments.split()]
    found = RUNNER.invoke(main, command)
    assert said in found.output
    if not found.exit_code:
        record = json.loads(RUNNER.invoke(main, [*command, "--json"]).output)["packing"]
        assert record["text"].startswith(f"in {record['name']}: data byte {record['byte']}")


def test_a_formula_names_the_values_that_it_is_used_with():
    arithmetic = fp4ref.profiles["aiter.mxfp4_ceil"].arithmetic
    assert " rounded up, " in formula(arithmetic.block_scale)
    assert formula(arithmetic.block_scale).endswith("NaN past float32 (divisor 4, carry 0)")
    for mode, word in (("floor", "down"), ("ceil", "up")):
        said = formula(fp4ref.profiles[f"quark.mxfp4_{mode}"].arithmetic.block_scale)
        assert said.startswith(f"2^(e - emax), e log2(amax) rounded {word}, both in the input's type"), said
    assert formula(fp4ref.NVFP4.arithmetic.block_scale) == "amax * (S_enc * fp32(1/6)), at most FLT_MAX"


def _doubled(x, *, up, twice):
    """x rounded up or down."""


def test_a_truth_value_that_picks_no_word_is_shown():
    """A user registers an arithmetic whose text does not mention it."""
    assert formula(partial(_doubled, up=True, twice=False)) == "x rounded up (twice False)"
    assert formula(partial(_doubled, up=False, twice=2)) == "x rounded down (twice 2)"


def test_no_formula_shows_a_truth_value():
    """A value of a program, such as "up true", is no word of a formula."""
    for name in fp4ref.profiles:
        arithmetic = fp4ref.profiles[name].arithmetic
        for field in dataclasses.fields(arithmetic):
            if callable(function := getattr(arithmetic, field.name)):
                said = formula(function)
                assert not re.search(r"\b\w+ (true|false|none)[,)]|\bup or ", said, re.IGNORECASE), said


@pytest.mark.rule("FIL-2")
@pytest.mark.parametrize(
    ("member", "data", "name", "said"),
    [
        ("notes.json", b'{"by": "me"}', "w", "nvfp4, row direction: element [0, 1]"),
        ("by.npy", np.array("me"), "w", "nvfp4, row direction: element [0, 1]"),
        ("notes.json", b'{"by": "me"}', "notes", "'notes', which is metadata, need one of the 1 tensors in the file"),
        ("README.txt", b"by me", "w", "member 'README.txt', which is neither a tensor nor metadata, need names that"),
        ("by.npy", np.array(["me", "you"]), "w", "'by.npy': an array of strings, '<U3' [2], need numbers, or one"),
    ],
)
def test_an_archive_with_text_beside_the_tensors(member, data, name, said, tmp_path) -> None:
    path, array = tmp_path / "a.npz", io.BytesIO(data if isinstance(data, bytes) else b"")
    np.savez(path, w=np.ones((1, 16), np.float32))
    if not isinstance(data, bytes):
        np.save(array, data)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(member, array.getvalue())
    result = RUNNER.invoke(main, ["explain", str(path), name, "0", "1", "--spec", "nvfp4"])
    assert said in result.output
    assert result.exit_code == (0 if said.startswith("nvfp4") else 2)
    assert "[FIL-2]" in result.output or not result.exit_code
