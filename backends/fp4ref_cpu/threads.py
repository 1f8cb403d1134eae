"""Running one job on several threads; ctypes releases the interpreter lock, and the threads share the job's counter."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

from fp4ref.processors import count

WORTH_A_THREAD = 1 << 16  # elements: some ten microseconds


def run(function: Callable[[Any], Any], job: ctypes.Structure, elements: int) -> None:
    """Call a native function on every thread; it returns when the job has no more units."""
    run_at(function, ctypes.byref(job), elements)


def is_for_one(elements: int) -> bool:
    """Return True if a job of these elements is not worth a second thread."""
    return elements < 2 * WORTH_A_THREAD


def run_at(function: Callable[[Any], Any], job: Any, elements: int) -> None:
    """Call a native function of a job's address on every thread. The caller keeps the job until this returns."""
    others = 0 if is_for_one(elements) else min(count(), elements // WORTH_A_THREAD) - 1
    if others <= 0:
        function(job)
        return
    team: list[_Worker] = []
    try:
        _gather(team, others)
        for worker in team:
            worker.begin(function, job)
        function(job)
    finally:
        errors = _ended(team)
    for error in errors:
        if error is not None:
            raise error


class _Worker:
    """A thread that waits for a job. Two locks cost a third of the time of a queue and a future."""

    def __init__(self) -> None:
        self._given, self._done = threading.Lock(), threading.Lock()
        self._given.acquire()
        self._begun = self._busy = False
        self._error: BaseException | None = None
        threading.Thread(target=self._work, name="fp4ref-cpu", daemon=True).start()

    def begin(self, function: Callable[[Any], Any], job: Any) -> None:
        """Start a job."""
        self._function, self._job, self._done = function, job, threading.Lock()
        self._done.acquire()
        self._busy = self._begun = True
        self._given.release()

    def end(self) -> BaseException | None:
        """Wait for the job, if it has begun, and return an error of it. After an interrupt this may be called again."""
        while self._begun and self._busy:
            self._done.acquire()
        self._begun = False
        found, self._error, self._job = self._error, None, None
        return found

    def _work(self) -> None:
        while True:
            self._given.acquire()
            done = self._done  # the next job has another one
            try:
                self._function(self._job)
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                self._error = error
            self._busy = False
            done.release()


_workers: list[_Worker] = []
_idle: list[_Worker] = []


def _gather(team: list[_Worker], size: int) -> None:
    """Add workers without a job, `size` at most: fewer if another caller has them, or if no thread starts."""
    while len(team) < size:
        try:
            team.append(_idle.pop())
        except IndexError:
            if len(_workers) >= size:
                break
            try:
                worker = _Worker()
            except RuntimeError:
                break
            _workers.append(worker)
            team.append(worker)


def _ended(team: list[_Worker]) -> list[BaseException | None]:
    """Wait for workers, which write into buffers that the caller may drop, and give them back; return their errors.

    An interrupt does not end the wait: it is one of the errors.
    """
    errors: list[BaseException | None] = []
    while team:
        try:
            errors.append(team[-1].end())
            _idle.append(team.pop())
        except BaseException as error:  # noqa: BLE001 - raised by the caller once no thread works for it
            errors.append(error)
    return errors


def _forget() -> None:
    _workers.clear()
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # a child has no threads
