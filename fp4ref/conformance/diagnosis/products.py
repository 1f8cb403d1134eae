"""Diagnosis of a wrong GEMM: the known mistakes that make all of its bits, and the width of its sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.conformance.judge.products import judge
from fp4ref.conformance.mistakes.product_additions import Additions, ways
from fp4ref.conformance.mistakes.product_amaxes import Scaling, scalings
from fp4ref.conformance.mistakes.product_depths import depths
from fp4ref.conformance.mistakes.product_specials import RESULTS, special_sums
from fp4ref.conformance.mistakes.products import OperandPair, Reading, Rounds, pair_of, product, readings, roundings
from fp4ref.formats import F, Floats, ignoring_float_warnings
from fp4ref.operands import alpha_factor

Evidence = Sequence[tuple[GemmCase, NDArray[Any]]]
BOUNDED = ("dense", "ragged", "deep")  # families whose operands are `integers`
WIDTHS = {8: "bfloat16", 11: "float16 or TF32", 14: "the sums of FP8 tensor cores of SM89 and SM90"}


@dataclass(frozen=True)
class ProductDiagnosis:
    """Sentences that explain the results; exact if they reproduce every bit of the aimed cases."""

    texts: tuple[str, ...]
    exact: bool


@ignoring_float_warnings
def diagnose(evidence: Evidence, to: str, layout: str) -> ProductDiagnosis:
    """Explain results of aimed cases of which some are wrong.

    evidence: cases and results [M, N] of type `to`. layout: that of the scales which the kernel was given.
    """
    aimed = [(case, got) for case, got in evidence if case.aimed and not case.specials]
    wrong = [(case, got) for case, got in aimed if not judge(case, got, to).equal]
    if not wrong:
        texts = special([(case, got) for case, got in evidence if case.specials], to, layout)
        return ProductDiagnosis(texts, False)
    bits = width(aimed, to)
    if bits is not None:
        like = f", as {WIDTHS[bits]} has" if bits in WIDTHS else ""
        return ProductDiagnosis((f"sums are held in {bits} significant bits instead of 24{like}",), False)
    wrong, aimed = ([item for item in items if item[0].family != "width"] for items in (wrong, aimed))
    found = sorted(_matches(wrong, aimed, to, layout), key=len)  # the others' sums a mistake can make inexact
    best = [texts for texts in found if len(texts) == len(found[0])][:3]
    return ProductDiagnosis(tuple(" and ".join(texts) for texts in dict.fromkeys(best)), bool(best))


def special(evidence: Evidence, to: str, layout: str) -> tuple[str, ...]:
    """Return the mistakes with NaN and infinities that reproduce results of cases that hold them. Rules: GEM-17."""
    if not any(not judge(case, got, to).equal for case, got in evidence):
        return ()
    remaining: set[str] | None = None
    for case, got in evidence:
        pair, judged = pair_of(case, layout), judge(case, got, to)
        right, adding = _scalings(pair)[0], next(ways(pair))
        made = {text: finished(sums.astype(F), pair, right, adding, to) for text, sums in special_sums(pair)}
        plain = finished(product(pair.a, pair.b).astype(F), pair, right, adding, "float32").astype(F)
        made |= {text: change(plain, to).astype(INPUT_DTYPES[to]) for text, change in RESULTS}
        beside = ~np.isfinite(judged.low.astype(F))
        same = {text for text, values in made.items() if (_equal(values, got) | (beside & _near(values, got))).all()}
        remaining = same if remaining is None else remaining & same
    return tuple(sorted(remaining or ())[:3])


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
    """Yield the mistakes that reproduce everything: found on the first wrong case, then checked on all."""
    if not wrong:
        return
    wrong = sorted(wrong, key=lambda item: item[0].shape)
    ordered = [*wrong, *((case, got) for case, got in aimed if not any(case is other for other, _ in wrong))]
    pairs = [pair_of(case, layout) for case, _ in ordered]
    for reading in (*readings(), *depths()):
        places = [i for i, (case, _) in enumerate(ordered) if not reading.bounded or case.family in BOUNDED]
        known: dict[int, Floats] = {}

        def of(i: int, reading: Reading = reading, known: dict[int, Floats] = known) -> Floats:
            if i not in known:
                found = reading.sums(pairs[i])
                known[i] = np.asarray(product(pairs[i].a, pairs[i].b) if found is None else found, F)
            return known[i]

        if not places or reading.sums(pairs[places[0]]) is None:
            continue
        first = places[0]
        for texts, way in _ways(pairs[first], to, alone=not reading.text):
            said = tuple(filter(None, (reading.text, *texts)))
            if not said or not _same(way(of(first), pairs[first]), ordered[first][1]):
                continue
            if all(_same(way(of(i), pairs[i]), ordered[i][1]) for i in places):
                yield said


Way = Callable[[Floats, OperandPair], NDArray[Any]]


def _ways(pair: OperandPair, to: str, *, alone: bool) -> Iterator[tuple[tuple[str, ...], Way]]:
    """Every way from sums to results: a rounding, the amaxes, what is added, another rounding, the cast.

    alone: the sums are right, so that additions may be wrong in more than one place, or together with the amaxes.
    """
    additions = list(ways(pair))
    for _, early_text, early in roundings("sums"):
        for scaling in _scalings(pair):
            for _, late_text, late in roundings("results"):
                for adding in additions:
                    texts = (early_text, scaling.text if scaling else "", *adding.texts, late_text)
                    if adding.texts and (early_text or late_text or not (alone or len(list(filter(None, texts))) == 1)):
                        continue

                    def way(
                        y: Floats,
                        of: OperandPair,
                        early: Rounds = early,
                        scaling: Scaling | None = scaling,
                        adding: Additions = adding,
                        late: Rounds = late,
                    ) -> NDArray[Any]:
                        return finished(early(y), of, scaling, adding, to, late)

                    yield texts, way


def _scalings(pair: OperandPair) -> list[Scaling] | list[None]:
    """Known mistakes with the amaxes, the right way first; None without amaxes."""
    return [None] if alpha_factor(pair.a.part.spec, pair.b.part.spec) is None else list(scalings())


def finished(
    y: Floats, pair: OperandPair, scaling: Scaling | None, adding: Additions, to: str, late: Rounds = lambda y: y
) -> NDArray[Any]:
    """Results of sums: the amaxes, what is added, a rounding, and the cast."""
    y = adding.early(y, pair)
    y = scaling.apply(y, *_amaxes(pair)) if scaling else y
    y = adding.late(np.asarray(y, F), pair, to, row_scaled=pair.a.part.row_scaled or pair.b.part.row_scaled)
    return np.asarray(late(y)).astype(INPUT_DTYPES[to])


def _amaxes(pair: OperandPair) -> tuple[Floats, Floats, np.float32]:
    """amax_A, amax_B and the factor: amaxes of rows as a column and a row."""
    factor = alpha_factor(pair.a.part.spec, pair.b.part.spec)
    assert factor is not None
    found = []
    for side, shape in ((pair.a, (-1, 1)), (pair.b, (1, -1))):
        amax = np.asarray(side.part.data.amax, F)
        found.append(amax.reshape(shape) if side.part.row_scaled else amax[0])
    return np.asarray(found[0]), np.asarray(found[1]), factor


def _same(made: NDArray[Any], got: NDArray[Any]) -> bool:
    return made.shape == got.shape and bool(_equal(made, got).all())


def _equal(made: NDArray[Any], got: NDArray[Any]) -> NDArray[np.bool_]:
    """Where bits are equal; all NaN are one."""
    kind = f"u{got.dtype.itemsize}"
    return np.asarray((made.view(kind) == got.view(kind)) | np.isnan(made.astype(F)) & np.isnan(got.astype(F)))


def _near(made: NDArray[Any], got: NDArray[Any]) -> NDArray[np.bool_]:
    """Where they differ no more than sums of large numbers in float32 do, and a cast: of a mistaken infinity, say."""
    one, other = made.astype(np.float64), got.astype(np.float64)
    return np.asarray(np.abs(one - other) <= np.abs(one) * (2.0**-16 if got.dtype == F else 2.0**-6))
