"""4over6: the functions that measure how well a block fits, by name.

A difference maps (element values q, scale s, global scale g, global amax, inputs x, constants k) to the error of
each element; a total adds the errors of a block [..., rows, columns] in a fixed order. One rounding per operation.
"""

from collections.abc import Callable

import numpy as np

from fp4ref.arithmetic import Constants
from fp4ref.errors import DomainError
from fp4ref.formats import F, Floats

LANES, ACCUMULATORS = 8, 4
RULES: dict[str, Callable[..., Floats]] = {}


def register_rule(function: Callable[..., Floats], name: str | None = None) -> Callable[..., Floats]:
    """Register a function so that a Spec can hold it and JSON can name it; third parties pass `vendor.name`.

    Rules: SPC-21.
    """
    if RULES.setdefault(name or function.__name__, function) is not function:
        raise DomainError("register_rule", f"{name or function.__name__} twice", "a new name", "SPC-21")
    return function


@register_rule
def sequential(errors: Floats) -> Floats:
    """Row by row, left to right; then rows top to bottom. Rules: FOS-8. Certificates: search-order."""
    return _left_to_right(_left_to_right(errors))


@register_rule
def halves(errors: Floats) -> Floats:
    """Element i and i + 8 first, then left to right; then rows top to bottom. Rules: FOS-8."""
    half = errors.shape[-1] // 2
    return sequential(errors[..., :half] + errors[..., half:])


@register_rule
def lanes(errors: Floats) -> Floats:
    """Eight lanes, as torch adds on a CPU with AVX2: vectors 4i + j to accumulator j, the four of them, then the lanes.

    The elements of the block, rows one after the other, count as vectors of eight. Rules: FOS-8.
    """
    vectors = errors.reshape(*errors.shape[:-2], -1, LANES)
    total = _left_to_right(np.moveaxis(vectors[..., 0::ACCUMULATORS, :], -1, -2))
    for j in range(1, min(ACCUMULATORS, vectors.shape[-2])):
        total = total + _left_to_right(np.moveaxis(vectors[..., j::ACCUMULATORS, :], -1, -2))
    return _left_to_right(total)


@register_rule
def rows_by_tree(errors: Floats) -> Floats:
    """Each row left to right; then rows r and r + 8, r + 4, r + 2, r + 1. Rules: FOS-8."""
    total = _left_to_right(errors)
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return total[..., 0]


def _left_to_right(errors: Floats) -> Floats:
    total = errors[..., 0]
    for i in range(1, errors.shape[-1]):
        total = total + errors[..., i]
    return total


@register_rule
def dequantized(q: Floats, s: Floats, g: Floats, amax: Floats, x: Floats, k: Constants) -> Floats:
    """In the units of x, through the global maximum: ((q * s) * amax) / (element_max * scale_max) - x.

    Rules: FOS-3. Certificates: search-errors.
    """
    return q * s * amax / (k.element_max * k.scale_max) - x


@register_rule
def dequantized_by_reciprocal(q: Floats, s: Floats, g: Floats, amax: Floats, x: Floats, k: Constants) -> Floats:
    """In the units of x, through the global scale: (q * s) * (1 / g) - x. Rules: FOS-4."""
    return q * s * (F(1) / g) - x


@register_rule
def scaled_units(q: Floats, s: Floats, g: Floats, amax: Floats, x: Floats, k: Constants) -> Floats:
    """In the units of the stored block: q * s - x * g. Rules: FOS-4."""
    return q * s - x * g


@register_rule
def scaled_units_float16(q: Floats, s: Floats, g: Floats, amax: Floats, x: Floats, k: Constants) -> Floats:
    """In the units of the stored block: (q * s rounded to float16) - x * g. Rules: FOS-4."""
    candidate: Floats = (q.astype(np.float16) * s.astype(np.float16)).astype(F)
    return candidate - x * g
