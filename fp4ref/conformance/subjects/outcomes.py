"""Outcomes: the result of a kernel's call for a case, and what can go wrong other than bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fp4ref.quantized import DirectionData


class FindingKind(StrEnum):
    """The kinds of findings about a kernel, other than wrong bytes."""

    RAISED = "raised"
    CRASHED = "crashed"
    HUNG = "hung"
    SHAPE = "shape"
    DTYPE = "dtype"
    DEVICE = "device"
    PADDING = "wrong-padding"
    OUTSIDE = "wrote-outside"
    MUTATED = "mutated-input"
    UNWRITTEN = "not-written"
    UNSTABLE = "not-repeatable"
    CUDA = "cuda-error"
    DEPENDS = "depends-on-earlier-calls"
    OVERWRITTEN = "earlier-result-overwritten"
    CONCURRENT = "differs-on-streams"
    INTERNAL = "internal-error"  # in a check of this program; nothing is known of the kernel
    NOT_RUN = "not-run"  # after the kernel's process broke down too often
    NOT_TRIED = "not-tried"  # after the time of the whole run; nothing is wrong with the kernel


WITHOUT_RESULT = frozenset(  # kinds of findings about cases of which no result is compared
    {
        FindingKind.RAISED,
        FindingKind.CRASHED,
        FindingKind.HUNG,
        FindingKind.SHAPE,
        FindingKind.DTYPE,
        FindingKind.DEVICE,
        FindingKind.CUDA,
        FindingKind.NOT_RUN,
    }
)


class ErrorParts(NamedTuple):
    """The parts of an exception inside this program. place: the file and line."""

    type: str
    message: str
    place: str


@dataclass(frozen=True)
class Finding:
    """A fault in a line.

    trace: the last output of a kernel that raised or crashed, in lines. error: of this program.
    """

    kind: FindingKind
    text: str
    trace: str = ""
    error: ErrorParts | None = None

    def to_json(self) -> dict[str, str]:
        """Return the texts as JSON data."""
        return {"text": self.text, "trace": self.trace}


@dataclass(frozen=True)
class Outcome:
    """A kernel's result for a case.

    data: of a quantizer, as it returned it, in its declared layout and packing; uint8 [rows, width], [R, C],
    and float32 amax or None where that is not an output. values: of another operation. finding: what went wrong
    instead, or as well.
    """

    data: DirectionData | None = None
    values: NDArray[Any] | None = None
    finding: Finding | None = None
