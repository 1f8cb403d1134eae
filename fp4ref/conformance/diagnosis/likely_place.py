"""The place of everything that differs, whatever made it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.place_learning import joined, likeliest
from fp4ref.conformance.diagnosis.place_rounds import DRAWN, drawn, recorded
from fp4ref.conformance.diagnosis.placed import FEW
from fp4ref.conformance.diagnosis.placed_parts import family_of
from fp4ref.conformance.diagnosis.scale_stage import right_scales
from fp4ref.conformance.mistakes.places import EVERYWHERE, Place, Tensor, Units, units_of

Bools = NDArray[np.bool_]


def likely_place(items: Sequence[Item]) -> Place:
    """Return where the blocks that differ are, whatever made them; or where the elements are, if scales are right.

    Rules: CNF-44.
    """
    seen = []
    for item in items:
        every = item.differing == item.wrong.size
        seen.append((item.exhibit.case, np.ones_like(item.wrong) if every else item.wrong))
    found = confined(seen, items[0].spec.block.columns if items else 1)
    if found.predicates or not all(map(right_scales, items)):
        return found
    return confined([(item.exhibit.case, item.wrong_codes) for item in items], 1)


def confined(seen: Sequence[tuple[Tensor, Bools]], width: int) -> Place:
    """Return where units that differ are: first which rows and blocks, then which tensors of those that have such.

    seen: cases, and which blocks [rows, blocks] of each differ. Rows and blocks are compared within the tensors that
    fail, tensors within the families that fail. A place that a tensor without a difference has, too, is told only if
    there is no other.

    Rules: CNF-44, CNF-60, CNF-65.
    """
    failed = [(case, wrong) for case, wrong in seen if wrong.any()]
    if sum(int(np.count_nonzero(wrong)) for _, wrong in failed) <= FEW:
        return EVERYWHERE
    families = {family_of(case) for case, _ in failed}
    samples = [_units(*pair, width) for pair in failed if not pair[1].all()]
    passing = [_all_units(*pair, width) for pair in seen if not pair[1].any()]
    inside = likeliest(recorded(samples), about_tensor=False, passing=passing) if samples else EVERYWHERE
    related = [pair for pair in seen if family_of(pair[0]) in families]
    compared = [_whole(*pair, width) for pair in related if _any(inside, *pair, width)]
    tensors = likeliest(joined(compared), about_tensor=True)
    return Place((*inside.predicates, *tensors.predicates))


def _whole(case: Tensor, wrong: Bools, width: int) -> tuple[Units, Bools]:
    zero = np.zeros(1, np.int64)
    return units_of(case, width, zero, zero), np.array([bool(wrong.any())])


def _all_units(case: Tensor, wrong: Bools, width: int) -> Units:
    row, block = np.arange(wrong.shape[0])[:, None], np.arange(wrong.shape[1])[None]
    return units_of(case, width, row, block * width)


def _any(place: Place, case: Tensor, wrong: Bools, width: int) -> bool:
    return bool(place.holds(_all_units(case, wrong, width)).any())


def _units(case: Tensor, wrong: Bools, width: int) -> list[tuple[Units, Bools]]:
    found = []
    for wanted, chosen in ((True, wrong), (False, ~wrong)):
        row, block = drawn(chosen, 4 * DRAWN)
        found.append((units_of(case, width, row, block * width), np.full(len(row), wanted)))
    return found
