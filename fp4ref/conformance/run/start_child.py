"""The start of a kernel's process, run as a script: a guard stays behind, and the kernel runs in a fork of it.

The guard ends the kernel and everything that the kernel started as soon as the kit's process lets go of a pipe, which
happens however that process ends. It is forked before any library starts threads.

Arguments: the number of the pipe that the kit's process holds open, on systems that can fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # options of Linux's prctl
DESCRIPTORS = 256  # more than are open before anything is imported
PATIENCE = 2.0  # seconds in which what was killed must end
PAUSE = 0.005


def main() -> None:
    """Fork the guard where the system can, then load fp4ref, the copy that this file belongs to, and serve."""
    if len(sys.argv) > 1:
        _fork_guard(int(sys.argv.pop()))
    root = str(Path(__file__).parents[3])
    sys.path.insert(0, root)
    from fp4ref.conformance.run import child

    sys.path.remove(root)
    child.main()


def _fork_guard(held: int) -> None:
    """Return in a new process of a session of its own; the old one becomes its guard."""
    _prctl(SET_CHILD_SUBREAPER, 1)
    kernel = os.fork()
    if kernel:
        _guard(kernel, held)
    _prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    os.setsid()
    os.close(held)


def _guard(kernel: int, held: int) -> NoReturn:
    """Wait until the kernel's process ends or the kit's process lets go; end what is left, then end as it did."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    wake, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    for number in range(DESCRIPTORS):  # above all the answers, whose end must be the kernel's own
        if number not in {held, wake, waking}:
            with contextlib.suppress(OSError):
                os.close(number)
    gone, status = os.waitpid(kernel, os.WNOHANG)
    while not gone:
        ready, _, _ = select.select([held, wake], [], [])
        if held in ready:
            _kill(kernel)
            _, status = os.waitpid(kernel, 0)
            break
        os.read(wake, 512)
        gone, status = os.waitpid(kernel, os.WNOHANG)
    _kill(kernel)
    _end_children()
    if os.WIFSIGNALED(status):
        _end_by(os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _kill(pid: int) -> None:
    """Kill a process and its group, as far as they exist; a process just forked has no group of its own yet."""
    for act in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            act(pid, signal.SIGKILL)


def _end_children() -> None:
    """Kill and collect what has become a child of this process since its own parent ended."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for pid in _children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            gone, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not gone:
            time.sleep(PAUSE)


def _children() -> list[int]:
    """Return the processes whose parent this one has become; Linux alone lists them."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()]
    except OSError:
        return []


def _end_by(number: int) -> NoReturn:
    """End this process by a signal, without a second core dump."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
