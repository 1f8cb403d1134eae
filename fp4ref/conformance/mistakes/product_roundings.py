"""Roundings of sums and of results of a product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.mistakes.record import cut_bfloat16
from fp4ref.formats import F, Floats, ignoring_float_warnings

# Roundings

Rounds = Callable[[Floats], Floats]


@ignoring_float_warnings
def narrowed(name: str, y: Floats) -> Floats:
    """Round to a type, held as float32."""
    return np.asarray(y.astype(INPUT_DTYPES[name]).astype(F))


def roundings(place: str) -> Iterator[tuple[str, str, Rounds]]:
    """Yield roundings that do not belong there, none first."""
    yield "none", "", lambda y: y
    for name in ("bfloat16", "float16"):
        yield f"{place}-{name}", f"{place} are rounded to {name}", partial(narrowed, name)
    yield f"{place}-truncated", f"{place} are truncated to bfloat16", cut_bfloat16
