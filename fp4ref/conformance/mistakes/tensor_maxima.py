"""Mistakes in the maximum of the tensor or of a row, and in who uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.mistakes.inputs import SIZES, TINY
from fp4ref.conformance.mistakes.kernel import Values, over_tensor
from fp4ref.conformance.mistakes.record import NARROW, Mistake, Slot, by_row, by_tensor, has_global, known, turns
from fp4ref.conformance.mistakes.row_maxima import rows_for_others, shared_by
from fp4ref.conformance.mistakes.seen_maxima import SEEN
from fp4ref.formats import F, Floats


def amax_of(chosen: Callable[[Floats], Floats], values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the maximum magnitude of what a function makes of the values."""
    return over_tensor(Values(values.raw, chosen(values.transformed)), keep_nan, by_row)


def amax_raw(values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Before the transform."""
    return over_tensor(Values(values.raw, values.raw), keep_nan, by_row)


def amax_both(values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the larger of before and after the transform."""
    return np.maximum(amax_raw(values, keep_nan, by_row), over_tensor(values, keep_nan, by_row))


def amax_after(narrow: Callable[[Floats], Floats], values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the maximum, rounded."""
    return narrow(over_tensor(values, keep_nan, by_row))


def signed_plain(start: np.float32, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """max x, which can be -0, and from another start than 0 negative."""
    found = np.fmax.reduce(values.transformed, axis=1 if by_row else None, initial=start)
    return np.asarray(found, F).reshape(-1)


def absolute_of_signed(values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """|max x|."""
    found = np.nanmax(values.transformed, axis=1 if by_row else None, initial=-np.inf)
    return np.abs(np.where(np.isfinite(found), found, F(0))).reshape(-1).astype(F)


def largest_bits(kind: str, absolute: bool, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the value whose bits are the largest integer."""
    bits = np.ascontiguousarray(values.transformed, F).view(kind)
    found = np.asarray(bits.max(axis=1 if by_row else None, initial=0), kind).reshape(-1).view(F)
    return np.abs(found) if absolute else found


def by_groups(rows: int, amax: Floats, values: Values) -> Floats:
    """Return the amax of each row's group of `rows` rows."""
    return shared_by(rows, values, keep_nan=False, by_row=True)


def of_one_stack(which: int, of_matrices: int, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the amax of the first (0) or the last (-1) part of a tensor of more than two dimensions, or matrix."""
    count = values.stacks[of_matrices]
    parts = np.split(values.transformed, count, axis=values.axis) if count > 1 else [values.transformed]
    return over_tensor(values._replace(transformed=parts[which]), keep_nan, by_row)


def of_whole_vectors(count: int, few: bool, values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the amax up to the last multiple of `count` elements in memory. few: of all where there are fewer."""
    flat = (values.transformed if values.axis == 0 else values.transformed.T).reshape(1, -1)
    whole = flat.size // count * count
    return over_tensor(values._replace(transformed=flat[:, : whole or flat.size * few]), keep_nan, by_row)


def of_first(count: int, amax: Floats, values: Values) -> Floats:
    """Return the amax of the first `count` elements."""
    return over_tensor(Values(values.raw, values.transformed.reshape(1, -1)[:, :count]), keep_nan=False, by_row=False)


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
FLOORS = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, float(TINY))


# Roundings of a maximum to fewer bits

WAYS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("up", "up", np.ceil),
    ("down", "down", np.floor),
    ("nearest", "to nearest", np.rint),
)
TO = {0: "to a power of two", 7: "to bfloat16", 10: "to 10 bits of mantissa, as TF32 and float16 have"}
WIDEST = 10  # bits of mantissa to which a maximum may be rounded


def to_bits(bits: int, whole: Callable[[Any], Any], amax: Floats) -> Floats:
    """Round to `bits` bits of mantissa after the leading one."""
    fraction, exponent = np.frexp(np.asarray(amax, np.float64))
    unit = 2.0 ** (bits + 1)
    return np.asarray(np.ldexp(whole(fraction * unit) / unit, exponent), F)


ROUNDED = tuple(
    (f"{way}-{bits}", f"rounded {words} {TO.get(bits, f'to {bits} bits of mantissa')}", partial(to_bits, bits, whole))
    for bits in range(WIDEST + 1)
    for way, words, whole in WAYS
    if (bits, way) not in {(7, "nearest"), (7, "down"), (10, "down")}  # named already
)


def tensor_amax() -> Iterator[Mistake]:
    """Mistakes in the tensor's maximum, and in who uses it."""
    stage = Slot.AMAX
    for name, text, chosen in SEEN:
        when = by_tensor if "row" in name else has_global
        yield known(stage, f"amax-{name}", f"amax {text}", when, amax=partial(amax_of, chosen))
    for name, start in (("zero", F(0)), ("plain", F(-np.inf))):
        text = "amax is max x, which can be negative or -0, instead of max |x|"
        yield known(stage, f"amax-signed-{name}", text, has_global, amax=partial(signed_plain, start))
    yield known(stage, "amax-absolute", "amax is |max x| instead of max |x|", has_global, amax=absolute_of_signed)
    for roundings, alone in ((NARROW, False), (ROUNDED, True)):
        for name, text, rounding in roundings:
            yield known(
                stage,
                f"amax-{name}",
                f"amax is {text}",
                has_global,
                alone=alone,
                rounding=rounding,
                amax=partial(amax_after, rounding),
            )
            yield known(
                stage,
                f"amax-used-{name}",
                f"the amax that the global scale is made of is {text}",
                has_global,
                alone=alone,
                rounding=rounding,
                used=partial(lambda rounding, a, values: rounding(a), rounding),
            )
    yield known(stage, "amax-raw", "amax is taken before the Hadamard transform", turns, amax=amax_raw)
    yield known(
        stage, "amax-both", "amax is the larger of before and after the Hadamard transform", turns, amax=amax_both
    )
    yield known(
        stage,
        "amax-used-raw",
        "the global scale is made of the amax before the Hadamard transform",
        turns,
        used=lambda a, values: amax_raw(values, keep_nan=False, by_row=False),
    )
    yield known(
        stage,
        "amax-row-used",
        "each row's own amax is used instead of the tensor's",
        by_tensor,
        used=lambda a, values: over_tensor(values, keep_nan=False, by_row=True),
    )
    yield known(
        stage,
        "amax-row-reported",
        "one amax for the tensor is used instead of each row's",
        by_row,
        used=lambda a, values: np.broadcast_to(a.max(initial=F(0)), a.shape),
    )
    yield known(
        stage,
        "amax-tensor-everywhere",
        "the tensor's amax stands in every row",
        by_row,
        amax=lambda values, nan, rows: np.repeat(over_tensor(values, nan, by_row=False), len(values.raw)),
    )
    yield from rows_for_others()
    yield from _parts()
    for kind, name in (("u4", "unsigned"), ("i4", "signed")):
        for absolute in (True, False):
            yield known(
                stage,
                f"amax-bits-{name}{'' if absolute else '-plain'}",
                f"amax is the maximum of the bits of x as {name} integers{', without its sign' if absolute else ''}",
                has_global,
                amax=partial(largest_bits, kind, absolute),
            )
    for rows in (2, 4, 8, 16, 32, 64, 128, 256):
        yield known(
            stage,
            f"amax-by-{rows}-rows",
            f"each {rows} rows use their own amax instead of the tensor's",
            by_tensor,
            used=partial(by_groups, rows),
            whole=True,
        )
    for size in (*SIZES, 256, 512, 1024):
        yield known(
            stage,
            f"amax-tail-flat-{size}",
            f"amax misses the elements past the last multiple of {size}, counted over the whole tensor",
            by_tensor,
            amax=lambda values, nan, rows, n=size: of_first(values.raw.size // n * n, values.raw, values),
        )
    for power in range(4, 17):
        yield known(
            stage,
            f"amax-first-{1 << power}",
            f"amax is that of the first {1 << power} elements only",
            by_tensor,
            amax=lambda values, nan, rows, n=1 << power: of_first(n, values.raw, values),
        )
        yield known(
            stage,
            f"amax-used-first-{1 << power}",
            f"the amax that the global scale is made of is that of the first {1 << power} elements only",
            by_tensor,
            used=partial(of_first, 1 << power),
        )
    for more in (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
        yield known(
            stage,
            f"amax-plus-{more:.0e}",
            f"{more:g} is added to the amax that the global scale is made of",
            has_global,
            used=partial(lambda by, a, values: a + by, F(more)),
        )
    yield known(stage, "amax-given-ignored", "the caller's amax is ignored", has_global, takes_amax=False)
    for name, text, report in REPORTED:
        yield known(stage, f"amax-reported-{name}", text, has_global, report=report)
    for floor in FLOORS:
        yield known(
            stage,
            f"amax-floor-{floor:.0e}",
            f"amax is clamped below at {floor:.3g}",
            has_global,
            special=True,
            used=partial(lambda low, a, values: np.maximum(a, low), F(floor)),
        )
        yield known(
            stage,
            f"amax-returned-floor-{floor:.0e}",
            f"amax is clamped below at {floor:.3g}, and returned so",
            has_global,
            special=True,
            amax=partial(amax_after, partial(np.maximum, F(floor))),
        )
    yield known(stage, "amax-nan", "amax keeps NaN", has_global, special=True, keep_nan=True)
    yield known(stage, "block-nan", "block maxima keep NaN", special=True, keep_block_nan=True)
    yield known(stage, "all-nan", "all maxima keep NaN", has_global, special=True, keep_nan=True, keep_block_nan=True)
    yield known(stage, "no-nan", "maxima ignore NaN", special=True, keep_nan=False, keep_block_nan=False)
    yield known(
        stage,
        "amax-inf",
        "amax leaves out infinities",
        has_global,
        special=True,
        amax=partial(amax_of, lambda v: np.where(np.isinf(v), F(0), v)),
    )


def _parts() -> Iterator[Mistake]:
    """Yield maxima that miss the end of the tensor in memory, or see one of several matrices."""
    for size in (2, 4, 8, 16, 32):
        for few in (False, True):
            yield known(
                Slot.AMAX,
                f"amax-vectors-{size}{'-few' if few else ''}",
                f"amax misses the elements past the last multiple of {size} of the whole tensor"
                f"{', unless there are fewer' if few else ''}",
                by_tensor,
                alone=True,
                amax=partial(of_whole_vectors, size, few),
            )
    for which, end in ((0, "first"), (-1, "last")):
        for of_matrices, words in ((0, f"that of x[{which}] only"), (1, f"that of the {end} matrix only")):
            yield known(
                Slot.AMAX,
                f"amax-{end}-{'matrix' if of_matrices else 'stack'}",
                f"amax is {words}, in tensors of more than two dimensions",
                by_tensor,
                alone=True,
                amax=partial(of_one_stack, which, of_matrices),
            )
