"""Known mistakes with NaN and infinities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.mistakes.operand_pairs import OperandPair, OperandSide, Wide, product
from fp4ref.conformance.mistakes.products import SIDES
from fp4ref.formats import E8M0, F, Floats

Change = Callable[[OperandSide], OperandSide]


def _element(test: Callable[[Wide], Wide], value: Callable[[OperandSide], float], s: OperandSide) -> OperandSide:
    """Elements that pass a test have another magnitude; their sign bit stays."""
    return replace(s, elements=np.where(test(s.elements), np.copysign(value(s), s.elements), s.elements))


def _scale(value: Callable[[OperandSide], float], s: OperandSide) -> OperandSide:
    return replace(s, scales=np.where(np.isnan(s.scales), value(s), s.scales))


def _largest(s: OperandSide) -> float:
    return s.part.spec.element.format.max


def _zero(s: OperandSide) -> float:
    return 0.0


def _next_number(s: OperandSide) -> float:
    """Return the number that a NaN scale's bits would stand for: 480 for E4M3, 2^128 (infinite) for E8M0."""
    return np.inf if s.part.spec.scale.format is E8M0 else 480.0


def _largest_scale(s: OperandSide) -> float:
    return s.part.spec.scale.format.max


def _skipping(s: OperandSide) -> OperandSide:
    """Count a block of zeros as zero, whatever its scale."""
    (rows, columns), width = s.elements.shape, s.width
    padded = np.pad(s.elements, ((0, 0), (0, -columns % width))).reshape(rows, -1, width)
    return replace(s, scales=np.where((padded == 0).all(axis=2), 0.0, s.scales))


READERS: tuple[tuple[str, str, Change], ...] = (
    ("nan-scale-0", "NaN scales of {} count as 0", partial(_scale, _zero)),
    ("nan-scale-1", "NaN scales of {} count as 1", partial(_scale, lambda s: 1.0)),
    ("nan-scale-next", "NaN scales of {} are read as the number after the largest", partial(_scale, _next_number)),
    ("nan-scale-largest", "NaN scales of {} are read as the largest number", partial(_scale, _largest_scale)),
    ("nan-0", "every NaN of {} counts as 0", lambda s: _scale(_zero, _element(np.isnan, _zero, s))),
    ("zero-blocks-skipped", "blocks of zeros of {} are skipped, with them the NaN of their scales", _skipping),
    ("nan-element-0", "NaN elements of {} count as 0", partial(_element, np.isnan, _zero)),
    ("nan-element-saturates", "NaN elements of {} saturate", partial(_element, np.isnan, _largest)),
    ("nan-element-480", "NaN elements of {} are read as 480", partial(_element, np.isnan, lambda s: 480.0)),
    ("infinity-saturates", "infinities of {} saturate", partial(_element, np.isinf, _largest)),
    ("infinity-0", "infinities of {} count as 0", partial(_element, np.isinf, _zero)),
    ("infinity-nan", "infinities of {} become NaN", partial(_element, np.isinf, lambda s: np.nan)),
)


def _saturated(y: Floats, to: str) -> Floats:
    most = LARGEST[to]
    return np.where(np.isinf(y), np.copysign(most, y), y)


LARGEST = {
    name: F(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    for name, kind in INPUT_DTYPES.items()
}
RESULTS: tuple[tuple[str, str, Callable[[Floats, str], Floats]], ...] = (
    ("nan-result-0", "NaN results become 0", lambda y, to: np.where(np.isnan(y), F(0), y)),
    ("infinite-result-saturates", "infinite results saturate", _saturated),
)


# Of finite sums as well
ENDS = (*RESULTS[1:], ("minus-zero-lost", "results of -0 become 0", lambda y, to: np.asarray(y + F(0))))


def special_sums(pair: OperandPair) -> Iterator[tuple[str, str, Wide]]:
    """Yield each mistake in reading, its name, its sentence and its sums."""
    for name, text, change in READERS:
        for which, said in SIDES:
            a, b = (change(s) if side in which else s for side, s in (("a", pair.a), ("b", pair.b)))
            yield f"{name}-{which}", text.format(said), product(a, b)
