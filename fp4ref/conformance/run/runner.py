"""Running a subject on cases: a kernel of another module in a process of its own, so that its end is not ours."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fp4ref.conformance.families import Case
from fp4ref.conformance.run.process import LOADING, KernelProcess
from fp4ref.conformance.run.repeating import repeated
from fp4ref.conformance.run.run_options import DEFAULT, RunOptions
from fp4ref.conformance.subjects.calling import Caller
from fp4ref.conformance.subjects.failures import internal
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind, Outcome
from fp4ref.conformance.subjects.subject import Declaration, Job, Subject, golden, job_of, reasons
from fp4ref.errors import BackendError
from fp4ref.quantized import DirectionData

BREAKDOWNS = 3  # of the kernel's process, after which no case is run any more
HANGS = 2  # of these, likewise
COUNTING = 1.0  # seconds for counting the cases that the end of the time leaves
Maker = Callable[[], Job]


@dataclass(frozen=True)
class Run:
    """A case that was run, what the golden model makes of it, and what the kernel made of it.

    expected: None for a case that was not run.
    """

    case: Case
    expected: DirectionData | None
    outcome: Outcome


def subject(
    target: str, library: Mapping[str, Any] | None = None, options: RunOptions = DEFAULT, /, **changes: Any
) -> Subject:
    """Return the subject of `package.module:function` or `file.py:function`, which is imported in a process of its own.

    library: how it is called, if it is a function of a C library. changes: fields of its declaration.

    Errors: BackendError with the reason why it cannot be loaded.

    Rules: CNF-5, CNF-8.
    """
    limit = min(LOADING, options.left)
    with contextlib.closing(KernelProcess(target, changes, library, limit)) as process:
        return Subject(target, process.declaration, None, target, library)


def run(subject: Subject, cases: Iterable[Case], options: RunOptions = DEFAULT) -> Iterator[Run]:
    """Call a subject on every case that applies to it; nothing that it does ends the run.

    A kernel in this process has no limit per call. Cases that the time of the run leaves are found NOT_TRIED, as far
    as a second suffices to count them.

    Rules: CNF-8, CNF-119, CNF-13, CNF-14.
    """
    prepared: deque[_PreparedCase] = deque()

    def makers() -> Iterator[Maker]:
        for case in cases:
            if options.left < -COUNTING:
                return
            if not reasons(case, subject.declaration):
                prepared.append(_PreparedCase(case, subject.declaration))
                yield prepared[-1].job

    for outcome in outcomes(subject, makers(), options):
        done = prepared.popleft()
        yield Run(done.case, done.expected, outcome)


def outcomes(subject: Subject, makers: Iterable[Maker], options: RunOptions = DEFAULT) -> Iterator[Outcome]:
    """Yield the outcomes of calls, each made when its turn comes; nothing that a kernel does ends the loop.

    Rules: CNF-8, CNF-119, CNF-13, CNF-14.
    """
    with contextlib.closing(Runner(subject, options)) as runner:
        if options.repeat:
            yield from repeated(runner, makers, subject.declaration, options)
        else:
            yield from map(runner.outcome, makers)


class _PreparedCase:
    """A case, and the golden bytes as soon as its call is made."""

    def __init__(self, case: Case, declared: Declaration) -> None:
        self.case, self._declared = case, declared
        self.expected: DirectionData | None = None

    def job(self) -> Job:
        """Return the call."""
        self.expected = golden(self.case)
        return job_of(self.case, self._declared, self.expected)


class Runner:
    """A subject that is called: in this process, or in one of its own that is started again after each breakdown.

    Rules: CNF-9, CNF-13, CNF-37, CNF-38.
    """

    def __init__(self, subject: Subject, options: RunOptions) -> None:
        self._subject, self._options = subject, options
        self._caller = None if subject.function is None else Caller(subject.function, subject.declaration)
        self.separate = self._caller is None
        self._process: KernelProcess | None = None
        self._allowance = options.allowance
        self._breakdowns: list[Finding] = []

    def outcome(self, make: Maker, *, remember: bool = False) -> Outcome:
        """Return the outcome of one call. remember: check the arrays that earlier calls returned, too.

        Rules: CNF-68.
        """
        stopped = self._stopped()
        if stopped:
            return Outcome(finding=stopped)
        try:
            job = make()
        except Exception as error:  # noqa: BLE001 - costs this case only
            return Outcome(finding=internal(error))
        return self._outcomes([job], remember=remember)[0]

    def together(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Return the outcomes of calls that run at once, each on its own stream of a device. Rules: CNF-66."""
        stopped = self._stopped()
        return [Outcome(finding=stopped)] * len(jobs) if stopped else self._outcomes(jobs, together=True)

    def close(self) -> None:
        """End the kernel's process, if it has one of its own; the next call starts another."""
        if self._process is not None:
            self._process.close()
        self._process = None

    def _stopped(self) -> Finding | None:
        """Return the reason if no more calls are made. Rules: CNF-75."""
        if self._options.left <= 0:
            return Finding(FindingKind.NOT_TRIED, "the time of the run is over")
        hangs = sum(found.kind is FindingKind.HUNG for found in self._breakdowns)
        if len(self._breakdowns) < BREAKDOWNS and hangs < HANGS:
            return None
        times = f"{len(self._breakdowns)} breakdowns" if hangs < HANGS else f"{hangs} hangs"
        return Finding(FindingKind.NOT_RUN, f"after {times}: {self._breakdowns[-1].text}")

    def _outcomes(self, jobs: Sequence[Job], **how: bool) -> list[Outcome]:
        """Return the outcomes of calls; if the process breaks down, so did each of them."""
        if self._caller is not None:
            return self._caller.outcomes(jobs, **how)
        found = self._asked(jobs, **how)
        if isinstance(found, Finding):
            self.close()
            if found.kind is FindingKind.HUNG and self._options.left <= 0:
                found = Finding(FindingKind.NOT_TRIED, "the time of the run was over in this call")
            else:
                self._breakdowns.append(found)
            return [Outcome(finding=found)] * len(jobs)
        broken = [item.finding for item in found if item.finding is not None and item.finding.kind is FindingKind.CUDA]
        if broken:
            self.close()
            self._breakdowns += broken[:1]
        return found

    def _asked(self, jobs: Sequence[Job], **how: bool) -> list[Outcome] | Finding:
        """Call in the process; its first call may take longer, as long as compiling has been seen to take.

        Rules: CNF-74, CNF-116.
        """
        fresh = self._process is None
        if self._process is None:
            assert self._subject.target is not None
            changes, limit = self._subject.declaration.to_json(), min(LOADING, self._options.left)
            try:
                self._process = KernelProcess(self._subject.target, changes, self._subject.library, limit)
            except BackendError as error:  # it could be loaded before
                return Finding(FindingKind.HUNG if self._options.left <= 0 else FindingKind.CRASHED, str(error))
        start = time.monotonic()
        limit = self._options.timeout + self._allowance * fresh
        found = self._process.outcomes(jobs, limit, self._options.left, **how)
        if fresh:
            took = time.monotonic() - start
            if not isinstance(found, Finding):
                self._allowance = min(self._allowance, took)
            else:
                self._allowance = 0.0 if found.kind is FindingKind.HUNG else max(0.0, self._allowance - took)
        return found
