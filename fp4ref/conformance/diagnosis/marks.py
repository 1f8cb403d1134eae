"""The parts of a case that are compared: what is in no class of special input, in one of them, or inside a place."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.special_input import LEAST, Classified, Special
from fp4ref.conformance.mistakes.exhibit import EVERY, CaseLike
from fp4ref.conformance.mistakes.places import Place
from fp4ref.layout import Layout
from fp4ref.quantized import DirectionData
from fp4ref.spec import Spec

Bools = NDArray[np.bool_]


class Marks(NamedTuple):
    """The parts that are compared: blocks [rows, blocks], elements [rows, columns], and whether the maxima are."""

    blocks: Bools
    elements: Bools
    amax: bool


Tier = Special | bool  # True: everything; False: what is in no special class; or that and one class


class Marked(Classified):
    """A case with the candidate's bytes, and the parts of it that belong to each tier.

    bounded: blocks that are judged by a bound are left out (HAD-7). within: only what is inside is looked at.
    """

    def __init__(
        self,
        case: CaseLike,
        got: DirectionData,
        spec: Spec,
        declared: Layout,
        least: float = LEAST,
        *,
        bounded: bool = False,
        within: Place | None = None,
    ) -> None:
        super().__init__(case, got, spec, declared, least)
        self.within = within
        self.bounded = bounded and spec.hadamard is not None and case.direction == "column"
        self._marks: dict[Tier, Marks] = {}

    def marks(self, tier: Tier) -> Marks | None:
        """Return the part of the case that belongs to a tier; None stands for the whole case."""
        if tier is True and not self.bounded and self.within is None:
            return None
        if tier not in self._marks:
            self._marks[tier] = self._marked(tier)
        return self._marks[tier]

    def _marked(self, tier: Tier) -> Marks:
        blocks = self.classes == 0 if tier is not True else np.ones(self.classes.shape, np.bool_)
        if self.bounded:
            blocks &= ~self.ordered
        inside = self._inside
        blocks &= inside[:, :: self.spec.block.columns]
        if isinstance(tier, Special) and tier is not Special.MINUS_ZERO:
            blocks |= (self.classes == 1 + list(Special).index(tier)) & inside[:, :: self.spec.block.columns]
        elements = np.repeat(blocks, self.spec.block.columns, axis=1)[:, : self.columns] & inside
        if tier is not Special.MINUS_ZERO and tier is not True:
            elements = elements & ~self.minus_zero
        if tier is True:
            return Marks(blocks, elements, self.of_tensors)
        wild = {1, 2, 3} - ({1 + list(Special).index(tier)} if isinstance(tier, Special) else set())
        return Marks(blocks, elements, self.of_tensors and not wild & set(np.unique(self.classes).tolist()))

    @cached_property
    def _inside(self) -> Bools:
        """Elements that are looked at."""
        if self.within is None:
            return np.ones(self.exhibit.shape, np.bool_)
        return self.within.of_elements(self.exhibit.case, self.spec.block.columns, EVERY, EVERY)

    @property
    def of_tensors(self) -> bool:
        """True if whole tensors are looked at: their maxima, and bytes wherever they are stored."""
        return self.within is None or self.within.about_tensor
