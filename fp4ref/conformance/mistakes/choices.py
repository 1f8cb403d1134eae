"""Mistakes in how 4over6 chooses between its two scales."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from fp4ref import four_over_six as fos
from fp4ref.arithmetic import Constants
from fp4ref.conformance.mistakes.kernel import Kernel, same, smaller
from fp4ref.conformance.mistakes.record import (
    NARROW,
    Slot,
    When,
    both,
    collect,
    known,
    nv,
    of,
    other_than,
    searches,
)
from fp4ref.formats import F, Floats
from fp4ref.spec import Metric

# 4over6


def _scaled_by_amax(q: Floats, s: Floats, g: Floats, amax: Floats, x: Floats, k: Constants) -> Floats:
    scale = s * amax / (k.element_max * k.scale_max)
    return q - np.where(scale == 0, F(0), x / scale)


DIFFERENCES = (
    ("through-amax", "measured through amax / 2688", fos.dequantized),
    ("through-scale", "measured through 1 / S_enc", fos.dequantized_by_reciprocal),
    ("scaled", "measured in scaled units", fos.scaled_units),
    ("scaled-fp16", "measured in scaled units in float16", fos.scaled_units_float16),
    ("scaled-by-amax", "measured in scaled units, q - x / (s * amax / 2688)", _scaled_by_amax),
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


def search_of(kernel: Kernel, **changes: Any) -> Any:
    """Return the search of a kernel with changed fields."""
    assert kernel.search is not None
    return dataclasses.replace(kernel.search, **changes)


def _of_narrow_values(narrow: Any, kernel: Kernel) -> Any:
    difference = search_of(kernel).difference
    return lambda q, s, g, a, x, k: narrow(difference(q, s, g, a, x * 0, k)) + difference(q * 0, s, g, a, x, k)


def _of_narrow_errors(narrow: Any, kernel: Kernel) -> Any:
    difference = search_of(kernel).difference
    return lambda *arguments: narrow(difference(*arguments))


def _of_narrow_sums(narrow: Any, kernel: Kernel) -> Any:
    total = search_of(kernel).total
    return lambda errors: narrow(total(errors))


# A value, an error or a sum of errors goes through a narrower type on the way
NARROWED_STEPS = (
    ("value", "values that 4over6 compares with the input are", "difference", _of_narrow_values),
    ("error", "4over6 errors are", "difference", _of_narrow_errors),
    ("sum", "4over6 sums of errors are", "total", _of_narrow_sums),
)


def _search_through(field: str, made: Any, narrow: Any, kernel: Kernel) -> Any:
    return search_of(kernel, **{field: made(narrow, kernel)})


def _from_byte(kernel: Kernel) -> Any:
    codec = kernel.scale_codec
    return lambda t, amax, g: (t, codec.decode(codec.encode(t)) * F(1.5))


search = partial(known, Slot.SEARCH)

NARROWED = tuple(
    search(
        f"search-{step}-{name}",
        f"{what} {text}",
        searches,
        search=of(partial(_search_through, field, made, narrow)),
    )
    for name, text, narrow in NARROW
    for step, what, field, made in NARROWED_STEPS
)

DIFFERENT_ERRORS = tuple(
    search(
        f"search-{name}", f"4over6 errors are {text}", searches, search=of(partial(search_of, difference=difference))
    )
    for name, text, difference in DIFFERENCES
)

SUMS = tuple(
    search(f"search-{name}", f"4over6 errors are added {text}", searches, search=of(partial(search_of, total=total)))
    for name, text, total in TOTALS
)

METRICS = tuple(
    search(
        f"search-{metric}",
        f"4over6 compares {text}",
        both(searches, other_than("search", "metric", metric)),
        search=of(partial(search_of, metric=metric)),
    )
    for metric, text in (
        (Metric.ABSOLUTE, "absolute errors"),
        (Metric.SQUARED, "squared errors"),
        (Metric.LARGEST, "the largest error"),
    )
)

# (name, text, which of two errors keeps the second candidate)
COMPARISONS: tuple[tuple[str, str, Any], ...] = (
    ("tie", "4over6 keeps the second candidate on a tie", lambda b, a: b <= a),
    ("inverted", "4over6 keeps the candidate with the larger error", lambda b, a: b > a),
    ("inverted-tie", "4over6 keeps the candidate with the larger error, the second on a tie", lambda b, a: b >= a),
    ("six", "4over6 always keeps the first candidate (6)", lambda b, a: np.zeros(a.shape, np.bool_)),
    ("four", "4over6 always keeps the second candidate (4)", lambda b, a: np.ones(a.shape, np.bool_)),
)
COMPARED = (
    *(search(f"search-{name}", text, searches, second=second) for name, text, second in COMPARISONS),
    search(
        "search-nan",
        "4over6 keeps the second candidate where an error is NaN",
        searches,
        special=True,
        second=lambda b, a: ~(b >= a),
    ),
)

# (name, text, what of an error is added up, which of two sums keeps the second candidate)
SIGNED: tuple[tuple[str, str, Any, Any], ...] = (
    (
        "signed",
        "adds errors with their signs, so that they cancel, and keeps the sum nearer to 0",
        same,
        lambda b, a: np.abs(b) < np.abs(a),
    ),
    ("signed-sum", "adds errors with their signs, and keeps the lower sum, negative ones included", same, smaller),
    ("signed-sum-high", "adds errors x - q instead of their magnitudes, and keeps the lower sum", np.negative, smaller),
    ("above", "counts only errors of values that are too large", lambda e: np.maximum(e, F(0)), smaller),
    ("below", "counts only errors of values that are too small", lambda e: np.maximum(-e, F(0)), smaller),
    ("roots", "adds the square roots of errors", lambda e: np.sqrt(np.abs(e)), smaller),
    ("fourth", "adds fourth powers of errors", lambda e: e * e * (e * e), smaller),
    ("count", "counts the elements that are not exact", lambda e: (e != 0).astype(F), smaller),
)
COUNTED = tuple(
    search(f"search-errors-{name}", f"4over6 {text}", searches, counted=counted, second=second)
    for name, text, counted, second in SIGNED
)

# (name, text, when, the two scales that a block tries, of the first one, its amax and the global scale)
CANDIDATES: tuple[tuple[str, str, When, Any], ...] = (
    ("two-thirds", "4over6 tries 2/3 of the scale instead of 1.5 times", searches, lambda t, a, g: (t, t * F(2 / 3))),
    ("twice", "4over6 tries twice the scale instead of 1.5 times", searches, lambda t, a, g: (t, t * F(2))),
    ("third", "4over6 tries 4/3 of the scale instead of 1.5 times", searches, lambda t, a, g: (t, t * F(4 / 3))),
    ("quarter", "4over6 tries (scale * 6) / 4 instead of 1.5 times", searches, lambda t, a, g: (t, t * F(6) / F(4))),
    (
        "own",
        "the second scale that 4over6 tries is (amax / 4) * S_enc, not 1.5 times the first",
        both(searches, nv),
        lambda t, a, g: (t, a / F(4) * g),
    ),
    (
        "own-reciprocal",
        "the second scale that 4over6 tries is amax * (S_enc * fp32(1/4)), not 1.5 times the first",
        both(searches, nv),
        lambda t, a, g: (t, a * (g * F(0.25))),
    ),
    ("swapped", "4over6 tries the candidate for 4 first", searches, lambda t, a, g: (t * F(1.5), t)),
    (
        "from-byte",
        "4over6 takes 1.5 times the first candidate's scale after it was rounded to its byte",
        searches,
        of(_from_byte),
    ),
)
TRIED = tuple(search(f"search-{name}", text, when, candidates=tried) for name, text, when, tried in CANDIDATES)

LARGEST_SCALES = tuple(
    search(
        f"search-max-{top:g}",
        f"4over6 makes the largest scale {top:g}",
        partial(lambda top, kernel: kernel.search is not None and kernel.search.scale_max != top, top),
        constants=partial(lambda t, k: k._replace(scale_max=t), F(top)),
    )
    for top in (448.0, 256.0)
)

# (name, text, where the codes and where the scale byte are those of the second candidate)
KEPT: tuple[tuple[str, str, Any], ...] = (
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
MIXED = tuple(search(f"search-{name}", text, searches, alone=True, kept=kept) for name, text, kept in KEPT)

MISSING = (search("search-missing", "4over6 is not done", searches, search=None),)

CHOICES = collect(DIFFERENT_ERRORS, SUMS, METRICS, COUNTED, NARROWED, COMPARED, TRIED, LARGEST_SCALES, MIXED, MISSING)
