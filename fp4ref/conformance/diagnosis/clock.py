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
            self._read, self._looked = time.thread_time(), now
        return self._read


processor_time = Clock()
