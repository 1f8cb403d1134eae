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
DEPTHS = (3, 5, 8, 11, 17, 20, 24, 33, 40, 66)  # in blocks, of products from a limit of which on something is added
GROWN = tuple(range(SIDE, SIDE + 8 * len(DEPTHS), 8))  # their sides, each another
PRODUCTS = (("cancels", SIDE, 2), ("wide", WIDE, 2), *((f"deep-{n}", s, n) for n, s in zip(DEPTHS, GROWN, strict=True)))
ELEMENT = 4.0  # the largest power of two that every element format has


def bias(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Yield products of -1024 + 8 m, and biases 1025 + 2 n of eleven significant bits. Rules: GEM-8, GEM-15."""
    for name, side, blocks in PRODUCTS:
        yield from _with_plain(_product(family, name, spec, -128, np.arange(side) % SIDE, blocks), bias=_biases(side))
    yield _of_real_numbers(family, spec, random, bias=True)


def sum_and_c(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Yield products of 8 (2049 + 2 i), which no 16-bit type holds, and C = 8 (16 j - 2048). Rules: GEM-8, GEM-15."""
    for name, side, blocks in PRODUCTS:
        case = _product(family, name, spec, 2048, 1 + 2 * (np.arange(side) % 4), blocks)
        yield from _with_plain(case, accumulate=(STEP * (16 * _mixed(side, 16) - 2048)).astype(F))
    yield _of_real_numbers(family, spec, random, accumulate=True)


def both(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Yield the products and the biases of the family bias, and C = 0 to 24. Rules: GEM-8, GEM-15."""
    for name, side, blocks in PRODUCTS:
        case = _product(family, name, spec, -128, np.arange(side) % SIDE, blocks)
        yield from _with_plain(case, bias=_biases(side), accumulate=(STEP * _mixed(side, 4)).astype(F))
    yield _of_real_numbers(family, spec, random, bias=True, accumulate=True)


def _with_plain(case: GemmCase, bias: Floats | None = None, accumulate: Floats | None = None) -> Iterator[GemmCase]:
    """Yield a product alone, which shows its sums, and with something added."""
    added = {"bias": bias, "accumulate": accumulate}
    beside = tuple(name for name, values in added.items() if values is not None)
    plain = replace(case, name=f"{case.name}-plain", beside=beside)
    yield plain
    yield replace(case, plain=plain.name, bias=bias, accumulate=accumulate)


def _biases(side: int) -> Floats:
    return (1025 + 2 * (np.arange(side) % SIDE)).astype(F)


def _mixed(side: int, count: int) -> NDArray[np.int64]:
    """Return integers below a count that differ along rows and columns."""
    row, column = np.indices((side, side))
    return np.asarray((3 * row + 5 * column) % count)


def _product(family: str, name: str, spec: Spec, base: int, rest: NDArray[np.int64], blocks: int) -> GemmCase:
    """Row m of the result is 8 * (base + rest[m]): base from the first block, a rest below 24 from the last."""
    width, side = spec.block.columns, len(rest)
    left, right = np.zeros((side, blocks, width)), np.ones((side, blocks, width))
    left[:, 0, 0], right[:, 0, 0] = np.sign(base) * ELEMENT, ELEMENT
    fours, ones = np.divmod(rest, int(ELEMENT))
    left[:, -1, : width // 2] = np.arange(width // 2) < fours[:, None]
    left[:, -1, : width // 2] *= ELEMENT
    left[:, -1, width // 2 :] = np.arange(width - width // 2) < ones[:, None]
    of_left, of_right = np.ones((side, blocks)), np.ones((side, blocks))
    of_left[:, 0] = abs(base) / ELEMENT**2 / 8
    of_right[:, 0] = 8
    factor = alpha_factor(spec, spec)
    of_right *= STEP if factor is None else 1
    sides = ((values.reshape(side, -1), scales) for values, scales in ((left, of_left), (right, of_right)))
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
    for rows in (SIDE, SIDE + 8):
        x = random.standard_normal((rows, 16 * spec.block.columns)).astype(F)
        sides.append(Quantized(spec, x.shape, "float32", LINEAR.name, quantize(x, spec.replace(hadamard=None))))
    biases = (16 * random.standard_normal(SIDE + 8)).astype(F) if bias else None
    c = (random.integers(-63, 64, (SIDE, SIDE + 8)) / 4).astype(F) if accumulate else None
    return GemmCase(family, "real", sides[0], sides[1], False, biases, c)
