"""What a wrong GEMM does instead: the known mistakes that give its very bits, and the width of its sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.products.cases import GemmCase
from fp4ref.conformance.products.judge import judge
from fp4ref.conformance.products.mistakes import Pair, Reading, pair_of, product, readings, roundings, scalings
from fp4ref.formats import F, Floats, ignoring_float_warnings
from fp4ref.operands import alpha_factor

Evidence = Sequence[tuple[GemmCase, NDArray[Any]]]
WIDTHS = {8: "bfloat16", 11: "float16 or TF32", 14: "the sums of FP8 tensor cores of SM89 and SM90"}


@dataclass(frozen=True)
class Diagnosis:
    """Sentences that explain the results; exact if they reproduce every bit of the aimed cases."""

    texts: tuple[str, ...]
    exact: bool


@ignoring_float_warnings
def diagnose(evidence: Evidence, to: str, layout: str) -> Diagnosis:
    """Explain results of aimed cases of which some are wrong.

    evidence: cases and results [M, N] of type `to`. layout: that of the scales which the kernel was given.
    """
    aimed = [(case, got) for case, got in evidence if case.aimed and case.family != "special"]
    wrong = [(case, got) for case, got in aimed if not judge(case, got, to).equal]
    if not wrong:
        return Diagnosis((), False)
    bits = width(aimed, to)
    if bits is not None:
        like = f", as {WIDTHS[bits]} has" if bits in WIDTHS else ""
        return Diagnosis((f"sums are held in {bits} significant bits instead of 24{like}",), False)
    wrong, aimed = ([item for item in items if item[0].family != "width"] for items in (wrong, aimed))
    found = sorted(_matches(wrong, aimed, to, layout), key=len)  # the others' sums a mistake can make inexact
    best = [texts for texts in found if len(texts) == len(found[0])][:3]
    return Diagnosis(tuple(" and ".join(texts) for texts in dict.fromkeys(best)), bool(best))


def width(evidence: Evidence, to: str) -> int | None:
    """Significant bits of the accumulator, if the cases that measure it fail from some column on."""
    measured: list[int] = []
    for case, got in evidence:
        if case.family != "width" or (to != "float32" and not case.name.startswith("cancel")):
            continue
        wrong = np.asarray(judge(case, got, to).wrong.any(axis=0))
        first = int(np.argmax(wrong))
        if not wrong.any() or not wrong[first:].all() or first < 2:
            continue
        measured.append(first)
    return min(measured) if measured else None


def _matches(wrong: Evidence, aimed: Evidence, to: str, layout: str) -> Iterator[tuple[str, ...]]:
    """The mistakes that reproduce everything: found on the first wrong case, then checked on all."""
    if not wrong:
        return
    wrong = sorted(wrong, key=lambda item: item[0].shape)
    ordered = [*wrong, *((case, got) for case, got in aimed if not any(case is other for other, _ in wrong))]
    pairs = [pair_of(case, layout) for case, _ in ordered]
    for reading in readings():
        known: dict[int, Floats] = {}

        def of(i: int, reading: Reading = reading, known: dict[int, Floats] = known) -> Floats:
            if i not in known:
                found = reading.sums(pairs[i])
                known[i] = np.asarray(product(pairs[i].a, pairs[i].b) if found is None else found, F)
            return known[i]

        if reading.sums(pairs[0]) is None:
            continue
        for texts, way in _ways(pairs[0], to):
            said = tuple(filter(None, (reading.text, *texts)))
            if not said or not _same(way(of(0), pairs[0]), ordered[0][1]):
                continue
            if all(_same(way(of(i), pairs[i]), got) for i, (_, got) in enumerate(ordered)):
                yield said


def _ways(pair: Pair, to: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every way from sums to results: a rounding, the amaxes, another rounding, the cast."""
    has_amax = alpha_factor(pair.a.q.spec, pair.b.q.spec) is not None
    known = list(scalings()) if has_amax else [None]
    for _, early_text, early in roundings("sums"):
        for scaling in known:
            for _, late_text, late in roundings("results"):
                texts = (early_text, scaling.text if scaling else "", late_text)

                def way(y: Floats, of: Pair, early: Any = early, scaling: Any = scaling, late: Any = late) -> Any:
                    y = early(y)
                    y = scaling.apply(y, *_amaxes(of)) if scaling else y
                    return np.asarray(late(np.asarray(y, F))).astype(INPUT_DTYPES[to])

                yield texts, way


def _amaxes(pair: Pair) -> tuple[Floats, Floats, np.float32]:
    """amax_A, amax_B and the factor: amaxes of rows as a column and a row."""
    factor = alpha_factor(pair.a.q.spec, pair.b.q.spec)
    assert factor is not None
    found = []
    for side, shape in ((pair.a, (-1, 1)), (pair.b, (1, -1))):
        amax = np.asarray(side.q.direction("row")[0].amax, F)
        found.append(amax.reshape(shape) if side.q.spec.global_scale == "row" else amax[0])
    return np.asarray(found[0]), np.asarray(found[1]), factor


def _same(made: NDArray[Any], got: NDArray[Any]) -> bool:
    kind = f"u{got.dtype.itemsize}"
    return made.shape == got.shape and bool(((made.view(kind) == got.view(kind)) | _both_nan(made, got)).all())


def _both_nan(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isnan(a.astype(F)) & np.isnan(b.astype(F))
