"""Comparing the results of two calls of a kernel with the same input."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.subjects.guards import UNWRITTEN, UNWRITTEN_AGAIN
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind
from fp4ref.conformance.subjects.subject import Declaration, Job
from fp4ref.layout import layout

Results = dict[str, NDArray[Any] | None]


class CallDifference(NamedTuple):
    """A result that two calls do not agree on: how many of its bytes differ, and the first of them.

    differing: 0 if it is None in one call only. unwritten: the bytes that differ are those that buffers started with.
    """

    name: str
    differing: int = 0
    size: int = 0
    place: int = 0
    unwritten: bool = False

    def text(self, when: str) -> str:
        """Say what differs when."""
        if not self.differing:
            return f"{self.name} is None only once {when}"
        return f"{self.differing} of {self.size} bytes of {self.name} differ {when}, first byte {self.place}"


def difference(first: Results, second: Results, job: Job, declared: Declaration) -> CallDifference | None:
    """Return the first result of a job in which two calls differ, in bytes of scales that their layout decides.

    Rules: CNF-9, CNF-67, LAY-37.
    """
    for name, part in first.items():
        other = second[name]
        if (part is None) is not (other is None):
            return CallDifference(name)
        if part is None or other is None:
            continue
        one, two = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (part, other))
        differs = one != two
        stored = job.outputs[name].stored
        if stored is not None:
            differs &= layout(declared.scale_layout).compared(*stored).reshape(-1)
        if differs.any():
            unwritten = differs & (one == UNWRITTEN[name]) & (two == UNWRITTEN_AGAIN[name])
            place, count = int(np.flatnonzero(differs)[0]), int(np.count_nonzero(differs))
            return CallDifference(name, count, one.size, place, bool((unwritten == differs).all()))
    return None


def disagreement(first: Results, second: Results, job: Job, declared: Declaration) -> Finding | None:
    """Return the finding about two calls that give different results: bytes were never written, or they come and go."""
    found = difference(first, second, job, declared)
    if found is None:
        return None
    if declared.out_buffers and found.unwritten:
        text = f"{found.differing} of {found.size} bytes of {found.name} are never written, first byte {found.place}"
        return Finding(FindingKind.UNWRITTEN, text)
    return Finding(FindingKind.UNSTABLE, found.text("in two calls with the same input"))


def nothing_written(first: Results, second: Results) -> Finding | None:
    """Return the finding about two calls whose results all hold what their buffers were filled with. Rules: CNF-35."""
    filled = [
        (part.reshape(-1).view(np.uint8), fill[name])
        for results, fill in ((first, UNWRITTEN), (second, UNWRITTEN_AGAIN))
        for name, part in results.items()
        if part is not None
    ]
    if not any(part.size for part, _ in filled) or not all((part == byte).all() for part, byte in filled):
        return None
    parts = ", ".join(first)
    return Finding(FindingKind.UNWRITTEN, f"nothing was written: every byte of {parts} is as it was before the call")
