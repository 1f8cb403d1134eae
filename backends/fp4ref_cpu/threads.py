"""Running one job on several threads; ctypes releases the interpreter lock, and the threads share the job's counter."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
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
    pool = _pool(others)
    futures = [pool.submit(function, job) for _ in range(others)]
    try:
        function(job)
    finally:
        wait(futures)  # they write into buffers that the caller may drop
    for future in futures:
        future.result()


@lru_cache
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, "fp4ref-cpu")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has no threads
