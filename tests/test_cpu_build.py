from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import textwrap
from pathlib import Path

import pytest

import forked
from fp4ref import registry

QUANTIZE = """
import numpy as np, fp4ref
x = np.random.default_rng(0).standard_normal((16, 256), np.float32)
q = fp4ref.quantize(x, fp4ref.NVFP4, backend="cpu")
expected = fp4ref.quantize(x, fp4ref.NVFP4, backend="numpy")
assert (q.row.data == expected.row.data).all() and (q.row.scales == expected.row.scales).all()
print("same")
"""
QUICK = """
case "$*" in *--version*) exec c++ --version ;; esac
for library; do :; done
kept="$KEPT/$(sha256sum < "${library%.so}.cpp" | cut -c 1-32)"
[ -e "$kept" ] && exec cp "$kept" "$library"
c++ "$@" -O0 && cp "$library" "$kept.$$" && mv "$kept.$$" "$kept"
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


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory, quick):
    folder = tmp_path_factory.mktemp("compiled")
    run(QUANTIZE, FP4REF_CACHE_DIR=folder)
    return folder


@pytest.fixture
def filled(compiled_once, tmp_path):
    """A copy of a cache that has all of QUANTIZE."""
    return Path(shutil.copytree(compiled_once, tmp_path / "filled"))


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory):
    """Compile without optimization, and the same text once: what is tested here is where libraries come from."""
    folder = tmp_path_factory.mktemp("quick")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(script(folder / "quick", QUICK)))
        patch.setenv("KEPT", str(folder))
        yield


def start(code: str, **environment: object) -> forked.Finish:
    env = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    return forked.start(["-c", code], env=env)


def finish(process: forked.Finish) -> str:
    done = process()
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


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
    body = f'case "$*" in *--version*) ;; *) echo x >> "{notes}";; esac\n{QUICK}'
    return script(tmp_path / "counting", body), notes


@pytest.mark.rule("CNF-5")
def test_processes_at_once_compile_each_entry_once(tmp_path):
    compiler, notes = counting(tmp_path)
    cache = tmp_path / "cache"
    processes = [start(QUANTIZE, FP4REF_CACHE_DIR=cache, CXX=compiler) for _ in range(4)]
    assert [finish(process) for process in processes] == ["same"] * 4
    assert all(map(intact, libraries(cache)))
    assert len(libraries(cache)) == len(notes.read_text().splitlines()) == 3  # layouts, this specification, its maximum
    assert {path.suffix for path in (cache / "cpu").iterdir()} == {".so"}  # nothing half-made, no lock left
    run(QUANTIZE, FP4REF_CACHE_DIR=cache, CXX=compiler)
    assert len(notes.read_text().splitlines()) == 3


def test_damaged_entries_are_built_again(filled):
    empty, text, cut = before = libraries(filled)
    empty.write_bytes(b"")
    text.write_bytes(b"not a library")
    cut.write_bytes(cut.read_bytes()[:-4096])
    assert run(QUANTIZE, FP4REF_CACHE_DIR=filled) == "same"
    assert len(libraries(filled)) == len(before)
    assert all(map(intact, libraries(filled)))


def test_another_compiler_or_another_header_has_entries_of_its_own(filled, tmp_path):
    other = script(tmp_path / "other", 'if [ "$1" = --version ]; then echo other 1.0; else exec c++ "$@" -O0; fi')
    run(QUANTIZE, FP4REF_CACHE_DIR=filled, CXX=other)
    assert len(libraries(filled)) == 6
    changed = "from fp4ref_cpu import build\nbuild._headers = lambda: 'changed'\n"
    run(changed + QUANTIZE, FP4REF_CACHE_DIR=filled)
    assert len(libraries(filled)) == 9


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


def test_a_compiler_that_a_signal_ends_is_not_tried_again(tmp_path):
    notes = tmp_path / "notes"
    body = f'[ "$1" = --version ] && exit; echo x >> "{notes}"; kill -TERM $$'
    run(REASON, FP4REF_CACHE_DIR=tmp_path / "cache", CXX=script(tmp_path / "stopped", body))
    assert notes.read_text().splitlines() == ["x"]


def test_a_compiler_that_fails_later_is_a_backend_error(tmp_path):
    compiler = script(tmp_path / "later", f'[ -e "{tmp_path}/stop" ] && [ "$1" != --version ] && exit 1; {QUICK}')
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


NO_HOME = """
import pathlib
def nowhere(self):
    raise RuntimeError("Could not determine home directory.")
pathlib.Path.expanduser = nowhere
"""


@pytest.mark.rule("CNF-5")
def test_a_user_without_a_home_compiles_for_the_process():
    assert run(NO_HOME + QUANTIZE, FP4REF_CACHE_DIR="", XDG_CACHE_HOME="") == "same"


# A cache that others may write


PLANTED = """
#include <stdio.h>
__attribute__((constructor)) static void planted(void) { puts("PLANTED"); }
const char %s = 0;
"""


def plant(entry: Path, mark: str = "x") -> Path:
    """A library of another's in place of an entry, under a name that is right for its bytes."""
    source = entry.with_suffix(".c")
    source.write_text(PLANTED % mark)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", entry, source], check=True)
    source.unlink()
    digest = hashlib.sha256(entry.read_bytes()).hexdigest()[:16]
    return entry.rename(entry.with_name(f"{entry.stem.rpartition('-')[0]}-{digest}.so"))


def plant_all(cache: Path) -> list[Path]:
    return [plant(path, f"fp4ref_{path.stem.partition('-')[0]}") for path in libraries(cache)]


def said(code: str, cache: Path) -> tuple[str, str]:
    done = start(code, FP4REF_CACHE_DIR=cache)()
    return done.stdout, done.stderr


ANOTHER = "import os; os.geteuid = lambda: 12345\n"  # as if another user owned all that this one has
ADMINISTRATOR = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize("mode, owner", [(0o770, 0), (0o707, 0), pytest.param(0o700, 12345, marks=ADMINISTRATOR)])
def test_a_folder_that_others_may_write_is_not_used(filled, mode, owner):
    folder, planted = filled / "cpu", plant_all(filled)
    assert "PLANTED" in said(QUANTIZE, filled)[0]  # the bait works where only the user can have put it
    folder.chmod(mode)
    if owner:
        os.chown(folder, owner, -1)
    out, err = said(QUANTIZE, filled)
    assert out.split() == ["same"]
    reason = "its owner is user 12345, not 0" if owner else "others may write to it"
    assert err.count(f"RuntimeWarning: cpu: the cache {folder} is not used: {reason}") == 1
    assert libraries(filled) == sorted(planted)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="what root owns is trusted")
def test_a_folder_of_another_user_is_not_used(filled):
    plant_all(filled)
    out, err = said(ANOTHER + QUANTIZE, filled)
    assert out.split() == ["same"]
    assert "its owner is user" in err


def test_a_folder_in_one_where_anyone_renames_is_not_used(tmp_path):
    folder = tmp_path / "open" / "mine"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o777)
    out, err = said(QUANTIZE, folder)
    assert out.split() == ["same"]
    assert f"anyone may rename what is in {folder.parent}" in err
    assert not libraries(folder)
    folder.parent.chmod(0o1777)  # as /tmp: only owners rename
    assert run(QUANTIZE, FP4REF_CACHE_DIR=folder) == "same"
    assert libraries(folder)


def handed_on(path: Path, how: str) -> None:
    if how == "group":
        path.chmod(0o775)
    elif how == "owner":
        os.chown(path, 12345, -1)
    elif how == "link":
        elsewhere = path.rename(path.parents[1] / path.name)
        path.symlink_to(elsewhere)


@pytest.mark.parametrize("ways", [("foreign", "group", "link"), pytest.param(("owner",) * 3, marks=ADMINISTRATOR)])
def test_an_entry_that_another_can_have_written_is_built_again(filled, ways):
    entries = libraries(filled)
    keys = [path.name.partition("-")[0] for path in entries]
    for path, key, how in zip(entries, keys, ways, strict=True):
        handed_on(plant(path, "x" if how == "foreign" else f"fp4ref_{key}"), how)
    assert said(QUANTIZE, filled)[0].split() == ["same"]
    after = libraries(filled)
    assert [path.name.partition("-")[0] for path in after] == keys
    assert all(map(intact, after))
    assert all(stat.S_ISREG(path.lstat().st_mode) and not path.stat().st_mode & 0o022 for path in after)


READ_ONLY = """
import pathlib, tempfile
def refuse(*arguments, **options):
    raise OSError(30, "Read-only file system")
tempfile.TemporaryFile = refuse
"""


def test_a_complete_cache_that_cannot_be_written_is_used(tmp_path):
    compiler, notes = counting(tmp_path)
    cache = tmp_path / "cache"
    run(QUANTIZE, FP4REF_CACHE_DIR=cache, CXX=compiler)
    compiled, before = notes.read_text(), libraries(cache)
    (cache / "cpu").chmod(0o555)
    assert run(READ_ONLY + QUANTIZE, FP4REF_CACHE_DIR=cache, CXX=compiler) == "same"
    assert notes.read_text() == compiled
    (cache / "cpu").chmod(0o755)
    before[0].unlink()
    (cache / "cpu").chmod(0o555)
    assert run(READ_ONLY + QUANTIZE, FP4REF_CACHE_DIR=cache, CXX=compiler) == "same"
    assert len(notes.read_text()) == len(compiled) + 2  # the one that lacks, into a folder of the process
    assert libraries(cache) == before[1:]


def test_what_is_compiled_is_the_users_alone_whatever_the_umask(tmp_path):
    compiler, notes = counting(tmp_path)
    for _ in range(2):
        run(f"import os; os.umask(0)\n{QUANTIZE}", FP4REF_CACHE_DIR=tmp_path / "a", CXX=compiler)
    assert len(notes.read_text().splitlines()) == len(libraries(tmp_path / "a")) == 3


TOGETHER = """
import os
os.cpu_count = lambda: 1
import numpy as np, fp4ref
from fp4ref import registry
from fp4ref.registry import Call
from fp4ref.specs import STANDARD as specs
from fp4ref_cpu import build
build.TOGETHER = 16
calls = [Call("quantize", s, "bfloat16") for s in specs] + [Call("dequantize", s, "bfloat16") for s in specs]
registry.get("cpu").prefetch(calls, lambda line: print(line.split()[1]))
x = np.random.default_rng(0).standard_normal((64, 256), np.float32).astype("bfloat16")
for spec in specs:
    q, expected = (fp4ref.quantize(x, spec, backend=name) for name in ("cpu", "numpy"))
    assert all(np.array_equal(a, b) for a, b in zip(q.row, expected.row)), spec.name
    values = [fp4ref.dequantize(q, backend=name).tobytes() for name in ("cpu", "numpy")]
    assert values[0] == values[1], spec.name
"""


@pytest.mark.rule("CNF-1")
def test_texts_that_are_compiled_together_are_one_library(tmp_path):
    compiler, notes = counting(tmp_path)
    asked = int(run(TOGETHER, FP4REF_CACHE_DIR=tmp_path, CXX=compiler))
    entries = libraries(tmp_path)
    assert len(entries) == asked + 1  # layouts
    assert len({path.stat().st_ino for path in entries}) == len(notes.read_text().splitlines()) == 1 + -(-asked // 16)
    assert asked > 16
    assert all(map(intact, entries))


def test_the_cache_folder(tmp_path):
    show = "from fp4ref_cpu import build; print(build.CACHE.writable())"
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
print(len(list(build.CACHE.writable().glob("*.so"))) - 1)  # one is for layouts
"""


@pytest.mark.rule("CNF-5")
def test_calls_that_are_told_are_compiled_once(tmp_path):
    assert run(PREFETCH, FP4REF_CACHE_DIR=tmp_path).splitlines() == ["1 4", "0", "4"]  # one of the three has a maximum
