"""Sets, places and orders in words: runs of numbers, residues, and what moved where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHOWN = 4  # runs of numbers that are said


def plural(count: int, one: str, many: str) -> str:
    """Return a count and its noun, the number left out for one."""
    return one if count == 1 else f"{count} {many}"


def runs(numbers: Sequence[int] | Any) -> str:
    """Return numbers in ascending order as runs: `0 to 3, 8 and 12`."""
    at = np.unique(np.asarray(numbers, np.int64))
    parts = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1)
    said = [str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]
    if len(said) > SHOWN:
        return f"{', '.join(said[:SHOWN])} ..."
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def of_every(out: Any, size: int, one: str, many: str) -> str:
    """Return which residues are missed, or, if these are more than half, which are seen."""
    kept = np.setdiff1d(np.arange(size), out)
    few = out if len(out) <= size // 2 else kept
    what = f"{one if len(few) == 1 else many} {runs(few)} of every {size}"
    return f"misses {what}" if few is out else f"sees {what} only"


# Orders: what belongs at place i of a group stands at place order[i]

LISTED = 16  # places that are listed where nothing shorter says what moved
Places = NDArray[np.int64]


def moved(order: Sequence[int], what: str, verb: str = "stored") -> str:
    """Describe an order of places as a sentence about `what`, a plural noun. Rules: CNF-88."""
    at = np.asarray(order, np.int64)
    said = next(filter(None, (say(at, what, f"{what} of each {len(at)}") for say in WORDS)))
    return said.replace("are stored", f"are {verb}")


def _reversed(at: Places, what: str, each: str) -> str:
    return f"{each} are in reverse order" if len(at) > 2 and (at == _own(at)[::-1]).all() else ""


def _exchanged(at: Places, what: str, each: str) -> str:
    """Return a sentence for an order that exchanges places i and i ^ m."""
    mask, size = int(at[0]), len(at)
    if (at != (_own(at) ^ mask)).any():
        return ""
    if mask == 1:
        return f"{what} 2i and 2i + 1 are exchanged"
    if 2 * mask == size:
        return f"{what} {mask} to {size - 1} of each {size} are stored before 0 to {mask - 1}"
    return f"{what} i and i ^ {mask} of each {size} are exchanged"


def _rotated(at: Places, what: str, each: str) -> str:
    by, size = int(at[0]), len(at)
    if (at != (_own(at) + by) % size).any():
        return ""
    count, way = (by, "on") if 2 * by <= size else (size - by, "back")
    return f"{each} are stored {count} place{'s' * (count > 1)} further {way}, around the end"


def _transposed(at: Places, what: str, each: str) -> str:
    own, size = _own(at), len(at)
    for high in range(2, size):
        if size % high == 0 and (at == own % high * (size // high) + own // high).all():
            return f"{each} are stored as the transpose of a matrix [{size // high}, {high}]"
    return ""


def _bit_reversed(at: Places, what: str, each: str) -> str:
    bits = len(at).bit_length() - 1
    same = len(at) == 1 << bits and at.tolist() == [int(f"{i:0{bits}b}"[::-1], 2) for i in range(len(at))]
    return f"{each} are stored in bit-reversed order" if same else ""


def _two(at: Places, what: str, each: str) -> str:
    changed = np.flatnonzero(at != _own(at))
    return f"{what} {changed[0]} and {changed[1]} of each {len(at)} are exchanged" if len(changed) == 2 else ""


def _pieces(at: Places, what: str, each: str) -> str:
    """Return where the runs that stay together stand, if these are few."""
    pieces = np.split(_own(at), np.flatnonzero(np.diff(at) != 1) + 1)
    if len(pieces) > SHOWN:
        return ""
    said = [f"{runs(piece)} at {runs(at[piece])}" for piece in pieces if (at[piece] != piece).any()]
    return f"{each} stand at other places: {', '.join(said)}"


def _exchanged_in_part(at: Places, what: str, each: str) -> str:
    """Return a sentence for an order that exchanges places i and i ^ m in some runs of a group only."""
    changed = np.flatnonzero(at != _own(at))
    mask, size = int(at[changed[0]] ^ changed[0]), len(at)
    pieces = np.split(changed, np.flatnonzero(np.diff(changed) != 1) + 1)
    if len(pieces) > SHOWN or (at[changed] != changed ^ mask).any():
        return ""
    pairs = "2i and 2i + 1" if mask == 1 else f"i and i ^ {mask}"
    return f"{what} {pairs} are exchanged among {runs(changed)} of each {size}"


def _listed(at: Places, what: str, each: str) -> str:
    first = int(np.argmax(at != _own(at))) if len(at) > LISTED else 0
    order = " ".join(map(str, np.argsort(at)[first : first + LISTED]))
    more = " ..." * (len(at) > first + LISTED)
    return f"{each} are stored in the order {order}{more}" + (f", from place {first} on" if first else "")


def _own(at: Places) -> Places:
    return np.arange(len(at))


WORDS = (_reversed, _exchanged, _rotated, _transposed, _bit_reversed, _two, _pieces, _exchanged_in_part, _listed)
