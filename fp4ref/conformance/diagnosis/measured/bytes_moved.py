"""The map that a conversion of layouts applies to bytes that it only had to move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.mistakes.said import SHOWN
from fp4ref.formats import Codes

Moved = tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]  # what was got and wanted, and which bytes are scales
OTHERS = 8  # bytes that stay as they are, at least


def byte_map(results: Iterable[Moved]) -> tuple[str, Codes] | None:
    """Return a sentence and the table [256] of a map that makes every result; None if there is none."""
    table = np.full(256, -1, np.int64)
    for got, wanted, valid in results:
        if got.shape != wanted.shape:
            return None
        before, after = wanted[valid], got[valid]
        table[before] = after
        if (table[before] != after).any():
            return None
    seen = np.flatnonzero(table >= 0)
    changed = seen[table[seen] != seen]
    if not len(changed) or len(seen) - len(changed) < OTHERS:
        return None
    return _said(changed, table), np.where(table < 0, np.arange(256), table).astype(np.uint8)


def _said(changed: NDArray[np.int64], table: NDArray[np.int64]) -> str:
    after = np.unique(table[changed])
    if len(after) == 1 and len(changed) > 1:
        to = int(after[0])
        seen = np.flatnonzero(table >= 0)
        if (changed == seen[seen > to]).all():
            return f"scale bytes above {to:#04x} become {to:#04x}"
        if (changed == seen[seen < to]).all():
            return f"scale bytes below {to:#04x} become {to:#04x}"
    said = [f"{byte:#04x} becomes {table[byte]:#04x}" for byte in changed[:SHOWN]]
    return f"scale bytes are changed: {', '.join(said)}" + " ..." * (len(changed) > SHOWN)
