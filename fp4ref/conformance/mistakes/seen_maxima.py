"""Maxima of a tensor or of a row that see only some of its values.

For example, a kernel reduces one half of the columns in each of two warps, and one of them is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from fp4ref.conformance.mistakes.inputs import SIZES
from fp4ref.conformance.mistakes.record import When, by_tensor, has_global
from fp4ref.formats import F, Floats


def _half(part: str, axis: int, up: bool, values: Floats) -> Floats:
    """Return half of the rows (axis 0) or columns. up: the first half has the middle one of an odd count."""
    end = (values.shape[axis] + up) // 2
    lines = slice(0, end) if part == "first" else slice(end, None)
    return values[lines] if axis == 0 else values[:, lines]


def _without_last_row(size: int, values: Floats) -> Floats:
    return values[:-1] if len(values) and len(values) % size == 0 else values


def or_all(chosen: Callable[[Floats], Floats], values: Floats) -> Floats:
    """Return the values that are chosen; all of them if none is."""
    found = chosen(values)
    return found if found.size else values


# A name, a text, when it is a mistake of its own, and what is seen
SEEN: tuple[tuple[str, str, When, Callable[[Floats], Floats]], ...] = (
    ("signed", "is taken over signed values, max x instead of max |x|", has_global, lambda v: np.maximum(v, F(0))),
    ("negative", "is taken over negative values only", has_global, lambda v: np.minimum(v, F(0))),
    ("last-row", "misses the last row", by_tensor, lambda v: v[: max(v.shape[0] - 1, 1)]),
    *(
        (
            f"last-row-of-{size}",
            f"misses the last row where the number of rows is a multiple of {size}",
            by_tensor,
            partial(_without_last_row, size),
        )
        for size in (64, 128)
    ),
    ("last-column", "misses the last column", has_global, lambda v: v[:, : max(v.shape[1] - 1, 1)]),
    ("first-row", "misses the first row", by_tensor, lambda v: v[1:]),
    ("first-column", "misses the first column", has_global, lambda v: v[:, 1:]),
    ("last-block", "misses the last 16 columns", has_global, lambda v: v[:, : max(v.shape[1] - 1, 0) // 16 * 16]),
    ("last-block-32", "misses the last 32 columns", has_global, lambda v: v[:, : max(v.shape[1] - 1, 0) // 32 * 32]),
    ("last-rows", "misses the last 16 rows", by_tensor, lambda v: v[: max(v.shape[0] - 1, 0) // 16 * 16]),
    ("only-row", "is that of the first row only", by_tensor, lambda v: v[:1]),
    ("last-only-row", "is that of the last row only", by_tensor, lambda v: v[-1:]),
    ("even-columns", "is taken over even columns only", has_global, lambda v: v[:, ::2]),
    ("odd-columns", "is taken over odd columns only", has_global, lambda v: v[:, 1::2]),
    ("even-rows", "is taken over even rows only", by_tensor, lambda v: v[::2]),
    ("odd-rows", "is taken over odd rows only", by_tensor, lambda v: v[1::2]),
    *(
        (
            f"{part}-half-{what}{short}",
            f"is that of the {part} half of the {what} only{', which is the shorter one' if short else ''}",
            when,
            partial(_half, part, axis, (part == "first") != bool(short)),
        )
        for axis, what, when in ((0, "rows", by_tensor), (1, "columns", has_global))
        for part in ("first", "second")
        for short in ("", "-short")
    ),
    *(
        (f"first-{size}-rows", f"is that of the first {size} rows only", by_tensor, partial(lambda n, v: v[:n], size))
        for size in (16, 32, 64, 128)
    ),
    *(
        (
            f"first-{size}-columns",
            f"is that of the first {size} columns only",
            has_global,
            partial(lambda n, v: v[:, :n], size),
        )
        for size in (16, 32, 64, 128)
    ),
    *(
        (
            f"tail-columns-{size}",
            f"misses the columns past the last multiple of {size}",
            has_global,
            partial(lambda n, v: v[:, : v.shape[1] // n * n], size),
        )
        for size in SIZES
    ),
    *(
        (
            f"tail-rows-{size}",
            f"misses the rows past the last multiple of {size}",
            by_tensor,
            partial(lambda n, v: v[: v.shape[0] // n * n], size),
        )
        for size in SIZES
    ),
)
