from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import queue
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from commands import folder_with
from fp4ref.cli import common, main
from fp4ref.conformance.run import process, waiting
from fp4ref.conformance.run.huge_trial import Fold, HugeTrial
from fp4ref.conformance.run.messages import receive, send
from fp4ref.conformance.run.sweep_trial import SweepPart, SweepSteps
from fp4ref.conformance.subjects.outcomes import ErrorParts, Finding, FindingKind, Outcome
from fp4ref.conformance.subjects.subject import Job, Output
from fp4ref.errors import BackendError
from fp4ref.quantized import DirectionData
from fp4ref.standard.tables import tables
from standard_rules import rows_of, text_of

BF16 = np.dtype(ml_dtypes.bfloat16)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_processes")]
KERNELS = """
import os, subprocess, sys, time
from pathlib import Path
import fp4ref

COUNT = 0

def good(x):
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    return q.row.data, q.row.scales, q.row.amax

def started(x):
    if not Path("pids").exists():
        script = "import signal, time; signal.signal(signal.SIGHUP, signal.SIG_IGN); time.sleep(300)"
        helper = subprocess.Popen([sys.executable, "-c", script])
        daemon = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
        copy = os.fork()
        if not copy:
            time.sleep(300)
        Path("new").write_text(f"{os.getpid()} {helper.pid} {daemon.pid} {copy}")
        os.rename("new", "pids")
    return good(x)

def starts_and_waits(x):
    started(x)
    time.sleep(300)

def compiles(x):
    global COUNT
    COUNT += 1
    if COUNT == 1:
        time.sleep(1.5)
    return good(x)

def hangs(x):
    Path("called").open("a").write("x")
    time.sleep(300)

def dies(x):
    Path("called").open("a").write("x")
    os._exit(9)

def hangs_later(x):
    global COUNT
    COUNT += 1
    if COUNT > 2:
        time.sleep(300)
    return good(x)

def slow(x):
    time.sleep(0.2)
    return good(x)

def raises(x):
    inner(f"of {x.ndim}")

def inner(kind):
    raise ValueError(kind)

def forks(x):
    os.fork()
    return good(x)

def forks_and_raises(x):
    if not os.fork():
        raise ValueError("in the copy")
    return good(x)
"""


here = folder_with(KERNELS)


def command(name: str, *more: str) -> list[str]:
    target = name.replace(":", ".py:") if ":" in name else f"kernels.py:{name}"
    start = [sys.executable, "-m", "fp4ref", "verify", "--kernel", target, "--spec", "nvfp4"]
    return [*start, "--family", "normal", *more]


def verify(name: str, *more: str) -> tuple[int, str, float]:
    """Exit status, standard output, and the seconds that the command took."""
    start = time.monotonic()
    done = CliRunner().invoke(main, command(name, *more)[3:])
    return done.exit_code, done.stdout, time.monotonic() - start


def pids(folder: Path) -> list[int]:
    end = time.monotonic() + 60
    while not (folder / "pids").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def all_end(found: list[int]) -> bool:
    end = time.monotonic() + 20
    while time.monotonic() < end and any(map(alive, found)):
        time.sleep(0.05)
    return not any(map(alive, found))


# Processes end


@pytest.mark.sampled(2)
@pytest.mark.example("CNF-95")
@pytest.mark.rule("CNF-95")
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGKILL,
        *(pytest.param(number, marks=pytest.mark.heavy) for number in (signal.SIGHUP, signal.SIGINT)),
    ],
)
def test_nothing_outlives_a_judge_that_ends_by_a_signal(here, number):
    judge = subprocess.Popen(command("starts_and_waits"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = pids(here)
    assert len(found) == 4
    assert all(map(alive, found))
    judge.send_signal(number)
    judge.wait(20)
    assert all_end(found)
    assert rows_of("CNF-95") == [["ends", "ends"], ["is killed", "ends"]]


@pytest.mark.rule("CNF-95")
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_nothing_outlives_a_run(here):
    status, text, _ = verify("started")
    assert (status, text.splitlines()[0][:29]) == (0, "kernels.py:started: conforms ")
    assert all_end(pids(here))


def test_a_judge_that_ends_while_the_kernel_is_loaded(here):
    (here / "late.py").write_text(
        "import os, time\nopen('new', 'w').write(str(os.getpid()))\nos.rename('new', 'pids')\ntime.sleep(300)\n"
    )
    judge = subprocess.Popen(command("late:f"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = pids(here)
    judge.kill()
    judge.wait(20)
    assert all_end(found)


# Time


@pytest.mark.heavy
@pytest.mark.example("CNF-74")
@pytest.mark.rule("CNF-37", "CNF-74")
def test_only_the_first_call_may_compile(here):
    ((_, options), (_, result), (same, hung)) = tables(text_of("CNF-74"))[0]
    assert result == "every case is judged"
    status, text, _ = verify("compiles", *options.strip("`").split())
    assert status == 0, text
    status, text, _ = verify("compiles", *options.strip("`").split()[:2], *re.search("`(.*)`", same)[1].split())
    assert status == 1
    assert f"{hung} in 2 of" in text.splitlines()[0]
    assert "no result after 1 s" in text


@pytest.mark.example("CNF-13")
@pytest.mark.rule("CNF-75")
def test_three_breakdowns_end_a_run(here):
    ((cell, result),) = rows_of("CNF-13")
    (call,) = re.findall(r"calls `(os\._exit\(\d+\))`", cell)
    (here / "kernels.py").write_text(KERNELS.replace("os._exit(9)", call))
    status, text, _ = verify("dies")
    assert f"{re.findall('`(.*?)`', result)[0]} in 3 of" in text.splitlines()[0]
    assert f"exit status {re.findall('[0-9]+', call)[0]}" in text
    assert (here / "called").read_text() == "xxx"
    assert status == 1
    assert "after 3 breakdowns: " in text


@pytest.mark.heavy  # three runs, two of them with hangs
@pytest.mark.rule("CNF-37", "CNF-74", "CNF-75")
def test_a_hang_costs_one_timeout(here):
    *_, usual = verify("good")
    status, text, took = verify("hangs", "--timeout", "1", "--start-timeout", "2")
    assert (here / "called").read_text() == "xx"  # two hangs, then no further call
    assert status == 1
    assert "hung in 2 of" in text
    assert "after 2 hangs: no result after 1 s" in text
    assert took < 2.5 * usual + 3 + 1 + 4
    status, text, took = verify("hangs_later", "--timeout", "1", "--start-timeout", "300")
    assert "hung in 2 of" in text
    assert took < 2.5 * usual + 2 + 4


@pytest.mark.example("CNF-38")
@pytest.mark.heavy  # fourteen seconds of limits
@pytest.mark.rule("CNF-38")
def test_a_time_limit_cuts_the_run_and_the_verdict_says_so(here):
    status, text, took = verify("slow", "--time-limit", "8", "--family", "ragged")
    first = text.splitlines()[0]
    assert status == 0
    assert rows_of("CNF-38")[0][2].startswith("conforms ..., stopped by the time limit: ")
    assert first.startswith("kernels.py:slow: conforms to nvfp4: no byte differs in ")
    assert " cases; stopped by the time limit, at least " in first
    assert took < 8 + 8
    status, text, took = verify("hangs", "--timeout", "100", "--time-limit", "6")
    assert status == 1
    assert "not judged: the time limit was over before the first case" in text
    assert took < 6 + 8


# A kernel that forks


@pytest.mark.parametrize("name", ["forks_and_raises", pytest.param("forks", marks=pytest.mark.heavy)])
def test_a_kernel_that_forks_is_judged_by_its_own_process(here, name):
    status, text, _ = verify(name)
    assert status == 0, text


def asked(monkeypatch, waited, limit, left=math.inf):
    """Ask a process that answers after 0.3 s, and of which the system says for how long it waited for a processor."""
    looks = iter(waited)
    count = SimpleNamespace(seconds=lambda: next(looks, waited[-1]) / 2)  # the kit's process waits as long
    monkeypatch.setattr(process, "WaitCount", lambda pid, family=False: count)
    one = process.KernelProcess.__new__(process.KernelProcess)
    one._number, one._unsent, one._answers, one._child = 0, queue.Queue(), queue.Queue(), SimpleNamespace(pid=0)
    threading.Timer(0.3, one._answers.put, [{"number": 1}]).start()
    found = one.answer({}, limit, left)
    return getattr(found, "text", found)


@pytest.mark.example("CNF-37")
@pytest.mark.rule("CNF-37", "CNF-38", "CNF-73")
def test_waiting_for_a_processor_is_no_hang(monkeypatch):
    head, (soon, judged), (late, hung) = tables(text_of("CNF-37"))[0]
    limit = float(re.search(r"--timeout (\d+)", head[1])[1])
    (first,), (second,) = (re.findall(r"answers after ([\d.]+) s", cell) for cell in (soon, late))
    assert float(first) < limit < float(second)
    assert (judged, hung) == ("its result is judged", f"`hung`: no result after {limit:g} s")
    assert asked(monkeypatch, [0.5], 0.1) == {"number": 1}
    assert asked(monkeypatch, [0.0], 0.1) == "no result after 0.1 s"
    assert asked(monkeypatch, [0.02, 0.04], 0.1) == (
        "no result after 0.1 s and another 0.04 s, in which it waited for a processor"
    )
    assert asked(monkeypatch, [9.0], 0.02) == (
        "no result after 0.02 s and another 0.18 s, in which it waited for a processor"
    )
    assert asked(monkeypatch, [0.5], 0.1, left=0.1).startswith("no result after 0.1 s")


@pytest.mark.rule("CNF-73")
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system counts no waits")
def test_waits_are_counted():
    found = waiting.counts_of(os.getpid(), family=False)
    assert all(counts.run > 0 for counts in found.values())
    assert found[str(threading.get_native_id())].runnable
    with contextlib.closing(process.KernelProcess("json:loads", {})) as one:
        family = waiting.counts_of(one._child.pid, family=True)
        assert len(family) > len(waiting.counts_of(one._child.pid, family=False)) == 1  # the guard, and the kernel
        count = waiting.WaitCount(one._child.pid, family=True)
        assert 0 <= count.seconds() < 60
    assert waiting.counts_of(1 << 30, family=True) == {}


@pytest.mark.rule("CNF-37")
def test_a_call_may_have_no_limit(here):
    with contextlib.closing(process.KernelProcess("kernels.py:good", {}, limit=math.inf)) as one:
        assert one.outcomes([], 1e300) == []


def test_an_answer_to_another_request_is_dropped(here):
    one = process.KernelProcess("kernels.py:good", {})
    one._answers.put({"number": 1, "outcomes": []})
    assert one.outcomes([], 30.0) == []
    assert one._number == 2
    one.close()


# Errors are said once


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("none.py:f", "kernel none.py:f: no file none.py, need a Python file [CNF-8]"),
        ("kernels.py:none", "kernel kernels.py:none: no none in kernels.py, need a function of that module [CNF-8]"),
        ("nothing:f", "kernel nothing:f: ModuleNotFoundError: No module named 'nothing', need a kernel that can be im"),
    ],
)
def test_a_kernel_that_cannot_be_loaded(here, target, message):
    with pytest.raises(BackendError) as error:
        process.KernelProcess(target, {})
    assert str(error.value).startswith(message)
    assert str(error.value).count("[CNF-") == str(error.value).count("need ") == 1


def test_the_process_has_the_same_copy_of_fp4ref(here, tmp_path):
    (here / "which.py").write_text("import fp4ref\ndef f(x):\n    raise ValueError(fp4ref.__file__)\n")
    assert fp4ref.__file__ in verify("which:f")[1]


# Imports


@pytest.mark.sampled(2)
@pytest.mark.example("CNF-15", "CNF-98")
@pytest.mark.rule("CNF-15", "CNF-98")
@pytest.mark.parametrize(
    "target",
    [
        "kernels:uses",
        "fp4ref:good",
        *(pytest.param(target, marks=pytest.mark.heavy) for target in ("kernels_module:uses", "my-kernel:uses")),
    ],
)
def test_a_folder_with_files_named_like_libraries(here, target):
    for name in ("fp4ref", "numpy", "json", "ctypes", "ml_dtypes"):
        (here / f"{name}.py").write_text(KERNELS if name == "fp4ref" else "raise SystemExit('a planted file')")
    cells = [row[0] for rule in ("CNF-15", "CNF-98") for row in rows_of(rule)]
    planted = re.findall(r"`(\w+)\.py`", " ".join(cells))
    assert planted == ["fp4ref", "numpy", "helpers", "fp4ref"]
    (here / "only_here.py").write_text("from kernels import good")
    (here / "kernels.py").write_text(f"{KERNELS}\n\ndef uses(x):\n    import only_here\n    return only_here.good(x)\n")
    (here / "my-kernel.py").write_text((here / "kernels.py").read_text())
    target = target.replace("_module", "") if "_module" in target else target.replace(":", ".py:")
    judge = "import runpy; runpy.run_module('fp4ref', run_name='__main__')"
    start = [sys.executable, "-P", "-c", judge, "verify", "--kernel", target, "--spec", "nvfp4", "--family", "normal"]
    done = subprocess.run(start, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout


# The kernel's own file and line


def test_a_kernel_that_raises_is_reported_with_its_line_and_its_traceback(here):
    status, text, _ = verify("raises", "--json")
    line = 1 + KERNELS.splitlines().index("    raise ValueError(kind)")
    found = json.loads(text)["findings"][0]
    assert status == 1
    assert found["text"] == f"ValueError: of 2 (kernels.py:{line} in inner)"
    assert found["trace"].splitlines()[0] == "Traceback (most recent call last):"
    assert found["trace"].count(f"{here / 'kernels.py'}") == 2
    assert "conformance" not in found["trace"]
    assert found["trace"].endswith("ValueError: of 2")


def test_a_page_shows_the_traceback(here):
    verify("raises", "--html", "page.html")
    page = (here / "page.html").read_text()
    assert "<summary>raised in normal/1/f32/row: ValueError: of 2 (kernels.py:" in page
    assert f"File &quot;{here / 'kernels.py'}&quot;" in page


# Progress


def test_progress_without_a_terminal_tells_only_what_is_new(monkeypatch, capsys):
    monkeypatch.setattr(common, "QUIET", 0.05)
    monkeypatch.setattr(common, "BETWEEN", 0.05)
    with common.progress(None, "verify") as step:
        step("one")
        time.sleep(0.6)
        step("two")
        time.sleep(0.6)
    assert capsys.readouterr().err == "verify: one\nverify: two\n"


@pytest.mark.parametrize(("total", "shown"), [(2, "2/2"), (None, "the second")])
def test_progress_counts_the_step_at_work(monkeypatch, total, shown):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with common.progress(total, "report") as step:
        step("the first")
        step("the second")
    assert shown in terminal.getvalue()
    assert ("/" in terminal.getvalue().replace("\x1b", "")) is (total is not None)


# Messages


def same(one, other):
    """Return True if two values are equal and of one type, part by part."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if dataclasses.is_dataclass(one):
        return same(vars(one), vars(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def sent(message):
    stream = io.BytesIO()
    send(stream, message)
    stream.seek(0)
    return receive(stream)


def test_a_message_holds_what_was_sent():
    bits, empty = np.arange(6, dtype=np.uint16).reshape(2, 3).view(BF16), np.zeros((0, 4), np.uint8)
    job = Job({"x": bits, "rows": 2}, {"data": Output((2, 2), "uint8", None, (2, 1)), "values": Output((), "float32")})
    broken = Finding(FindingKind.INTERNAL, "told", "last lines", ErrorParts("KeyError", "x", "a.py:1"))
    message = {
        "jobs": [job],
        "outcomes": [Outcome(DirectionData(empty, empty, None), None, broken), Outcome(values=bits)],
        "trial": HugeTrial(job, job, {"data": (empty, empty)}, {"x": Fold(None, 3)}, 2, 3, {4: {"data": empty}}, None),
        "sweep": (SweepSteps(1, 2, np.arange(3), empty), [SweepPart(0, 1, 2)], {}),
        "numbers": [1, -1.5, math.inf, True, None, "text"],
    }
    assert same(sent(message), message)
    assert receive(io.BytesIO()) is None


def test_a_message_makes_no_other_record():
    text = json.dumps({"value": ["dict", ["tuple", "x", ["Popen", "true"]]], "arrays": []}).encode()
    with pytest.raises(KeyError, match="Popen"):
        receive(io.BytesIO(struct.pack("<Q", len(text)) + text))
