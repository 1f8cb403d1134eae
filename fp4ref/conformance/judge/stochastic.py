"""The tests of the bracket level: neighbours of each element, counts of those rounded away, pairs rounded alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.conformance.judge import hypergeometric
from fp4ref.conformance.judge.binomial import LARGEST, interval
from fp4ref.errors import ShapeError
from fp4ref.formats import CUDA_E2M1, E2M1, F, Floats, grid, ignoring_float_warnings
from fp4ref.model import quantize as model
from fp4ref.model.tiles import Matrix, join, split
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Amax, Spec

FALSE_ALARM = 1e-9  # of all tests of one report together
FEWEST = 64  # pairs of a test; fewer could not fail
Mask = NDArray[np.bool_]
Real = NDArray[np.float64]


class StochasticTrial(NamedTuple):
    """A call: the tensor, and the bytes of each direction that it made, with linear scales."""

    x: NDArray[Any]
    made: Mapping[Direction, DirectionData]


class ChanceCount(NamedTuple):
    """A count that must be in an interval: of elements rounded away, or of pairs that were rounded alike."""

    name: str
    found: int
    n: int
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.name}: {self.found:,} of {self.n:,}, need {self.low:,} to {self.high:,}"

    @property
    def passed(self) -> bool:
        """True if the count is inside the interval."""
        return self.low <= self.found <= self.high


class Rounded(NamedTuple):
    """The elements of one direction of a call, each [rows, columns].

    frac: distance from the smaller neighbour in steps. open: it is between two. away: the farther neighbour was taken.
    nearest: nearest rounding would take it.
    """

    frac: Real
    open: Mask
    away: Mask
    nearest: Mask


class Bin(NamedTuple):
    """Elements whose 256 * frac has one whole part: bounds on frac, how many, and how many were rounded away."""

    least: float
    most: float
    n: int
    away: int


@ignoring_float_warnings
def scaled(spec: Spec, x: NDArray[Any], direction: Direction) -> Floats:
    """Every element of a direction in units of its scale, [rows, columns]. Rules: BLK-5."""
    matrix = Matrix(x, direction)
    rows, columns = matrix.shape
    k = model.constants(spec, x.dtype)
    blocks = split(model.inputs(matrix, (slice(0, rows), slice(0, columns)), spec, direction), spec.block)
    amax = None if spec.global_scale == "none" else model.global_amax(x, spec, direction).reshape(-1, 1, 1, 1)
    g = model.global_scale(amax, spec, k)
    before = model.block_scale(model.largest(blocks, (2, 3), spec.amax is not Amax.IGNORE_NAN), g, spec, k)
    y = model.scaled(blocks, before, spec.scale.encode(before), g, spec, k)
    return join(np.asarray(y, F), (rows, columns))


def rounded(spec: Spec, x: NDArray[Any], direction: Direction, got: DirectionData) -> tuple[Rounded, list[str]]:
    """Read the bytes of a direction, and say what no random bits explain.

    Rules: SR-2, SR-3, SR-11.
    """
    wrong = []
    rows, columns = Matrix(x, direction).shape
    truncated = model.quantize(x, spec, direction, random_bits=np.zeros((rows, columns), np.uint8))
    for name in ("data", "scales", "amax"):
        mine, theirs = getattr(truncated, name), getattr(got, name)
        if mine is None or (name == "amax" and theirs is None):
            continue
        if np.shape(theirs) != mine.shape:
            raise ShapeError("judge", f"{direction}.{name} {list(np.shape(theirs))}", f"{list(mine.shape)}", "SR-11")
        if name != "data" and not np.array_equal(mine, theirs):
            wrong.append(f"{direction}.{name} differs in {int((mine != theirs).sum())} places, whatever the bits")
    y = scaled(spec, x, direction)
    lower, codes = (packing.unpack(np.asarray(part.data), columns, E2M1) for part in (truncated, got))
    values, index = grid(E2M1), (lower & 7).astype(np.intp)
    frac = (np.abs(y).astype(np.float64) - values[index]) / np.diff(values)[np.minimum(index, 6)]
    between = (index < 7) & (frac > 0)
    away = between & (codes == lower + 1)
    bad = ~away & (codes != lower)
    if bad.any():
        r, c = (int(i) for i in np.argwhere(bad)[0])
        wrong.append(
            f"{direction}: {int(bad.sum())} codes are no neighbour of their value, "
            f"first [{r}, {c}]: {float(y[r, c]):g} became code {int(codes[r, c]):x}"
        )
    return Rounded(np.where(between, frac, 0), between, away, CUDA_E2M1.encode(y) != lower), wrong


def bins(parts: Sequence[Rounded]) -> list[Bin]:
    """All elements by the whole part of 256 * frac. Rules: SR-4, SR-11."""
    frac, away = (
        np.concatenate([values[part.open] for part, values in zip(parts, each, strict=True)])
        for each in ([part.frac for part in parts], [part.away for part in parts])
    )
    key = np.floor(frac * 256).astype(np.intp)
    found = []
    for number in np.unique(key):
        mine = np.flatnonzero(key == number)[:LARGEST]
        found.append(Bin(float(frac[mine].min()), float(frac[mine].max()), len(mine), int(away[mine].sum())))
    return found


Share = Callable[[float], float]


def frequency(of: Bin, alpha: float, share: Share | None = None) -> ChanceCount:
    """Return the test of a bin. share: of bytes that round a frac away, in order; else between its 256ths and frac.

    Rules: SR-4, SR-11.
    """
    ends = (np.floor(of.least * 256) / 256, of.most) if share is None else sorted((share(of.least), share(of.most)))
    low, high = interval(of.n, float(ends[0]), float(ends[1]), alpha)
    return ChanceCount(f"away at frac {of.least:.6g}", of.away, of.n, low, high)


class Pair(StrEnum):
    """The two elements that are compared."""

    GROUP = "in a group of four"
    GROUPS = "in two groups of a block"
    BLOCKS = "in two blocks of a row"
    ROWS = "in two rows"
    PLACES = "in both directions, the same place"
    ELEMENTS = "in both directions, the same element"


class PairsOf(NamedTuple):
    """The pairs of one kind, of a direction or between both."""

    pair: Pair
    direction: Direction | None = None

    @property
    def text(self) -> str:
        """Both in words."""
        return self.pair.value if self.direction is None else f"{self.direction}, {self.pair.value}"


# Pairs of elements in one direction: which, rows and columns between the two, and rows modulo 2 and columns modulo 32
# of the first. No element is in two pairs of a kind, so that independent draws make independent pairs.
ALIKE = (
    (Pair.GROUP, 0, 1, (0, 1), tuple(range(0, 32, 2))),
    (Pair.GROUPS, 0, 4, (0, 1), (*range(4), *range(8, 12), *range(16, 20), *range(24, 28))),
    (Pair.BLOCKS, 0, 16, (0, 1), tuple(range(16))),
    (Pair.ROWS, 1, 0, (0,), tuple(range(32))),
)


def pairs(calls: Sequence[Mapping[Direction, Rounded]]) -> Iterator[tuple[PairsOf, Mask, Mask]]:
    """Kinds of pairs, and for the first and the second of each pair of halfway elements whether it was rounded away.

    Rules: SR-11.
    """
    for call in calls:
        for direction, part in call.items():
            half = part.open & (part.frac == 0.5)
            rows, columns = half.shape
            for pair, down, right, of_rows, of_columns in ALIKE:
                first = slice(0, max(rows - down, 0)), slice(0, max(columns - right, 0))
                second = slice(down, rows), slice(right, columns)
                height, width = half[first].shape
                chosen = np.isin(np.arange(height) % 2, of_rows)[:, None] & np.isin(np.arange(width) % 32, of_columns)
                both = half[first] & half[second] & chosen
                yield PairsOf(pair, direction), part.away[first][both], part.away[second][both]
        if len(call) == 2:
            row, column = call["row"], call["column"]
            for pair, other in ((Pair.ELEMENTS, _transposed(column)), (Pair.PLACES, column)):
                if other.open.shape == row.open.shape:
                    both = row.open & other.open & (row.frac == 0.5) & (other.frac == 0.5)
                    yield PairsOf(pair), row.away[both], other.away[both]


def _transposed(part: Rounded) -> Rounded:
    return Rounded(part.frac.T, part.open.T, part.away.T, part.nearest.T)


class Pairs(NamedTuple):
    """Counts of pairs: all, with the first rounded away, with the second, and with both."""

    n: int = 0
    first: int = 0
    second: int = 0
    both: int = 0

    def with_(self, first: Mask, second: Mask) -> Pairs:
        """Return the counts with more pairs, up to the largest number that a test takes."""
        a, b = first[: LARGEST - self.n], second[: LARGEST - self.n]
        more = len(a), int(a.sum()), int(b.sum()), int((a & b).sum())
        return Pairs(*(old + new for old, new in zip(self, more, strict=True)))

    @property
    def alike(self) -> int:
        """Pairs whose two elements were rounded alike."""
        return self.n - self.first - self.second + 2 * self.both

    def test(self, name: str, alpha: float) -> ChanceCount:
        """Return the test of independence, given how often either element was rounded away. Rules: SR-11."""
        ends = hypergeometric.interval(self.n, self.first, self.second, alpha)
        low, high = (self.n - self.first - self.second + 2 * end for end in ends)
        return ChanceCount(f"rounded alike, {name}", self.alike, self.n, low, high)


def alike(calls: Sequence[Mapping[Direction, Rounded]]) -> dict[PairsOf, Pairs]:
    """Return counts of pairs by kind, where there are enough."""
    found: dict[PairsOf, Pairs] = {}
    for kind, first, second in pairs(calls):
        found[kind] = found.get(kind, Pairs()).with_(first, second)
    return {kind: counts for kind, counts in found.items() if counts.n >= FEWEST}


def repeated(call: Mapping[Direction, Rounded], same: Collection[Direction], alpha: float) -> list[ChanceCount]:
    """Return the tests of a call that was made twice: halfway elements of some directions were all rounded alike.

    same: the directions with the same bytes in both calls.

    Rules: SR-13.
    """
    found = []
    for direction in same:
        part = call[direction]
        half = part.away[part.open & (part.frac == 0.5)]
        if len(half) >= FEWEST:
            found.append(Pairs().with_(half, half).test(f"{direction}, in two calls with one tensor", alpha))
    return found
