"""Ties, and the inputs beside which a byte changes: of elements, and of block scales."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.families.aiming import (
    beside,
    element_thresholds,
    exponents,
    filled,
    midpoints,
    scale_thresholds,
    scale_values,
)
from fp4ref.conformance.families.case import Aim, Family, Member, Values, matrix_of
from fp4ref.conformance.families.rules import element_rules, scale_rules
from fp4ref.formats import E2M1, E8M0
from fp4ref.spec import Granularity

MULTIPLES = (1, 3, 5, 7)  # of the unit: 3, 5 and 7 have no exact reciprocal, yet ties stay exact
ONE_ROW = 2048  # elements of a row alone
MANTISSAS = (1.0, 1.03125, 1.25, 1.5, 1.75, 1.9375)


def element_ties(aimed: Aim) -> Iterator[Member]:
    """Every tie of the element format at many scales, in units of the scale that are exact; the powers of two first.

    Under a power of two the division is exact too, so that what is rounded is a tie; the reciprocals of others are not.
    """
    scales = aimed.rng.permutation(scale_values(aimed))
    scales = np.concatenate([part[: aimed.count] for part in np.split(*_powers_first(scales))])
    for multiple in MULTIPLES:
        if multiple > 1 and not aimed.unit_amax:
            return
        blocks = tied(aimed, scales, multiple)
        if len(blocks):
            whole = matrix_of(aimed, blocks, aimed.unit_amax * multiple)
            yield Member(f"unit-{multiple}", whole)
            if multiple == 1 and aimed.spec.block.rows == 1:  # kernels take another path for one row
                yield Member("one-row", whole.reshape(1, -1)[:, :ONE_ROW])


def tied(aimed: Aim, scales: Values, multiple: int = 1) -> NDArray[Any]:
    """Blocks of every tie under the given scales, in units of the scale; those that the type holds exactly."""
    ties = midpoints(aimed.spec.element.format)[:-1]
    leads, others = aimed.element_max * scales * multiple, ties * scales[:, None] * multiple
    fit = _exact(aimed, leads) & _exact(aimed, others).any(axis=1)
    if not fit.any():
        return np.empty((0, aimed.area), aimed.dtype)
    leads, others = leads[fit], np.where(_exact(aimed, others[fit]), others[fit], leads[fit, None])
    return filled(aimed, leads, np.minimum(others, leads[:, None]))


def element_neighbours(aimed: Aim) -> Iterator[Member]:
    """Yield the last input that is rounded down and the first that is rounded up, at every boundary of the codes."""
    for number, amax in enumerate(amaxes(aimed)):
        maxima = block_maxima(aimed, amax, aimed.count if aimed.spec.element.format is E2M1 else aimed.count // 4)
        up = element_thresholds(aimed, maxima, amax)
        near = np.stack([up, beside(aimed, up, -1)], axis=2).reshape(len(maxima), -1)
        near = np.minimum(near, maxima[:, None])
        yield Member(f"amax-{number}", matrix_of(aimed, filled(aimed, maxima, near), amax))


def block_scale_ties(aimed: Aim) -> Iterator[Member]:
    """Block maxima on every tie of the scale format and one step beside, in exact units."""
    ties = scale_ties(aimed)
    for by, label in ((0, "tie"), (-1, "below"), (1, "above")):
        leads = beside(aimed, ties, by)
        yield Member(label, matrix_of(aimed, smaller(aimed, leads)))


def scale_ties(aimed: Aim) -> Values:
    """Block maxima on every tie of the scale format that the type holds exactly; some of those of a power of two."""
    if aimed.spec.scale.format is E8M0:
        low, high = exponents(aimed)
        powers = np.arange(low, high + 1)
        chosen = aimed.rng.choice(powers, min(len(powers), aimed.count), replace=False)
        top = aimed.element_max / 2.0 ** np.floor(np.log2(aimed.element_max))
        mantissas = np.unique([*MANTISSAS, top, _carry(aimed)])
        ties = (np.ldexp(1.0, chosen)[:, None] * mantissas).ravel()
    else:
        ties = midpoints(aimed.spec.scale.format)[:-1] * aimed.element_max
    return np.asarray(ties[_exact(aimed, ties)])


def scale_neighbours(aimed: Aim) -> Iterator[Member]:
    """Yield the largest block maximum of each reachable scale byte, and the smallest of the next."""
    for number, amax in enumerate(amaxes(aimed)):
        up = scale_thresholds(aimed, amax)
        if aimed.spec.scale.format is E8M0 and aimed.level == 1:
            up = aimed.rng.permutation(up)[: aimed.count]
        leads = np.concatenate([up, beside(aimed, up, -1)])
        if len(leads):
            yield Member(f"amax-{number}", matrix_of(aimed, smaller(aimed, leads), amax))


def amaxes(aimed: Aim) -> list[float]:
    """Global amaxes whose global scale is exact, rounded, and of many digits; one 0 without a global scale."""
    unit = aimed.unit_amax
    if aimed.spec.global_scale is Granularity.NONE:
        return [0.0]
    drawn = [1 + 0.9 * aimed.rng.random() for _ in range(2 * aimed.reach.size * (6 if aimed.level > 1 else 1))]
    return [float(aimed.narrow(value)) for value in (unit, unit * 3 / 64, *drawn)]


def block_maxima(aimed: Aim, amax: float, count: int) -> NDArray[Any]:
    """Block maxima of many digits: down to 2^-9 of the global amax, or of any exponent that the type has."""
    if amax:
        return aimed.narrow(amax * 2.0 ** (-9 * aimed.rng.random(count)))
    low, high = exponents(aimed)
    return aimed.narrow(np.ldexp(1 + aimed.rng.random(count), aimed.rng.integers(low, high, count)))


def smaller(aimed: Aim, leads: NDArray[Any]) -> NDArray[Any]:
    """Blocks with the given maxima, the other elements smaller."""
    share = np.abs(np.tanh(aimed.normal(len(leads), max(aimed.area - 1, 1)))) * 0.99
    return filled(aimed, leads, aimed.narrow(leads.astype(np.float64)[:, None] * share))


def _powers_first(scales: Values) -> tuple[Values, list[int]]:
    """Scales with the powers of two first, and where the others begin."""
    power = np.frexp(scales)[0] == 0.5
    return np.concatenate([scales[power], scales[~power]]), [int(power.sum())]


def _carry(aimed: Aim) -> float:
    """Return the mantissa from which rounding to the element's mantissa carries into the exponent (MXS-4)."""
    return 2 - 0.5 ** (aimed.spec.element.format.mantissa_bits + 1)


def _exact(aimed: Aim, values: Values) -> NDArray[np.bool_]:
    """Return True for values that the type holds exactly."""
    return np.asarray(aimed.narrow(values).astype(np.float64) == values)


FAMILIES = (
    Family(
        "element-ties", "Kernels break ties up, down or away where the even code is meant.", element_rules, element_ties
    ),
    Family(
        "element-neighbours",
        "One step beside a boundary an approximate or reordered scaling gives the other code.",
        element_rules,
        element_neighbours,
    ),
    Family("block-scale-ties", "Block scales are rounded by another rule, or twice.", scale_rules, block_scale_ties),
    Family(
        "scale-neighbours",
        "One step beside a boundary of a scale byte a reordered product gives the other byte.",
        scale_rules,
        scale_neighbours,
    ),
)
