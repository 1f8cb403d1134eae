"""Runs that a signal ends, and output in the code page of a console: what was found is written whole."""

import json
import os
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref.conformance.dumps.files import Dump, write_dump

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


@pytest.mark.rule("CNF-48", "CNF-11")
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize(
    ("number", "status", "wrong"), [(signal.SIGINT, 130, 0), (signal.SIGTERM, 143, 1), (signal.SIGHUP, 129, 1)]
)
def test_an_interrupted_run_writes_all_of_its_reports(tmp_path, number, status, wrong):
    run = waiting(tmp_path, wrong, "--json", "--junit", "r.xml", "--html", "r.html", "--statement", "s.json")
    run.send_signal(number)
    out, err = run.communicate(timeout=60)
    assert run.returncode == status, err
    found = json.loads(out)
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


FILES = (
    "verify d.npz --no-diagnosis --html v.html --junit v.xml --statement v.json --force",
    "verify d.npz --no-diagnosis --json",
    "report x.npz --specs nvfp4,mxfp4 --html r.html",
    "report x.npz --specs nvfp4 --json",
    "quantize x.npz -o q.safetensors --spec nvfp4",
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


@pytest.mark.heavy  # starts nineteen commands
@pytest.mark.rule("CNF-12")
@pytest.mark.slow
def test_a_console_with_a_code_page_gets_text_and_whole_files(tmp_path):
    """Python's own encoding is cp1252 as well, as it is on Windows: a file without an encoding of its own breaks."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 32)).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.savez(tmp_path / "x.npz", **{"w\u2713": x})
    q = fp4ref.quantize(x, "nvfp4", backend="numpy")
    q.row.data[0, 0] ^= 1
    write_dump(tmp_path / "d.npz", [Dump("w\u2713", x, q)])
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONWARNDEFAULTENCODING": "1", "PYTHONUTF8": "0"}
    for command in FILES:
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
    for name in ("v.json", "m.json"):
        json.loads((tmp_path / name).read_text("utf-8"))
