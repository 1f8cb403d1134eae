from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fp4ref import registry

QUANTIZE = """
import numpy as np, fp4ref
x = np.random.default_rng(0).standard_normal((16, 256), np.float32)
q = fp4ref.quantize(x, fp4ref.NVFP4, backend="cpu")
expected = fp4ref.quantize(x, fp4ref.NVFP4, backend="numpy")
assert (q.row.data == expected.row.data).all() and (q.row.scales == expected.row.scales).all()
print("same")
"""
REASON = """
import fp4ref, numpy as np
from fp4ref import registry
print(dict(registry.available())["cpu"])
try:
    registry.get("cpu")
except fp4ref.BackendError as error:
    print(error)
q = fp4ref.quantize(np.float32([[1, -6, 0.3, 0] * 4]), "nvfp4")  # asked for by nobody, so another one serves
print(bytes(q.row.data[0, :2]).hex())
"""


@pytest.fixture(autouse=True, scope="module")
def backend():
    assert "cpu" in registry.backends()


def start(code: str, **environment: object) -> subprocess.Popen[str]:
    env = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out.strip()


def run(code: str, **environment: object) -> str:
    return finish(start(code, **environment))


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{textwrap.dedent(body)}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def libraries(cache: Path) -> list[Path]:
    return sorted(cache.glob("cpu/*.so"))


def intact(path: Path) -> bool:
    return path.stem.rpartition("-")[2] == hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def counting(tmp_path: Path) -> tuple[Path, Path]:
    """A compiler that notes each run that compiles."""
    notes = tmp_path / "notes"
    body = f'case "$*" in *--version*) ;; *) echo x >> "{notes}";; esac\nexec c++ "$@"'
    return script(tmp_path / "counting", body), notes


@pytest.mark.rule("CNF-5")
def test_eight_processes_at_once_compile_each_entry_once(tmp_path):
    compiler, notes = counting(tmp_path)
    cache = tmp_path / "cache"
    processes = [start(QUANTIZE, FP4REF_CACHE_DIR=cache, CXX=compiler) for _ in range(8)]
    assert [finish(process) for process in processes] == ["same"] * 8
    assert all(map(intact, libraries(cache)))
    assert len(libraries(cache)) == len(notes.read_text().splitlines()) == 2  # layouts, and this specification
    assert {path.suffix for path in (cache / "cpu").iterdir()} == {".so"}  # nothing half-made, no lock left
    run(QUANTIZE, FP4REF_CACHE_DIR=cache, CXX=compiler)
    assert len(notes.read_text().splitlines()) == 2


@pytest.mark.parametrize("damage", [b"", b"not a library", None], ids=["empty", "text", "cut"])
def test_a_damaged_entry_is_built_again(tmp_path, damage):
    run(QUANTIZE, FP4REF_CACHE_DIR=tmp_path)
    before = libraries(tmp_path)
    for path in before:
        path.write_bytes(path.read_bytes()[:-4096] if damage is None else damage)
    assert run(QUANTIZE, FP4REF_CACHE_DIR=tmp_path) == "same"
    assert len(libraries(tmp_path)) == len(before)
    assert all(map(intact, libraries(tmp_path)))


def test_another_compiler_or_another_header_has_entries_of_its_own(tmp_path):
    other = script(tmp_path / "other", 'if [ "$1" = --version ]; then echo other 1.0; else exec c++ "$@"; fi')
    run(QUANTIZE, FP4REF_CACHE_DIR=tmp_path)
    run(QUANTIZE, FP4REF_CACHE_DIR=tmp_path, CXX=other)
    assert len(libraries(tmp_path)) == 4
    changed = "from fp4ref_cpu import build\nbuild._headers = lambda: ('changed',)\n"
    run(changed + QUANTIZE, FP4REF_CACHE_DIR=tmp_path)
    assert len(libraries(tmp_path)) == 6


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize(
    "environment, reason",
    [
        ({"PATH": ""}, "no C++ compiler: g++, clang++, c++ not found"),
        ({"CXX": "/no/such/compiler"}, "no C++ compiler: CXX=/no/such/compiler not found"),
        ({"CXX": "false"}, "no C++ compiler that works: {CXX}: status 1, no message"),
    ],
)
def test_without_a_compiler_the_backend_says_so(tmp_path, environment, reason):
    listed, error, unnamed = run(REASON, FP4REF_CACHE_DIR=tmp_path, **{"CXX": "", **environment}).splitlines()
    before, _, after = reason.partition("{CXX}")
    assert listed.startswith(before)
    assert after in listed
    assert error.startswith(f"backend cpu: unavailable: {before}")
    assert unnamed == "f201"
    assert not libraries(tmp_path)


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize(
    "body, reason",
    [
        ("echo 'x.cpp:1:2: error: no such dialect' >&2; exit 3", "status 3, x.cpp:1:2: error: no such dialect"),
        ("kill -9 $$", "status -9"),
        ('for a; do o="$a"; done; echo garbage > "$o"', "cannot load"),
    ],
    ids=["refuses", "dies", "writes garbage"],
)
def test_a_broken_compiler(tmp_path, body, reason):
    compiler = script(tmp_path / "broken", f'if [ "$1" = --version ]; then echo broken 1.0; exit; fi\n{body}')
    listed, error, _ = run(REASON, FP4REF_CACHE_DIR=tmp_path / "cache", CXX=compiler).splitlines()
    assert reason in listed
    assert error.startswith("backend cpu: unavailable: ")
    assert reason in error


def test_a_compiler_that_fails_later_is_a_backend_error(tmp_path):
    compiler = script(tmp_path / "later", f'[ -e "{tmp_path}/stop" ] && [ "$1" != --version ] && exit 1; exec c++ "$@"')
    code = f"""
import fp4ref, numpy as np, pathlib
from fp4ref import registry
registry.get("cpu")
pathlib.Path(r"{tmp_path}/stop").touch()
try:
    fp4ref.quantize(np.ones((1, 16), np.float32), "nvfp4", backend="cpu")
except fp4ref.BackendError as error:
    print(error)
"""
    assert "no C++ compiler that works" in run(code, FP4REF_CACHE_DIR=tmp_path / "cache", CXX=compiler)


def test_options_in_cxx_are_kept(tmp_path):
    compiler, notes = counting(tmp_path)
    assert run(QUANTIZE, FP4REF_CACHE_DIR=tmp_path / "cache", CXX=f"{compiler} -DSOMETHING=1") == "same"
    assert notes.exists()


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert run(QUANTIZE, FP4REF_CACHE_DIR=tmp_path / "file") == "same"


def test_the_cache_folder(tmp_path):
    show = "from fp4ref_cpu import build; print(build.cache_folder())"
    assert run(show, FP4REF_CACHE_DIR=tmp_path / "a b") == str(tmp_path / "a b" / "cpu")
    assert run(show, FP4REF_CACHE_DIR="", XDG_CACHE_HOME=tmp_path) == str(tmp_path / "fp4ref" / "cpu")
    assert run(show, FP4REF_CACHE_DIR="", XDG_CACHE_HOME="", HOME=tmp_path) == str(tmp_path / ".cache/fp4ref/cpu")


PREFETCH = """
from fp4ref import NVFP4, MXFP4, registry
from fp4ref.registry import Call
from fp4ref_cpu import build
cpu = registry.get("cpu")
calls = [Call("quantize", NVFP4, "bfloat16"), Call("quantize", MXFP4, "bfloat16"), Call("dequantize", MXFP4)]
for _ in range(2):
    said = []
    cpu.prefetch(calls, said.append)
    print(len(said), *(line.split()[1] for line in said))
print(len(list(build.cache_folder().glob("*.so"))) - 1)  # one is for layouts
"""


@pytest.mark.rule("CNF-5")
def test_calls_that_are_told_are_compiled_once(tmp_path):
    assert run(PREFETCH, FP4REF_CACHE_DIR=tmp_path).splitlines() == ["1 3", "0", "3"]
