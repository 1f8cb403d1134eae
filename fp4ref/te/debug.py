"""Counts of quantization: how often tensors of each role were quantized, and their scales moved to the GEMM layout.

A role is the `role` attribute of the quantizer that made a tensor ("input", "weight", "grad_output", ...; "tensor" if
nobody named one). Each direction of a tensor counts for itself where scales are moved.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

OPERATIONS = ("quantize", "swizzle_standalone", "swizzle_in_quantize")
_COUNTS: dict[str, Counter[str]] = {operation: Counter() for operation in OPERATIONS}


class _Listening(threading.local):
    """The list that notes the counts of a thread; None while nobody listens."""

    counts: list[tuple[str, str, int]] | None = None


_listening = _Listening()


def count(operation: str, role: str, times: int = 1) -> None:
    """Note that an operation was done for a tensor of a role. Rules: TEL-7."""
    if times:
        _COUNTS[operation][role] += times
        heard = _listening.counts
        if heard is not None:
            heard.append((operation, role, times))


def count_again(counts: list[tuple[str, str, int]]) -> None:
    """Note what `noted` returned as done once more."""
    for operation, role, times in counts:
        _COUNTS[operation][role] += times
    if _listening.counts is not None:
        _listening.counts.extend(counts)


@contextmanager
def noted() -> Iterator[list[tuple[str, str, int]]]:
    """Return a list that gets the arguments of `count`, as this thread calls it."""
    before, heard = _listening.counts, list[tuple[str, str, int]]()
    _listening.counts = heard
    try:
        yield heard
    finally:
        _listening.counts = before
        if before is not None:
            before.extend(heard)


def operation_counts() -> dict[str, dict[str, int]]:
    """Return counts since the last reset: {"quantize" | "swizzle_standalone" | "swizzle_in_quantize": {role: count}}.

    `quantize` counts calls; the other two count directions. Roles that did nothing are missing.

    Rules: TEL-7.
    """
    return {operation: dict(counts) for operation, counts in _COUNTS.items()}


def reset_operation_counts() -> None:
    """Set every count to zero."""
    for counts in _COUNTS.values():
        counts.clear()
