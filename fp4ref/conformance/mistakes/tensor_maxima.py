"""Mistakes in the maximum of the tensor or of a row, and in who uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.inputs import SIZES, TINY
from fp4ref.conformance.mistakes.kernel import after, as_returned, over_tensor
from fp4ref.conformance.mistakes.maxima_of_tensors import (
    absolute_of_signed,
    amax_both,
    amax_of,
    amax_of_first,
    amax_of_whole,
    amax_raw,
    by_groups,
    largest_bits,
    of_first,
    of_first_elements,
    of_one_stack,
    of_whole_vectors,
    signed_plain,
    to_bits,
)
from fp4ref.conformance.mistakes.record import (
    NARROW,
    Mistake,
    Slot,
    by_row,
    by_tensor,
    collect,
    has_global,
    known,
    turns,
)
from fp4ref.conformance.mistakes.row_maxima import rows_for_others
from fp4ref.conformance.mistakes.seen_maxima import SEEN, or_all
from fp4ref.formats import F, Floats

REPORTED: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("encode", "the encode scale 2688 / amax is returned as amax", lambda a: F(2688) / a),
    ("decode", "the decode scale amax / 2688 is returned as amax", lambda a: a / F(2688)),
    ("inverse", "1 / amax is returned as amax", lambda a: F(1) / a),
    ("sixth", "amax / 6 is returned as amax", lambda a: a / F(6)),
    ("448th", "amax / 448 is returned as amax", lambda a: a / F(448)),
    ("zero", "0 is returned as amax", np.zeros_like),
    ("one", "1 is returned as amax", np.ones_like),
    ("previous-row", "the amax of the previous row is returned", lambda a: np.roll(a, 1)),
    ("next-row", "the amax of the next row is returned", lambda a: np.roll(a, -1)),
)
OTHER = "the amax that is returned is {}, that of the scales is not"
FLOORS = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, float(TINY))


# Roundings of a maximum to fewer bits

WAYS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("up", "up", np.ceil),
    ("down", "down", np.floor),
    ("nearest", "to nearest", np.rint),
)
TO = {0: "to a power of two", 7: "to bfloat16", 10: "to 10 bits of mantissa, as TF32 and float16 have"}
WIDEST = 10  # bits of mantissa to which a maximum may be rounded

ROUNDED = tuple(
    (f"{way}-{bits}", f"rounded {words} {TO.get(bits, f'to {bits} bits of mantissa')}", partial(to_bits, bits, whole))
    for bits in range(WIDEST + 1)
    for way, words, whole in WAYS
    if (bits, way) not in {(7, "nearest"), (7, "down"), (10, "down")}  # named already
)


maximum = partial(known, Slot.AMAX)
OF_NAN = ("BLK-2", "GLB-1", "GLB-5")  # the rules that a mistake in what becomes of NaN breaks

PARTLY_SEEN = (
    *(
        maximum(f"amax-{name}", f"amax {text}", when, amax=partial(amax_of, chosen))
        for name, text, when, chosen in SEEN
    ),
    *(
        maximum(
            f"amax-{name}-or-all",
            f"amax {text}, unless nothing is left",
            when,
            alone=True,
            amax=partial(amax_of, partial(or_all, chosen)),
        )
        for name, text, when, chosen in SEEN
    ),
)

SIGNED = (
    *(
        maximum(
            f"amax-signed-{name}",
            "amax is max x, which can be negative or -0, instead of max |x|",
            has_global,
            amax=partial(signed_plain, start),
        )
        for name, start in (("zero", F(0)), ("plain", F(-np.inf)))
    ),
    maximum("amax-absolute", "amax is |max x| instead of max |x|", has_global, amax=absolute_of_signed),
)


def _rounded(name: str, text: str, rounding: Callable[[Floats], Floats], alone: bool) -> Iterator[Mistake]:
    """Yield a maximum that is rounded, and one that is rounded only where it is used."""
    maxima = partial(maximum, alone=alone, rounding=rounding)
    yield maxima(f"amax-{name}", f"amax is {text}", has_global, amax=after(over_tensor, rounding))
    used = f"the amax that the global scale is made of is {text}"
    yield maxima(f"amax-used-{name}", used, has_global, used=after(as_returned, rounding))


TRANSFORMED = (
    maximum("amax-raw", "amax is taken before the Hadamard transform", turns, amax=amax_raw),
    maximum("amax-both", "amax is the larger of before and after the Hadamard transform", turns, amax=amax_both),
    maximum(
        "amax-used-raw",
        "the global scale is made of the amax before the Hadamard transform",
        turns,
        used=lambda a, values: amax_raw(values, keep_nan=False, by_row=False),
    ),
)

ROWS_AND_TENSOR = (
    maximum(
        "amax-row-used",
        "each row's own amax is used instead of the tensor's",
        by_tensor,
        used=lambda a, values: over_tensor(values, keep_nan=False, by_row=True),
    ),
    maximum(
        "amax-row-reported",
        "one amax for the tensor is used instead of each row's",
        by_row,
        used=lambda a, values: np.broadcast_to(a.max(initial=F(0)), a.shape),
    ),
    maximum(
        "amax-tensor-everywhere",
        "the tensor's amax stands in every row",
        by_row,
        amax=lambda values, nan, rows: np.repeat(over_tensor(values, nan, by_row=False), len(values.raw)),
    ),
)

# Maxima that miss the end of the tensor in memory, or see one of several matrices
PARTS = (
    *(
        maximum(
            f"amax-vectors-{size}{'-few' if few else ''}",
            f"amax misses the elements past the last multiple of {size} of the whole tensor"
            f"{', unless there are fewer' if few else ''}",
            by_tensor,
            alone=True,
            amax=partial(of_whole_vectors, size, few),
        )
        for size in (2, 4, 8, 16, 32)
        for few in (False, True)
    ),
    *(
        maximum(
            f"amax-{name}",
            f"amax is that of {text} only, in tensors of more than two dimensions",
            by_tensor,
            alone=True,
            amax=partial(of_one_stack, which, of_matrices),
        )
        for name, text, which, of_matrices in (
            ("first-stack", "x[0]", 0, 0),
            ("first-matrix", "the first matrix", 0, 1),
            ("last-stack", "x[-1]", -1, 0),
            ("last-matrix", "the last matrix", -1, 1),
        )
    ),
)

FIRST = tuple(
    maximum(
        f"amax-first-2^{power}",
        f"amax is that of the first 2^{power} elements of the tensor only",
        by_tensor,
        alone=True,
        amax=partial(of_first_elements, 1 << power),
    )
    for power in range(24, 9, -1)  # the fewest elements that are missed come first
)

OF_BITS = tuple(
    maximum(
        f"amax-bits-{name}{'' if absolute else '-plain'}",
        f"amax is the maximum of the bits of x as {name} integers{', without its sign' if absolute else ''}",
        has_global,
        amax=partial(largest_bits, kind, absolute),
    )
    for kind, name in (("u4", "unsigned"), ("i4", "signed"))
    for absolute in (True, False)
)

BY_ROWS = tuple(
    maximum(
        f"amax-by-{rows}-rows",
        f"each {rows} rows use their own amax instead of the tensor's",
        by_tensor,
        used=partial(by_groups, rows),
        whole=True,
    )
    for rows in (2, 4, 8, 16, 32, 64, 128, 256)
)

WITHOUT_TAIL = tuple(
    maximum(
        f"amax-tail-flat-{size}",
        f"amax misses the elements past the last multiple of {size}, counted over the whole tensor",
        by_tensor,
        amax=partial(amax_of_whole, size),
    )
    for size in (*SIZES, 256, 512, 1024)
)


def _of_the_first(count: int) -> Iterator[Mistake]:
    """Yield a maximum of the first elements, and one that is so only where it is used."""
    words = f"that of the first {count} elements only"
    yield maximum(f"amax-first-{count}", f"amax is {words}", by_tensor, amax=partial(amax_of_first, count))
    used = f"the amax that the global scale is made of is {words}"
    yield maximum(f"amax-used-first-{count}", used, by_tensor, used=partial(of_first, count))


RAISED = tuple(
    maximum(
        f"amax-plus-{more:.0e}",
        f"{more:g} is added to the amax that the global scale is made of",
        has_global,
        used=after(as_returned, partial(np.add, F(more))),
    )
    for more in (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
)


def _floored(floor: float) -> Iterator[Mistake]:
    """Yield a maximum that is clamped below where it is used, and one that is returned so."""
    name, text = f"{floor:.0e}", f"amax is clamped below at {floor:.3g}"
    floors, clamped = partial(maximum, special=True), partial(np.maximum, F(floor))
    yield floors(f"amax-floor-{name}", text, has_global, used=after(as_returned, clamped))
    returned = f"{text}, and returned so"
    yield floors(f"amax-returned-floor-{name}", returned, has_global, amax=after(over_tensor, clamped))


SPECIAL = (
    maximum("amax-nan", "amax keeps NaN", has_global, special=True, breaks=OF_NAN, keep_nan=True),
    maximum("block-nan", "block maxima keep NaN", special=True, breaks=OF_NAN, keep_block_nan=True),
    maximum(
        "all-nan", "all maxima keep NaN", has_global, special=True, breaks=OF_NAN, keep_nan=True, keep_block_nan=True
    ),
    maximum("no-nan", "maxima ignore NaN", special=True, breaks=OF_NAN, keep_nan=False, keep_block_nan=False),
    maximum(
        "amax-inf",
        "amax leaves out infinities",
        has_global,
        special=True,
        amax=partial(amax_of, lambda v: np.where(np.isinf(v), F(0), v)),
    ),
)

TENSOR_MAXIMA = collect(
    PARTLY_SEEN,
    SIGNED,
    *(_rounded(*row, alone=False) for row in NARROW),
    *(_rounded(*row, alone=True) for row in ROUNDED),
    TRANSFORMED,
    ROWS_AND_TENSOR,
    rows_for_others(),
    PARTS,
    FIRST,
    OF_BITS,
    BY_ROWS,
    WITHOUT_TAIL,
    *(_of_the_first(1 << power) for power in range(4, 17)),
    RAISED,
    [maximum("amax-given-ignored", "the caller's amax is ignored", has_global, takes_amax=False)],
    (maximum(f"amax-reported-{name}", text, has_global, report=report) for name, text, report in REPORTED),
    (
        maximum(f"amax-reported-{name}", OTHER.format(text), has_global, report=narrow, rounding=narrow)
        for name, text, narrow in NARROW
    ),
    *map(_floored, FLOORS),
    SPECIAL,
)
