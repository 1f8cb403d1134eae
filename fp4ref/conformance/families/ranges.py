"""Magnitudes: maxima at powers of two and at the edges, outliers, overflow, underflow, subnormals, zeros, NaN, Inf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.families.aiming import beside, exponents, patterns
from fp4ref.conformance.families.case import Aim, Family, Member, Values, matrix_of
from fp4ref.conformance.families.rules import (
    global_rules,
    nan_rules,
    overflow_rules,
    rules,
    scale_rules,
    sign_rules,
    special_amax_rules,
    zero_rules,
)
from fp4ref.conformance.families.ties import smaller
from fp4ref.formats import F
from fp4ref.model.quantize import global_amax
from fp4ref.spec import Granularity


def amax_powers(aimed: Aim) -> Iterator[Member]:
    """Global and block maxima at powers of two and one step beside."""
    low, high = exponents(aimed)
    for exponent in (0, low // 2, high // 2):
        for by, label in ((-1, "below"), (0, "at"), (1, "above")):
            lead = float(beside(aimed, aimed.narrow([2.0**exponent]), by)[0])
            below = np.ldexp(lead, -aimed.rng.integers(0, 5, aimed.count // 2))
            blocks = smaller(aimed, aimed.narrow(below))
            yield Member(f"{label}-2^{exponent}", matrix_of(aimed, blocks, lead if aimed.unit_amax else 0))


# The last row or column of a tile of 64 or of 128 that others follow, and the first one of the next tile.
INNER = (63, 70), (127, 5), (128, 9), (70, 63), (5, 127), (9, 128)


def amax_places(aimed: Aim) -> Iterator[Member]:
    """Yield the one largest magnitude in the first and last row, column and block, negative as well.

    No side is a whole block, unless a kernel takes nothing else.
    """
    rows, columns = aimed.spec.block
    shape = aimed.shape(max(3, rows * 2 + 1) + 130 % 7, columns * 5 + columns // 2 + 1)
    for label, place, sign in (
        ("last-row", (-1, 1), 1),
        ("last-column", (0, -1), 1),
        ("last-element", (-1, -1), 1),
        ("first-element", (0, 0), -1),
        ("inside", (shape[0] // 2, shape[1] // 2), -1),
        ("last-block", (-1, -1 - (shape[1] - 1) % columns), -1),
    ):
        values = np.tanh(aimed.normal(*shape))
        values[place] = sign * 7.25
        yield Member(label, aimed.narrow(values))
    for column in range(1, 130, 17) if aimed.unit_amax else ():  # with others like it: which lane misses it shows
        values = np.tanh(aimed.normal(*aimed.shape(132, 130)))
        values[column + 2, column] = 7.25
        yield Member(f"row-{column + 2}", aimed.narrow(values))
    for row, column in INNER if aimed.unit_amax else ():
        values = np.tanh(aimed.normal(*aimed.shape(200, 200)))
        values[row, column] = 7.25
        yield Member(f"inner-{row}-{column}", aimed.narrow(values))
    if aimed.unit_amax:
        rising = np.where(aimed.normal(132, 130) > 0, 1, -1) * np.arange(1, 133)[:, None] / 64
        rising[np.arange(132), np.arange(132) * 7 % 130] *= 2
        last = np.tanh(aimed.normal(*aimed.shape(128, 128))) * 2.0**-5  # no row past a tile; no value near 1
        last[-1, -1] = 7.25 * 2.0**-5
        yield Member("end-of-tile", aimed.narrow(last))
        yield Member("rising-rows", aimed.narrow(rising))
        yield Member("rising-columns", aimed.narrow(rising[:130].T))


def outlier(aimed: Aim) -> Iterator[Member]:
    """Yield tensors in which one value dwarfs all others, so that the other scales are small or underflow."""
    rows, columns = aimed.spec.block
    for exponent in (6, 10, 14):
        values = np.clip(aimed.normal(2 * rows + 2, columns * 6), -3, 3) * 2.0**-3
        values[rows, columns + 3] = 1.375 * 2.0**exponent
        yield Member(f"2^{exponent}", aimed.narrow(values))


def wide(aimed: Aim) -> Iterator[Member]:
    """Blocks over many powers of two, each with a normal distribution."""
    span = min(24, int(np.log2(aimed.finite_max)) - 4)
    number = aimed.count
    powers = np.ldexp(1.0, aimed.rng.integers(-span, span // 2, (number, 1)))
    blocks = np.clip(aimed.normal(number, aimed.area), -4, 4) * powers
    yield Member("blocks", matrix_of(aimed, blocks, 2.0 ** (span // 2 + 2)))
    elements = np.ldexp(aimed.normal(number, aimed.area), aimed.rng.integers(-span, span // 2, (number, aimed.area)))
    yield Member(
        "elements", matrix_of(aimed, np.clip(elements, -aimed.finite_max, aimed.finite_max), 2.0 ** (span // 2))
    )


def rows(aimed: Aim) -> Iterator[Member]:
    """Rows whose maxima are far apart: a scale of the wrong row, or of the whole tensor, shows."""
    height = max(24, aimed.spec.block.rows * 3)
    powers = np.ldexp(1 + aimed.rng.random((height, 1)), aimed.rng.permutation(height)[:, None] % 20 - 9)
    yield Member("powers", aimed.narrow(np.tanh(aimed.normal(height, aimed.spec.block.columns * 6)) * powers))


def scale_underflow(aimed: Aim) -> Iterator[Member]:
    """Blocks whose scale byte is subnormal or 0, next to one that sets the global amax."""
    number = aimed.count // 2
    top = min(aimed.finite_max / 2, 2.0**12)
    smallest = 2.0**-9 if aimed.unit_amax else 2.0**-130
    low = np.log2(aimed.smallest_normal / 2**6)
    shares = (
        2.0 ** -aimed.rng.uniform(14, 26, number)
        if aimed.unit_amax
        else 2.0 ** aimed.rng.uniform(low, low + 12, number)
    )
    leads = np.maximum(top * shares if aimed.unit_amax else shares, 0)
    yield Member(f"{smallest:g}", matrix_of(aimed, smaller(aimed, aimed.narrow(leads)), top if aimed.unit_amax else 0))


def overflow(aimed: Aim) -> Iterator[Member]:
    """Yield a caller's amax below the true one, so that scales and elements saturate; and one above it."""
    if aimed.spec.global_scale is Granularity.NONE:
        return
    values = aimed.narrow(aimed.normal(aimed.spec.block.rows + 3, aimed.spec.block.columns * 5) * 4)
    for label, factor in (("half", 0.5), ("tenth", 0.1), ("thousandth", 0.001), ("twice", 2.0), ("zero", 0.0)):
        yield Member(label, values, _amax(aimed, values) * F(factor))


def largest(aimed: Aim) -> Iterator[Member]:
    """Values at the end of the type's range: what overflows in between."""
    shape = aimed.spec.block.rows + 2, aimed.spec.block.columns * 4
    values = np.clip(aimed.normal(*shape) / 2, -1, 1) * aimed.finite_max
    values[0, :3] = aimed.finite_max, -aimed.finite_max, aimed.finite_max / 2
    yield Member("whole", _cast(aimed, values))
    values[1:] *= 2.0**-12
    yield Member("one row", _cast(aimed, values))


def subnormals(aimed: Aim) -> Iterator[Member]:
    """Subnormal inputs, alone and beside normal ones; products that become subnormal."""
    shape = aimed.spec.block.rows + 3, aimed.spec.block.columns * 4
    step = float(beside(aimed, aimed.narrow([0.0]), 1)[0])
    whole = aimed.rng.integers(1, int(aimed.smallest_normal / step), shape) * step
    signs = aimed.rng.choice([-1.0, 1.0], shape)
    yield Member("all", _cast(aimed, whole * signs))
    few = whole * 2.0 ** -aimed.rng.integers(0, 7, shape)
    yield Member("smallest", _cast(aimed, few * signs))
    mixed = np.where(aimed.rng.random(shape) < 0.3, whole, whole * 2.0 ** aimed.rng.integers(0, 8, shape))
    yield Member("mixed", _cast(aimed, mixed * signs))


def zero_blocks(aimed: Aim) -> Iterator[Member]:
    """Yield tensors of which some blocks are zero, whole or but for one element."""
    number = aimed.count // 2
    blocks = aimed.normal(number, aimed.area)
    blocks[::2] = 0
    blocks[1::4] = 0
    blocks[1::4, 3 % aimed.area] = 1.5
    yield Member("some", matrix_of(aimed, blocks, 4.0))


def zero_tensor(aimed: Aim) -> Iterator[Member]:
    """Nothing but zeros, of one sign or both, whole blocks and tails."""
    shape = aimed.spec.block.rows + 1, aimed.spec.block.columns * 3 + 5
    yield Member("plus", aimed.narrow(np.zeros(shape)))
    yield Member("minus", aimed.narrow(np.full(shape, -0.0)))
    yield Member("both", aimed.narrow(np.where(aimed.rng.random(shape) < 0.5, 0.0, -0.0)))


def minus_zero(aimed: Aim) -> Iterator[Member]:
    """-0 among ordinary values, and negative values that are rounded to zero."""
    shape = aimed.spec.block.rows + 4, aimed.spec.block.columns * 5
    values = np.where(aimed.rng.random(shape) < 0.2, -0.0, aimed.normal(*shape))
    values[:, ::5] *= 2.0**-9
    yield Member("some", aimed.narrow(values))


def nan(aimed: Aim) -> Iterator[Member]:
    """NaN of either sign: one, some, a whole block, a whole row; some have other payloads, signalling NaN, too."""
    for member in _special(aimed, (np.nan, -np.nan)):
        yield Member(member.label, _payloads(aimed, member.values)) if member.label == "some" else member


def _payloads(aimed: Aim, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values with random bits in the mantissa of each NaN, at least one of them set."""
    bits, infinity = values.view(f"u{values.dtype.itemsize}"), int(patterns(aimed, np.array(np.inf)))
    mantissa = (infinity & -infinity) - 1
    drawn = aimed.rng.integers(1, mantissa + 1, bits.shape).astype(bits.dtype)
    return np.where(np.isnan(values), bits >> mantissa.bit_length() << mantissa.bit_length() | drawn, bits).view(
        values.dtype
    )


def infinite(aimed: Aim) -> Iterator[Member]:
    """Infinities: one, some, a whole block, a whole row, and with NaN and with the largest numbers."""
    yield from _special(aimed, (np.inf, -np.inf))
    values = aimed.narrow(aimed.normal(aimed.spec.block.rows + 3, aimed.spec.block.columns * 4))
    values[0, 1], values[0, 2], values[-1, -1] = np.nan, np.inf, -np.inf
    across = aimed.spec.block.columns
    if aimed.spec.hadamard is None:  # whose sums would overflow in one order, and not in another
        values[1, across : 2 * across] = aimed.narrow(aimed.finite_max * 2.0 ** -np.arange(across))
        values[1, across + 1] = np.inf
    yield Member("with-nan", values)


def _special(aimed: Aim, specials: tuple[float, float]) -> Iterator[Member]:
    """Values that are not finite at few and at many places. Signs are set by copying, so that NaN keeps its own."""
    down, across = aimed.spec.block
    shape = down * 2 + 2, across * 4
    chosen = np.array(specials, F).astype(aimed.dtype)
    one, some, block, row = (aimed.narrow(aimed.normal(*shape)) for _ in range(4))
    one[1, across + 2] = chosen[0]
    at = aimed.rng.random(shape) < 0.05
    some[at] = aimed.rng.choice(chosen, int(at.sum()))
    block[:down, :across] = chosen[1]
    row[-1] = chosen[0]
    for label, values in (("one", one), ("some", some), ("block", block), ("row", row)):
        yield Member(label, values)


def _amax(aimed: Aim, values: NDArray[Any]) -> Any:
    """Return the global amax of a matrix of the direction, before any transform."""
    return global_amax(values, aimed.spec.replace(hadamard=None))


def _cast(aimed: Aim, values: Values) -> NDArray[Any]:
    """Values of float64 in the type at once: by way of float32 a subnormal may be rounded twice."""
    return values.astype(aimed.dtype)


FAMILIES = (
    Family("amax-powers", "At powers of two the exponent of a scale steps.", scale_rules, amax_powers),
    Family(
        "amax-places", "A maximum misses the last row or column, a ragged tail, or a sign.", global_rules, amax_places
    ),
    Family("outlier", "One outlier makes the other blocks' scales small.", scale_rules, outlier),
    Family("wide", "Blocks and elements over many powers of two meet every scale.", scale_rules, wide),
    Family("rows", "Rows of different size show whose maximum a scale was made of.", global_rules, rows),
    Family("scale-underflow", "A scale that is subnormal or 0 is divided by.", rules("BLK-6"), scale_underflow),
    Family("overflow", "Under a caller's amax scales pass 448 and elements 6.", overflow_rules, overflow),
    Family("largest", "At the end of the range products overflow in between.", overflow_rules, largest),
    Family(
        "subnormals", "A kernel that was built to flush subnormals loses them.", rules("NUM-1", "NUM-5"), subnormals
    ),
    Family(
        "zero-blocks", "A block of zeros is divided by zero, or gets a made-up scale.", special_amax_rules, zero_blocks
    ),
    Family("zero-tensor", "A tensor of zeros has no global scale.", zero_rules, zero_tensor),
    Family("minus-zero", "The sign of -0 is lost.", sign_rules, minus_zero),
    Family("nan", "NaN takes part in maxima and has a code.", nan_rules, nan),
    Family("inf", "An infinity makes the global scale special.", special_amax_rules, infinite),
)
