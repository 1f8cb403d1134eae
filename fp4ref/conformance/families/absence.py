"""Why a family has no case in a run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families import FAMILIES, Reach, members
from fp4ref.quantized import Direction
from fp4ref.spec import Spec

EXHAUSTIVE = 2  # the highest level


@cache
def absence(name: str, spec: Spec, reach: Reach, direction: Direction, dtypes: tuple[str, ...]) -> str | None:
    """Return why a family has no case; empty if it has some, None if no level and no type gives it one.

    Rules: CNF-22.
    """

    def has(reach: Reach, dtypes: tuple[str, ...]) -> bool:
        return any(next(members(FAMILIES[name], spec, dtype, direction, reach), None) is not None for dtype in dtypes)

    if has(reach, dtypes):
        return ""
    most = replace(reach, level=EXHAUSTIVE)
    if most != reach and has(most, dtypes):
        return f"needs --level {EXHAUSTIVE}"
    others = tuple(name for name in INPUT_DTYPES if name not in dtypes)
    return f"needs {' or '.join(others)}" if others and has(most, others) else None
