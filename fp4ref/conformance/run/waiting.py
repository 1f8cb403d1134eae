"""The time that a process waits for a processor, as Linux counts it: on a busy machine, a slow call is no hang."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

PROCESSES = Path("/proc")
GLANCE = 0.02  # seconds for which a thread is watched that may be waiting


class Counts(NamedTuple):
    """The time that a thread has run and waited so far, in nanoseconds, and whether it runs or waits now."""

    run: int
    waited: int
    runnable: bool


class WaitCount:
    """The time that a process waits for a processor from now on; 0 where nobody counts it.

    family: its descendants count, too. The system counts a wait when it is over. Until then, the time counts in which
    the waiting thread was watched.
    """

    def __init__(self, pid: int, *, family: bool = False) -> None:
        self._counts = partial(counts_of, pid, family=family)
        self._before, self._watched = self._counts(), 0.0

    def seconds(self) -> float:
        """Return the longest time that one thread waited."""
        now = self._counts()
        if any(counts.runnable for counts in now.values()):
            time.sleep(GLANCE)
            later = self._counts()
            starved = any(counts.runnable and later.get(thread) == counts for thread, counts in now.items())
            self._watched, now = self._watched + GLANCE * starved, later
        none = Counts(0, 0, False)
        longest = max((counts.waited - self._before.get(each, none).waited for each, counts in now.items()), default=0)
        return longest / 1e9 + self._watched


def counts_of(pid: int, *, family: bool) -> dict[str, Counts]:
    """Return the counts of each thread of a process, and with `family` of its descendants; nothing where none exist."""
    found = {}
    for thread in _threads(str(pid), family=family):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended, or nothing is counted
            run, waited = (thread / "schedstat").read_text("ascii").split()[:2]
            state = (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            found[thread.name] = Counts(int(run), int(waited), state == "R")
    return found


def _threads(pid: str, *, family: bool) -> Iterator[Path]:
    """Yield the folders of the threads of a process. family: of its descendants, too."""
    try:
        threads = list((PROCESSES / pid / "task").iterdir())
    except OSError:
        return
    yield from threads
    for thread in threads if family else ():
        with contextlib.suppress(OSError):
            for child in (thread / "children").read_text("ascii").split():
                yield from _threads(child, family=True)
