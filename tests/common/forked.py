"""Processes that are forks of one that has imported the program, where the start of a process is not what is tested.

A start of Python and the imports of a command take a third of a second of a processor, and hundreds of tests start one.
A fork has its own arguments, folder, environment, streams and exit status, and ends as any Python does. What it has not
is a fresh interpreter: tests of imports, of signals and of what a process leaves behind start a real one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

IMPORTED = ("fp4ref.cli", "fp4ref.conformance", "fp4ref.diagrams", "fp4ref.model")  # with all their modules
LEFT_OUT = {"machine", "strategies"}  # for tests: they import hypothesis
STATUS = struct.Struct("i")
LARGEST = 1 << 20  # bytes of a request: above all the environment


class Forked:
    """A fork of the server, as much of `subprocess.Popen` as tests need; `arguments` are those of `python`."""

    def __init__(
        self,
        arguments: Sequence[str],
        streams: Sequence[int],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        kept: Sequence[int] = (),
    ) -> None:
        self._told = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._told.connect(_address())
        asked = {
            "arguments": [*arguments],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        socket.send_fds(self._told, [json.dumps(asked).encode()], [*streams, *kept])
        (self.pid,) = STATUS.unpack(self._told.recv(STATUS.size))
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the number of the signal that ended it is negative."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(STATUS.unpack(self._told.recv(STATUS.size))[0])
            self._told.close()
        return self.returncode

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


Finish = Callable[[], subprocess.CompletedProcess[str]]


def start(arguments: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Finish:
    """Start `python ARGUMENTS`, and return what waits for its end and has its status and text."""
    said, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
    with Path(os.devnull).open("rb") as nothing:
        fork = Forked(arguments, [stream.fileno() for stream in (nothing, said, errors)], cwd, env)

    def finish() -> subprocess.CompletedProcess[str]:
        status = fork.wait(600)
        texts = []
        for stream in (said, errors):
            with stream:
                stream.seek(0)
                texts.append(stream.read().decode())
        return subprocess.CompletedProcess(arguments, status, *texts)

    return finish


def run(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE ...`, as `subprocess.run` does that captures text."""
    return start(["-m", *command], cwd, env)()


def start_kernel(errors: IO[bytes]) -> tuple[int, Forked]:
    """Start a kernel's process, in the place of `fp4ref.conformance.run.process._started`."""
    from fp4ref.conformance.run.process import SCRIPT

    guarded, held = os.pipe()
    theirs, requests = os.pipe()
    answers, ours = os.pipe()
    child = Forked([str(SCRIPT)], [theirs, ours, errors.fileno()], kept=[guarded])
    for mine in (guarded, theirs, ours):
        os.close(mine)
    child.stdin, child.stdout = os.fdopen(requests, "wb"), os.fdopen(answers, "rb")
    return held, child


_server: list[str] = []


def _address() -> str:
    """Return the address of the server, which starts at its first use and ends with this process."""
    if not _server:
        folder = tempfile.mkdtemp()
        address = os.path.join(folder, "s")  # noqa: PTH118 - a socket's name is short
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert server.stdout is not None
        assert server.stdin is not None
        assert server.stdout.read(1), "the server of forks did not start"

        def end(started_by: int = os.getpid(), stdin: IO[bytes] = server.stdin) -> None:
            if os.getpid() == started_by:
                stdin.close()
                server.wait()

        atexit.register(end)
        _server.append(address)
    return _server[0]


def _serve(address: str) -> Callable[[], None]:
    """Fork for each request and tell how the fork ended; return in forks alone, with what they do."""
    from fp4ref.conformance.run import process

    for package in map(importlib.import_module, IMPORTED):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.rpartition(".")[2] not in LEFT_OUT:
                importlib.import_module(found.name)
    process._started = start_kernel
    _server.append(address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    wake, waking = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    gc.collect()
    gc.freeze()
    os.write(1, b"1")
    forks: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, listener, wake], [], [])
        if 0 in ready:
            os._exit(0)
        if wake in ready:
            os.read(wake, 512)
            for pid, status in _ended():
                told = forks.pop(pid)
                with contextlib.suppress(OSError):
                    told.send(STATUS.pack(status))
                told.close()
        if listener in ready:
            told, _ = listener.accept()
            request, given, _, _ = socket.recv_fds(told, LARGEST, 16)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for mine in (listener, told, *forks.values()):
                    mine.close()
                for end in (wake, waking):
                    os.close(end)
                return _act(json.loads(request), given)
            for descriptor in given:
                os.close(descriptor)
            told.send(STATUS.pack(pid))
            forks[pid] = told


def _ended() -> Iterator[tuple[int, int]]:
    """Collect the forks that have ended: their numbers, and how."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _act(asked: dict[str, Any], given: Sequence[int]) -> Callable[[], None]:
    """Take a process' streams, folder and environment, and return what it does."""
    for number, descriptor in enumerate(given[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(asked["cwd"])
    ours = {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    os.environ.clear()
    os.environ.update(asked["env"])
    program, *more = asked["arguments"]
    if program == "-c":
        sys.argv = ["-c", *more[1:]]
        return lambda: exec(compile(more[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    if program != "-m":
        sys.argv = [program, *map(str, given[3:])]
        return lambda: runpy.run_path(program, run_name="__main__") and None
    theirs = [name for name in os.environ.get("PYTHONPATH", "").split(os.pathsep) if name]
    sys.path[:] = [asked["cwd"], *theirs, *(name for name in sys.path if name not in ours)]
    importlib.invalidate_caches()
    sys.argv = more
    return lambda: runpy.run_module(more[0], run_name="__main__", alter_sys=True) and None


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    import forked  # the server's state is that of the module which its forks import

    forked._serve(sys.argv[1])()
