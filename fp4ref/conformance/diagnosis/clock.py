"""The processor time of a search, which a busy machine does not change."""

from __future__ import annotations

import time

GLANCE = 0.02  # seconds between two looks: asking for the processor time can take milliseconds


class Clock:
    """Processor time of this thread, read anew when some time has passed."""

    def __init__(self) -> None:
        self._read, self._looked = time.thread_time(), time.perf_counter()

    def __call__(self) -> float:
        """Seconds, at most GLANCE too few."""
        now = time.perf_counter()
        if now - self._looked > GLANCE:
            self._look(now)
        return self._read

    def passed(self, end: float) -> bool:
        """Return True after a processor time, which is asked for only once as many seconds went by on any clock."""
        now = time.perf_counter()
        if self._read + (now - self._looked) <= end:
            return False
        self._look(now)
        return self._read > end

    def _look(self, now: float) -> None:
        self._read, self._looked = time.thread_time(), now


processor_time = Clock()


class OutOfTimeError(Exception):
    """The time that a search may take is over."""


class Deadline:
    """The end of the processor time of a search; a call after it raises OutOfTimeError.

    seconds: from `start`, a processor time, or from now on.
    """

    def __init__(self, seconds: float, start: float | None = None) -> None:
        self._end = (processor_time() if start is None else start) + seconds

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return max(self._end - processor_time(), 0.0)

    def __call__(self) -> None:
        """Raise OutOfTimeError if the time is over."""
        if processor_time.passed(self._end):
            raise OutOfTimeError
