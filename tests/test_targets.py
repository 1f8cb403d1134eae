"""Files that commands write: whole or not at all, never over what is read, nor over files of another kind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from commands import fp4
from covering import few
from fp4ref.cli import main
from fp4ref.cli.verify_choice import Reporting
from fp4ref.cli.verify_pages import Pages
from fp4ref.conformance.dumps.files import Dump, write_dump
from fp4ref.errors import FileError
from fp4ref.files import targets, write_tensors
from fp4ref.files.kinds import HTML
from fp4ref.files.targets import replacing, write_bytes
from standard_rules import rows_of

FULL = Path("/dev/full")
FOREIGN = b"\x00 seventeen years of notes \xff"


def write_wrong(path):
    x = np.random.default_rng(3).standard_normal((16, 32), np.float32)
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    q.row.data[0, 0] ^= 1
    write_dump(path, [Dump("w", x, q)])
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_wrong(tmp_path / "d.npz")
    x = np.random.default_rng(3).standard_normal((16, 32), np.float32)
    write_tensors(tmp_path / "x.safetensors", [("x", "F32", x.shape)], {}, [x])
    (tmp_path / "spec.json").write_text(fp4ref.NVFP4.to_json(), encoding="utf-8")
    return tmp_path


WRITERS = {
    "junit": "verify d.npz --no-diagnosis --junit TARGET",
    "html": "verify d.npz --no-diagnosis --html TARGET",
    "save-case": "verify d.npz --no-diagnosis --save-case TARGET.npz",
    "gen": "gen nvfp4 --family normal -o TARGET",
    "explore": "explore -o TARGET",
    "diagram-svg": "diagram blocks -o TARGET.svg",
    "diagram-text": "diagram tiled_128x4 -o TARGET.txt",
    "quantize": "quantize x.safetensors -o TARGET.safetensors",
    "quantize-npz": "quantize x.safetensors -o TARGET.npz",
    "dequantize": "dequantize d.npz -o TARGET.npz",
    "dequantize-safetensors": "dequantize d.npz -o TARGET.safetensors",
    "report": "report x.safetensors --specs nvfp4 --html TARGET",
}
FOLDERS = {
    "export": ("vectors export out --spec mxfp4 --family normal", ["mxfp4.bin", "mxfp4.h", "mxfp4.json", "SHA256SUMS"]),
    "header": ("header --dir out", ["fp4ref/specs.h", "fp4ref/fp4ref.h"]),
}


def target_of(name):
    return next(word for word in WRITERS[name].split() if "TARGET" in word)


@pytest.mark.rule("FIL-6")
@pytest.mark.parametrize("name", few([*WRITERS][::2] + [*WRITERS][1::2], len(WRITERS) // 2))
def test_a_file_of_another_kind_stays_and_the_last_result_is_replaced(here, name):
    target, command = here / target_of(name), WRITERS[name].split()
    target.write_bytes(FOREIGN)
    refused = fp4(*command)
    assert refused.exit_code == 2, refused.output
    (line,) = refused.stderr.splitlines()
    assert f"{target.name}: an existing file that is not " in line
    assert line.endswith("need another name, or --force [FIL-6]")
    assert target.read_bytes() == FOREIGN
    assert fp4(*command, "--force").exit_code < 2
    first = target.read_bytes()
    assert first != FOREIGN
    again = fp4(*command)  # the same kind
    assert again.exit_code < 2, again.output
    assert sorted(path.name for path in here.iterdir()) == sorted(["d.npz", "x.safetensors", "spec.json", target.name])
    target.write_bytes(b"")
    assert fp4(*command).exit_code < 2


@pytest.mark.rule("FIL-6", "FIL-41")
@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_files_of_another_kind_stay_in_folders_too(here, name):
    command, files = FOLDERS[name]
    assert fp4(*command.split()).exit_code == 0
    assert fp4(*command.split()).exit_code == 0
    for file in files:
        target = here / "out" / file
        content = target.read_bytes()
        target.write_bytes(FOREIGN)
        if file.endswith(".bin"):
            (here / "out/SHA256SUMS").unlink()
        refused = fp4(*command.split())
        assert (refused.exit_code, target.read_bytes()) == (2, FOREIGN), refused.output
        assert fp4(*command.split(), "--force").exit_code == 0
        assert target.read_bytes() == content


@pytest.mark.rule("FIL-40")
def test_a_model_is_not_taken_for_a_dump(here):
    other = np.arange(4, dtype=np.float32)
    write_tensors(here / "model.safetensors", [("w", "F32", (4,))], {}, [other])
    before = (here / "model.safetensors").read_bytes()
    assert fp4("quantize", "x.safetensors", "-o", "model.safetensors").exit_code == 2
    assert (here / "model.safetensors").read_bytes() == before
    np.savez(here / "mine.npz", data=np.zeros((4, 8), np.uint8))
    assert fp4("quantize", "x.safetensors", "-o", "mine.npz").exit_code == 2
    assert fp4("verify", "d.npz", "--no-diagnosis", "--save-case", "mine.npz").exit_code == 2


READERS = {
    "html": ("verify d.npz --html TARGET", "d.npz"),
    "junit": ("verify d.npz --junit TARGET", "d.npz"),
    "save-case": ("verify d.npz --save-case TARGET.npz", "d.npz"),
    "input": ("verify d.npz --input x.safetensors --html TARGET", "x.safetensors"),
    "spec": ("verify d.npz --spec spec.json --html TARGET", "spec.json"),
    "folder": ("verify . --junit TARGET", "d.npz"),
    "kernel": ("verify --kernel k.py:f --spec nvfp4 --html TARGET", "k.py"),
    "raw": ("verify raw.json --spec nvfp4 --html TARGET", "raw.bin"),
    "quantize": ("quantize x.safetensors --spec spec.json -o TARGET.npz", "spec.json"),
    "report": ("report x.safetensors --html TARGET", "x.safetensors"),
    "gen": ("gen spec.json -o TARGET", "spec.json"),
    "import": ("quantize x.safetensors --import k.py -o TARGET.npz", "k.py"),
    "import of verify": ("verify d.npz --import k.py --html TARGET", "k.py"),
}


@pytest.mark.rule("FIL-10")
@pytest.mark.parametrize("link", ["itself", "symlink", "hard link"])
@pytest.mark.parametrize("name", READERS)
def test_nothing_that_is_read_is_overwritten_even_by_force(here, name, link):
    (here / "k.py").write_text("def f(x): ...", encoding="utf-8")
    (here / "raw.bin").write_bytes(bytes(8))
    (here / "raw.json").write_text('{"entries": {"data": {"dtype": "U8", "shape": [1, 8], "file": "raw.bin"}}}')
    command, source = READERS[name]
    target = next(word for word in command.split() if "TARGET" in word)
    before = (here / source).read_bytes()
    if link == "itself":
        if "." in target and not source.endswith(target.partition(".")[2]):
            pytest.skip("a suffix that is written is not that of the source")
        command = command.replace(target, source)
    else:
        (here / target).symlink_to(source) if link == "symlink" else (here / target).hardlink_to(source)
    found = fp4(*command.split(), "--force")
    assert found.exit_code == 2, found.output
    assert "the file that is read, need another one [FIL-10]" in found.stderr
    assert (here / source).read_bytes() == before


@pytest.mark.rule("FIL-4")
def test_two_reports_are_two_files(here):
    assert "r for both --junit and --html" in fp4("verify", "d.npz", "--junit", "r", "--html", "r").stderr


def limited():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


@pytest.mark.sampled(4)
@pytest.mark.rule("FIL-4")
@pytest.mark.parametrize("name", ["junit", "html", "save-case", "gen", "explore", "diagram-svg", "quantize", "report"])
def test_a_full_disk_names_the_file_and_leaves_the_old_one(here, name, monkeypatch):
    target, command = here / target_of(name), WRITERS[name].split()
    assert fp4(*command).exit_code < 2
    before = target.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(targets.os, "fsync", full)
    found = fp4(*command)
    assert (found.exit_code, target.read_bytes()) == (2, before), found.output
    (line,) = found.stderr.splitlines()
    assert line == f"fp4ref: write {target.name}: no space left on device, need a place to write [FIL-4]"
    assert not [path for path in here.iterdir() if path.name.startswith(".fp4ref")]


@pytest.mark.rule("FIL-4")
@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
def test_a_device_that_is_full_and_a_file_that_may_not_grow(here):
    assert (
        "write /dev/full: no space left on device" in fp4("diagram", "blocks", "--as", "svg", "-o", "/dev/full").stderr
    )
    program = [sys.executable, "-m", "fp4ref"]
    found = subprocess.run(
        [*program, "diagram", "blocks", "-o", "a.svg"], preexec_fn=limited, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (
        2,
        "fp4ref: write a.svg: file too large, need a place to write [FIL-4]\n",
    )
    with FULL.open("w") as full:
        found = subprocess.run([*program, "profiles"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (found.returncode, found.stderr) == (2, "fp4ref: standard output: No space left on device\n")


@pytest.mark.rule("FIL-4")
def test_a_folder_that_cannot_be_written_is_named(here):
    found = fp4("diagram", "blocks", "-o", "/proc/a.svg")
    assert found.exit_code == 2
    assert "write /proc/a.svg: no such file or directory" in found.stderr
    with pytest.raises(FileError, match="existing folder"):
        write_bytes(here / "none/page.html", b"", HTML)


UNFINISHED = """
import sys, time
from fp4ref.cli import main
from fp4ref.files import targets
import fp4ref.cli.explore as module

def slow(*given, **settings):
    with targets.replacing("page.html") as file:
        file.write(b"half a page")
        print("begun", flush=True)
        time.sleep(60)

module.write_bytes = slow
main(["explore"])
"""


@pytest.mark.rule("FIL-7")
@pytest.mark.slow
@pytest.mark.parametrize("name", few(["SIGTERM", "SIGHUP", "SIGINT"], 1))
def test_signals_leave_no_unfinished_files(here, name):
    number = getattr(signal, name)
    (here / "page.html").write_text("<!doctype html>old")
    with subprocess.Popen([sys.executable, "-c", UNFINISHED], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        assert [path for path in here.iterdir() if path.name.startswith(".fp4ref")]
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    assert not [path for path in here.iterdir() if path.name.startswith(".fp4ref")]
    assert (here / "page.html").read_text() == "<!doctype html>old"


@pytest.mark.example("CNF-110")
@pytest.mark.rule("CNF-110")
def test_reports_are_whole_before_text_is_printed(here, monkeypatch):
    def gone(*_):
        assert (here / "r.xml").read_text(encoding="utf-8").endswith("</testsuites>")
        assert (here / "r.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
        raise BrokenPipeError(32, "Broken pipe")

    ((command, result),) = rows_of("CNF-110")
    assert result == "both files are complete"
    words = command.strip("`").partition(" | ")[0].replace("p.html", "r.html").split()[1:]
    monkeypatch.setattr("fp4ref.cli.verify_dump.print_report", gone)
    monkeypatch.setattr("fp4ref.cli.verify_dump.json.dumps", gone)
    for more in ([], ["--json"]):
        (here / "r.xml").unlink(missing_ok=True)
        result = CliRunner().invoke(main, [*words, "--no-diagnosis", *more])
        assert (here / "r.xml").exists(), result.output


@pytest.mark.rule("FIL-4")
def test_pipes_are_written_directly(tmp_path):
    read, write = os.pipe()
    with replacing(f"/dev/fd/{write}", kind=HTML) as file:
        file.write(b"<!doctype html>")
    os.close(write)
    assert os.read(read, 100) == b"<!doctype html>"
    os.close(read)
    assert not list(tmp_path.iterdir())
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(FileError, match="directory or device"):  # places in an archive are sought
        write_tensors(tmp_path / "pipe.npz", [], {}, [])


@pytest.mark.rule("CNF-110")
@pytest.mark.parametrize("as_json, shown", [(True, '"verdict": 1'), (False, "the text")])
def test_a_report_is_shown_before_what_could_not_be_written(as_json, shown, capsys):
    def refused(what):
        raise FileError("verify", f"no {what}", "a folder", "FIL-4")

    choice = Reporting(as_json=as_json, pages=Pages(html=Path("r.html")), statement=object())
    report = SimpleNamespace(to_json=lambda: {"verdict": 1})
    for state, first in ((lambda *_: refused("statement"), "no statement"), (None, "no page")):
        with pytest.raises(FileError, match=first):
            choice.deliver(report, partial(print, "the text"), lambda _: refused("page"), state)
        assert shown in capsys.readouterr().out
