"""The end of a product after its sums, right or mistaken: amaxes, additions, roundings and the cast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.diagnosis.placed_results import same
from fp4ref.conformance.mistakes.operand_pairs import OperandPair
from fp4ref.conformance.mistakes.product_additions import Additions, ways
from fp4ref.conformance.mistakes.product_amaxes import Scaling, scalings
from fp4ref.conformance.mistakes.product_roundings import Rounds, roundings
from fp4ref.formats import F, Floats
from fp4ref.operands import alpha_factor

Way = Callable[[Floats, OperandPair], NDArray[Any]]


def as_it_is(y: Floats) -> Floats:
    """Round nothing."""
    return y


def ways_of(pair: OperandPair, to: str, *, alone: bool) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], Way]]:
    """Yield every way from sums to results: a rounding, the amaxes, what is added, another rounding, the cast.

    alone: the sums are right, so that additions may be wrong in more than one place, or together with the amaxes.
    """
    additions = [(adding, adding.names, adding.texts) for adding in ways(pair)]
    plain, others = additions[:1], additions[1:]
    for early_name, early_text, early in roundings("sums"):
        for scaling in scalings_of(pair):
            for late_name, late_text, late in roundings("results"):
                rounded, scaled = bool(early_text or late_text), scaling is not None and bool(scaling.text)
                for adding, of_adding, said in (*plain, *(() if rounded or (scaled and not alone) else others)):
                    if len(said) > 1 and not alone:
                        continue
                    names = (early_name, scaling.name if scaling else "", *of_adding, late_name)
                    texts = (early_text, scaling.text if scaling else "", *said, late_text)
                    told = tuple(name for name, text in zip(names, texts, strict=True) if text)

                    def way(
                        y: Floats,
                        of: OperandPair,
                        early: Rounds = early,
                        scaling: Scaling | None = scaling,
                        adding: Additions = adding,
                        late: Rounds = late,
                    ) -> NDArray[Any]:
                        return finished(early(y), of, scaling, adding, to, late)

                    yield told, texts, way


def scalings_of(pair: OperandPair) -> list[Scaling] | list[None]:
    """Known mistakes with the amaxes, the right way first; None without amaxes."""
    return [None] if alpha_factor(pair.a.part.spec, pair.b.part.spec) is None else list(scalings())


def finished(
    y: Floats, pair: OperandPair, scaling: Scaling | None, adding: Additions, to: str, late: Rounds = lambda y: y
) -> NDArray[Any]:
    """Results of sums: the amaxes, what is added, a rounding, and the cast."""
    y = adding.early(y, pair)
    y = scaling.apply(y, *_amaxes(pair)) if scaling else y
    y = adding.late(np.asarray(y, F), pair, to, row_scaled=pair.row_scaled)
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


def made_alike(made: NDArray[Any], got: NDArray[Any]) -> bool:
    """Return True if two results are equal."""
    return made.shape == got.shape and bool(same(made, got).all())


def near(made: NDArray[Any], got: NDArray[Any]) -> NDArray[np.bool_]:
    """Return True where values are as close as two orders of float32 additions and a cast make them."""
    one, other = made.astype(np.float64), got.astype(np.float64)
    return np.asarray(np.abs(one - other) <= np.abs(one) * (2.0**-16 if got.dtype == F else 2.0**-6))
