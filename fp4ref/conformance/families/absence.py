"""Why a family has no case in a run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families import FAMILIES, members
from fp4ref.quantized import Direction
from fp4ref.spec import Spec

EXHAUSTIVE = 2  # the highest level


@cache
def absence(
    name: str, spec: Spec, level: int, direction: Direction, dtypes: tuple[str, ...], weights: Path | None
) -> str | None:
    """Return why a family has no case for these settings; empty if it has some, None if no setting gives it one.

    Rules: CNF-22.
    """

    def has(level: int, dtypes: tuple[str, ...]) -> bool:
        return any(
            next(members(FAMILIES[name], spec, dtype, direction, level, weights=weights), None) is not None
            for dtype in dtypes
        )

    if has(level, dtypes):
        return ""
    if level < EXHAUSTIVE and has(EXHAUSTIVE, dtypes):
        return f"needs --level {EXHAUSTIVE}"
    others = tuple(name for name in INPUT_DTYPES if name not in dtypes)
    return f"needs {' or '.join(others)}" if others and has(EXHAUSTIVE, others) else None
