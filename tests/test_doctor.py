from __future__ import annotations

import json
import platform
import sys
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

import forked
import fp4ref
from fp4ref import registry
from fp4ref.cli import main
from fp4ref.conformance.run import machine
from fp4ref.conformance.run.machine import Flush

RUNNER = CliRunner()
X86 = platform.machine() in {"x86_64", "AMD64"} and sys.platform != "win32"
FTZ, DAZ, USUAL = 0x8000, 0x0040, 0x1F80
# Both bits of the SSE control register: subnormal results, and subnormal operands, become zero.
SET_MXCSR = """
import ctypes, mmap
code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\\x0f\\xae\\x17\\xc3")  # ldmxcsr [rdi]; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
load = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32))(address)
import fp4ref.conformance.run.machine
load(ctypes.c_uint32({mxcsr:#x}))
"""
SET_TORCH = "import torch; assert torch.set_flush_denormal(True)\n"
DOCTOR = "from fp4ref.cli import main; main(['doctor', '--json'])"


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
def test_help_examples_run(arguments: list[str]) -> None:
    result = RUNNER.invoke(main, arguments)
    assert result.exit_code == 0
    assert f"fp4ref {' '.join(arguments)}" in RUNNER.invoke(main, ["doctor", "--help"]).output


@pytest.mark.rule("CNF-5")
def test_says_what_there_is() -> None:
    report = json.loads(RUNNER.invoke(main, ["doctor", "--json"]).output)
    assert report["versions"]["fp4ref"] == fp4ref.__version__
    assert report["versions"]["python"] == platform.python_version()
    assert report["backends"] == dict(registry.available())
    assert report["backends"]["numpy"] is None
    assert (report["packages"]["torch"] is None) == (find_spec("torch") is None)
    assert bool(report["devices"]) == (report["devices_reason"] is None)
    assert report["refused"]["numpy"] == {}
    words = ("golden model only", "4over6 with")
    assert all(any(word in reason for word in words) for reason in report["refused"]["cpu"])
    assert any("NUM-5" in reason for reason in report["refused"]["cuda"])
    text = RUNNER.invoke(main, ["doctor"]).output
    count = len(fp4ref.profiles)
    assert f"  numpy  {count} of {count}\n" in text
    assert f" of {count}; fp4ref profiles backends says why not " in text
    assert "  numpy  available" in text.replace("    ", "  ")


def test_says_why_a_backend_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(registry, "available", lambda: [("numpy", None), ("other", "no C++ compiler")])
    assert "other  no C++ compiler" in RUNNER.invoke(main, ["doctor"]).output


def test_compilers(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "mycxx -m64")
    assert machine.compilers() == {"mycxx -m64": None, "c++": None, "g++": None, "clang++": None}
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert machine.compilers()["g++"] is None


@pytest.mark.rule("CNF-4")
def test_probe_sees_a_machine_that_keeps_subnormals() -> None:
    assert machine.flush_probe() == Flush(inputs=False, results=False)
    machine.require_no_flush("verify")


@pytest.mark.rule("CNF-4")
@pytest.mark.parametrize(
    ("flush", "what"),
    [
        (Flush(inputs=True, results=True), "inputs and results"),
        (Flush(inputs=True, results=False), "inputs are"),
        (Flush(inputs=False, results=True), "results are"),
    ],
)
def test_refuses_a_machine_that_flushes(flush: Flush, what: str, monkeypatch) -> None:
    monkeypatch.setattr(machine, "flush_probe", lambda: flush)
    with pytest.raises(fp4ref.DomainError, match=rf"verify: subnormal {what}.*\[CNF-4\]"):
        machine.require_no_flush("verify")
    result = RUNNER.invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].endswith("[CNF-4]")
    assert json.loads(RUNNER.invoke(main, ["doctor", "--json"]).output)["flush"] == flush._asdict()


def flushed(prelude: str) -> dict:
    run = forked.start(["-c", prelude + DOCTOR])()
    report = json.loads(run.stdout)
    assert run.returncode == (0 if report["healthy"] else 1)
    return report["flush"]


@pytest.mark.rule("CNF-4")
@pytest.mark.skipif(not X86, reason="needs x86-64 and POSIX")
@pytest.mark.parametrize(
    ("mxcsr", "inputs", "results"),
    [(USUAL, False, False), (USUAL | FTZ, False, True), (USUAL | DAZ, True, False), (USUAL | FTZ | DAZ, True, True)],
)
def test_probe_sees_the_control_register(mxcsr: int, inputs: bool, results: bool) -> None:
    assert flushed(SET_MXCSR.format(mxcsr=mxcsr)) == {"inputs": inputs, "results": results}


@pytest.mark.rule("CNF-4")
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
@pytest.mark.slow
def test_probe_sees_what_torch_sets() -> None:
    assert flushed(SET_TORCH) == {"inputs": True, "results": True}


class Driver:
    """A CUDA driver of two devices, as far as the doctor asks."""

    def __init__(self, status: int = 0) -> None:
        self.status = status

    def cuInit(self, flags) -> int:  # noqa: N802 - the driver's names
        return self.status

    def cuDeviceGetCount(self, count) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, handle, ordinal) -> int:  # noqa: N802
        handle._obj.value = ordinal + 7
        return 0

    def cuDeviceGetName(self, name, size, handle) -> int:  # noqa: N802
        name.value = f"GPU {handle.value}".encode()
        return 0

    def cuDeviceGetAttribute(self, value, attribute, handle) -> int:  # noqa: N802
        value._obj.value = {75: 9, 76: 0}[attribute]
        return 0


@pytest.mark.skipif(sys.platform == "darwin", reason="no CUDA there")
def test_devices_of_a_driver(monkeypatch) -> None:
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: Driver())
    assert "cuda:1  GPU 8, compute capability 9.0" in RUNNER.invoke(main, ["doctor"]).output
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: Driver(status=100))
    assert machine.cuda_devices() == ([], "the CUDA driver has no device (status 100)")
