"""Random bytes and products of an installed backend, against the golden model's; small, so that it takes seconds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from fp4ref import multiply, random_source, registry
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.conformance.families.products.cases import cases
from fp4ref.conformance.judge.products import interval, operand
from fp4ref.conformance.vectors.placing import device_of, fetched, placed_result
from fp4ref.conformance.vectors.text import Mismatch, mismatched, mismatched_words, pattern_words
from fp4ref.formats import Floats
from fp4ref.model import gemm as model
from fp4ref.model.counter_map import random_bytes
from fp4ref.model.epilogue import finish
from fp4ref.operands import AlphaRule, Epilogue
from fp4ref.quantized import DIRECTIONS
from fp4ref.registry import Call
from fp4ref.specs import MXFP4, MXFP8_E4M3, MXFP8_E5M2, NVFP4, NVFP4_ROW_SCALED

MULTIPLIED = (NVFP4, NVFP4_ROW_SCALED, MXFP4, MXFP8_E4M3, MXFP8_E5M2)
ODD = ("ragged", "alpha", "special", "width")  # families whose products are compared bit for bit
REAL = 48 * 1024  # elements of A up to which sums of real numbers are checked
PLACES = (((5, 37), (0, 0), (5, 37)), ((32, 64), (16, 48), (1 << 33, 1 << 20)), ((0, 16), (0, 0), (0, 16)))
STATES = ((0, 0), ((1 << 64) - 3, (1 << 63) - 2))  # seed and stream


class Check(NamedTuple):
    """A comparison of a backend with the golden model."""

    id: str
    rules: tuple[str, ...]
    run: Callable[[], list[Mismatch]]


def checks(name: str) -> Iterator[Check]:
    """Yield what a backend's `random_bits` and `gemm_*` are compared in, as far as it has them.

    Rules: CNF-1, SR-7, SR-8, SR-17, GEM-2, GEM-4, GEM-11.
    """
    backend = registry.backends()[name]
    if "random_bits" in backend.operations:
        yield from _randoms(name)
    modes = [mode for mode in multiply.MODES if f"gemm_{mode}" in backend.operations]
    yield from (_product(name, mode, number) for mode in modes for number in range(len(_cases(_families(mode)))))


def calls() -> Iterator[Call]:
    """Yield what the checks will ask of a backend."""
    yield Call("random_bits")
    yield from (Call(f"gemm_{mode}", spec, spec_b=spec) for mode in multiply.MODES for spec in MULTIPLIED)


def _randoms(name: str) -> Iterator[Check]:
    for (shape, origin, whole), (seed, stream), direction in itertools.product(PLACES, STATES, DIRECTIONS):

        def compare(
            shape: Any = shape, at: Any = origin, of: Any = whole, s: int = seed, t: int = stream, d: Any = direction
        ) -> list[Mismatch]:
            got = fetched(random_source.random_bits(shape, d, s, t, at, of, device_of(name), name))
            turn = 1 if d == "row" else -1
            (rows, columns), (first, left), (_, width) = shape[::turn], at[::turn], of[::turn]
            place = (first, left // random_source.BLOCK)
            across = -(-width // random_source.BLOCK)
            wanted = random_bytes((rows, columns), place, across, s, 2 * t + DIRECTIONS.index(d))
            return mismatched("random_bits", got, wanted)

        yield Check(f"random_bits/{shape[0]}x{shape[1]}/{direction}/{seed:x}", ("SR-7", "SR-8"), compare)


def _families(mode: str) -> tuple[str, ...]:
    """Return the families of a mode: aimed products, and of mode `fast` those of real numbers too."""
    return (*ODD, "random") if mode == "fast" else ODD


@lru_cache
def _cases(names: tuple[str, ...]) -> tuple[GemmCase, ...]:
    """Return the products of these families."""
    return tuple(
        case
        for spec in MULTIPLIED
        for case in cases(spec, names)
        if case.aimed or case.a.shape[0] * case.a.shape[1] <= REAL
    )


def _product(name: str, mode: multiply.Mode, number: int) -> Check:
    """Return the sums of a product, and what follows them. Rules: GEM-2, GEM-4, GEM-5, GEM-7, GEM-11."""
    rule = {"exact": "GEM-2", "blockwise": "GEM-4", "fast": "GEM-11"}[mode]
    case = _cases(_families(mode))[number]
    after = () if case.a.row is None or case.a.row.amax is None else ("GEM-5", "GEM-7")

    def compare() -> list[Mismatch]:
        a, b = (placed_result(operand, name) for operand in (case.a, case.b))
        got = fetched(multiply.gemm(a, b, mode, backend=name))
        low, high = _wanted(mode, number)
        if low is high:
            return [] if _same_numbers(got, low) else mismatched_words("values", got, pattern_words(low))
        if got.shape != low.shape:
            return [Mismatch("values", (), "", f"shape {list(low.shape)}", f"shape {list(got.shape)}")]
        wrong = np.argwhere(~((low <= got) & (got <= high)))
        return [
            Mismatch(
                "values",
                tuple(map(int, at)),
                "",
                f"{low[tuple(at)]:.9g} to {high[tuple(at)]:.9g}",
                f"{got[tuple(at)]:.9g}",
            )
            for at in wrong
        ]

    return Check(f"gemm_{mode}/{case.a.spec.name}/{case.family}/{case.name}", (rule, *after), compare)


def _same_numbers(got: Floats, wanted: Floats) -> bool:
    """Return True if all words are equal, where every NaN is one."""
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return False
    return bool(((got.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(got) & np.isnan(wanted))).all())


@cache
def _wanted(mode: str, number: int) -> tuple[Any, Any]:
    """Return the results that are right: one, or the ends of an interval. Every backend has the same."""
    case = _cases(_families(mode))[number]
    a, b = operand(case.a), operand(case.b)
    rest = Epilogue(np.float32(1), None, None, np.dtype(np.float32), AlphaRule.RECIPROCAL)
    if mode == "fast" and not case.aimed:
        low, high = (finish(end, a, b, rest) for end in interval(a, b))
        return low, high
    one = finish((model.blockwise if mode == "blockwise" else model.exact)(a, b), a, b, rest)
    return one, one
