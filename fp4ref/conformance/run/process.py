"""A process that has loaded a kernel, and the messages that go to it and come back."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fp4ref.conformance.run.messages import Message, receive, send
from fp4ref.conformance.run.waiting import WaitCount
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind, Outcome
from fp4ref.conformance.subjects.subject import Declaration, Job
from fp4ref.errors import BackendError

LOADING = 300.0  # seconds for imports
ENDING = 10.0  # seconds for a process to end that was killed
SLIGHT = 0.01  # of a timeout: a wait that does not count
WAITING = 9  # timeouts that a call may wait for a processor, besides its own
SHOWN = 4096  # bytes of what a process wrote last that are kept
SCRIPT = Path(__file__).with_name("start_child.py")
GUARDED = hasattr(os, "fork")


class KernelProcess:
    """A process of its own that has loaded a kernel; it and what it started end with the kit's process.

    Errors: BackendError with the reason why the kernel cannot be loaded.

    Rules: CNF-5, CNF-13, CNF-95.
    """

    def __init__(
        self,
        target: str,
        changes: dict[str, Any],
        library: Mapping[str, Any] | None = None,
        limit: float = LOADING,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._held, self._child = _started(self._errors)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._requests: IO[bytes] = self._child.stdin
        self._unsent: queue.Queue[Message | None] = queue.Queue()
        self._answers: queue.Queue[Message | None] = queue.Queue()
        self._number = 0
        for act, stream in ((self._speak, self._requests), (self._listen, self._child.stdout)):
            threading.Thread(target=act, args=(stream,), daemon=True).start()
        try:
            answer = self.answer({"target": target, "changes": changes, "library": library}, limit, limit)
        except BaseException:
            self.close()
            raise
        if isinstance(answer, Finding) or "error" in answer:
            self.close()
            if isinstance(answer, Finding) and answer.kind is FindingKind.HUNG and limit < LOADING:
                got = f"not loaded in the {max(limit, 0.0):.3g} s that the run's time limit left for it"
                raise _refused(target, got, "a longer time limit", "CNF-13")
            parts = [answer.text] if isinstance(answer, Finding) else answer["error"]
            raise _refused(target, *parts)
        self.declaration = Declaration(**answer["declaration"])

    def outcomes(
        self, jobs: Sequence[Job], limit: float, left: float = math.inf, **how: bool
    ) -> list[Outcome] | Finding:
        """Return the outcomes of calls, or how the process ended or kept silent.

        limit: seconds in which the process does not wait for a processor; left: seconds of the clock. how: arguments
        of `Caller.outcomes`.

        Rules: CNF-37, CNF-38, CNF-73.
        """
        answer = self.answer({"jobs": list(jobs), **how}, limit, left)
        return answer if isinstance(answer, Finding) else list(answer["outcomes"])

    def answer(self, message: Message, limit: float, left: float = math.inf) -> Message | Finding:
        """Return the answer to a message, or how the process ended or kept silent; an answer to another one is dropped.

        limit: seconds without those in which the process waits for a processor, if these are at most WAITING times
        as many. left: seconds of the clock.

        Rules: CNF-37, CNF-38, CNF-73.
        """
        self._number += 1
        self._unsent.put(message | {"number": self._number})
        start, waited = time.monotonic(), 0.0
        counts = WaitCount(os.getpid()), WaitCount(self._child.pid, family=True)
        while True:
            end = start + min(limit + waited, left, threading.TIMEOUT_MAX)
            try:
                answer = self._answers.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                longer = min(sum(count.seconds() for count in counts), WAITING * limit)
                if longer > waited + SLIGHT * limit and time.monotonic() - start < left:
                    waited = longer
                    continue
                return Finding(FindingKind.HUNG, f"no result after {max(min(limit, left), 0.0):.3g} s{_beside(waited)}")
            if answer is None:
                return self._ended()
            if answer.get("number") == self._number:
                return answer

    def close(self) -> None:
        """End the process and all that it started, and wait for that."""
        self._unsent.put(None)
        if self._held is not None:
            os.close(self._held)
            self._held = None
        else:
            self._child.kill()
        try:
            self._child.wait(ENDING)
        except subprocess.TimeoutExpired:  # a device driver may keep a process
            self._child.kill()
        with contextlib.suppress(OSError):
            self._requests.close()
        self._errors.close()

    def _speak(self, stream: IO[bytes]) -> None:
        """Send what is asked; a process that does not read delays no one else."""
        with contextlib.suppress(OSError, ValueError):
            while (message := self._unsent.get()) is not None:
                send(stream, message)

    def _listen(self, stream: IO[bytes]) -> None:
        """Hand on what the process answers; None when it has ended."""
        with contextlib.suppress(Exception), contextlib.closing(stream):
            while (message := receive(stream)) is not None:
                self._answers.put(message)
        self._answers.put(None)

    def _ended(self) -> Finding:
        try:
            status = self._child.wait(ENDING)
        except subprocess.TimeoutExpired:
            return Finding(FindingKind.CRASHED, "it closed its standard output")
        try:
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        except ValueError:
            how = f"signal {-status}"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - SHOWN))
        said = self._errors.read().decode(errors="replace").strip()
        last = said.splitlines()[-1].strip() if said else ""
        return Finding(FindingKind.CRASHED, f"{how}{f': {last[:200]}' if last else ''}", said)


def _beside(waited: float) -> str:
    """Return the time that a hang cost because the machine was busy, in words."""
    return f" and another {waited:.3g} s, in which it waited for a processor" if waited else ""


def _started(errors: IO[bytes]) -> tuple[int | None, subprocess.Popen[bytes]]:
    """Return the pipe whose end ends the process, None without a guard, and the process. Rules: CNF-95."""
    command = [sys.executable, "-P", str(SCRIPT)]
    pipe = subprocess.PIPE
    if not GUARDED:
        return None, subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors)  # noqa: S603
    guarded, held = os.pipe()
    try:
        child = subprocess.Popen(  # noqa: S603
            [*command, str(guarded)],
            stdin=pipe,
            stdout=pipe,
            stderr=errors,
            pass_fds=(guarded,),
            start_new_session=True,
        )
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(guarded)
    return held, child


def _refused(target: str, got: str, needed: str = "", rule: str = "") -> BackendError:
    """Return the error of a kernel that cannot be loaded; what is needed and the rule are said once."""
    return BackendError(f"kernel {target}", got, needed or "a kernel that can be imported", rule or "CNF-5")
