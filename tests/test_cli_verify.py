from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner, Result

import fp4ref
from commands import refused
from covering import names_by_parts
from fp4ref import hadamard
from fp4ref.cli import main
from fp4ref.cli.common import table
from fp4ref.conformance.diagnosis.budget import OPERATION_SECONDS, SECONDS
from fp4ref.conformance.dumps import cases
from fp4ref.conformance.dumps.files import Dump, read_dump, write_dump
from fp4ref.conformance.judge.compare import compare
from fp4ref.conformance.judge.hadamard_stages import accepts_amax, accepts_block
from fp4ref.conformance.oracle import hadamard as hadamard_bound
from fp4ref.conformance.run import machine
from fp4ref.conformance.run.machine import Flush
from fp4ref.conformance.vectors import files as vectors
from fp4ref.conformance.verdict.dump_report import DumpReport, Verdict
from fp4ref.conformance.verdict.dumps import DumpRequest, verify
from fp4ref.formats import F
from fp4ref.spec import Spec

BF16 = np.dtype(ml_dtypes.bfloat16)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["verify", *map(str, arguments)])


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def dump(path: Path, x: np.ndarray, made_by: str | Spec, claimed: str | None = None, **options: Any) -> Path:
    """A dump of bytes that one specification made and that claims to be another's."""
    options = {"directions": "both", "scale_layout": "tiled_128x4", "backend": "numpy"} | options
    q = fp4ref.quantize(x, made_by, **options)
    spec = fp4ref.profiles[claimed] if claimed else q.spec
    write_dump(path, [Dump("w", x, dataclasses.replace(q, spec=spec))])
    return path


def changed(path: Path, part: str, index: int, mask: int) -> Path:
    """A copy of a dump with some bits of one part flipped."""
    with read_dump(path) as file:
        tensors = list(file)
    direction, _, field = part.partition(".")
    q = tensors[0].quantized
    buffer = getattr(getattr(q, direction), field).copy()
    buffer.reshape(-1).view(np.uint8)[index] ^= mask
    q = dataclasses.replace(q, **{direction: getattr(q, direction)._replace(**{field: buffer})})
    target = path.with_stem(f"{path.stem}-changed")
    write_dump(target, [tensors[0]._replace(quantized=q), *tensors[1:]])
    return target


def verdict(path: Path, **options: Any) -> DumpReport:
    """The report of a dump without the search for a cause, which costs seconds and decides nothing here."""
    return verify(DumpRequest(path=path, seconds=0, **options))


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-1", "CNF-2")
@pytest.mark.parametrize("spec", names_by_parts(spec for spec in fp4ref.profiles.values() if not spec.stochastic))
def test_every_profile_conforms_to_itself(tmp_path: Path, spec: str) -> None:
    x = normal(32, 70, dtype=BF16)
    x[3, 4:7] = -0.0, 1e-40, 0
    report = verdict(dump(tmp_path / "d.npz", x, spec))
    assert report.ok
    assert len(report.results) == 2


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-1", "CNF-2", "CNF-3", "PACK-2", "LAY-5")
@pytest.mark.parametrize("layout", ["linear", "tiled_8x4"])
@pytest.mark.parametrize("spec", ["nvfp4", "mxfp8-e4m3", "nvfp4-2d"])
def test_every_flipped_bit_is_found(spec: str, layout: str) -> None:
    x = normal(3, 37)
    expected = fp4ref.quantize(x, spec, backend="numpy").row
    right = fp4ref.quantize(x, spec, scale_layout=layout, backend="numpy").row
    for field in ("data", "scales", "amax"):
        size = 0 if getattr(right, field) is None else getattr(right, field).nbytes
        for index in range(size):
            for bit in range(8):
                buffer = getattr(right, field).copy()
                buffer.reshape(-1).view(np.uint8)[index] ^= 1 << bit
                found = compare(x, fp4ref.profiles[spec], "row", layout, right._replace(**{field: buffer}), expected)
                counts = found.codes, found.scales, found.amax, found.spare, found.padding
                assert sum(counts) == 1, (field, index, bit)
                assert found.unexcused == 1
                assert not found.equal


@pytest.mark.rule("CNF-3", "LAY-37")
def test_unspecified_padding_is_not_compared() -> None:
    x = normal(3, 37)
    expected = fp4ref.quantize(x, "nvfp4").row
    right = fp4ref.quantize(x, "nvfp4", scale_layout="linear_padded").row
    scales = right.scales.copy()
    scales[3:], scales[:, 3:] = 0x7F, 0xFF
    assert compare(x, fp4ref.NVFP4, "row", "linear_padded", right._replace(scales=scales), expected).equal
    scales[2, 2] ^= 1
    assert compare(x, fp4ref.NVFP4, "row", "linear_padded", right._replace(scales=scales), expected).scales == 1


@pytest.mark.parametrize("shape", [(0, 16), (16, 0), (0,), (2, 0, 3)])
def test_tensors_without_elements_conform(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert verdict(dump(tmp_path / "d.npz", np.zeros(shape, np.float32), "nvfp4")).ok


def test_a_wrong_code_is_shown_with_its_block_scale_and_input(tmp_path: Path) -> None:
    x = normal(33, 70)
    x[12, 53] = -1.0
    path = changed(dump(tmp_path / "d.npz", x, "nvfp4"), "row.data", 12 * 35 + 26, 0x10)
    result = run(path)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    where = "in 1 of 165 blocks, first at row 12, block 3, element 5: code 0xc instead of 0xd"
    assert lines[0] == (
        f"{path}: wrong: not explained: bytes first differ at the code, {where}; differs from nvfp4 in 1 code"
    )
    line = next(line for line in lines if line.startswith("w:row:12:3"))
    right = fp4ref.quantize(x, "nvfp4").row
    code, scale = right.data[12, 26] >> 4, right.scales[12, 3]
    assert "code 12,53" in line
    assert "0xbf800000 -1" in line
    assert f"0x{scale:02x} {float(scale.view(ml_dtypes.float8_e4m3fn)):g}" in line
    assert line.index(f"0x{code:x} ") < line.index(f"0x{code ^ 1:x} ")


@pytest.mark.parametrize(
    "part, index, words",
    [
        ("row.scales", 0, ["in 1 scale", "w:row:0:0", "0x"]),
        ("column.amax", 0, ["in 1 amax", "w:column"]),
        ("row.data", 34, ["in 1 spare nibble", "spare nibble of row 0", "0x4", "0x0"]),
        ("column.scales", -1, ["in 1 padding byte", "padding at byte", "0x00", "0x40"]),
    ],
)
def test_every_kind_of_difference_is_shown(tmp_path: Path, part: str, index: int, words: list[str]) -> None:
    path = changed(dump(tmp_path / "d.npz", normal(33, 69), "nvfp4"), part, index, 0x40)
    result = run(path)
    assert result.exit_code == 1
    assert all(word in result.stdout for word in words), result.stdout


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-2", "BLK-6")
@pytest.mark.parametrize(
    "special, made_by, claimed, classes",
    [
        (-0.0, "te.mxfp8_cast_only", "mxfp8-e4m3", ["-0"]),
        (-0.0, "flashinfer.ref_nvfp4_te", "nvfp4", ["-0"]),
        (np.nan, "te.python_reference", "nvfp4", ["NaN"]),
        (np.nan, "torchao.mxfp8_e4m3_rceil", "mxfp8-e4m3", ["NaN"]),
        (np.inf, "torchao.mxfp8_e4m3_rceil", "mxfp8-e4m3", ["Inf"]),
        (1e30, "te.cpp_test_oracle", "nvfp4", ["scale underflow"]),
    ],
)
def test_special_input_excuses(tmp_path: Path, special: float, made_by: str, claimed: str, classes: list[str]) -> None:
    x = normal(4, 64)
    x[1, 17] = special
    q = [fp4ref.quantize(part, made_by, backend="numpy") for part in (x, normal(4, 64, seed=1))]
    parts = [
        Dump(name, part, dataclasses.replace(bytes_, spec=fp4ref.profiles[claimed]))
        for name, part, bytes_ in zip("ab", (x, normal(4, 64, seed=1)), q, strict=True)
    ]
    write_dump(tmp_path / "d.npz", parts)
    report = verdict(tmp_path / "d.npz")
    assert (report.kind, [*report.excused]) == (Verdict.EXCEPT, classes)
    assert report.headline.startswith(f"wrong on {classes[0]} only")
    assert made_by in report.profiles
    assert run(tmp_path / "d.npz").exit_code == 1


@pytest.mark.rule("CNF-2")
def test_a_special_value_excuses_only_its_block(tmp_path: Path) -> None:
    x = normal(4, 64)
    x[1, 17], x[2, 3] = np.nan, -0.0
    path = dump(tmp_path / "d.npz", x, "nvfp4", directions="row")
    assert verdict(changed(path, "row.data", 32 + 9, 0x01)).kind is Verdict.EXCEPT  # in the block of NaN
    assert verdict(changed(path, "row.data", 64 + 1, 0x80)).kind is Verdict.EXCEPT  # -0 becomes +0
    assert verdict(changed(path, "row.data", 64 + 1, 0x10)).kind is Verdict.EXCEPT  # -0 becomes another value
    assert verdict(changed(path, "row.data", 64 + 1, 0x01)).kind is Verdict.WRONG  # the neighbour of -0
    assert verdict(changed(path, "row.data", 32, 0x01)).kind is Verdict.WRONG  # another block of NaN's row


@pytest.mark.rule("CNF-2")
def test_a_file_of_special_input_alone_is_not_said_to_conform(tmp_path: Path) -> None:
    x = np.full((2, 32), np.nan, np.float32)
    path = dump(tmp_path / "d.npz", x, "mxfp4", directions="row")
    assert verdict(changed(path, "row.data", 0, 1)).kind is Verdict.WRONG


@pytest.mark.sampled(3)
@pytest.mark.rule("CNF-2", "PRO-1")
@pytest.mark.parametrize(
    "made_by, claimed",
    [
        ("torchao.mxfp4_floor", "mxfp4"),
        ("fouroversix.nvfp4_static_4", "nvfp4"),
        ("compressed_tensors.mxfp8", "mxfp8-e4m3"),
        ("nvfp4-4over6", "nvfp4"),
        ("nvfp4", "nvfp4-4over6"),
    ],
)
def test_the_profile_that_made_the_bytes_is_named(tmp_path: Path, made_by: str, claimed: str) -> None:
    x = normal(64, 96, dtype=BF16) * np.exp2(np.arange(96) % 7).astype(BF16)
    x[::5, ::7] = np.ldexp(np.arange(13)[:, None] + 0.5, -3).astype(BF16)
    path = dump(tmp_path / "d.npz", x, made_by, claimed)
    report = verdict(path)
    assert report.kind is Verdict.PROFILE
    assert made_by in report.profiles
    assert f"not {claimed}" in report.headline
    assert run(path).exit_code == 1
    assert run(path, "--profile", made_by).exit_code == 0
    assert run(path, "--spec", made_by).exit_code == 0


def test_a_profile_must_explain_every_tensor(tmp_path: Path) -> None:
    x = normal(16, 64)
    parts = [
        Dump(str(i), x, dataclasses.replace(fp4ref.quantize(x, name, backend="numpy"), spec=fp4ref.NVFP4))
        for i, name in enumerate(("fouroversix.nvfp4_static_4", "nvfp4"))
    ]
    write_dump(tmp_path / "d.npz", parts)
    report = verdict(tmp_path / "d.npz")
    assert (report.kind, report.profiles) == (Verdict.WRONG, ())


@pytest.mark.rule("PRO-1", "CNF-1", "CNF-83")
def test_the_sign_of_nan_is_compared_for_the_standard_only(tmp_path: Path) -> None:
    x = normal(2, 64)
    x[0, 3], x[1, 40] = np.nan, -np.nan
    for spec, kind in (("mxfp8-e4m3", Verdict.EXCEPT), ("torchao.mxfp8_e4m3_rceil", Verdict.CONFORMS)):
        path = dump(tmp_path / "d.npz", x, spec, directions="row")
        data = fp4ref.quantize(x, spec, backend="numpy").row.data
        nan = int(np.flatnonzero(data.reshape(-1) & 0x7F == 0x7F)[0])
        assert verdict(changed(path, "row.data", nan, 0x80)).kind is kind


@pytest.mark.rule("CNF-1")
def test_case_shows_every_element_and_saves_a_block_that_shows_the_same(tmp_path: Path) -> None:
    x = normal(33, 70)
    path = changed(dump(tmp_path / "d.npz", x, "nvfp4"), "column.data", 17 * 17 + 1, 0x21)
    result = run(path, "--case", "w:column:17:0", "--save-case", tmp_path / "case.npz")
    assert result.exit_code == 1
    assert "differs from nvfp4 in 2 codes" in result.stdout
    assert sum(line.endswith("differs") for line in (line.rstrip() for line in result.stdout.splitlines())) == 2
    assert f"{x[2, 17]:.9g}" in result.stdout
    whole, alone = (json.loads(run(p, "--json").stdout)["files"][0] for p in (path, tmp_path / "case.npz"))
    first, second = (next(t for t in r["tensors"] if t["counts"])["differences"][0] for r in (whole, alone))
    same = "column", "bits", "got_scale", "expected_scale", "got", "expected", "codes"
    assert [first[key] for key in same] == [second[key] for key in same]
    assert (
        run(tmp_path / "case.npz", "--case", "column:0:0").stdout.splitlines()[1:] == result.stdout.splitlines()[1:-1]
    )
    assert run(path, "--case", "w:row:2:1").exit_code == 0
    record = json.loads(run(path, "--case", "w:column:17:0", "--json").stdout)
    assert [e["column"] for e in record["elements"] if e["differs"]] == [2, 3]


@pytest.mark.parametrize(
    "spec", ["nvfp4-2d", "nvfp4-row-scaled", "nvfp4-rht", "mxfp8-e5m2", "mxfp4-2d", "nvfp4-4over6"]
)
@pytest.mark.parametrize("direction", ["row", "column"])
def test_every_block_alone_has_the_bytes_of_the_whole(tmp_path: Path, spec: str, direction: Any) -> None:
    x = normal(48, 37, dtype=BF16)
    q = fp4ref.quantize(x, spec, "both", scale_layout="tiled_8x4")
    whole = Dump("w", x, q)
    data, (rows, columns) = q.direction(direction)
    for row in (0, 15, 17, rows - 1):
        for block in {0, -(-columns // q.spec.block.columns) - 1}:
            alone = cases.cut(whole, cases.CaseID("w", direction, row, block), data.amax)
            got = alone.quantized.direction(direction)[0]
            expected = cases.expected(alone, direction, q.spec, got.amax)
            assert got.data.tobytes() == expected.data.tobytes()
            assert got.scales.tobytes() == expected.scales.tobytes()


def test_save_case_without_a_case_takes_the_first_unexcused_block(tmp_path: Path) -> None:
    x = normal(4, 64)
    x[0, 0] = -0.0
    path = changed(changed(dump(tmp_path / "d.npz", x, "nvfp4"), "row.data", 0, 8), "row.data", 70, 1)
    result = run(path, "--save-case", tmp_path / "case.npz")
    assert " w:row:2:0: " in result.stdout
    assert run(tmp_path / "case.npz").exit_code == 1
    refused(run(dump(tmp_path / "ok.npz", x, "nvfp4"), "--save-case", tmp_path / "no.npz"), "no block that differs")
    assert not (tmp_path / "no.npz").exists()


@pytest.mark.parametrize(
    "case, words",
    [
        ("w:row:99:0", ["w:row:99:0", "a row below 33"]),
        ("w:row:0:5", ["a block below 5"]),
        ("v:row:0:0", ["'v'"]),
        ("w:diagonal:0:0", ["TENSOR:row:ROW:BLOCK"]),
        ("w", ["TENSOR:row:ROW:BLOCK"]),
    ],
)
def test_bad_cases_are_one_line(tmp_path: Path, case: str, words: list[str]) -> None:
    refused(run(dump(tmp_path / "d.npz", normal(33, 70), "nvfp4"), "--case", case), *words)


@pytest.mark.rule("GLB-4")
def test_amax_given_judges_the_bytes_by_the_amax_in_the_file(tmp_path: Path) -> None:
    path = dump(tmp_path / "d.npz", normal(8, 64), "nvfp4", amax=2.0)
    assert run(path, "--amax", "given").exit_code == 0
    computed = run(path, "--amax", "computed")
    assert computed.exit_code == 1
    assert "amax is not the tensor's: 2 instead of " in computed.stdout
    assert run(path).stdout == computed.stdout


@pytest.mark.rule("SR-1")
def test_stochastic_bytes_are_judged_with_their_random_bits(tmp_path: Path) -> None:
    x = normal(5, 40)
    spec = fp4ref.NVFP4.replace(name="mine", element=dataclasses.replace(fp4ref.NVFP4.element, rounding="stochastic"))
    bits = fp4ref.Directions(*(np.random.default_rng(1).integers(0, 256, s, np.uint8) for s in ((5, 40), (40, 5))))
    q = fp4ref.quantize(x, spec, "both", random_bits=bits)
    write_dump(tmp_path / "d.npz", [Dump("w", x, q, random_bits=bits)])
    assert verdict(tmp_path / "d.npz").ok
    path = tmp_path / "case.npz"
    assert run(tmp_path / "d.npz", "--case", "w:column:9:0", "--save-case", path).exit_code == 0
    assert verdict(path).ok
    write_dump(tmp_path / "none.npz", [Dump("w", x, q)])
    refused(run(tmp_path / "none.npz"), "SR-1")


# The transform of another implementation


def in_another_order(values: np.ndarray, mask: int) -> np.ndarray:
    groups = values.reshape(-1, 16) * (hadamard.sign_vector(mask) * F(0.25))
    total = np.zeros_like(groups)
    for i in range(16):
        total += groups[:, i : i + 1] * np.array([-1 if hadamard_bound.minus_ones(i, j) else 1 for j in range(16)], F)
    return (total + F(0)).astype(BF16).astype(F).reshape(values.shape)


GROUP = """-18944 4.696846008300781e-05 -6.914138793945312e-05 0.0002288818359375 1.8998980522155762e-06
-0.0002689361572265625 -0.00347900390625 -0.0167236328125 -19968 -876 -0.0194091796875
-0.00019550323486328125 -1.1641532182693481e-07 0.00029754638671875 6.556510925292969e-06 -4.315376281738281e-05"""


def cancelling(count: int) -> np.ndarray:
    """[16, count]: the worked group of the rule, and others like it whose large elements cancel."""
    rng = np.random.default_rng(5)
    base = np.array(GROUP.split(), np.float64)
    others = base[:, None] * rng.uniform(0.5, 1.5, (16, count - 1))
    return np.concatenate([base[:, None], others], axis=1).astype(BF16)


@pytest.mark.rule("HAD-7")
def test_another_order_of_additions_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = cancelling(4000)
    spec = fp4ref.NVFP4_ROW_SCALED.replace(name="fine", hadamard=fp4ref.Hadamard(), global_scale="none")
    with monkeypatch.context() as patch:
        patch.setattr(hadamard, "transform", in_another_order)
        path = dump(tmp_path / "d.npz", x, spec, directions="column", backend="numpy")
    report = verdict(path)
    assert report.ok
    tolerated = report.results[0].compared.tolerated
    assert tolerated
    assert report.headline == f"conforms to fine ({tolerated} by the bound of HAD-7)"
    wrong = verdict(changed(path, "column.data", 9, 0x02))
    assert wrong.kind is Verdict.WRONG
    assert wrong.results[0].compared.codes == 1


@pytest.mark.rule("HAD-7", "HAD-4")
def test_the_bound_holds_for_each_stage() -> None:
    group = cancelling(1)
    canonical = hadamard.transform(group.T.astype(F), 0xD7E8)[0]
    assert canonical[4] == 476
    amax = np.abs(canonical).max(keepdims=True)
    assert accepts_amax(group, fp4ref.NVFP4_RHT, float(amax[0]))
    assert not accepts_amax(group, fp4ref.NVFP4_RHT, float(amax[0]) * 1.25)
    assert not accepts_amax(group, fp4ref.NVFP4_RHT, float(np.nextafter(amax, F(np.inf))[0]))
    assert not accepts_amax(group, fp4ref.NVFP4_RHT, np.inf)
    right = fp4ref.quantize(group, "nvfp4-rht", "column").column
    codes, values = np.stack([right.data & 15, right.data >> 4], axis=-1).reshape(1, 16), group.T.astype(F)
    scale = int(right.scales[0, 0])
    assert accepts_block(values, fp4ref.NVFP4_RHT, amax, scale, codes)
    assert not accepts_block(values, fp4ref.NVFP4_RHT, amax, scale - 1, codes)
    for element in range(16):
        for code in range(16):
            other = codes.copy()
            other[0, element] = code
            assert accepts_block(values, fp4ref.NVFP4_RHT, amax, scale, other) == (code == codes[0, element])


@pytest.mark.rule("HAD-7")
def test_the_amax_of_another_order_is_accepted_with_the_bytes_it_gives(tmp_path: Path) -> None:
    x = np.zeros((16, 3), BF16)
    x[:3, 0] = 4, 2.0**-6, 2.0**-30  # sums of +-1 +-2^-8: half way between two bfloat16, but for a float32's last bits
    for amax, kind in ((1.0, Verdict.CONFORMS), (1 + 2.0**-7, Verdict.CONFORMS), (1 + 2.0**-6, Verdict.WRONG)):
        path = dump(tmp_path / "d.npz", x, "nvfp4-rht", directions="column", amax=amax)
        report = verdict(path)
        assert report.kind is kind
        assert report.results[0].compared.tolerated == (amax == 1 + 2.0**-7)
        assert verdict(path, amax="given").ok


# Files


@pytest.mark.rule("FIL-3")
def test_short_forms_need_a_specification(tmp_path: Path) -> None:
    x = normal(33, 70)
    q = fp4ref.quantize(x, "nvfp4", scale_layout="tiled_128x4").row
    path = tmp_path / "d.npz"
    np.savez(path, x=x, data=q.data, scales=q.scales, amax=q.amax)
    refused(run(path), "--spec")
    refused(run(path, "--spec", "nvfp4"), "LAY-60", "tiled_128x4")
    assert run(path, "--spec", "nvfp4", "--layout", "tiled_128x4").exit_code == 0
    refused(run(path, "--spec", "nvfp44"), "unknown name 'nvfp44'")
    refused(run(path, "--profile", "nvfp44"), "unknown name 'nvfp44'")
    refused(run(path, "--spec", "nvfp4", "--layout", "zigzag"), "zigzag")
    refused(run(path, "--spec", "mxfp4", "--layout", "tiled_128x4"), "amax")


@pytest.mark.rule("FIL-3", "NUM-3")
def test_bad_dumps_are_one_line(tmp_path: Path) -> None:
    x = normal(33, 70)
    q = fp4ref.quantize(x, "nvfp4").row
    good = {"x": x, "data": q.data, "scales": q.scales, "amax": q.amax}
    path = tmp_path / "d.npz"
    for name, value, word in (
        ("x", x.astype(np.float64), "F64"),
        ("x", np.ones((33, 70), int), "I64"),
        ("x", x[:-1], "row.data"),
        ("data", q.data[:, :-1], "[33, 34]"),
        ("data", q.data.astype(np.float32), "F32"),
        ("scales", q.scales[:-1], "[32, 5]"),
        ("amax", q.amax.astype(np.float64), "F64"),
        ("extra", x, "'extra'"),
    ):
        np.savez(path, **(good | {name: value}))
        refused(run(path, "--spec", "nvfp4"), word)
    np.savez(path, **good)
    path.write_bytes(path.read_bytes()[:-100])
    refused(run(path, "--spec", "nvfp4"), "d.npz")
    refused(run(tmp_path / "none.npz"), "none.npz")


def test_the_input_can_lie_in_another_file(tmp_path: Path) -> None:
    x = normal(4, 2, 37, dtype=BF16)
    np.savez(tmp_path / "model.npz", w=x.view(np.uint16), v=normal(4, 74))
    write_dump(tmp_path / "d.npz", [Dump("w", None, fp4ref.quantize(x, "nvfp4"))])
    refused(run(tmp_path / "d.npz"), "--input")
    refused(run(tmp_path / "d.npz", "--input", tmp_path / "d.npz"), "w.x or w")
    assert run(tmp_path / "d.npz", "--input", tmp_path / "model.npz").exit_code == 0
    np.savez(tmp_path / "model.npz", w=x[:3].view(np.uint16))
    refused(run(tmp_path / "d.npz", "--input", tmp_path / "model.npz"), "[3, 2, 37]")
    np.savez(tmp_path / "model.npz", w=np.ones((4, 2, 37)))
    refused(run(tmp_path / "d.npz", "--input", tmp_path / "model.npz"), "float64")


def test_a_directory_is_all_dumps_below_it(tmp_path: Path) -> None:
    x = normal(8, 64)
    refused(run(tmp_path), "a directory without dumps")
    (tmp_path / "deep").mkdir()
    np.savez(tmp_path / "model.npz", w=x)
    dump(tmp_path / "deep" / "good.npz", x, "nvfp4")
    result = run(tmp_path)
    assert result.exit_code == 0
    assert "skipped" in result.stderr
    assert "model.npz" in result.stderr
    changed(tmp_path / "deep" / "good.npz", "row.data", 0, 1)
    assert run(tmp_path, "--no-diagnosis").exit_code == 1
    (tmp_path / "deep" / "bad.npz").write_text("no archive")
    result = run(tmp_path, "--json", "--no-diagnosis")
    assert result.exit_code == 2
    record = json.loads(result.stdout)
    assert not record["ok"]
    assert ["error" in file or file["verdict"] for file in record["files"]] == [True, "wrong", "conforms"]
    assert "bad.npz" in result.stderr


def test_json_says_what_the_text_says(tmp_path: Path) -> None:
    x = normal(33, 70)
    x[12, 53] = np.nan
    path = changed(dump(tmp_path / "d.npz", x, "nvfp4"), "row.data", 12 * 35 + 26, 0x10)
    result = run(path, "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    (file,) = record["files"]
    assert (record["ok"], file["verdict"], file["differs_on"]) == (False, "wrong on special input only", ["NaN"])
    row, column = file["tensors"]
    assert (row["counts"], column["counts"], column["equal"]) == ({"codes": 1}, {}, True)
    (found,) = row["differences"]
    assert (found["case"], found["row"], found["column"]) == ("w:row:12:3", 12, 53)
    assert (found["bits"], found["value"], found["excuse"]) == ("0x7fc00000", None, "NaN")


@pytest.mark.parametrize("limit, lines", [(0, 0), (1, 1), (5, 5)])
def test_limit_bounds_what_is_shown(tmp_path: Path, limit: int, lines: int) -> None:
    path = dump(tmp_path / "d.npz", normal(33, 70), "fouroversix.nvfp4_static_4", "nvfp4")
    result = run(path, "--limit", limit)
    assert sum(":row:" in line for line in result.stdout.splitlines()) == lines


def test_names_of_tensors_are_printed_as_they_are(tmp_path: Path) -> None:
    x = normal(4, 32)
    write_dump(tmp_path / "d.npz", [Dump("[red]w[/]:row:0", x, fp4ref.quantize(x, "nvfp4"))])
    path = changed(tmp_path / "d.npz", "row.data", 0, 1)
    result = run(path)
    assert "[red]w[/]:row:0:row:0:0" in result.stdout
    assert run(path, "--case", "[red]w[/]:row:0:row:0:0").exit_code == 1


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    x = normal(4, 32)
    write_dump(tmp_path / "d.npz", [Dump("w\x1b[2J\n", x, fp4ref.quantize(x, "nvfp4"))])
    result = run(changed(tmp_path / "d.npz", "row.data", 0, 1))
    assert r"w\x1b[2J\n:row:0:0" in result.stdout
    assert "\x1b" not in result.stdout


def test_many_tensors_that_conform_are_one_line(tmp_path: Path) -> None:
    x = normal(4, 32)
    write_dump(tmp_path / "d.npz", [Dump(f"w{i}", x, fp4ref.quantize(x, "nvfp4")) for i in range(40)])
    assert "w7 " in run(tmp_path / "d.npz", "--tensors", "w7").stdout
    path = changed(tmp_path / "d.npz", "row.data", 0, 1)
    output = run(path).stdout
    assert "39 more" in output
    assert len(output.splitlines()) < 25
    refused(run(path, "--tensors", "v*"), "nothing matches")


@pytest.mark.parametrize(
    "options",
    [
        ["--spec", "nvfp4"],
        ["--case", "row:0:0"],
        ["x.npz", "--backend", "numpy"],
        ["x.npz", "--spec", "nvfp4", "--profile", "nvfp4"],
        ["x.npz", "y.npz", "--case", "row:0:0"],
        ["x.npz", "--amax", "guessed"],
    ],
)
def test_options_that_exclude_each_other_are_usage_errors(options: list[str]) -> None:
    result = run(*options)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.rule("CNF-4")
def test_a_machine_that_flushes_does_not_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dump(tmp_path / "d.npz", normal(4, 32), "nvfp4")
    monkeypatch.setattr(machine, "flush_probe", lambda: Flush(inputs=True, results=False))
    refused(run(path), "CNF-4")


@pytest.mark.rule("CNF-5")
def test_without_a_path_the_backends_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(run("--backend", "nosuch"), "nosuch", "CNF-5")
    monkeypatch.setattr(
        "fp4ref.conformance.selfcheck.trials.specs", lambda: [fp4ref.NVFP4]
    )  # one of many: the whole is tested elsewhere
    monkeypatch.setattr("fp4ref.conformance.selfcheck.trials.OFTEN", ())
    few = [dataclasses.replace(file, tests=file.tests[::9]) for file in vectors.load()]
    monkeypatch.setattr(vectors, "load", lambda directory=None: few)
    result = run("--backend", "numpy", "--json")
    assert (result.exit_code, json.loads(result.stdout)["ok"]) == (0, True)


def test_the_first_answer_takes_under_three_seconds_and_no_torch(tmp_path: Path) -> None:
    path = dump(tmp_path / "d.npz", normal(64, 512), "fouroversix.nvfp4_static_4", "nvfp4")
    code = (
        "import sys; from fp4ref.cli import main\n"
        f"try: main(['verify', {str(path)!r}])\n"
        "finally: assert not {'torch', 'cuda', 'jax', 'safetensors'} & set(sys.modules)"
    )
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    after = os.times()
    assert done.returncode == 1, done.stderr
    assert "is profile fouroversix.nvfp4_static_4" in done.stdout
    taken = after.children_user + after.children_system - before.children_user - before.children_system
    assert taken < 3  # of processor time: the machine may be busy


def test_what_is_too_wide_has_names_on_lines_of_their_own() -> None:
    columns, rows = ("name", ">count"), [("w" * 30, "7"), ("v", "12")]
    assert table(columns, rows, 80) == ["name" + " " * 28 + "count", "w" * 30 + " " * 6 + "7", "v" + " " * 34 + "12"]
    assert table(columns, rows, 30) == ["name", "  count", "w" * 30, "      7", "v", "     12"]


def test_a_table_keeps_to_the_width() -> None:
    """The last column's words are folded if its name says so; other columns get lines, the names like their cells."""
    said = "a" * 20 + " " + "b" * 20
    assert table(("name", "~why"), [("v", said)], 48) == ["name  why", "v     " + said]
    assert table(("name", "~why"), [("v", said)], 40) == ["name  why", "v     " + "a" * 20, "      " + "b" * 20]
    columns, row = ("case", "one", ">two", "three", "none"), ("c" * 10, "1" * 8, "2" * 8, "3", "")
    names, cells = ["  one            two", "  three"], ["  11111111  22222222", "  3"]
    assert table(columns, [row], 23) == ["case", *names, row[0], *cells]
    assert table(columns, [row], 12) == [
        "case",
        "  one",
        "       two",
        "  three",
        row[0],
        "  11111111",
        "  22222222",
        "  3",
    ]


def in_pairs_of_16(data: np.ndarray) -> np.ndarray:
    """Canonical 4-bit codes with elements j and j + 16 of each 32 in one byte."""
    codes = np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1, 2, 16)
    return (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(len(data), -1)


@pytest.mark.sampled(2)
@pytest.mark.rule("PACK-7", "FIL-3")
@pytest.mark.parametrize("direction", ["row", "column"])
@pytest.mark.parametrize(
    ("packing", "packed", "byte", "mask"),  # the byte and bit of the dump's (2, 21), bit 4, in the canonical packing
    [("high_first", lambda data: data << 4 | data >> 4, 21, 0x01), ("pairs_16", in_pairs_of_16, 26, 0x10)],
)
def test_a_dump_in_another_packing(tmp_path, packing, packed, byte, mask, direction):
    x = normal(64, 96)
    own = getattr(fp4ref.quantize(x, "mxfp4", direction), direction)
    path, wrong = tmp_path / "a.npz", tmp_path / "wrong.npz"
    entries = {"x": x, f"{direction}.scales": own.scales, f"{direction}.data": packed(own.data)}
    np.savez(path, **entries)
    given = ["--spec", "mxfp4", "--packing", packing]
    assert run(path, *given).exit_code == 0
    assert run(path, "--spec", "mxfp4", "--no-diagnosis").exit_code == 1
    assert run(path, "--spec", "mxfp4", "--packing", "pairs_8", "--no-diagnosis").exit_code == 1
    line = ["dequantize", str(path), "-o", str(tmp_path / "y.npz"), "--direction", direction, *given]
    assert CliRunner().invoke(main, line).exit_code == 0
    with np.load(tmp_path / "y.npz") as found:
        (values,) = (found[name] for name in found.files if name != "metadata")
    expected = fp4ref.dequantize(fp4ref.quantize(x, "mxfp4", direction), direction=direction)
    assert np.asarray(values).tobytes() == np.asarray(expected).tobytes()
    entries[f"{direction}.data"][2, 21] ^= 0x10
    np.savez(wrong, **entries)
    assert run(wrong, *given, "--no-diagnosis").exit_code == 1
    assert run(wrong, *given, "--case", f"{direction}:2:0").exit_code == 0
    assert run(wrong, *given, "--case", f"{direction}:2:1").exit_code == 1
    with read_dump(wrong, "mxfp4", packing=packing) as file:
        changed = getattr(file[0].quantized, direction).data ^ own.data
    assert [tuple(at) for at in np.argwhere(changed).tolist()] == [(2, byte)]
    assert changed[2, byte] == mask


@pytest.mark.rule("PACK-7", "FIL-3")
def test_what_a_packing_of_a_dump_needs(tmp_path):
    q = fp4ref.quantize(normal(64, 96), "mxfp4")
    path = tmp_path / "a.npz"
    np.savez(path, data=in_pairs_of_16(q.row.data), scales=q.row.scales)
    refused(run(path, "--spec", "mxfp4", "--packing", "pairs_16"), "no shape for the tensor", "pairs_16 have none")
    refused(run(path, "--spec", "mxfp8-e4m3", "--packing", "pairs_16"), "pairs_16", "PACK-")
    refused(run(path, "--spec", "mxfp4", "--packing", "pears"), "pears")
    np.savez(path, x=normal(64, 96), data=in_pairs_of_16(q.row.data)[:, :-1], scales=q.row.scales)
    refused(run(path, "--spec", "mxfp4", "--packing", "pairs_16"), "[64, 47], need [64, 48]")
    assert run("--packing", "pairs_16").exit_code == 2


def test_the_help_lists_every_option_once_in_a_section():
    text, command = run("--help").stdout, main.get_command(click.Context(main), "verify")
    listed = re.findall(r"^  (?:-h, )?(--[a-z-]+)", text, re.MULTILINE)
    options = [each.opts[0] for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert sorted(listed) == sorted([*options, "--help"])
    assert (
        text.index("Kernels:") < text.index("--kernel MOD") < text.index("Inputs of a kernel:") < text.index("--huge  ")
    )
    seconds = (SECONDS + OPERATION_SECONDS) / 2
    assert f"about {seconds:.0f} by default" in " ".join(text.split())
