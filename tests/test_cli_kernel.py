from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from commands import GOOD, folder_with
from fp4ref.cli import main
from fp4ref.cli.gen import gen
from fp4ref.conformance.families import FAMILIES, cases
from fp4ref.conformance.run import stream

pytestmark = pytest.mark.slow
FEW = "--family normal --family minus-zero --family overflow"
SIZES = f"{FEW} --family ragged"
KERNELS = """
import numpy as np

def peer(x):
    q = fp4ref.quantize(x, "modelopt.nvfp4", backend="numpy")
    return q.row.data, q.row.scales, q.row.amax

def swapped(x):
    data, scales, amax = good(x)
    return data << 4 | data >> 4, scales, amax

def raises(x):
    if x.shape[-1] % 16:
        raise ValueError("K must be a multiple of 16")
    return good(x)

@fp4ref.kernel(inputs=("x", "amax"), outputs=("data", "scales"), scale_layout="tiled_128x4", out_buffers=True)
def tiled(x, amax, out):
    q = fp4ref.quantize(x, "nvfp4", scale_layout="tiled_128x4", amax=amax, backend="numpy")
    out[0][...], out[1][...] = q.row.data, q.row.scales

@fp4ref.kernel(operation="dequantize", inputs=("data", "scales", "amax"), outputs=("values",), multiple=(1, 16))
def doubled(data, scales, amax):
    q = fp4ref.Quantized(fp4ref.NVFP4, (len(data), data.shape[1] * 2), "float32", "linear",
                         fp4ref.DirectionData(data, scales, amax))
    return fp4ref.dequantize(q, backend="numpy") * 2
"""


here = folder_with(GOOD + KERNELS)


def run(line: str, status: int = 0, given: bytes | None = None) -> str:
    result = CliRunner().invoke(main, shlex.split(line), input=given)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.stderr
    return result.stdout if status < 2 else result.output


def verify(name: str, status: int, more: str = FEW) -> str:
    return run(f"verify --kernel kernels.py:{name} --spec nvfp4 {more}", status)


@pytest.mark.rule("CNF-2")
def test_a_right_kernel(here):
    text = verify("good", 0, SIZES)
    assert text.splitlines()[0].startswith("kernels.py:good: conforms to nvfp4: no byte differs in ")
    assert "BLK-1 " in text
    assert "writes past the results (no out= buffers)" in text
    assert "cases do not apply: takes no amax" in text
    tiled = verify("tiled", 0)
    assert "guards" not in tiled
    assert "LAY-3 " in tiled


@pytest.mark.rule("CNF-2")
def test_wrong_kernels(here):
    lines = verify("swapped", 1).splitlines()
    assert lines[0].startswith("kernels.py:swapped: wrong: ")
    assert any(line.startswith("normal") and "0/6" in line for line in lines)
    assert any("normal/1/f32/row:row:0:0" in line for line in lines)
    text = verify("raises", 1, SIZES)
    assert "raised in 48 of" in text.splitlines()[0]
    assert "first ragged/1x1/f32/row: ValueError: K must be a multiple of 16" in text
    assert "values[0, 0]: expected" in verify("doubled", 1)


def test_a_profile_is_named(here):
    assert "modelopt.nvfp4" in verify("peer", 1, f"{FEW} --level 1").splitlines()[0]


def test_options(here):
    assert verify("swapped", 0, f"{FEW} --nibbles high").startswith("kernels.py:swapped: conforms")
    assert "shape in" in verify("good", 1, f"{FEW} --layout tiled_128x4").splitlines()[0]
    text = verify("good", 0, "--family every-pattern --level 2")
    assert "no byte differs in 32 cases" in text
    x = np.ones((2, 32), np.float32)
    fp4ref.files.write_tensors("m.safetensors", [("w", "F32", x.shape)], {}, [x])
    assert "no byte differs in 3 cases" in verify("good", 0, "--family weights --weights m.safetensors")


def test_json(here):
    record = json.loads(verify("swapped", 1, f"{FEW} --json"))
    assert record["ok"] is False
    assert record["verdict"] == "wrong"
    assert record["families"]["normal"]["passed"] == 0
    assert record["families"]["normal"]["reason"] == FAMILIES["normal"].reason
    assert record["failures"][0]["differences"][0]["case"].startswith("normal/1/f32/row:row:")
    assert record["diagnosis"]["explained"] is True
    good = json.loads(verify("good", 0, f"{FEW} --json"))
    assert (good["ok"], good["findings"], good["diagnosis"]) == (True, [], None)
    found = json.loads(verify("raises", 1, f"{SIZES} --json"))["findings"]
    assert found[0]["kind"] == "raised"


def test_cases_alone(here):
    block = "normal/1/f32/row:row:3:2"
    shown = verify("swapped", 1, f"--case {block} --save-case saved.npz")
    assert shown.startswith(f"kernels.py:swapped {block}: differs from nvfp4 in ")
    assert len(shown.splitlines()) == 19
    again = run("verify saved.npz", 1)
    assert "saved.npz" in again
    assert "row:0:0" in again
    assert verify("swapped", 1, "--case normal/1/f32/row").startswith("kernels.py:swapped normal/1/f32/row:row:")
    assert verify("good", 0, f"--case {block}").startswith(f"kernels.py:good {block}: conforms to nvfp4")
    assert verify("good", 0, "--case normal/1/f32/row") == "kernels.py:good normal/1/f32/row: conforms to nvfp4\n"
    raised = verify("raises", 1, "--case ragged/1x1/f32/row")
    line = 1 + (GOOD + KERNELS).splitlines().index('        raise ValueError("K must be a multiple of 16")')
    assert raised.splitlines() == [
        "kernels.py:raises ragged/1x1/f32/row: raised",
        f"ValueError: K must be a multiple of 16 (kernels.py:{line} in raises)",
    ]
    assert "no case 'nothing'" in verify("good", 2, "--case nothing")
    assert "saved normal/1/f32/row:row:0:0" in verify("swapped", 1, f"{FEW} --save-case first.npz")
    assert run("verify first.npz", 1)
    nothing = verify("good", 2, f"{FEW} --save-case none.npz")
    assert "no block that differs" in nothing
    assert "conforms to nvfp4" in nothing


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("verify --kernel kernels.py:good", "--kernel and --library need --spec"),
        ("verify --kernel kernels.py:good --spec nvfp5", "unknown name 'nvfp5'"),
        ("verify --kernel kernels.py:good --spec nvfp4 x.npz", "take no other PATH"),
        ("verify --kernel kernels.py:good --spec nvfp4 --backend numpy", "are for dumps and backends"),
        ("verify --kernel kernels.py:good --spec nvfp4 --family tie", "family 'tie'"),
        ("verify --kernel kernels.py:absent --spec nvfp4", "no absent in kernels.py"),
        ("verify --kernel nowhere:f --spec nvfp4", "No module named 'nowhere'"),
        ("verify --device cuda", "--device: for --kernel or --library"),
        ("verify --seed 3", "--seed: for --kernel or --library"),
        ("verify --kernel kernels.py:good --spec nvfp4 --forever --repeat 2", "takes neither --repeat nor --case"),
        ("verify --repeat 1", "--repeat: for --kernel or --library"),
        ("verify nvfp4 --level 1 --seed 3", "--level and --seed: for --kernel or --library"),
        ("verify nvfp4 --direction column", "--direction: for --kernel or --library"),
        ("verify x.npz --nibbles high", "--nibbles: for --kernel, --library or a stream"),
        ("verify --spec nvfp4", "--spec: not without PATH"),
        (
            "verify --kernel kernels.py:good --spec nvfp4 --require normal --case normal/1/f32/row",
            "--require: not with --case",
        ),
        ("verify --kernel kernels.py:good --spec nvfp4 --timeout nan", "'nan' is not a number of seconds"),
        ("gen", "Missing argument"),
        ("gen nvfp5", "unknown name 'nvfp5'"),
        ("gen nvfp4 --family tie", "family 'tie'"),
        ("gen nvfp4 -o no/where.bin", "no/where.bin"),
    ],
)
def test_bad_arguments(here, line, message):
    text = run(line, 2)
    assert message in text
    assert len(text.splitlines()) <= 4


# Streams


def generated(line: str) -> bytes:
    result = CliRunner().invoke(main, shlex.split(line))
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def answered(data: bytes, wrong: bool = False) -> bytes:
    """The answers of a program in Python."""
    plan = stream.read_plan(stream.Reader(io.BytesIO(data), "cases"))
    found = [stream.golden(case) for case in plan.cases()]
    start = 12 + int.from_bytes(data[8:12], "little")
    parts, at = [data[:start]], start
    for case, result in zip(plan.cases(), found, strict=True):
        head = stream.HEAD.unpack(data[at : at + 32])
        at += 32 + sum(map(len, stream._payload(case)))
        codes = result.data << 4 | result.data >> 4 if wrong else result.data
        bytes_ = [codes.tobytes(), result.scales.tobytes(), b"" if result.amax is None else result.amax.tobytes()]
        sizes = len(bytes_[0]), len(bytes_[1]), len(bytes_[2]) // 4
        parts += [stream.HEAD.pack(b"DONE", head[1], head[2], *sizes, 0, 0), *bytes_]
    return b"".join([*parts, data[at:]])


@pytest.mark.rule("CNF-6")
def test_a_stream_is_judged_from_a_pipe_and_from_a_file(here):
    results = answered(generated(f"gen nvfp4 {FEW}"))
    assert run("verify nvfp4", given=results).startswith("standard input: conforms to nvfp4: no byte differs in ")
    assert run("verify -", given=results).startswith("standard input: conforms")
    (here / "results.bin").write_bytes(results)
    assert run("verify results.bin").startswith("results.bin: conforms")
    wrong = answered(generated("gen nvfp4 --family normal --dtype float32"), wrong=True)
    assert "wrong: " in run("verify nvfp4", 1, wrong)
    shown = run("verify nvfp4 --case normal/small/f32/row", 1, wrong)
    assert shown.startswith("standard input normal/small/f32/row:row:0:0: differs from nvfp4")


def test_gen_writes_files_and_lists_families(here):
    assert run("gen mxfp4 --dtype bfloat16 --multiple 1 32 --no-empty --direction column --size 2 -o cases.bin") == ""
    written = io.BytesIO((here / "cases.bin").read_bytes())
    plan = stream.read_plan(stream.Reader(written, "cases"))
    assert plan == stream.StreamPlan(fp4ref.MXFP4, 2, "column", ("bfloat16",), None, 2, (1, 32), False)
    listed = run("gen --families").splitlines()
    assert [line.split()[0] for line in listed] == list(FAMILIES)
    assert gen.epilog


@pytest.mark.rule("CNF-6")
def test_bad_streams(here):
    results = answered(generated("gen nvfp4 --family normal"))
    assert "need those of mxfp4" in run("verify mxfp4", 2, results)
    assert "ends at byte 900" in run("verify nvfp4", 2, results[:900])
    for given in (b"", b"junk"):
        text = run("verify nvfp4", 2, given)
        assert "need a preamble" in text
        assert len(text.splitlines()) == 1


def test_through_a_real_pipe(here):
    """A stream has no end of lines to translate, and both ends run at once."""
    fp4 = f"{sys.executable} -m fp4ref"
    copy = f"{sys.executable} -c 'import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())'"
    line = f"{fp4} gen nvfp4 --family normal | {copy} | {fp4} verify nvfp4"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "b'CASE' at byte" in done.stderr
    assert done.stderr.count("\n") == 1


def test_first_output_needs_neither_torch_nor_hypothesis():
    code = "import sys; import fp4ref.cli.verify_kernel, fp4ref.cli.gen; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "hypothesis", "pytest"} & set(loaded)
    assert next(cases(fp4ref.NVFP4, families=["normal"])).id == "normal/1/f32/row"


@pytest.mark.rule("CNF-6")
def test_bytes_after_the_end_of_a_stream_are_refused(here):
    results = answered(generated("gen nvfp4 --family normal --dtype float32"))
    text = run("verify nvfp4", 2, results + b"x")
    assert f"bytes after the end, from byte {len(results)} on, need nothing after" in text
    assert run("verify nvfp4", 2, results + results).count("[CNF-6]") == 1
