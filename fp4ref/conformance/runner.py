"""Running a subject on cases: a kernel of another module in a process of its own, so that its end is not ours."""

from __future__ import annotations

import contextlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from fp4ref.conformance.calling import call
from fp4ref.conformance.families import Case
from fp4ref.conformance.messages import START, receive, send
from fp4ref.conformance.subject import (
    Declaration,
    Finding,
    Job,
    Kind,
    Outcome,
    Subject,
    golden,
    job_of,
    reasons,
)
from fp4ref.errors import BackendError
from fp4ref.quantized import DirectionData

BREAKDOWNS = 3  # of the kernel's process, after which no case is run any more
LOADING = 300.0  # seconds for imports
FIRST = 120.0  # more seconds for the first case, in which a kernel may be compiled


@dataclass(frozen=True)
class Run:
    """A case that was run, what the golden model makes of it, and what the kernel made of it."""

    case: Case
    expected: DirectionData
    outcome: Outcome


def subject(target: str, library: Mapping[str, Any] | None = None, /, **changes: Any) -> Subject:
    """The subject of `package.module:function` or `file.py:function`, which is imported in a process of its own.

    library: how it is called, if it is a function of a C library. changes: fields of its declaration.

    Errors: BackendError with the reason why it cannot be loaded.

    Rules: CNF-5, CNF-8.
    """
    with contextlib.closing(_Process(target, changes, library)) as process:
        return Subject(target, process.declaration, None, target, library)


def run(subject: Subject, cases: Iterable[Case], timeout: float = 30.0) -> Iterator[Run]:
    """Call a subject on every case that applies to it; nothing that it does ends the run.

    timeout: seconds per case; a kernel in this process has no limit.

    Rules: CNF-8, CNF-9.
    """
    applying = (case for case in cases if not reasons(case, subject.declaration))
    if subject.function is not None:
        for case in applying:
            expected = golden(case)
            yield Run(case, expected, call(subject.function, subject.declaration, _job(subject, case, expected)))
        return
    with contextlib.closing(_Runner(subject, timeout)) as runner:
        for case in applying:
            expected = golden(case)
            yield Run(case, expected, runner.outcome(_job(subject, case, expected)))


def outcomes(subject: Subject, jobs: Iterable[Job], timeout: float = 30.0) -> Iterator[Outcome]:
    """What came of calls; nothing that a kernel does ends them. timeout: as of `run`. Rules: CNF-8, CNF-9."""
    if subject.function is not None:
        yield from (call(subject.function, subject.declaration, job) for job in jobs)
        return
    with contextlib.closing(_Runner(subject, timeout)) as runner:
        yield from map(runner.outcome, jobs)


def _job(subject: Subject, case: Case, expected: DirectionData) -> Job:
    return job_of(case, subject.declaration, expected)


class _Runner:
    """The process of a subject, started again after each breakdown."""

    def __init__(self, subject: Subject, timeout: float) -> None:
        self._subject, self._timeout = subject, timeout
        self._process: _Process | None = None
        self._breakdowns, self._last = 0, ""

    def outcome(self, job: Job) -> Outcome:
        """What came of one call."""
        if self._breakdowns >= BREAKDOWNS:
            return Outcome(finding=Finding(Kind.NOT_RUN, f"after {self._breakdowns} breakdowns: {self._last}"))
        if self._process is None:
            assert self._subject.target is not None
            changes = self._subject.declaration.to_json()
            self._process = _Process(self._subject.target, changes, self._subject.library)
        found = self._process.outcome(job, self._timeout)
        if found.finding is not None and found.finding.kind in {Kind.CRASHED, Kind.HUNG, Kind.CUDA}:
            self.close()
            self._breakdowns, self._last = self._breakdowns + 1, found.finding.text
        return found

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
        self._process = None


class _Process:
    """A process that has loaded a kernel."""

    def __init__(self, target: str, changes: dict[str, Any], library: Mapping[str, Any] | None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        command = [sys.executable, "-m", "fp4ref.conformance.child"]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors)  # noqa: S603
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._requests: IO[bytes] = self._child.stdin
        self._answers: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._listen, args=(self._child.stdout,), daemon=True).start()
        self._fresh = True
        try:
            answer = self._ask(LOADING, {"target": target, "changes": changes, "library": library})
        except BaseException:
            self.close()
            raise
        if isinstance(answer, Finding) or "error" in answer[0]:
            self.close()
            got = answer.text if isinstance(answer, Finding) else answer[0]["error"]
            raise BackendError(f"kernel {target}", got, "a kernel that can be imported", "CNF-5")
        self.declaration = Declaration(**answer[0]["declaration"])

    def outcome(self, job: Job, timeout: float) -> Outcome:
        """The outcome of one call, or how the process ended."""
        arrays = {name: value for name, value in job.arguments.items() if isinstance(value, np.ndarray)}
        record = {
            "order": list(job.arguments),
            "numbers": {name: value for name, value in job.arguments.items() if name not in arrays},
            "outputs": {name: [list(output.shape), output.dtype] for name, output in job.outputs.items()},
        }
        starts = {f"{START}{name}": output.start for name, output in job.outputs.items() if output.start is not None}
        limit, self._fresh = timeout + FIRST * self._fresh, False
        answer = self._ask(limit, record, arrays | starts)
        if isinstance(answer, Finding):
            return Outcome(finding=answer)
        said, results = answer
        finding = None if said["finding"] is None else Finding(Kind(said["finding"][0]), said["finding"][1])
        if "data" in results:
            return Outcome(DirectionData(results["data"], results["scales"], results.get("amax")), None, finding)
        return Outcome(None, next(iter(results.values()), None), finding)

    def close(self) -> None:
        """Kill the process and wait for it."""
        self._child.kill()
        self._child.wait()
        with contextlib.suppress(OSError):
            self._requests.close()
        self._errors.close()

    def _ask(self, limit: float, record: dict[str, Any], arrays: dict[str, Any] | None = None) -> Any:
        with contextlib.suppress(OSError):
            send(self._requests, record, arrays)
        try:
            answer = self._answers.get(timeout=limit)
        except queue.Empty:
            return Finding(Kind.HUNG, f"no result after {limit:g} s")
        return self._ended() if answer is None else answer

    def _listen(self, stream: IO[bytes]) -> None:
        """Hand on what the process answers; None when it has ended."""
        with contextlib.suppress(Exception), contextlib.closing(stream):
            while (message := receive(stream)) is not None:
                self._answers.put(message)
        self._answers.put(None)

    def _ended(self) -> Finding:
        status = self._child.wait()
        try:
            how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        except ValueError:
            how = f"signal {-status}"
        self._errors.seek(0)
        said = [line.strip() for line in self._errors.read()[-4096:].decode(errors="replace").splitlines()]
        last = next((line for line in reversed(said) if line), "")
        return Finding(Kind.CRASHED, f"{how}{f': {last[:200]}' if last else ''}")
