"""Mistakes in the Hadamard transform, and in the choice of 4over6."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fp4ref import four_over_six as fos
from fp4ref.conformance.mistakes.kernel import Kernel, Turn
from fp4ref.conformance.mistakes.record import (
    NARROW,
    Mistake,
    Slot,
    both,
    known,
    of,
    other_than,
    searches,
    to_bfloat16,
    to_float16,
    turns,
)
from fp4ref.formats import F, Floats
from fp4ref.hadamard import POINTS, butterfly, sign_vector
from fp4ref.spec import Metric

Sums = Callable[[Floats], Floats]
SYLVESTER = np.array([[(-1) ** (i & j).bit_count() for j in range(POINTS)] for i in range(POINTS)], np.float64)


def exact_sums(groups: Floats) -> Floats:
    """Return sums in double precision."""
    return (groups.astype(np.float64) @ SYLVESTER).astype(F) + F(0)


def ordered_sums(groups: Floats) -> Floats:
    """Return sums left to right in float32."""
    total = groups[..., :1] * SYLVESTER[0].astype(F)
    for i in range(1, POINTS):
        total = total + groups[..., i : i + 1] * SYLVESTER[i].astype(F)
    return np.asarray(total + F(0), F)


def other_orders(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the same kernel with the transform's sums in other orders, which are not mistakes. Rules: HAD-7."""
    if not isinstance(kernel.transform, Turn):
        return ()
    return tuple(
        kernel.but(transform=transformed(sums=sums, signs=kernel.transform.signs))
        for sums in (exact_sums, ordered_sums)
    )


def transformed(
    sums: Sums = butterfly,
    signs: int = 0,
    factor: float = 0.25,
    after: int | None = None,
    narrow: Callable[[Floats], Floats] = to_bfloat16,
    size: int = POINTS,
    whole: bool = False,
) -> Callable[[Floats], Floats]:
    """Return the transform with other signs, another factor, signs after the sums, another last rounding.

    whole: groups of another size take all signs of the mask in turn, not each its first ones.
    """

    def transform(values: Floats) -> Floats:
        width = values.shape[-1]
        padded = np.pad(values, ((0, 0), (0, -width % size)))
        before = np.resize(sign_vector(signs), padded.shape[-1] if whole else size)
        groups = padded.reshape(*values.shape[:-1], -1, size)
        summed = sums(groups * (before * F(factor)).reshape(-1, size))
        if after is not None:
            summed = summed * np.resize(sign_vector(after), size)
        return narrow(summed).reshape(padded.shape)[..., :width]

    return transform


def _reversed16(mask: int) -> int:
    return int(f"{mask:016b}"[::-1], 2)


def _swapped_bytes(mask: int) -> int:
    return (mask >> 8 | mask << 8) & 0xFFFF


def narrow_butterfly(groups: Floats) -> Floats:
    """Return a butterfly whose every sum is rounded to bfloat16."""
    return _butterfly(groups, to_bfloat16)


def half_butterfly(groups: Floats) -> Floats:
    """Return a butterfly whose every sum is rounded to float16."""
    return _butterfly(groups, to_float16)


def _butterfly(groups: Floats, narrow: Callable[[Floats], Floats]) -> Floats:
    shape, size, stride = groups.shape, groups.shape[-1], 1
    while stride < size:
        pairs = groups.reshape(*shape[:-1], size // (2 * stride), 2, stride)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        groups = np.stack([narrow(low + high), narrow(low - high)], axis=-2)
        stride *= 2
    return groups.reshape(shape) + F(0)


def any_butterfly(groups: Floats) -> Floats:
    """Return the butterfly of any power of two."""
    return _butterfly(groups, lambda sums: sums)


def sequency(groups: Floats) -> Floats:
    """Return the rows of the matrix ordered by their sign changes (Walsh)."""
    order = np.argsort([np.count_nonzero(np.diff(row)) for row in SYLVESTER], kind="stable")
    return butterfly(groups)[..., order]


def bit_reversed(groups: Floats) -> Floats:
    """Return the outputs in bit-reversed order."""
    order = [int(f"{i:04b}"[::-1], 2) for i in range(POINTS)]
    return butterfly(groups)[..., order]


SIGNS: tuple[tuple[str, str, Callable[[int], dict[str, Any]]], ...] = (
    ("none", "no signs are applied", lambda m: {"signs": 0}),
    ("reversed", "the sign mask is read in reverse, bit 15 for element 0", lambda m: {"signs": _reversed16(m)}),
    ("bytes", "the two bytes of the sign mask are exchanged", lambda m: {"signs": _swapped_bytes(m)}),
    ("nibbles", "the sign mask's bytes are each read in reverse", lambda m: {"signs": _swapped_bytes(_reversed16(m))}),
    ("inverted", "the sign mask is inverted", lambda m: {"signs": m ^ 0xFFFF}),
    ("after", "signs are applied after the sums, H * D instead of D * H", lambda m: {"signs": 0, "after": m}),
    ("both", "signs are applied before and after the sums", lambda m: {"signs": m, "after": m}),
    ("default", "the sign mask is 0xD7E8 instead of the given one", lambda m: {"signs": 0xD7E8}),
    ("low", "only the lower byte of the sign mask is applied", lambda m: {"signs": m & 0xFF}),
)
PARTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("no-quarter", "the factor 1/4 is missing", {"factor": 1.0}),
    ("sixteenth", "the factor is 1/16 instead of 1/4", {"factor": 1 / 16}),
    ("half", "the factor is 1/2 instead of 1/4", {"factor": 0.5}),
    ("eighth", "the factor is 1/8 instead of 1/4", {"factor": 0.125}),
    ("fp32", "the result is not rounded to bfloat16", {"narrow": lambda v: v}),
    ("fp16", "the result is rounded to float16 instead of bfloat16", {"narrow": to_float16}),
    (
        "through-fp16",
        "the result is rounded to float16 and then to bfloat16",
        {"narrow": lambda v: to_bfloat16(to_float16(v))},
    ),
    ("bf16-sums", "every sum is rounded to bfloat16", {"sums": narrow_butterfly}),
    ("fp16-sums", "every sum is rounded to float16", {"sums": half_butterfly}),
    ("sequency", "the matrix is in sequency order", {"sums": sequency}),
    ("bit-reversed", "the results are in bit-reversed order", {"sums": bit_reversed}),
    ("size-8", "groups of 8 are transformed instead of 16", {"sums": any_butterfly, "size": 8, "factor": 8**-0.5}),
    ("size-32", "groups of 32 are transformed instead of 16", {"sums": any_butterfly, "size": 32, "factor": 32**-0.5}),
    ("size-4", "groups of 4 are transformed instead of 16", {"sums": any_butterfly, "size": 4, "factor": 0.5}),
    (
        "size-8-signs",
        "groups of 8 are transformed instead of 16, under all 16 signs",
        {"sums": any_butterfly, "size": 8, "factor": 8**-0.5, "whole": True},
    ),
    (
        "size-4-signs",
        "groups of 4 are transformed instead of 16, under all 16 signs",
        {"sums": any_butterfly, "size": 4, "factor": 0.5, "whole": True},
    ),
    ("not", "the Hadamard matrix is missing, only signs and 1/4 are applied", {"sums": lambda v: v}),
)


def truncated(values: Floats) -> Floats:
    """Truncate to bfloat16."""
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(F)


def transforms() -> Iterator[Mistake]:
    """Mistakes in the Hadamard transform."""
    stage = Slot.HADAMARD
    for name, text, signs in SIGNS:
        yield known(stage, f"hadamard-signs-{name}", text, turns, transform=of(partial(_signed, signs)))
    for name, text, change in PARTS:
        yield known(stage, f"hadamard-{name}", f"Hadamard: {text}", turns, transform=of(partial(_changed, change)))
    yield known(
        stage,
        "hadamard-cut",
        "Hadamard: the result is truncated to bfloat16",
        turns,
        transform=of(partial(_changed, {"narrow": truncated})),
    )
    yield known(stage, "hadamard-missing", "the Hadamard transform is not applied", turns, transform=None)
    yield known(stage, "hadamard-both", "both directions are transformed", turns, turned=("row", "column"))
    yield known(
        stage,
        "hadamard-row",
        "the row direction is transformed instead of the column direction",
        turns,
        turned=("row",),
    )
    yield known(
        stage, "hadamard-axis", "the groups of the transform run along the wrong axis", turns, transform=of(_across)
    )
    yield known(stage, "hadamard-twice", "the transform is applied twice", turns, transform=of(_twice))
    yield known(
        stage,
        "hadamard-added",
        "a Hadamard transform is applied that the specification does not have",
        lambda k: not turns(k),
        transform=Turn(0xD7E8),
        turned=("row", "column"),
    )
    yield known(
        stage,
        "hadamard-added-plain",
        "a Hadamard transform without signs is applied that the specification does not have",
        lambda k: not turns(k),
        transform=Turn(0),
        turned=("row", "column"),
    )


def _mask(kernel: Kernel) -> int:
    assert kernel.spec.hadamard is not None
    return kernel.spec.hadamard.signs


def _signed(signs: Callable[[int], dict[str, Any]], kernel: Kernel) -> Any:
    return transformed(**signs(_mask(kernel)))


def _changed(change: dict[str, Any], kernel: Kernel) -> Any:
    return transformed(**{"signs": _mask(kernel), **change})


def _across(kernel: Kernel) -> Any:
    turn = transformed(signs=_mask(kernel))
    return lambda values: np.ascontiguousarray(turn(np.ascontiguousarray(values.T)).T)


def _twice(kernel: Kernel) -> Any:
    turn = transformed(signs=_mask(kernel))
    return lambda values: turn(turn(values))


# 4over6

DIFFERENCES = (
    ("through-amax", "measured through amax / 2688", fos.dequantized),
    ("through-scale", "measured through 1 / S_enc", fos.dequantized_by_reciprocal),
    ("scaled", "measured in scaled units", fos.scaled_units),
    ("scaled-fp16", "measured in scaled units in float16", fos.scaled_units_float16),
    ("unscaled", "measured without the global scale", lambda q, s, g, a, x, k: q * s - x),
    (
        "product",
        "measured as q * (s * amax * fp32(1/2688)) - x",
        lambda q, s, g, a, x, k: q * (s * a * (F(1) / (k.element_max * k.scale_max))) - x,
    ),
    ("amax-448", "measured with 448 in the denominator", lambda q, s, g, a, x, k: q * s * a / (F(6) * F(448)) - x),
    ("amax-256", "measured with 256 in the denominator", lambda q, s, g, a, x, k: q * s * a / (F(6) * F(256)) - x),
    ("decode", "measured as q * (s / S_enc) - x", lambda q, s, g, a, x, k: q * (s / g) - x),
)


def _pairs(errors: Floats) -> Floats:
    total = errors.reshape(*errors.shape[:-2], -1)
    while total.shape[-1] > 1:
        total = total[..., 0::2] + total[..., 1::2]
    return total[..., 0]


def _halving(errors: Floats) -> Floats:
    total = errors.reshape(*errors.shape[:-2], -1)
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        total = total[..., :half] + total[..., half:]
    return total[..., 0]


TOTALS = (
    ("sequential", "left to right", fos.sequential),
    ("halves", "elements i and i + 8 first", fos.halves),
    ("tree", "each row left to right, rows in a tree", fos.rows_by_tree),
    ("pairs", "in a binary tree of neighbours", _pairs),
    ("halving", "in a binary tree of halves", _halving),
    ("double", "in double precision", lambda e: e.astype(np.float64).sum(axis=(-2, -1)).astype(F)),
    ("reversed", "right to left", lambda e: fos.sequential(e[..., ::-1])),
)


KEPT = (
    ("stored-other", "the scale byte that is stored is that of the other candidate of 4over6", lambda s: (s, ~s)),
    (
        "stored-first",
        "the scale byte that is stored is always that of the first candidate (6)",
        lambda s: (s, s & False),
    ),
    (
        "stored-second",
        "the scale byte that is stored is always that of the second candidate (4)",
        lambda s: (s, s | True),
    ),
    (
        "codes-first",
        "the codes are always those of the first candidate (6), the scale byte is chosen",
        lambda s: (s & False, s),
    ),
    (
        "codes-second",
        "the codes are always those of the second candidate (4), the scale byte is chosen",
        lambda s: (s | True, s),
    ),
)


def _search(kernel: Kernel, **changes: Any) -> Any:
    assert kernel.search is not None
    return dataclasses.replace(kernel.search, **changes)


def _of_narrow_values(narrow: Any, kernel: Kernel) -> Any:
    difference = _search(kernel).difference
    return lambda q, s, g, a, x, k: narrow(difference(q, s, g, a, x * 0, k)) + difference(q * 0, s, g, a, x, k)


def _of_narrow_errors(narrow: Any, kernel: Kernel) -> Any:
    difference = _search(kernel).difference
    return lambda *arguments: narrow(difference(*arguments))


def _of_narrow_sums(narrow: Any, kernel: Kernel) -> Any:
    total = _search(kernel).total
    return lambda errors: narrow(total(errors))


def _search_through(field: str, made: Any, narrow: Any, kernel: Kernel) -> Any:
    return _search(kernel, **{field: made(narrow, kernel)})


def _narrowed_choices() -> Iterator[Mistake]:
    """Errors of 4over6 that go through a narrower type on the way."""
    for name, text, narrow in NARROW:
        for slot, what, made in (
            ("value", "values that 4over6 compares with the input are", _of_narrow_values),
            ("error", "4over6 errors are", _of_narrow_errors),
            ("sum", "4over6 sums of errors are", _of_narrow_sums),
        ):
            field = "total" if slot == "sum" else "difference"
            yield known(
                Slot.SEARCH,
                f"search-{slot}-{name}",
                f"{what} {text}",
                searches,
                search=of(partial(_search_through, field, made, narrow)),
            )


def _other_top(top: float, kernel: Kernel) -> bool:
    return kernel.search is not None and kernel.search.scale_max != top


def choices() -> Iterator[Mistake]:
    """Mistakes in how 4over6 picks a candidate."""
    stage = Slot.SEARCH
    for name, text, difference in DIFFERENCES:
        yield known(
            stage,
            f"search-{name}",
            f"4over6 errors are {text}",
            searches,
            search=of(partial(_search, difference=difference)),
        )
    for name, text, total in TOTALS:
        yield known(
            stage,
            f"search-{name}",
            f"4over6 errors are added {text}",
            searches,
            search=of(partial(_search, total=total)),
        )
    for metric, text in (
        (Metric.ABSOLUTE, "absolute errors"),
        (Metric.SQUARED, "squared errors"),
        (Metric.LARGEST, "the largest error"),
    ):
        yield known(
            stage,
            f"search-{metric}",
            f"4over6 compares {text}",
            both(searches, other_than("search", "metric", metric)),
            search=of(partial(_search, metric=metric)),
        )
    yield from _narrowed_choices()
    yield known(stage, "search-tie", "4over6 keeps the second candidate on a tie", searches, second=lambda b, a: b <= a)
    yield known(
        stage,
        "search-inverted",
        "4over6 keeps the candidate with the larger error",
        searches,
        second=lambda b, a: b > a,
    )
    yield known(
        stage,
        "search-inverted-tie",
        "4over6 keeps the candidate with the larger error, the second on a tie",
        searches,
        second=lambda b, a: b >= a,
    )
    yield known(
        stage,
        "search-six",
        "4over6 always keeps the first candidate (6)",
        searches,
        second=lambda b, a: np.zeros(a.shape, np.bool_),
    )
    yield known(
        stage,
        "search-four",
        "4over6 always keeps the second candidate (4)",
        searches,
        second=lambda b, a: np.ones(a.shape, np.bool_),
    )
    yield known(
        stage,
        "search-nan",
        "4over6 keeps the second candidate where an error is NaN",
        searches,
        special=True,
        second=lambda b, a: ~(b >= a),
    )
    for name, text, candidates in (
        ("two-thirds", "4over6 tries 2/3 of the scale instead of 1.5 times", lambda t: (t, t * F(2 / 3))),
        ("twice", "4over6 tries twice the scale instead of 1.5 times", lambda t: (t, t * F(2))),
        ("third", "4over6 tries 4/3 of the scale instead of 1.5 times", lambda t: (t, t * F(4 / 3))),
        ("quarter", "4over6 tries (scale * 6) / 4 instead of 1.5 times", lambda t: (t, t * F(6) / F(4))),
        ("swapped", "4over6 tries the candidate for 4 first", lambda t: (t * F(1.5), t)),
    ):
        yield known(stage, f"search-{name}", text, searches, candidates=candidates)
    for top in (448.0, 256.0):
        yield known(
            stage,
            f"search-max-{top:g}",
            f"4over6 makes the largest scale {top:g}",
            partial(_other_top, top),
            constants=partial(lambda t, k: k._replace(scale_max=t), F(top)),
        )
    for name, text, kept in KEPT:
        yield known(stage, f"search-{name}", text, searches, alone=True, kept=kept)
    yield known(stage, "search-missing", "4over6 is not done", searches, search=None)
