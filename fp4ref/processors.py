"""The number of threads that a process works in."""

from __future__ import annotations

import os

from fp4ref.errors import DomainError


def count() -> int:
    """Return $FP4REF_NUM_THREADS, or the number of processors that this process may use."""
    text = os.environ.get("FP4REF_NUM_THREADS", "")
    if text:
        if not text.isdecimal() or int(text) < 1:
            raise DomainError("threads", f"FP4REF_NUM_THREADS={text}", "a positive integer")
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
