"""Failures of the judge itself: an exception in one part of a report costs that part and nothing else."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

DIAGNOSIS = "diagnosis"
Result = TypeVar("Result")


@dataclass(frozen=True)
class InternalError:
    """An exception that ended one part of a report. part: the name of the part. place: the file and line.

    Rules: CNF-69.
    """

    part: str
    type: str
    message: str
    place: str
    traceback: str

    @classmethod
    def of(cls, part: str, error: BaseException) -> InternalError:
        """Describe an exception."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown"
        told = "".join(traceback.format_exception(error))
        return cls(part, type(error).__name__, " ".join(str(error).split()), place, told)

    def __str__(self) -> str:
        said = f": {self.message}" if self.message else ""
        return f"internal error, the {self.part} failed: {self.type}{said} ({self.place}); the verdict stands"

    def to_json(self) -> dict[str, str]:
        """Return the error as JSON data."""
        return dict(vars(self))


def attempted(part: str, act: Callable[[], Result], errors: list[InternalError]) -> Result | None:
    """Return the result of a part of a report; if it raises, note the exception and return None. Rules: CNF-10."""
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a part, the rest of the report stands
        errors.append(InternalError.of(part, error))
        return None


def unexplained(errors: Sequence[InternalError]) -> str:
    """Return the cause in a headline where there is no diagnosis; empty if no diagnosis failed."""
    failed = next((error for error in errors if error.part == DIAGNOSIS), None)
    return "" if failed is None else f"not explained, since the diagnosis failed ({failed.type})"
