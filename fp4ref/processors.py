"""The time of processors: in how many threads a process works, and when it looks for garbage."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from fp4ref.errors import DomainError

LIBRARIES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # what NumPy and torch read when they are imported


def count() -> int:
    """Return $FP4REF_NUM_THREADS, or the number of processors that this process may use."""
    text = os.environ.get("FP4REF_NUM_THREADS", "")
    if text:
        if not text.isdecimal() or int(text) < 1:
            raise DomainError("threads", f"FP4REF_NUM_THREADS={text}", "a positive integer")
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def shared(processes: int) -> Iterator[None]:
    """Give each of the processes that start meanwhile its share of the processors, unless the environment has limits.

    Threads of NumPy and torch that wait for each other take the time of those that work.
    """
    share = str(max(count() // processes, 1))
    added = {name: share for name in LIBRARIES if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def uncollected() -> Iterator[None]:
    """Do without the collector of cycles, which looks again and again at a million objects that stay.

    For code that reads many sources, or makes few cycles: memory of cycles returns afterwards.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
