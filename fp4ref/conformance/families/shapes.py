"""Shapes and places: ragged, empty and large tensors, and patterns in which every place is another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp4ref.conformance.families.aiming import exponents
from fp4ref.conformance.families.case import Aim, Family, Member, Values
from fp4ref.conformance.families.rules import place_rules, ragged_rules, rules, scaling_rules
from fp4ref.formats import E8M0, grid
from fp4ref.spec import Granularity

EMPTY = "empty"  # the family of tensors without an element
RAGGED = ((1, 1), (1, 16), (2, 15), (3, 17), (15, 33), (16, 31), (17, 32), (31, 16), (33, 34), (5, 63), (7, 64))
UNITS = ((1, 2), (2, 1), (1, 3), (3, 1), (3, 2), (2, 5), (5, 3))  # shapes in multiples that a kernel declares
LONGER = ((3, 65), (63, 5), (64, 48), (65, 17), (127, 20), (128, 66), (129, 33), (130, 5), (5, 127), (2, 128), (4, 129))


def normal(aimed: Aim) -> Iterator[Member]:
    """Yield normally distributed values, whole blocks."""
    shape = max(aimed.spec.block.rows * 2, 16) * aimed.reach.size, aimed.spec.block.columns * 8
    yield Member("1", aimed.narrow(aimed.normal(*shape)))
    yield Member("small", aimed.narrow(aimed.normal(*shape) * 0.02))


def ragged(aimed: Aim) -> Iterator[Member]:
    """Shapes at and around multiples of 16, 32, 64 and 128, and 1; each padded, and a few multiples of the kernel's."""
    below, across = aimed.reach.multiple
    units = [(rows * below, columns * across) for rows, columns in UNITS if max(below, across) > 1]
    for rows, columns in dict.fromkeys([*(aimed.shape(*shape) for shape in RAGGED + LONGER), *units]):
        yield Member(f"{rows}x{columns}", aimed.narrow(aimed.normal(rows, columns)))


def axes(aimed: Aim) -> Iterator[Member]:
    """Yield an array of one dimension, one of three, and one of four with its largest value in the first matrix."""
    yield Member("1", aimed.narrow(aimed.normal(83)))
    yield Member("3", aimed.narrow(aimed.normal(2, 8, 20)))
    stacked = aimed.normal(3, 2, 5, 36)
    stacked *= np.float64(2) ** (0 - np.arange(6)).reshape(3, 2, 1, 1)
    yield Member("4", aimed.narrow(stacked))


def empty(aimed: Aim) -> Iterator[Member]:
    """No rows, or no columns."""
    yield Member("0x16", aimed.narrow(np.zeros((0, 16))))
    yield Member("16x0", aimed.narrow(np.zeros((16, 0))))


def large(aimed: Aim) -> Iterator[Member]:
    """More than one tile of every layout, and more than one thread block of any kernel."""
    shape = aimed.shape(*((257, 2 * 1024 + 80) if aimed.level == 1 or not aimed.narrowest else (515, 4 * 1024 + 112)))
    values = aimed.normal(*shape)
    values *= 2.0 ** aimed.rng.integers(-4, 5, (shape[0], 1))
    yield Member("x".join(map(str, shape)), aimed.narrow(values))


def layout(aimed: Aim) -> Iterator[Member]:
    """Scale bytes that spell row and column, a digit per tensor, so that no two places have the same bytes in all."""
    digits, units = _digits(aimed)
    height, width = aimed.spec.block
    down, across = aimed.blocks(138 if height == 1 else 140 // height + 2, 9)
    place = np.arange(down * across).reshape(down, across)
    shifts = 3 if aimed.spec.global_scale is Granularity.ROW else 1
    power = 1
    while power < place.size:
        for shift in range(shifts):
            values = _spelled(aimed, units[place // power % digits], height, width, shift)
            yield Member(f"digit-{power}" + (f"-{shift}" if shifts > 1 else ""), aimed.narrow(values))
        power *= digits


def positions(aimed: Aim) -> Iterator[Member]:
    """Elements that all have the same scale and codes in no repeating order: swapped nibbles or columns show."""
    values = grid(aimed.spec.element.format)[:-1]
    rows, columns = aimed.spec.block.rows * 2 + 1, aimed.spec.block.columns * 5
    found = aimed.rng.choice(values, (rows, columns)) * aimed.rng.choice([-1.0, 1.0], (rows, columns))
    found[:, :: aimed.spec.block.columns] = aimed.element_max
    yield Member("codes", aimed.narrow(found))


def _digits(aimed: Aim) -> tuple[int, Values]:
    """Return the number of scales that tell places apart, and these scales."""
    if aimed.spec.scale.format is E8M0:
        low, high = exponents(aimed)
        count = min(high - low, 64)
        return count, np.ldexp(1.0, np.arange(count) + max(low, -32))
    values = grid(aimed.spec.scale.format)
    start = 1 << aimed.spec.scale.format.mantissa_bits  # the first that is not subnormal
    return 64, np.asarray(values[start + 32 : start + 96] if len(values) > start + 96 else values[start : start + 64])


def _spelled(aimed: Aim, scales: Values, height: int, width: int, shift: int) -> Values:
    """Blocks of random elements with the given scales; the last block, or one of each row, holds the global amax.

    shift: moves those of the rows, so that every place has its digit in two of three tensors.
    """
    granularity = aimed.spec.global_scale
    top, scales = float(aimed.spec.scale_max), scales.copy()
    if granularity is Granularity.TENSOR:
        scales[-1, -1] = top
    elif granularity is Granularity.ROW:
        scales[np.arange(len(scales)), (np.arange(len(scales)) * 4 + shift) % scales.shape[1]] = top
    whole = np.repeat(np.repeat(scales, height, axis=0), width, axis=1)
    shares = aimed.rng.choice(grid(aimed.spec.element.format)[:-1], whole.shape) / aimed.spec.element.format.max
    shares *= aimed.rng.choice([-1.0, 1.0], whole.shape)
    shares[::height, ::width] = 1
    return np.asarray(whole * shares * aimed.element_max)


FAMILIES = (
    Family("normal", "Values as activations and weights have them.", scaling_rules, normal),
    Family("positions", "Nibbles, columns or rows change places.", place_rules, positions),
    Family("layout", "Scales are in another layout, which equal scales would hide.", rules("LAY-7", "LAY-3"), layout),
    Family(
        "ragged",
        "Sizes that fill no block, tile or vector are read or written wrongly.",
        ragged_rules,
        ragged,
    ),
    Family("axes", "Leading dimensions are flattened.", rules("NUM-4"), axes),
    Family(EMPTY, "A tensor without elements has a result without elements.", rules("BLK-9"), empty),
    Family("large", "More tiles and threads than a small test has.", rules("BLK-1"), large),
)
