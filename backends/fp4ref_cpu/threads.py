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
    team = _team(others)
    for worker in team:
        worker.begin(function, job)
    try:
        function(job)
    finally:
        errors = [worker.end() for worker in team]
    for error in errors:
        if error is not None:
            raise error


class _Worker:
    """A thread that waits for a job. Two locks cost a third of the time of a queue and a future."""

    def __init__(self) -> None:
        self._given, self._done = threading.Lock(), threading.Lock()
        self._given.acquire()
        self._done.acquire()
        self._busy = False
        self._error: BaseException | None = None
        threading.Thread(target=self._work, name="fp4ref-cpu", daemon=True).start()

    def begin(self, function: Callable[[Any], Any], job: Any) -> None:
        """Start a job."""
        self._function, self._job, self._busy = function, job, True
        self._given.release()

    def end(self) -> BaseException | None:
        """Wait for the job, which writes into buffers that the caller may drop; return an error of it.

        After an interrupt the state of the locks is not known: the worker is not used again.
        """
        interrupt: BaseException | None = None
        while interrupt is None or self._busy:
            try:
                self._done.acquire()
                break
            except BaseException as error:  # noqa: BLE001 - raised by the caller once no thread works for it
                interrupt = error
        if interrupt is not None:
            _workers.remove(self)
            return interrupt
        found, self._error, self._job = self._error, None, None
        _idle.append(self)
        return found

    def _work(self) -> None:
        while True:
            self._given.acquire()
            try:
                self._function(self._job)
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                self._error = error
            self._busy = False
            self._done.release()


_workers: list[_Worker] = []
_idle: list[_Worker] = []


def _team(size: int) -> list[_Worker]:
    """Return workers without a job, `size` at most: fewer if another caller has them, or if no thread starts."""
    team: list[_Worker] = []
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
    return team


def _forget() -> None:
    _workers.clear()
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # a child has no threads
