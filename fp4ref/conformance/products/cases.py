"""Operands for a GEMM on trial.

Aimed ones are small integers times a power of two whose sums of magnitudes stay below 2^24: every partial sum is exact
in float32, so every order of additions gives the same bits. The others have a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.formats import E8M0, Codes, F
from fp4ref.model.quantize import quantize
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.spec import Granularity, Spec

ONE = F(2688)  # a power of two times this, as the amax of both operands, makes alpha a power of two
SIGNIFICANT = 24  # bits of a float32
Random = np.random.Generator


@dataclass(frozen=True)
class GemmCase:
    """Two operands, row directions, scales linear. aimed: every order of float32 additions gives the same sums."""

    family: str
    name: str
    a: Quantized
    b: Quantized
    aimed: bool = True

    @property
    def id(self) -> str:
        """Its name in reports."""
        return f"{self.family}-{self.name}"

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return self.a.shape[0], self.b.shape[0], self.a.shape[1]


@dataclass(frozen=True)
class Family:
    """What goes wrong there, in a sentence, and the rules that it checks."""

    make: Callable[[str, Spec, Random], Iterator[GemmCase]]
    reason: str
    rules: tuple[str, ...]


def cases(spec: Spec, names: tuple[str, ...] | None = None) -> Iterator[GemmCase]:
    """The cases of a specification, the same every time. Rules: GEM-13, GEM-14, CNF-7."""
    for name, family in FAMILIES.items():
        if names is None or name in names:
            seed = np.random.default_rng([*name.encode()])
            yield from family.make(name, spec, seed)


def _record(spec: Spec, codes: Codes, scales: Codes, amax: float = float(ONE)) -> Quantized:
    count = {Granularity.NONE: None, Granularity.TENSOR: 1, Granularity.ROW: len(codes)}[spec.global_scale]
    given = None if count is None else np.full(count, amax, F)
    data = DirectionData(packing.pack(codes, spec.element.format), scales, given)
    return Quantized(spec, codes.shape, "float32", "linear", data)


def element_codes(spec: Spec, values: NDArray[np.float64]) -> Codes:
    """Codes of values that the element format has."""
    codes = spec.element.encode(values.astype(F))
    assert (spec.element.decode(codes) == values).all()
    return codes


def scale_bytes(spec: Spec, values: NDArray[np.float64]) -> Codes:
    """Bytes of scales that the scale format has."""
    codes = spec.scale.encode(values.astype(F))
    assert (spec.scale.decode(codes) == values).all()
    return codes


def _powers(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Block k contributes 2^k: the bits of a sum say which were added, and how often. Elements are the units."""
    width = spec.block.columns
    count = SIGNIFICANT - 1 - (width - 1).bit_length()  # one bit is left for a block that is added twice
    order = np.arange(count)
    signs = np.where(np.arange(8) % 2, -1.0, 1.0)[:, None]
    for name, exponents in (("up", order), ("down", order[::-1]), ("mixed", random.permutation(count))):
        of_a, of_b = (
            np.ldexp(np.ones((8, count)), half) for half in (exponents - exponents // 2 - 9, exponents // 2 - 3)
        )
        ones = np.ones((8, width * count))
        yield _case(family, name, spec, (ones * signs, of_a), (ones, of_b))
        each = np.repeat(np.eye(count), width, axis=1)  # row k of B has block k only
        yield _case(family, f"{name}-each", spec, (ones * signs, of_a), (each, np.resize(of_b, (count, count))))


def _width(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Column n sums 2^n and 1: the first wrong one tells how many bits an accumulator has."""
    width, count = spec.block.columns, SIGNIFICANT
    for name, large, small, minus in (("large-first", 0, 1, None), ("small-first", 1, 0, None), ("cancel", 0, 1, 2)):
        blocks = 3 if minus else 2
        left, right = np.zeros((2, blocks, width)), np.zeros((count, blocks, width))
        of_left, of_right = np.ones((2, blocks)), np.ones((count, blocks))
        left[:, small, 0] = right[:, small, 0] = 1
        for place, sign in ((large, 1), (minus, -1)):
            if place is None:
                continue
            left[:, place], of_left[:, place] = 2 * sign, 2.0**8
            for n in range(count):  # 2^(n - 9) by up to 16 elements up to 4, and a scale from 2^-9 to 2^8
                many = 4 if n - 9 > 10 else 0
                element = min(max(n - 9 - many - 8, 0), 2)
                right[n, place, : 1 << many] = 1 << element
                of_right[n, place] = 2.0 ** (n - 9 - many - element)
        flat = (values.reshape(len(values), -1) for values in (left, right))
        yield _case(family, name, spec, *zip(flat, (of_left, of_right), strict=True))


def _case(family: str, name: str, spec: Spec, *sides: tuple[NDArray[np.float64], NDArray[np.float64]]) -> GemmCase:
    """A case of element values [rows, K] and scales [rows, blocks]."""
    a, b = (_record(spec, element_codes(spec, values), scale_bytes(spec, scales)) for values, scales in sides)
    return GemmCase(family, name, a, b)


def _dense(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    width = spec.block.columns
    for m, n, columns in ((160, 136, 9 * width), (32, 32, 32), (1, 3, 2 * width), (130, 1, 5 * width)):
        a, b = (integers(spec, random, rows, columns) for rows in (m, n))
        yield GemmCase(family, f"{m}x{n}x{columns}", a, b)
    side = 8 * width
    yield GemmCase(family, "square", integers(spec, random, side, side), integers(spec, random, side, side))


def _ragged(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    width = spec.block.columns
    for m, n, columns in ((17, 33, 3 * width - 1), (5, 7, 1), (65, 9, width + 2)):
        a, b = (integers(spec, random, rows, columns) for rows in (m, n))
        yield GemmCase(family, f"{m}x{n}x{columns}", a, b)


def integers(spec: Spec, random: Random, rows: int, columns: int) -> Quantized:
    """Random elements and scales, so small that the magnitudes of 1024 products sum to less than 2^24 units.

    Elements are halves up to 6, scales integers up to 10: (2 * 6)^2 * 10^2 * 1024 < 2^24.
    """
    grid = np.unique(spec.element.decode(np.arange(1 << spec.element.format.bits, dtype=np.uint8)))
    halves = grid[np.isfinite(grid) & (np.abs(grid) <= 6) & (grid * 2 == np.rint(grid * 2))]
    blocks = -(-columns // spec.block.columns)
    if spec.scale.format is E8M0:
        scales = np.ldexp(1.0, random.integers(0, 4, (rows, blocks)))
    else:
        scales = random.integers(1, 11, (rows, blocks)).astype(np.float64)
    values = random.choice(halves, (rows, columns)).astype(np.float64)
    return _record(spec, element_codes(spec, values), scale_bytes(spec, scales))


def _alpha(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Global amaxes whose products round differently in other orders; one for each row where rows have their own."""
    if spec.global_scale is Granularity.NONE:
        return
    width = spec.block.columns
    pairs = [(9.8125, 0.6171875), (4.0, 0.5), (1.1, 1.3), (0.02, 300.0), (1e-20, 3e18)]
    for amaxes in pairs:
        sides = []
        for rows, amax in zip((12, 20), amaxes, strict=True):
            q = integers(spec, random, rows, 4 * width)
            assert q.row is not None
            spread = 1 + np.arange(q.row.amax.size) / 7
            sides.append(replace(q, row=q.row._replace(amax=(amax * spread).astype(F))))
        yield GemmCase(family, f"{amaxes[0]:g}-{amaxes[1]:g}", sides[0], sides[1])


def _random(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    for m, n, columns, tail in ((48, 40, 1024, 0.0), (16, 16, 4096, 0.0), (32, 32, 512, 3.0)):
        sides = []
        for rows in (m, n):
            x = random.standard_normal((rows, columns)) * np.exp(tail * random.standard_normal((rows, columns)))
            data = quantize(x.astype(F), spec.replace(hadamard=None))
            sides.append(Quantized(spec, x.shape, "float32", "linear", data))
        yield GemmCase(family, f"{m}x{n}x{columns}{'-tails' if tail else ''}", sides[0], sides[1], aimed=False)


def _special(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """A NaN scale in one row of each operand; no other row may see it."""
    a, b = (integers(spec, random, rows, 3 * spec.block.columns) for rows in (40, 24))
    nan = spec.scale.nan[0]
    for q, row in ((a, 3), (b, 5)):
        assert q.row is not None
        q.row.scales[row, 1] = nan
    yield GemmCase(family, "nan-scale", a, b)


FAMILIES = {
    "powers": Family(_powers, "a block is left out, added twice, or multiplied by another one's", ("GEM-1", "GEM-13")),
    "width": Family(_width, "sums are narrower than float32, or rounded between blocks", ("GEM-13",)),
    "dense": Family(_dense, "rows, layouts or directions are mixed up, which equal scales hide", ("GEM-1", "GEM-13")),
    "ragged": Family(_ragged, "the last block is not full", ("GEM-1", "GEM-13")),
    "alpha": Family(_alpha, "an amax or the factor is left out, or multiplied in another order", ("GEM-5", "GEM-7")),
    "special": Family(_special, "a NaN scale spreads, or gets lost", ("GEM-3",)),
    "random": Family(_random, "sums of real numbers are further off than float32 additions allow", ("GEM-14",)),
}
