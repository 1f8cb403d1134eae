"""The classes of special input: blocks and elements on which implementations have rules of their own.

For example, a block with a NaN is of the class NaN, and under a global scale over the tensor every block of that tensor
is, because the maximum of all may change. A hypothesis is first asked about what is in no class.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.readings import Readings
from fp4ref.conformance.judge.excuses import per_block
from fp4ref.conformance.mistakes.exhibit import EVERY, CaseLike
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide, kernel_of
from fp4ref.conformance.mistakes.sides import scale_side
from fp4ref.formats import F
from fp4ref.hadamard import POINTS
from fp4ref.layout import Layout
from fp4ref.model.tiles import split
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity, Spec

Bools = NDArray[np.bool_]

LEAST, MOST = 2.0**-12, 2.0**100  # maxima that no implementation's limits reach
EXACT = 12  # exponents over which the inputs of a transform may spread, its sums exact in every order (HAD-7)
SMALLEST = 2.0**-100  # the same, where most of the evidence is small


class Special(StrEnum):
    """Classes of blocks or elements on which implementations have their own rules."""

    NAN = "NaN"
    INF = "Inf"
    EXTREME = "very small or very large maxima"
    ZERO = "blocks of zeros"
    UNDERFLOW = "scale underflow"
    SUBNORMAL = "subnormal inputs"
    MINUS_ZERO = "-0"


KINDS = tuple(Special)


class Classified(Readings):
    """A case with the candidate's bytes, and the classes of its input. least: the smallest ordinary maximum."""

    def __init__(self, case: CaseLike, got: DirectionData, spec: Spec, declared: Layout, least: float = LEAST) -> None:
        super().__init__(case, got, spec, declared)
        self.least = least

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel that makes the specification's bytes."""
        return kernel_of(self.spec)

    @cached_property
    def base(self) -> ScaleSide:
        """The specification's own result for the case, up to its scales."""
        return scale_side(self.kernel, self.exhibit, EVERY)

    @cached_property
    def classes(self) -> NDArray[np.uint8]:
        """The class of every block [rows, blocks]: 0, or 1 + its place in Special."""
        with np.errstate(all="ignore"):
            values, spec = self.exhibit.matrix, self.spec
            blocks = split(values, spec.block)
            magnitude = np.abs(blocks)
            tiny = ((magnitude > 0) & (magnitude < np.finfo(F).tiny)).any(axis=(2, 3))
            top = magnitude.max(axis=(2, 3), initial=0)
            nan = inf = np.zeros(top.shape, np.bool_)
            if not np.isfinite(top).all():
                nan, inf = (np.asarray(of(blocks).any(axis=(2, 3))) for of in (np.isnan, np.isinf))
                top = np.where(np.isfinite(magnitude), magnitude, F(0)).max(axis=(2, 3), initial=0)
            extreme = (top > MOST) | ((top > 0) & (top < self.least))
            zero = (per_block(self.base.scales, spec) == 0).all(axis=2)
            nan, inf = self._spread(np.asarray(nan)), self._spread(np.asarray(inf))
            if spec.global_scale is not Granularity.NONE:
                used = np.asarray(self.base.amax, F)
                wild = ~((used <= MOST) & (used >= self.least))
                by_row = np.broadcast_to(wild, self.rows) if wild.size != self.rows else wild
                extreme |= per_block(by_row[:, None], spec).any(axis=2)
            found = np.zeros(top.shape, np.uint8)
            for code, held in ((6, tiny), (5, zero), (4, top == 0), (3, extreme), (2, inf), (1, nan)):
                found[held] = code
        return np.repeat(found, spec.block.rows, axis=0)[: self.rows]

    def _spread(self, flags: Bools) -> Bools:
        """Return the reach of a special value: as far as the maximum that it may change."""
        match self.spec.global_scale:
            case Granularity.TENSOR:
                return np.full_like(flags, flags.any())
            case Granularity.ROW:
                return np.broadcast_to(flags.any(axis=1, keepdims=True), flags.shape).copy()
            case _:
                return flags

    @cached_property
    def minus_zero(self) -> Bools:
        """Elements that are -0 and stay so."""
        if self.spec.hadamard is not None and self.exhibit.case.direction == "column":
            return np.zeros(self.exhibit.shape, np.bool_)
        values = self.exhibit.matrix
        return np.asarray((values == 0) & np.signbit(values))

    @cached_property
    def ordered(self) -> Bools:
        """Blocks [rows, blocks] whose Hadamard sums depend on the order of additions. Rules: HAD-7."""
        exponents = np.frexp(np.abs(self.exhibit.matrix))[1].reshape(self.rows, -1, POINTS)
        zero = self.exhibit.matrix.reshape(self.rows, -1, POINTS) == 0
        spread = np.where(zero, -999, exponents).max(axis=2) - np.where(zero, 999, exponents).min(axis=2)
        return np.logical_or.reduceat(
            spread > EXACT, range(0, spread.shape[1], self.spec.block.columns // POINTS), axis=1
        )

    def kinds(self) -> set[Special]:
        """Return the classes that occur."""
        return self._kinds

    @cached_property
    def _kinds(self) -> set[Special]:
        seen = np.bincount(self.classes.reshape(-1), minlength=len(KINDS) + 1)
        found = {kind for kind, count in zip(KINDS, seen[1:].tolist(), strict=False) if count}
        return found | ({Special.MINUS_ZERO} if self.minus_zero.any() else set())
