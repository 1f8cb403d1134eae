"""Operands for a GEMM on trial.

Aimed ones are small integers times a power of two. Positive products and negative ones each sum to less than 2^24, so
every partial sum is exact in float32, and every order of additions gives the same bits. The others have a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families.products.additions import bias, both, sum_and_c
from fp4ref.conformance.families.products.amaxes import alpha
from fp4ref.conformance.families.products.case import GemmCase, ProductFamily, Random, case_of, integers, scale_bytes
from fp4ref.conformance.families.products.specials import second_zeros, specials, specials_of_tails
from fp4ref.formats import E8M0, F
from fp4ref.layout import LINEAR
from fp4ref.model.quantize import quantize
from fp4ref.quantized import Quantized
from fp4ref.spec import Spec

SIGNIFICANT = 24  # bits of a float32


def cases(spec: Spec, names: tuple[str, ...] | None = None, seed: int = 0) -> Iterator[GemmCase]:
    """Yield the cases of a specification, the same every time.

    seed: other random numbers for each; names end in @SEED unless it is 0.

    Rules: GEM-13, GEM-14, GEM-18, CNF-7, CNF-21. Certificates: aimed-operands, added-operands.
    """
    for name, family in FAMILIES.items():
        if names is None or name in names:
            random = np.random.default_rng([*name.encode(), seed] if seed else [*name.encode()])
            for case in family.make(name, spec, random):
                yield replace(case, seed=seed)


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
        yield case_of(family, name, spec, (ones * signs, of_a), (ones, of_b))
        each = np.repeat(np.eye(count), width, axis=1)  # row k of B has block k only
        yield case_of(family, f"{name}-each", spec, (ones * signs, of_a), (each, np.resize(of_b, (count, count))))


def _width(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Column n sums 2^n and 1: the first wrong one tells how many bits an accumulator has.

    Where 2^n is subtracted again, 1 is left, which every type of results holds; other sums need float32.
    """
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
        made = case_of(family, name, spec, *zip(flat, (of_left, of_right), strict=True))
        yield replace(made, measured_in=tuple(INPUT_DTYPES) if minus else ("float32",))


def _extremes(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Yield the smallest and the largest scales of A against those of B that bring the products back to small numbers.

    Elements are 2 at most, so that an element times its scale is finite in float32. Some sums of a second product are
    beyond float16.
    """
    mx = spec.scale.format is E8M0
    pairs = ((-127, 126), (-126, 126), (126, -127), (0, 0)) if mx else ((-9, 8), (-8, 8), (8, -9), (0, 0))
    scales = np.ldexp(1.0, np.array(pairs * 2))
    sides = []
    for place, rows in enumerate((40, 24)):
        q = integers(spec, random, rows, len(scales) * spec.block.columns, largest=2)
        assert q.row is not None
        given = scale_bytes(spec, np.tile(scales[:, place], (rows, 1)))
        sides.append(replace(q, row=q.row._replace(scales=given)))
    yield GemmCase(family, "both-ends", sides[0], sides[1])
    a, b = (_times_four(integers(spec, random, rows, 99)) for rows in (85, 77))
    yield GemmCase(family, "past-float16", a, b)


def _times_four(q: Quantized) -> Quantized:
    """Return a tensor whose block scales are those of another one times 4."""
    assert q.row is not None
    scales = scale_bytes(q.spec, 4 * q.spec.scale.decode(q.row.scales).astype(np.float64))
    return replace(q, row=q.row._replace(scales=scales))


def _dense(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    width = spec.block.columns
    for m, n, columns in ((160, 136, 9 * width), (32, 32, 32), (1, 3, 2 * width), (130, 1, 5 * width)):
        a, b = (integers(spec, random, rows, columns) for rows in (m, n))
        yield GemmCase(family, f"{m}x{n}x{columns}", a, b)
    side = 8 * width
    yield GemmCase(family, "square", integers(spec, random, side, side), integers(spec, random, side, side))


def _deep(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    """Yield sums over more than 1024 elements, 2^16 at most: (2 * 2)^2 * 4^2 * 2^16 = 2^24."""
    width = spec.block.columns
    for m, n, columns in ((5, 7, 1024 + 3 * width), (9, 5, 2048 + width), (4, 6, 4096 + 2 * width), (16, 32, 3072)):
        a, b = (integers(spec, random, rows, columns, largest=2, top=4) for rows in (m, n))
        yield GemmCase(family, f"{m}x{n}x{columns}", a, b)


def _ragged(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    width = spec.block.columns
    for m, n, columns in ((17, 33, 3 * width - 1), (5, 7, 1), (65, 9, width + 2)):
        a, b = (integers(spec, random, rows, columns) for rows in (m, n))
        yield GemmCase(family, f"{m}x{n}x{columns}", a, b)


def _random(family: str, spec: Spec, random: Random) -> Iterator[GemmCase]:
    for m, n, columns, tail in ((48, 40, 1024, 0.0), (16, 16, 4096, 0.0), (32, 32, 512, 3.0)):
        sides = []
        for rows in (m, n):
            x = random.standard_normal((rows, columns)) * np.exp(tail * random.standard_normal((rows, columns)))
            data = quantize(x.astype(F), spec.replace(hadamard=None))
            sides.append(Quantized(spec, x.shape, "float32", LINEAR.name, data))
        yield GemmCase(family, f"{m}x{n}x{columns}{'-tails' if tail else ''}", sides[0], sides[1], aimed=False)


SPECIAL = "NaN or infinities are not handled as GEM-3 says"  # causes, for families that alone fail
ADDED = "the bias, or C, is not added as GEM-8 says"
ROUNDED = "sums leave the bound of float32 additions (GEM-14), though aimed ones are exact"
SECOND_ZERO = "the second zero of a scale, or its bit without a meaning, is read as a number (UE4M3-1)"
AMAXES = "the amaxes are applied in another order than GEM-5 and GEM-7 say"
EXACT, NONFINITE, ADDITION = ("GEM-1", "GEM-13"), ("GEM-3", "GEM-17"), ("GEM-8", "GEM-15")
FAMILIES = {
    "powers": ProductFamily(_powers, "a block is left out, added twice, or multiplied by another one's", EXACT),
    "width": ProductFamily(_width, "sums are narrower than float32, or rounded between blocks", ("GEM-13",)),
    "dense": ProductFamily(
        _dense, "rows, layouts or directions are mixed up, which equal scales hide", EXACT, bounded=True
    ),
    "extremes": ProductFamily(_extremes, "the smallest scale is read as zero, or a large one as infinite", EXACT),
    "deep": ProductFamily(_deep, "depth past a limit, or a part of a split K, is left out", EXACT, bounded=True),
    "ragged": ProductFamily(_ragged, "the last block is not full", EXACT, bounded=True),
    "alpha": ProductFamily(
        alpha, "an amax or the factor is left out, or multiplied in another order", ("GEM-5", "GEM-7", "GEM-8"), AMAXES
    ),
    "special": ProductFamily(specials, "NaN or an infinity spreads, or gets lost", NONFINITE, SPECIAL),
    "special-tails": ProductFamily(
        specials_of_tails, "NaN gets lost in the last rows, columns or block, or in one row", NONFINITE, SPECIAL
    ),
    "second-zero": ProductFamily(
        second_zeros, "the code of a scale's second zero is read as a number", ("UE4M3-1",), SECOND_ZERO
    ),
    "bias": ProductFamily(bias, "the bias is left out, added twice, or rounded", ADDITION, ADDED),
    "accumulate": ProductFamily(sum_and_c, "what is there is overwritten, or scaled", ADDITION, ADDED),
    "bias-accumulate": ProductFamily(both, "one of two sums is left out", ADDITION, ADDED),
    "random": ProductFamily(
        _random, "sums of real numbers are further off than float32 additions allow", ("GEM-14",), ROUNDED
    ),
}
