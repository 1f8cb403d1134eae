"""Choose the known mistakes for which the evidence is large enough.

A caller's round number is a power of two by chance, so one maximum that is 2 says nothing about a rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.mistakes.kernel import kernel_of
from fp4ref.conformance.mistakes.record import Mistake
from fp4ref.formats import F, Floats
from fp4ref.names import Names

EXPONENT = 3  # bits that a rounded maximum tells beside those of its mantissa
ENOUGH = 8  # bits that maxima tell which support a rounding


def tellable(items: Sequence[Item], *, special: bool) -> list[Mistake]:
    """Return the known mistakes that may be told of some items. special: with those about special values.

    Rules: CNF-28, CNF-89.
    """
    left_out = _unsupported(_maxima(items).tobytes(), Names.changes)
    known = [mistake for mistake in MISTAKES if special or not mistake.special]
    return [mistake for mistake in known if mistake.name not in left_out]


@lru_cache(maxsize=4)
def _unsupported(maxima: bytes, changes: int) -> frozenset[str]:
    """Return the names of the known mistakes that maxima do not support. changes: of what is registered."""
    numbers = np.frombuffer(maxima, F)
    return frozenset(mistake.name for mistake in MISTAKES if not supported(mistake, numbers))


def supported(mistake: Mistake, maxima: Floats) -> bool:
    """Return False for a rounding of maxima of which too few are changed, or only to round numbers.

    Every different number that a maximum is rounded to tells its bits of mantissa down to the last one that is set.

    Rules: CNF-31.
    """
    if mistake.rounding is None:
        return True
    rounded = np.asarray(mistake.rounding(maxima), F)
    told = np.unique(rounded[rounded != maxima])
    mantissa = (told.view(np.int32) & 0x7FFFFF) | 0x800000
    last = np.log2(mantissa & -mantissa)
    return bool((EXPONENT + 23 - last).sum() >= ENOUGH)


def _maxima(items: Sequence[Item]) -> Floats:
    """Return the different maxima, of tensors or rows, that a kernel computes itself."""
    made = [item.exhibit.amax(kernel_of(item.spec)) for item in items if item.exhibit.case.amax is None]
    found = np.unique(np.concatenate([np.zeros(0, F), *(pair[0].reshape(-1) for pair in made if pair is not None)]))
    return np.asarray(found[np.isfinite(found)], F)
