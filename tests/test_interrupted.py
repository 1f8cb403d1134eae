"""Runs that a signal ends, and output in the code page of a console: what was found is written whole."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from covering import crossed, few
from fp4ref.catalogue import resolve
from fp4ref.cli import verify_finish
from fp4ref.cli.verify_choice import Choice
from fp4ref.conformance import families
from fp4ref.conformance.dumps.files import Dump, write_dump
from fp4ref.conformance.run import runner
from fp4ref.conformance.run.ending import SIGNALS
from fp4ref.conformance.run.huge_tile import Size
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.subjects.subject import Declaration, Subject
from fp4ref.conformance.verdict import huge, kernel_report
from fp4ref.conformance.verdict.dump_report import Verdict
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.stochastic_kernel import judge_drawing
from standard_rules import rows_of

KERNEL = """
import time
from pathlib import Path
import numpy as np
import fp4ref

calls = 0

@fp4ref.kernel
def quantize(x):
    global calls
    calls += 1
    if calls == 6:  # of the third case, which is called twice like every one
        Path("waits").touch()
        time.sleep(60)
    q = fp4ref.quantize(x, "nvfp4", backend="numpy").row
    return q.data ^ WRONG, q.scales, q.amax
"""


def waiting(folder: Path, wrong: int, *more: str) -> subprocess.Popen[str]:
    """Return a run whose kernel is in its third case."""
    (folder / "kernel.py").write_text(KERNEL.replace("WRONG", f"np.uint8({wrong})"))
    start = [sys.executable, "-m", "fp4ref", "verify", "--kernel", "kernel.py:quantize", "--spec", "nvfp4"]
    run = subprocess.Popen(
        [*start, "--family", "ragged", *more], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 120
    while not (folder / "waits").exists():
        assert time.monotonic() < end
        assert run.poll() is None, run.communicate()
        time.sleep(0.05)
    return run


@pytest.mark.example("CNF-48")
@pytest.mark.rule("CNF-48", "CNF-11")
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize(
    ("number", "status", "wrong"), few([(signal.SIGINT, 130, 0), (signal.SIGTERM, 143, 1), (signal.SIGHUP, 129, 1)], 1)
)
def test_an_interrupted_run_writes_all_of_its_reports(tmp_path, number, status, wrong):
    run = waiting(tmp_path, wrong, "--json", "--junit", "r.xml", "--html", "r.html", "--statement", "s.json")
    run.send_signal(number)
    out, err = run.communicate(timeout=60)
    shown = {ended: (verdict, int(code)) for _, ended, verdict, code in rows_of("CNF-48")[:3]}
    verdict, code = shown[signal.Signals(number).name]
    assert run.returncode == status == code, err
    found = json.loads(out)
    assert found["headline"].endswith(verdict.rpartition("interrupted")[1] + verdict.rpartition("interrupted")[2]) or (
        number == signal.SIGHUP
    )
    assert found["headline"].endswith("interrupted, other cases were not tried")
    assert found["verdict"] == ("wrong" if wrong else "conforms")
    assert found["cases"] == 2
    assert found["coverage"]["stopped"] == "interrupted"
    assert found["diagnosis"] is None
    ET.parse(tmp_path / "r.xml")
    page = (tmp_path / "r.html").read_text()
    assert page.rstrip().endswith("</html>")
    assert "interrupted" in page
    assert not (tmp_path / "s.json").exists()
    assert not [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp" or path.name.startswith(".")]


@pytest.mark.rule("CNF-48", "CNF-21")
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_an_endless_run_that_is_killed_gently_says_how_far_it_came(tmp_path):
    run = waiting(tmp_path, 0, "--forever")
    run.send_signal(signal.SIGTERM)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 143
    assert "conforms to nvfp4: no byte differs in 2 cases; interrupted, other cases were not tried" in out
    assert "the run ended early: interrupted" in out


# The code page of a Windows console


class Whole(HTMLParser):
    """A page that is parsed to its end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ended = False
        self.feed(text)
        self.close()

    def handle_endtag(self, tag: str) -> None:
        self.ended |= tag == "html"


QUANTIZE = "quantize x.npz -o q.safetensors --spec nvfp4"
FILES = (  # commands that write files, and others, by turns
    "verify d.npz --no-diagnosis --html v.html --junit v.xml --statement v.json --force",
    "verify d.npz --no-diagnosis --json",
    "report x.npz --specs nvfp4,mxfp4 --html r.html",
    "report x.npz --specs nvfp4 --json",
    "lint q.safetensors --html l.html",
    "lint q.safetensors --json",
    "manifest q.safetensors -o m.json",
    "explain x.npz w\u2713 0 0",
    "diagram tiled_128x4 -o t.svg",
    "diagram blocks",
    "explore -o e.html",
    "header --dir headers",
    "vectors export exported",
    "gen nvfp4 --level 1 --family normal -o g.bin",
    "profiles --json",
    "rules BLK-3 --json",
    "layouts",
    "doctor",
)


@pytest.mark.heavy  # starts some ten commands
@pytest.mark.rule("CNF-111", "CNF-110")
@pytest.mark.slow
@pytest.mark.parametrize(
    "commands", [FILES[::2], pytest.param(FILES[1::2], marks=pytest.mark.release)], ids=["first", "second"]
)
def test_a_console_with_a_code_page_gets_text_and_whole_files(commands, tmp_path):
    """Python's own encoding is cp1252 as well, as it is on Windows: a file without an encoding of its own breaks."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 32)).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.savez(tmp_path / "x.npz", **{"w\u2713": x})
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    q.row.data[0, 0] ^= 1
    write_dump(tmp_path / "d.npz", [Dump("w\u2713", x, q)])
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONWARNDEFAULTENCODING": "1", "PYTHONUTF8": "0"}
    for command in (QUANTIZE, *commands):
        start = [sys.executable, "-m", "fp4ref", *command.split()]
        done = subprocess.run(start, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=300)
        texts = [stream.decode("cp1252") for stream in (done.stdout, done.stderr)]
        assert done.returncode in {0, 1}, (command, texts)
        assert not any("Traceback" in text for text in texts), (command, texts)
        own = [line for line in texts[1].splitlines() if "EncodingWarning" in line and "fp4ref" in line]
        assert not own, (command, own)
        if "--json" in command:
            json.loads(texts[0])
    for path in tmp_path.glob("*.html"):
        assert Whole(path.read_text("utf-8")).ended, path
    for path in tmp_path.glob("*.xml"):
        ET.parse(path)
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_text("utf-8"))


# Products, kernels that draw their own bits, huge inputs, sweeps, repetitions, and the diagnosis

SUBJECTS = """
import time
from pathlib import Path
import numpy as np
import fp4ref

INPUTS = ("a_data", "a_scales", "a_amax", "b_data", "b_scales", "b_amax", "rows", "columns", "depth")
LAST = 6

def wait():
    if (calls := int(Path("calls").read_text()) + 1 if Path("calls").exists() else 1) == LAST:
        Path("waits").touch()
        time.sleep(60)
    Path("calls").write_text(str(calls))

def parts(x, *more):
    wait()
    return tuple(fp4ref.quantize(x, "nvfp4", *more, backend="numpy").row)

@fp4ref.kernel
def quantize(x):
    return parts(x)

@fp4ref.kernel
def draws(x):
    wait()
    bits = np.random.default_rng().integers(0, 256, x.shape, np.uint8)
    return tuple(fp4ref.quantize(x, "nvfp4-sr", random_bits=bits).row)

@fp4ref.kernel(operation="gemm", inputs=INPUTS, outputs=("values",))
def gemm(a_data, a_scales, a_amax, b_data, b_scales, b_amax, rows, columns, depth):
    wait()
    a, b = (
        fp4ref.Quantized(fp4ref.NVFP4, shape, "float32", "linear", fp4ref.DirectionData(*each))
        for shape, each in (
            ((rows, depth), (a_data, a_scales, a_amax)),
            ((columns, depth), (b_data, b_scales, b_amax)),
        )
    )
    return fp4ref.gemm(a, b, "fast", backend="numpy")
"""
SMALL = """
from fp4ref.cli import main
from fp4ref.conformance.run.huge_tile import Size
from fp4ref.conformance.verdict import huge

huge.check.__kwdefaults__.update(sizes=(Size("byte", 18), Size("element", 18), Size("element", 19)), width=512)
main()
"""
RUNS = {
    "gemm": ("gemm --spec nvfp4 --family ragged", "conforms", 2),
    "own bits": ("draws --spec nvfp4-sr", "conforms", 2),
    "repetitions": ("quantize --spec nvfp4 --family ragged --repeat 2", "conforms", 2),
    "sweep": ("quantize --spec nvfp4 --exhaustive bfloat16 --resume s.json", "incomplete", 5),
    "huge": ("quantize --spec nvfp4 --huge", "conforms", 2),
}


@pytest.mark.heavy  # starts five commands, each of which is then ended
@pytest.mark.rule("CNF-48", "CNF-11")
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize(("how", "number"), crossed([*RUNS], (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), every=3))
def test_every_kind_of_run_that_a_signal_ends_reports_what_was_tried(tmp_path, how, number):
    command, verdict, count = RUNS[how]
    last = {"huge": 3}.get(how, 6)  # the call that does not end; huge cases are made once, others twice
    (tmp_path / "kernel.py").write_text(SUBJECTS.replace("LAST = 6", f"LAST = {last}"))
    pages = [] if how in {"huge", "sweep"} else ["--junit", "r.xml", "--html", "r.html", "--statement", "t.json"]
    start = [sys.executable, *(("-c", SMALL) if how == "huge" else ("-m", "fp4ref")), "verify", "--json", *pages]
    run = subprocess.Popen(
        [*start, *f"--timeout 100 --kernel kernel.py:{command}".split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 120
    while not (tmp_path / "waits").exists():
        assert time.monotonic() < end
        assert run.poll() is None, run.communicate()
        time.sleep(0.05)
    run.send_signal(number)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 128 + number, err
    found = json.loads(out)
    assert found["verdict"] == verdict
    assert "interrupted" in found["headline"]
    assert found["headline"].endswith("interrupted, other cases were not tried") or how == "sweep"
    coverage = found["coverage"]
    assert coverage["stopped"] == "interrupted"
    assert next(coverage[unit] for unit in ("cases", "calls", "huge_cases") if unit in coverage) == count
    assert "state between calls" in coverage["not_judged"] or how in {"own bits", "sweep", "huge"}
    if pages:
        ET.parse(tmp_path / "r.xml")
        assert "interrupted" in (tmp_path / "r.html").read_text()
    assert not (tmp_path / "t.json").exists()


def ending(function: Callable[..., object], after: int, how: BaseException) -> Callable[..., object]:
    """Return a kernel that a signal ends in a call."""
    calls = itertools.count(1)

    def ends(*arguments):
        if next(calls) > after:
            raise how
        return function(*arguments)

    return ends


def right(x):
    return tuple(fp4ref.quantize(x, "nvfp4", backend="numpy").row)


ENDED = RunOptions(ends=SIGNALS)


@pytest.mark.rule("CNF-48", "CNF-53")
def test_a_huge_run_that_a_signal_ends_has_a_report():
    how = KeyboardInterrupt()

    def check(after, options=ENDED):
        subject = Subject.of(ending(right, after, how))
        return huge.check(subject, fp4ref.NVFP4, options, sizes=(Size("byte", 18), Size("element", 18)), width=512)

    report = check(1)
    assert (report.kind, report.cut.status) == (Verdict.CONFORMS, 130)
    assert report.headline == (
        "conforms to nvfp4: no byte differs in 1 huge case, 1 not tried; interrupted, other cases were not tried"
    )
    assert [case.skipped for case in report.cases] == ["", "interrupted"]
    with pytest.raises(type(how)):
        check(0)  # before the first case there is nothing to report
    with pytest.raises(type(how)):
        check(1, RunOptions())  # a caller of the library gets its interrupt


@pytest.mark.rule("CNF-48", "SR-11")
def test_a_kernel_that_draws_is_judged_by_the_calls_that_were_made():
    how = KeyboardInterrupt()

    def draws(x):
        bits = np.random.default_rng().integers(0, 256, x.shape, np.uint8)
        return tuple(fp4ref.quantize(x, "nvfp4-sr", random_bits=bits).row)

    def nearest(x):
        return right(x)

    found = judge_drawing(resolve("nvfp4-sr"), Subject.of(ending(draws, 5, how)), options=ENDED)
    assert (found.ok, found.cut.status, found.coverage.extent.count) == (True, 130, 2)
    assert found.headline.endswith("; interrupted, other cases were not tried")
    wrong = judge_drawing(resolve("nvfp4-sr"), Subject.of(ending(nearest, 5, how)), options=ENDED)
    assert wrong.headline.startswith("wrong at the level bracket: always rounds to nearest")
    endless = judge_drawing(resolve("nvfp4-sr"), Subject.of(ending(draws, 15, how)), options=ENDED, forever=True)
    assert (endless.ok, endless.seeds, endless.coverage.stopped) == (True, 1, "interrupted")
    assert endless.cut is None  # the usual end of an endless run


@pytest.mark.example("CNF-96")
@pytest.mark.rule("CNF-14", "CNF-96")
def test_repetitions_that_a_signal_ends_leave_the_first_outcomes():
    count = int(re.match(r"(\d+) cases, in their repetitions", rows_of("CNF-96")[1][0])[1])
    cases = [case for case in families.cases(fp4ref.NVFP4) if case.family == "ragged"][:count]
    options = RunOptions(ends=SIGNALS, repeat=1)
    runs = runner.run(Subject.of(ending(right, 9, KeyboardInterrupt())), cases, options)  # two calls for each case
    found = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(item.outcome for item in runs)
    assert len(found) == count
    assert all(outcome.finding is None and outcome.data is not None for outcome in found)


@pytest.mark.example("CNF-96")
@pytest.mark.rule("CNF-10", "CNF-96")
@pytest.mark.parametrize(("how", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_a_signal_in_the_diagnosis_costs_the_diagnosis(how, status, monkeypatch):
    def diagnosis(*_):
        raise how

    monkeypatch.setattr(kernel_report, "diagnose_packed", diagnosis)
    report = KernelReport("kernel", fp4ref.NVFP4, Declaration())
    case = next(iter(families.cases(fp4ref.NVFP4)))
    wrong = Subject.of(lambda x: (right(x)[0] ^ np.uint8(1), *right(x)[1:]))
    runs, shown = runner.run(wrong, [case]), Choice(as_json=True)
    assert verify_finish.finish(report, runs, shown, lambda text: None) == status
    (_, ended, verdict, code), _ = rows_of("CNF-96")
    assert (ended, int(code)) == ("SIGINT", 130)
    assert report.headline.endswith(f"; {verdict.partition('..., ')[2]}")
    assert report.diagnosis is None
