"""Operands with something to add: a bias, and what is already there.

Sums, products and what is added are integers below 2^24 whose additions are exact in float32, so that their order
does not matter; a result has at most eight significant bits, which every type holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.families.products.case import GemmCase, Random, case_of
from fp4ref.formats import F, Floats
from fp4ref.layout import LINEAR
from fp4ref.model.quantize import quantize
from fp4ref.operands import alpha_factor
from fp4ref.quantized import Quantized
from fp4ref.spec import Spec

SIDE = 24  # rows and columns of a result; square, so that a transposed one shows
WIDE = 136  # of another one, past a tile of 128
STEP = 8  # what sums are multiplied by, by alpha where there is a global scale
TILES = (128, 64, 16, 8)  # that ragged results are past
DEPTHS = (3, 5, 8, 11, 17, 24, 40)  # in blocks, of ragged products from a limit of which on something is added
THIN = (("row", 1, 29, 20, 3), ("column", 107, 1, 33, 4), ("deepest", 26, 109, 66, 0))
SQUARE = (("cancels", SIDE, SIDE, 2, 0), ("wide", WIDE, WIDE, 2, 0))
ELEMENT = 4.0  # the largest power of two that every element format has


def bias(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Yield products of -1024 + 8 m, and biases 1025 + 2 n of eleven significant bits. Rules: GEM-8, GEM-15, GEM-53."""
    for name, rows, columns, blocks, cut in _shapes(0):
        case = _product(family, name, spec, -128, np.arange(rows) % SIDE, columns, blocks, cut)
        yield from _with_plain(case, bias=_biases(columns))
    yield from _with_plain(_long_product(family, "narrow", spec, 21, 29), bias=_long_biases(29))
    yield _of_real_numbers(family, spec, random, bias=True)


def sum_and_c(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Yield products of 8 (2049 + 2 i), which no 16-bit type holds, and C = 8 (16 j - 2048).

    Rules: GEM-8, GEM-15, GEM-53.
    """
    for name, rows, columns, blocks, cut in _shapes(1):
        case = _long_product(family, name, spec, rows, columns, blocks, cut)
        yield from _with_plain(case, accumulate=(STEP * (16 * _mixed(rows, columns, 16) - 2048)).astype(F))
    yield _of_real_numbers(family, spec, random, accumulate=True)


def both(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Yield the products and the biases of the family bias, and C = 0 to 24. Rules: GEM-8, GEM-15, GEM-53."""
    for name, rows, columns, blocks, cut in _shapes(2):
        case = _product(family, name, spec, -128, np.arange(rows) % SIDE, columns, blocks, cut)
        c = (STEP * _mixed(rows, columns, 4)).astype(F)
        yield from _with_plain(case, bias=_biases(columns), accumulate=c)
    case, c = _long_product(family, "narrow", spec, 21, 29), (STEP * _mixed(21, 29, 4)).astype(F)
    yield from _with_plain(case, bias=_long_biases(29), accumulate=c)
    yield _of_real_numbers(family, spec, random, bias=True, accumulate=True)


def _shapes(turn: int) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield names, M, N, blocks of K, and elements that the last one lacks.

    Ragged ones are 1 to 7 rows and columns past a multiple of 8 that is a tile; each turn pairs other ones.
    """
    yield from SQUARE
    for index, blocks in enumerate(DEPTHS):
        m, n = TILES[(index + turn + 2) % 4] + (3 * index + turn) % 7 + 1, TILES[(index + turn) % 4] + index + 1
        yield f"deep-{blocks}", m, n, blocks, index % 6
    yield from THIN


def _with_plain(case: GemmCase, bias: Floats | None = None, accumulate: Floats | None = None) -> Iterator[GemmCase]:
    """Yield a product alone, which shows its sums, and with something added."""
    added = {"bias": bias, "accumulate": accumulate}
    beside = tuple(name for name, values in added.items() if values is not None)
    plain = replace(case, name=f"{case.name}-plain", beside=beside)
    yield plain
    yield replace(case, plain=plain.name, bias=bias, accumulate=accumulate)


def _biases(columns: int) -> Floats:
    return (1025 + 2 * (np.arange(columns) % SIDE)).astype(F)


def _long_biases(columns: int) -> Floats:
    return (STEP * (16 * (np.arange(columns) % 14) - 2048)).astype(F)


def _mixed(rows: int, columns: int, count: int) -> NDArray[np.int64]:
    """Return integers below a count that differ along rows and columns."""
    row, column = np.indices((rows, columns))
    return np.asarray((3 * row + 5 * column) % count)


def _long_product(
    family: str, name: str, spec: Spec, rows: int, columns: int, blocks: int = 2, cut: int = 0
) -> GemmCase:
    """Products of 8 (2049 + 2 i), which no 16-bit type holds."""
    return _product(family, name, spec, 2048, 1 + 2 * (np.arange(rows) % 4), columns, blocks, cut)


def _product(
    family: str, name: str, spec: Spec, base: int, rest: NDArray[np.int64], columns: int, blocks: int, cut: int
) -> GemmCase:
    """Row m of the result is 8 * (base + rest[m]): base from the first block, a rest below 24 from the last.

    cut: elements that the last block lacks.
    """
    width, rows = spec.block.columns, len(rest)
    left, right = np.zeros((rows, blocks, width)), np.ones((columns, blocks, width))
    left[:, 0, 0], right[:, 0, 0] = np.sign(base) * ELEMENT, ELEMENT
    fours, ones = np.divmod(rest, int(ELEMENT))
    left[:, -1, : width // 2] = np.arange(width // 2) < fours[:, None]
    left[:, -1, : width // 2] *= ELEMENT
    left[:, -1, width // 2 :] = np.arange(width - width // 2) < ones[:, None]
    of_left, of_right = np.ones((rows, blocks)), np.ones((columns, blocks))
    of_left[:, 0] = abs(base) / ELEMENT**2 / 8
    of_right[:, 0] = 8
    factor = alpha_factor(spec, spec)
    of_right *= STEP if factor is None else 1
    depth = blocks * width - cut
    sides = (
        (values.reshape(len(values), -1)[:, :depth], scales) for values, scales in ((left, of_left), (right, of_right))
    )
    case = case_of(family, name, spec, *sides)
    if factor is None:
        return case
    root = float(np.sqrt(factor))
    return replace(case, a=_with_amax(case.a, 2 * root), b=_with_amax(case.b, STEP / 2 * root))


def _with_amax(q: Quantized, amax: float) -> Quantized:
    assert q.row is not None
    return replace(q, row=q.row._replace(amax=np.full_like(q.row.amax, amax)))


def _of_real_numbers(
    family: str, spec: Spec, random: Random, *, bias: bool = False, accumulate: bool = False
) -> GemmCase:
    """Return normal numbers, and additions of the size of the product; C is a bfloat16 of six significant bits."""
    sides = []
    m, n = SIDE - 3, SIDE + 11
    for rows in (m, n):
        x = random.standard_normal((rows, 16 * spec.block.columns - 3)).astype(F)
        sides.append(Quantized(spec, x.shape, "float32", LINEAR.name, quantize(x, spec.replace(hadamard=None))))
    biases = (16 * random.standard_normal(n)).astype(F) if bias else None
    c = (random.integers(-63, 64, (m, n)) / 4).astype(F) if accumulate else None
    return GemmCase(family, "real", sides[0], sides[1], False, biases, c)
