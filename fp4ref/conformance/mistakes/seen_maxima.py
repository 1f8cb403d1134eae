"""Maxima of a tensor or of a row that see only some of its values.

For example, a kernel reduces one half of the columns in each of two warps, and one of them is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from fp4ref.conformance.mistakes.inputs import SIZES
from fp4ref.formats import F, Floats


def _half(part: str, axis: int, up: bool, values: Floats) -> Floats:
    """Return half of the rows (axis 0) or columns. up: the first half has the middle one of an odd count."""
    end = (values.shape[axis] + up) // 2
    lines = slice(0, end) if part == "first" else slice(end, None)
    return values[lines] if axis == 0 else values[:, lines]


SEEN: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("signed", "is taken over signed values, max x instead of max |x|", lambda v: np.maximum(v, F(0))),
    ("negative", "is taken over negative values only", lambda v: np.minimum(v, F(0))),
    ("last-row", "misses the last row", lambda v: v[: max(v.shape[0] - 1, 1)]),
    ("last-column", "misses the last column", lambda v: v[:, : max(v.shape[1] - 1, 1)]),
    ("first-row", "misses the first row", lambda v: v[1:]),
    ("first-column", "misses the first column", lambda v: v[:, 1:]),
    ("last-block", "misses the last 16 columns", lambda v: v[:, : max(v.shape[1] - 1, 0) // 16 * 16]),
    ("last-block-32", "misses the last 32 columns", lambda v: v[:, : max(v.shape[1] - 1, 0) // 32 * 32]),
    ("last-rows", "misses the last 16 rows", lambda v: v[: max(v.shape[0] - 1, 0) // 16 * 16]),
    ("only-row", "is that of the first row only", lambda v: v[:1]),
    ("last-only-row", "is that of the last row only", lambda v: v[-1:]),
    ("even-columns", "is taken over even columns only", lambda v: v[:, ::2]),
    ("odd-columns", "is taken over odd columns only", lambda v: v[:, 1::2]),
    ("even-rows", "is taken over even rows only", lambda v: v[::2]),
    ("odd-rows", "is taken over odd rows only", lambda v: v[1::2]),
    *(
        (
            f"{part}-half-{what}{short}",
            f"is that of the {part} half of the {what} only{', which is the shorter one' if short else ''}",
            partial(_half, part, axis, (part == "first") != bool(short)),
        )
        for axis, what in ((0, "rows"), (1, "columns"))
        for part in ("first", "second")
        for short in ("", "-short")
    ),
    *(
        (f"first-{size}-rows", f"is that of the first {size} rows only", partial(lambda n, v: v[:n], size))
        for size in (16, 32, 64, 128)
    ),
    *(
        (f"first-{size}-columns", f"is that of the first {size} columns only", partial(lambda n, v: v[:, :n], size))
        for size in (16, 32, 64, 128)
    ),
    *(
        (
            f"tail-columns-{size}",
            f"misses the columns past the last multiple of {size}",
            partial(lambda n, v: v[:, : v.shape[1] // n * n], size),
        )
        for size in SIZES
    ),
    *(
        (
            f"tail-rows-{size}",
            f"misses the rows past the last multiple of {size}",
            partial(lambda n, v: v[: v.shape[0] // n * n], size),
        )
        for size in SIZES
    ),
)
