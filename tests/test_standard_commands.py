"""Examples of the chapter on commands and their files, acted out."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import fp4ref
from commands import fp4
from fp4ref.conformance.dumps.files import Dump, write_dump
from fp4ref.conformance.families import cases
from fp4ref.conformance.verdict.replay import NOTE
from fp4ref.files import kinds, targets, write_tensors
from standard_rules import rows_of

F = np.float32
X = np.random.default_rng(3).standard_normal((16, 32), F)


def write_model(path, name="x"):
    write_tensors(path, [(name, "F32", X.shape)], {}, [X])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    q = fp4ref.quantize(X, "nvfp4", backend="numpy")
    q.row.data[0, 0] ^= 1
    write_dump(tmp_path / "d.npz", [Dump("w", X, q)])
    write_model(tmp_path / "model.safetensors")
    return tmp_path


def command_of(cell):
    """The words of a command of a table."""
    return re.search("`fp4ref (.*?)`", cell)[1].split()


@pytest.mark.rule("FIL-4")
@pytest.mark.example("FIL-4")
def test_a_full_disk(here, monkeypatch):
    ((cell, result),) = rows_of("FIL-4")
    command, name = command_of(cell), re.search("names `(.*?)`", result)[1]
    assert fp4(*command).exit_code == 0
    before = (here / name).read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(targets.os, "fsync", full)
    found = fp4(*command)
    assert found.exit_code == 2
    assert f"write {name}: no space left" in found.stderr
    assert (here / name).read_bytes() == before
    assert not [path for path in here.iterdir() if path.suffix == ".tmp"]


@pytest.mark.rule("FIL-10")
@pytest.mark.example("FIL-10")
def test_what_is_read_is_not_written(here):
    (first, refused), (second, also) = rows_of("FIL-10")
    command, more = command_of(first), re.search("`(--.*?)`", second)[1]
    before = (here / command[1]).read_bytes()
    for words, result in ((command, refused), ([*command, more], also)):
        found = fp4(*words)
        assert (found.exit_code, result) == (2, "refused")
        assert "[FIL-10]" in found.stderr
        assert (here / command[1]).read_bytes() == before


@pytest.mark.rule("FIL-6")
@pytest.mark.example("FIL-6")
def test_what_a_command_replaces(here):
    (first, _), (second, _), (third, _) = rows_of("FIL-6")
    command, more = command_of(first), re.search("`(--.*?)`", second)[1]
    target = here / command[-1]
    write_model(target, "other")
    before = target.read_bytes()
    runs = [(command, ""), ([*command, more], more), (command_of(third), "first"), (command_of(third), "")]
    for (words, first_time), result in zip(runs, ("refused", "replaced", "written", "replaced"), strict=True):
        found = fp4(*words)
        assert found.exit_code == {"refused": 2}.get(result, 0 if words[0] == "quantize" else 1), found.output
        assert ("[FIL-6]" in found.stderr) == (result == "refused"), first_time
        assert (target.read_bytes() == before) == (result == "refused")
    assert [said for _, said in rows_of("FIL-6")] == ["refused", "replaced", "replaced"]


@pytest.mark.rule("FIL-40")
@pytest.mark.example("FIL-40")
def test_kinds_of_files(here):
    (dump, member), (saved, key), (tensors, _), (others, _) = rows_of("FIL-40")
    (first, second), (note,) = (re.findall("`(.*?)`", cell) for cell in (member, key))
    assert (dump, saved, tensors) == ("dump", "saved case", "tensors")
    assert note == NOTE
    assert (here / "d.npz").read_bytes()[30:].startswith(first.encode())
    case = next(iter(cases(fp4ref.NVFP4, families=["normal"])))
    q = fp4ref.quantize(X, "nvfp4", backend="numpy")
    write_dump(here / "d.safetensors", [Dump("w", X, q)])
    assert b'"%s":' % second.encode() in (here / "d.safetensors").read_bytes()
    np.savez(here / "mine.npz", x=X)
    assert case.x.size
    of_dump = kinds.DUMP, kinds.TENSORS, kinds.saved_case(NOTE)
    fp4("verify", "d.npz", "--no-diagnosis", "--save-case", "case.npz")
    for name, wanted in (
        ("d.npz", (True, False, False)),
        ("d.safetensors", (True, False, False)),
        ("case.npz", (True, False, True)),
        ("mine.npz", (False, True, False)),
        ("model.safetensors", (False, True, False)),
    ):
        (here / "it").write_bytes((here / name).read_bytes())  # its name says nothing
        assert tuple(kind.recognizes(here / "it") for kind in of_dump) == wanted, name
    begin = {
        "HTML page": (kinds.HTML, b"<!doctype html>"),
        "JUnit report": (kinds.JUNIT, b"<?xml version='1.0'?><testsuites>"),
        "SVG": (kinds.SVG, b"<svg xmlns='http://www.w3.org/2000/svg'>"),
        "PNG": (kinds.PNG, b"\x89PNG\r\n\x1a\n"),
        "JSON": (kinds.JSON, b'{"a": 1}'),
        "C header": (kinds.HEADER, b"#pragma once\n"),
        "text": (kinds.TEXT, "Größe".encode()),
        "stream of cases": (kinds.STREAM, b"FP4REF1\n"),
    }
    assert others.split(", ") == [*begin]
    for name, (kind, start) in begin.items():
        (here / "it").write_bytes(start)
        assert kind.recognizes(here / "it"), name
        (here / "it").write_bytes(b"\xff" + start)
        assert not kind.recognizes(here / "it"), name


@pytest.mark.rule("FIL-40")
@pytest.mark.parametrize(
    "content, text", [("a – b".encode(), True), (b"\xe2\x80", True), (b"\xff", False), (b"a\0", False)]
)
def test_a_text_may_be_cut_in_its_last_character(tmp_path, content, text):
    (tmp_path / "it").write_bytes(content)
    assert kinds.TEXT.recognizes(tmp_path / "it") is text


@pytest.mark.rule("FIL-41")
@pytest.mark.example("FIL-41")
def test_a_target_is_looked_at_first(here):
    ((cell, result),) = rows_of("FIL-41")
    found = fp4(*command_of(cell))
    assert result == "refused; no verdict is printed"
    assert (found.exit_code, found.stdout) == (2, "")
    assert "[FIL-6]" in found.stderr


UNFINISHED = """
import sys, time
from fp4ref.cli import main
from fp4ref.files import writing

def slow(*given, **settings):
    print("begun", flush=True)
    time.sleep(60)

writing.os.fsync = slow
main(["quantize", "model.safetensors", "-o", "q.npz"])
"""


@pytest.mark.slow  # a process of its own
@pytest.mark.rule("FIL-7")
@pytest.mark.example("FIL-7")
def test_a_signal_while_a_file_is_written(here):
    ((name, target, others, status),) = rows_of("FIL-7")
    assert (target, others) == ("as before", "none")
    assert fp4("quantize", "model.safetensors", "-o", "q.npz").exit_code == 0
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    with subprocess.Popen([sys.executable, "-c", UNFINISHED], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        assert len([*here.iterdir()]) == len(before) + 1
        process.send_signal(getattr(signal, f"SIG{name}"))
        assert process.wait(20) == int(status)
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before
