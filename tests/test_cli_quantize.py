from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from commands import fp4, refused
from fp4ref import api
from fp4ref.cli import COMMANDS, main
from fp4ref.conformance.dumps.files import read_dump
from fp4ref.files import open_tensors, write_tensors

BF16 = np.dtype(ml_dtypes.bfloat16)


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "a.weight": rng.standard_normal((33, 70)).astype(np.float32),
        "a.bias": rng.standard_normal(48).astype(BF16),
        "b.weight": rng.standard_normal((2, 8, 37)).astype(np.float16),
        "empty": np.zeros((0, 16), np.float32),
        "ids": np.arange(4),
        "precise": np.ones(3),
        "scalar": np.float32(1).reshape(()),
    }


STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "float64": "F64"}


def write(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    entries = [(name, STORED[array.dtype.name], array.shape) for name, array in arrays.items()]
    write_tensors(path, entries, {}, arrays.values())
    return path


@pytest.fixture(params=[".npz", ".safetensors"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / f"in{request.param}", tensors())


@pytest.mark.rule("FIL-3")
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("spec", ["nvfp4", "nvfp4-row-scaled", "mxfp8-e5m2", "torchao.mxfp4_even"])
def test_a_dump_holds_what_the_api_computes(source: Path, tmp_path: Path, suffix: str, spec: str) -> None:
    out = tmp_path / f"out{suffix}"
    result = fp4(
        "quantize", source, "-o", out, "--spec", spec, "--layout", "tiled_128x4", "--directions", "both", "--keep-input"
    )
    assert result.exit_code == 0, result.output
    with read_dump(out) as dump:
        assert sorted(dump.names) == ["a.bias", "a.weight", "b.weight", "empty"]
        for tensor in dump:
            x = tensors()[tensor.name]
            expected = fp4ref.quantize(x, spec, "both", scale_layout="tiled_128x4")
            assert tensor.x is not None
            assert tensor.x.tobytes() == x.tobytes()
            q = tensor.quantized
            assert (q.spec.name, q.shape, q.dtype, q.scale_layout) == (spec, x.shape, x.dtype.name, "tiled_128x4")
            for got, wanted in zip((*q.row, *q.column), (*expected.row, *expected.column), strict=True):
                assert (got is None) == (wanted is None)
                assert got is None or (got.shape == wanted.shape and got.tobytes() == wanted.tobytes())


def test_reasons_to_skip_are_listed(source: Path, tmp_path: Path) -> None:
    result = fp4("quantize", source, "-o", tmp_path / "out.npz")
    for line in (
        "skipped ids: dtype I64, need F32, BF16, F16",
        "skipped precise: dtype F64, need F32, BF16, F16 (F64 would round twice)",
        "skipped scalar: a tensor without dimensions, need at least one",
    ):
        assert line in result.stderr.splitlines()
    assert "4 tensors" in result.stdout
    assert "3 skipped" in result.stdout


def test_hadamard_skips_what_it_cannot_transform(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in.npz", {"w": np.ones((32, 32), BF16), "f": np.ones((32, 32), np.float32), "b": np.ones(5, BF16)}
    )
    result = fp4("quantize", source, "-o", tmp_path / "out.npz", "--spec", "nvfp4-rht", "--directions", "both")
    assert "skipped f: hadamard of F32, need BF16" in result.stderr
    assert "skipped b: hadamard of 1 rows, need a multiple of 16" in result.stderr
    with read_dump(tmp_path / "out.npz") as dump:
        assert dump.names == ("w",)


@pytest.mark.parametrize(
    "pattern, names",
    [("*weight", ["a.weight", "b.weight"]), ("a.*", ["a.weight", "a.bias"]), ("[ab].bias", ["a.bias"])],
)
def test_patterns_select(source: Path, tmp_path: Path, pattern: str, names: list[str]) -> None:
    assert fp4("quantize", source, "-o", tmp_path / "out.npz", "--tensors", pattern).exit_code == 0
    with read_dump(tmp_path / "out.npz") as dump:
        assert sorted(dump.names) == sorted(names)


@pytest.mark.rule("NUM-3", "NUM-4", "FIL-4")
@pytest.mark.parametrize(
    "options, words",
    [
        (["--tensors", "precise"], ["precise", "F64", "NUM-3"]),
        (["--tensors", "ids"], ["ids", "I64", "NUM-3"]),
        (["--tensors", "scalar"], ["scalar", "NUM-12"]),
        (["--tensors", "none*"], ["nothing matches", "none*"]),
        (["--tensors", "a.bias", "--spec", "nvfp4-rht", "--directions", "both"], ["HAD-5"]),
        (["--spec", "nvfp44"], ["nvfp44", "nvfp4"]),
        (["--spec", "missing.json"], ["missing.json"]),
        (["--layout", "swizzled"], ["swizzled", "LAY-59"]),
    ],
)
def test_a_refusal_is_one_line_and_leaves_no_file(
    source: Path, tmp_path: Path, options: list[str], words: list[str]
) -> None:
    before = source.read_bytes()
    refused(fp4("quantize", source, "-o", tmp_path / "out.npz", *options), *words)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]
    assert source.read_bytes() == before


@pytest.mark.rule("FIL-1", "FIL-2", "FIL-4")
def test_bad_files_are_one_line(source: Path, tmp_path: Path) -> None:
    truncated = tmp_path / f"cut{source.suffix}"
    truncated.write_bytes(source.read_bytes()[:-40])
    refused(fp4("quantize", truncated, "-o", tmp_path / "out.npz"), truncated.name)
    refused(fp4("quantize", tmp_path / "none.npz", "-o", tmp_path / "out.npz"), "no such file")
    refused(fp4("quantize", tmp_path, "-o", tmp_path / "out.npz"), "no suffix")
    refused(fp4("quantize", source, "-o", tmp_path / "out.txt"), ".txt")
    refused(fp4("quantize", source, "-o", tmp_path / "none" / "out.npz"), "no such file")
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.rule("FIL-4")
def test_the_input_is_never_the_output(source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    link = tmp_path / f"link{source.suffix}"
    link.symlink_to(source)
    for command in ("quantize", "dequantize"):
        dump = tmp_path / f"dump{source.suffix}"
        if command == "dequantize":
            fp4("quantize", source, "-o", dump)
            refused(fp4(command, dump, "-o", dump), "file that is read")
        refused(fp4("quantize", source, "-o", source), "file that is read")
        refused(fp4("quantize", source, "-o", link), "file that is read")
    assert source.read_bytes() == before


@pytest.mark.rule("FIL-4")
@pytest.mark.parametrize(
    "failure, status", [(MemoryError("x"), 2), (KeyboardInterrupt(), 130), (OSError(28, "full"), 2)]
)
def test_a_failure_half_way_leaves_what_was_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, status: int
) -> None:
    out = tmp_path / "out.npz"
    out.write_text("precious")
    calls = []

    def failing(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise failure
        return real(*arguments, **options)

    real = api.quantize
    monkeypatch.setattr(api, "quantize", failing)
    result = fp4("quantize", source, "-o", out, "--force")
    assert result.exit_code == status
    assert len(calls) == 2
    assert "Traceback" not in result.output
    assert out.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, out.name])


@pytest.mark.rule("DEQ-3", "DEQ-4")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("direction", ["row", "column"])
def test_dequantize_writes_what_the_api_computes(source: Path, tmp_path: Path, dtype: str, direction: str) -> None:
    dump, out = tmp_path / "q.npz", tmp_path / "y.safetensors"
    fp4("quantize", source, "-o", dump, "--directions", "both", "--spec", "nvfp4-2d")
    result = fp4("dequantize", dump, "-o", out, "--dtype", dtype, "--direction", direction)
    assert result.exit_code == 0, result.output
    with open_tensors(out) as file:
        assert sorted(file.names) == ["a.bias", "a.weight", "b.weight", "empty"]
        for name in file.names:
            q = fp4ref.quantize(tensors()[name], "nvfp4-2d", "both")
            expected = fp4ref.dequantize(q, dtype, direction)
            got = file.read(name)
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            assert got.tobytes() == expected.tobytes()


@pytest.mark.rule("HAD-6")
def test_dequantize_undoes_the_transform(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((32, 24)).astype(BF16)
    source, dump, out = write(tmp_path / "x.npz", {"x": x}), tmp_path / "q.npz", tmp_path / "y.npz"
    fp4("quantize", source, "-o", dump, "--spec", "nvfp4-rht", "--directions", "column")
    assert fp4("dequantize", dump, "-o", out, "--direction", "column", "--inverse-hadamard").exit_code == 0
    with open_tensors(out) as file:
        q = fp4ref.quantize(x, "nvfp4-rht", "column")
        expected = fp4ref.dequantize(q, direction="column", inverse_hadamard=True)
        assert file.read("x").tobytes() == expected.tobytes()
    refused(fp4("dequantize", dump, "-o", out), "no row direction")
    dump2 = tmp_path / "q2.npz"
    fp4("quantize", source, "-o", dump2)
    refused(fp4("dequantize", dump2, "-o", out, "--inverse-hadamard"), "HAD-9")


def test_a_specification_can_come_from_a_file(source: Path, tmp_path: Path) -> None:
    spec = fp4ref.NVFP4.replace(name="mine", block=(1, 32))
    (tmp_path / "mine.json").write_text(spec.to_json())
    assert fp4("quantize", source, "-o", tmp_path / "q.npz", "--spec", tmp_path / "mine.json").exit_code == 0
    with read_dump(tmp_path / "q.npz") as dump:
        assert dump[0].quantized.spec == spec
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    refused(fp4("quantize", source, "-o", tmp_path / "q.npz", "--spec", tmp_path / "bad.json"), "SPC-11")


@pytest.mark.parametrize("command", [*COMMANDS])
def test_help_shows_examples_and_the_listed_summary(command: str) -> None:
    result = fp4(command, "--help")
    assert result.exit_code == 0, result.output
    assert "Examples:" in result.stdout
    assert main.get_command(None, command).get_short_help_str(200) == COMMANDS[command]


@pytest.fixture
def example_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    x = rng.standard_normal((32, 48)).astype(np.float32)
    q = fp4ref.quantize(x, "nvfp4", scale_layout="tiled_128x4")
    np.savez("kernel.npz", x=x, data=q.row.data, scales=q.row.scales, amax=q.row.amax)
    write(Path("x.npz"), {"x": x})
    weights = {"lm_head.weight": rng.standard_normal((16, 160)).astype(BF16), "b": x[0]}
    write(Path("model.safetensors"), weights)
    Path("Qwen3-8B").mkdir()
    write(Path("Qwen3-8B/model.safetensors"), {"a.experts.0.w1.weight": weights["lm_head.weight"], "norm.weight": x[0]})
    assert fp4("quantize", "model.safetensors", "-o", "model.nvfp4.safetensors").exit_code == 0
    assert fp4("quantize", "x.npz", "-o", "q.npz", "--directions", "both").exit_code == 0
    assert fp4("verify", "kernel.npz", "--spec", "nvfp4", "--layout", "tiled_128x4").exit_code == 0
    np.savez(
        "dump.npz",
        x=x,
        data=q.row.data,
        scales=fp4ref.to_layout(q, "linear").row.scales,
        amax=q.row.amax,
        fp4ref='{"tensors": {"": {"spec": "nvfp4"}}}',
    )


@pytest.mark.usefixtures("example_files")
@pytest.mark.parametrize("command", ["", "quantize", "dequantize", "verify"])
def test_examples_run(command: str) -> None:
    epilog = (main.get_command(None, command) if command else main).epilog or ""
    lines = [line.strip() for line in epilog.splitlines() if line.strip().startswith("fp4ref ")]
    assert lines
    for line in lines:
        elsewhere = line in {"fp4ref COMMAND --help", "fp4ref verify"}
        elsewhere |= any(part in line for part in ("--kernel", "--library", "|"))
        if not elsewhere:  # backends, kernels, libraries and programs have tests of their own
            result = fp4(*shlex.split(line)[1:])
            assert result.exit_code == 0, f"{line}: {result.output}"


def test_help_imports_no_command() -> None:
    code = "import sys; from fp4ref.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"rich", "torch", *(f"fp4ref.cli.{name}" for name in COMMANDS)} & set(output.split())


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    source = write(tmp_path / "x.npz", {"x": np.ones((64, 512), np.float32)})
    fp4("quantize", source, "-o", tmp_path / "q.npz", "--spec", "mxfp4", "--keep-input")
    command = [
        sys.executable,
        "-m",
        "fp4ref",
        "verify",
        str(tmp_path / "q.npz"),
        "--spec",
        "mxfp4",
        "--case",
        "x:row:0:0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_output_through_a_pipe_is_plain(tmp_path: Path) -> None:
    source = write(tmp_path / "x.npz", {"x": np.ones((4, 32), np.float32)})
    fp4("quantize", source, "-o", tmp_path / "q.npz", "--keep-input")
    clean = {key: value for key, value in os.environ.items() if key not in {"FORCE_COLOR", "TTY_COMPATIBLE"}}
    command = [sys.executable, "-m", "fp4ref", "verify", str(tmp_path / "q.npz")]
    done = subprocess.run(command, capture_output=True, check=True, env={**clean, "COLUMNS": "20"})
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stdout.splitlines()[0].endswith(b"q.npz: conforms to nvfp4")


def test_an_unknown_command_is_a_usage_error() -> None:
    result = fp4("quantise")
    assert result.exit_code == 2
    assert "quantise" in result.stderr
