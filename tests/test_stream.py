from __future__ import annotations

import io
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fp4ref
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run import stream
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.timed_input import TimedInput
from fp4ref.conformance.subjects.subject import Declaration, golden
from fp4ref.errors import FileError
from fp4ref.formats import STOCHASTIC_E2M1
from standard_rules import rows_of

NVFP4 = fp4ref.NVFP4
EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "stream_kernel.c"
FEW = ("normal", "ragged", "overflow", "empty")


def written(plan: stream.StreamPlan) -> bytes:
    target = io.BytesIO()
    stream.write(target, plan)
    return target.getvalue()


def program(cases: bytes, change=lambda index, data: data, nibbles="low") -> bytes:
    """A program that knows the format from rule CNF-6 alone, and lets the golden model quantize."""
    source, target = io.BytesIO(cases), io.BytesIO()
    start = source.read(12)
    text = source.read(struct.unpack("<I", start[8:])[0])
    target.write(start + text)
    while True:
        head = source.read(32)
        kind, index, key, dtype, rows, columns, count, flags = struct.unpack("<4s7I", head)
        if kind != b"CASE":
            target.write(head)
            return target.getvalue()
        name = ("float32", "bfloat16", "float16")[dtype]
        kind = fp4ref.arrays.INPUT_DTYPES[name]
        x = np.frombuffer(source.read(rows * columns * kind.itemsize), kind).reshape(rows, columns)
        amax = np.frombuffer(source.read(4 * count), np.float32) if count else None
        bits = None
        direction = "column" if flags & 4 else "row"
        if flags & 1:
            shape = (columns, rows) if flags & 4 else (rows, columns)
            bits = np.frombuffer(source.read(rows * columns), np.uint8).reshape(shape)
        spec = stream.read_plan(stream.Reader(io.BytesIO(start + text), "it")).spec
        q = fp4ref.quantize(x, spec, direction, amax=amax, random_bits=bits, backend="numpy")
        data = change(index, q.direction(direction)[0])
        parts = [b"" if part is None else part.tobytes() for part in data]
        target.write(struct.pack("<4s7I", b"DONE", index, key, len(parts[0]), len(parts[1]), len(parts[2]) // 4, 0, 0))
        target.writelines(parts)


def judged(answers: bytes):
    reader = stream.Reader(io.BytesIO(answers), "answers")
    plan = stream.read_plan(reader)
    declared = Declaration(inputs=("x", "amax"), direction=plan.direction)
    return [judge(run.case, run.outcome, declared, run.expected) for run in stream.read(reader, plan, declared)]


@pytest.mark.rule("CNF-6", "CNF-80", "CNF-81", "CNF-112", "CNF-113")
@pytest.mark.parametrize(
    "plan",
    [
        stream.StreamPlan(NVFP4, families=FEW),
        stream.StreamPlan(NVFP4, families=FEW, multiple=(2, 16), empty=False, dtypes=("bfloat16",)),
        stream.StreamPlan(fp4ref.NVFP4_ROW_SCALED, families=FEW),
        stream.StreamPlan(fp4ref.MXFP8_E4M3, families=FEW, direction="column"),
        stream.StreamPlan(fp4ref.NVFP4_RHT, families=("normal", "hadamard"), direction="column"),
        stream.StreamPlan(
            NVFP4.replace(name="bits", element=STOCHASTIC_E2M1), families=("random-bits",), direction="column"
        ),
    ],
    ids="nvfp4 multiple rows column rht bits".split(),
)
def test_a_program_that_knows_only_the_rule_conforms(plan):
    found = judged(program(written(plan)))
    assert all(j.equal for j in found)
    assert [j.case.id for j in found] == [case.id for case in plan.cases()]
    assert found


@pytest.mark.rule("CNF-6")
def test_a_plan_survives_the_preamble():
    plan = stream.StreamPlan(
        NVFP4.replace(name="own", element_max=4), 2, "column", ("float16",), ("normal",), 3, (16, 32), False
    )
    reader = stream.Reader(io.BytesIO(written(plan)), "it")
    assert stream.read_plan(reader) == plan


def test_wrong_bytes_are_seen_and_a_missing_amax_is_not_judged():
    cases = written(stream.StreamPlan(NVFP4, families=("normal",), dtypes=("float32",)))

    def change(index, data):
        return data._replace(amax=None, data=data.data ^ (index == 1))

    assert [j.equal for j in judged(program(cases, change))] == [True, False]


def piped(answers: bytes, options: RunOptions):
    """Kinds of findings on answers that arrive through a pipe, which stays open."""
    source, target = os.pipe()
    with os.fdopen(source, "rb") as file, os.fdopen(target, "wb") as sender:
        reader = stream.Reader(TimedInput(file), "answers")
        sender.write(answers)
        sender.flush()
        plan = stream.read_plan(reader, options)
        declared = Declaration(inputs=("x", "amax"), direction=plan.direction)
        runs = list(stream.read(reader, plan, declared, options))
    return [run.outcome.finding and run.outcome.finding.kind for run in runs]


SMALL = stream.StreamPlan(NVFP4, families=("empty", "ragged"), dtypes=("float32",))


@pytest.mark.example("CNF-45", "CNF-97")
@pytest.mark.rule("CNF-45", "CNF-97")
def test_a_program_that_stops_answering_hangs():
    whole = program(written(SMALL))
    starts = [found.start() for found in re.finditer(b"DONE", whole)]
    options = RunOptions(timeout=0.3, start_timeout=0.0)
    assert set(piped(whole, options)) == {None}  # it does not end, but it has said everything
    ((cell, later),) = rows_of("CNF-97")
    assert (cell, later) == (rows_of("CNF-45")[0][0], "the sixth case and those after it are `not-run`")
    assert (cell.split()[1], rows_of("CNF-45")[0][1]) == ("four", "the four are judged, the fifth is `hung`")
    hung = piped(whole[: starts[4] + 40], options)
    assert hung[:5] == [None, None, None, None, "hung"]
    assert set(hung[5:]) == {"not-run"}
    assert len(hung) == len(starts)
    with pytest.raises(FileError, match=r"no answer within 0\.3 s of the clock from byte \d+ on, need b'END '"):
        piped(whole[:-32], options)
    with pytest.raises(FileError, match=r"no answer within 0\.3 s of the clock, need a preamble"):
        piped(whole[:5], options)


@pytest.mark.rule("CNF-38", "CNF-45")
def test_the_time_of_a_run_ends_a_stream():
    whole = program(written(SMALL))
    second = [found.start() for found in re.finditer(b"DONE", whole)][1]
    found = piped(whole[:second], RunOptions.starting_now(60.0, 60.0, 0.5))
    assert found[0] is None
    assert set(found[1:]) == {"not-tried"}


@pytest.mark.slow  # a process of its own
@pytest.mark.rule("CNF-45")
def test_verify_of_a_hung_program_has_a_verdict():
    whole = program(written(SMALL), lambda index, data: data._replace(data=data.data ^ 1))
    command = [
        sys.executable,
        "-m",
        "fp4ref",
        "verify",
        "-",
        "--timeout",
        "1",
        "--start-timeout",
        "9",
        "--no-diagnosis",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(whole[:-33])
        process.stdin.flush()
        text = process.stdout.read().decode()
        assert process.wait(20) == 1
        process.stdin.close()
    assert "hung in 1 of" in text
    assert "no answer within 1 s of the clock" in text


@pytest.mark.rule("CNF-82")
def test_answers_of_the_wrong_size_are_findings():
    cases = written(stream.StreamPlan(NVFP4, families=("normal",), dtypes=("float32",)))
    found = judged(program(cases, lambda index, data: data._replace(scales=data.scales[:, :-1])))
    assert [str(j.finding.text) for j in found] == ["scales has 112 bytes, need 128"] * 2


def answers() -> bytes:
    return program(written(stream.StreamPlan(NVFP4, families=("normal",), dtypes=("float32",))))


def first_head(data: bytes) -> int:
    return 12 + struct.unpack("<I", data[8:12])[0]


@pytest.mark.rule("CNF-32", "CNF-112")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data, at: b"", "ends at byte 0, need a preamble"),
        (lambda data, at: data[:7], "ends at byte 7, need a preamble"),
        (lambda data, at: b"x" + data[1:], "at byte 0, need b'FP4REF1"),
        (lambda data, at: data[:8] + b"\xff" * 4, "a preamble of 4294967295 bytes at byte 8"),
        (lambda data, at: data[:20], "ends at byte 20, need the text"),
        (lambda data, at: data[:12] + b"[" + data[13:], "preamble at byte 12 that is not a plan"),
        (lambda data, at: data.replace(b'"nvfp4"', b'"nvfp5"'), "preamble at byte 12 with unknown name 'nvfp5'"),
        (lambda data, at: data.replace(b'"1.0"', b'"9.9"'), "version 9.9"),
        (lambda data, at: data[:at], "need the answer to case 0 (normal/1/f32/row)"),
        (lambda data, at: data[: at + 100], "bytes of the answer to normal/1/f32/row"),
        (lambda data, at: data[:at] + b"CASE" + data[at + 4 :], "b'CASE' at byte {at}, need b'DONE'"),
        (lambda data, at: data[:at] + data[-32:], "the end at byte {at} after 0 cases"),
        (lambda data, at: data[: at + 4] + b"\7" + data[at + 5 :], "the answer to case 7 at byte {at}"),
        (lambda data, at: data[: at + 8] + b"\0\0\0\0" + data[at + 12 :], "key 00000000 at byte"),
        (lambda data, at: data[: at + 12] + b"\xff" * 4 + data[at + 16 :], "an answer of 4294967295 bytes"),
        (lambda data, at: data[:-32], "ends at byte {end}, need b'END ' after 2 cases"),
        (lambda data, at: data[:-28] + b"\1" + data[-27:], "b'END ' 1 at byte {end}"),
    ],
)
def test_malformed_streams_name_the_byte(change, message):
    data = answers()
    at, end = first_head(data), len(data) - 32
    with pytest.raises(FileError) as caught:
        judged(change(data, at))
    text = str(caught.value)
    assert message.format(at=at, end=end) in text
    assert text.endswith("[CNF-6]")
    assert "\n" not in text


@pytest.mark.slow
@pytest.mark.rule("CNF-6")
@pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are in the checkout only")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_example_in_c_conforms(tmp_path):
    binary = tmp_path / "stream_kernel"
    flags = ["-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, str(EXAMPLE), "-o", str(binary), "-lm"], check=True)
    cases = written(stream.StreamPlan(NVFP4))
    run = subprocess.run([str(binary)], input=cases, stdout=subprocess.PIPE, check=True)
    found = judged(run.stdout)
    assert len(found) > 350
    assert [j.case.id for j in found if not j.equal] == []
    broken = subprocess.run([str(binary)], input=cases[:1000], stdout=subprocess.PIPE, check=False)
    assert broken.returncode == 1


def test_cases_are_those_of_the_families():
    plan = stream.StreamPlan(NVFP4, families=("normal",))
    for case in plan.cases():
        assert golden(case).data.size
