"""Judging one product: bit for bit where no order of additions can matter, else by the bound of float32 additions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.products.cases import GemmCase
from fp4ref.formats import F, Floats, ignoring_float_warnings
from fp4ref.model.epilogue import finish
from fp4ref.model.gemm import exact, values
from fp4ref.operands import AlphaRule, Epilogue, Operand
from fp4ref.quantized import Quantized

Wide = NDArray[np.float64]
UNIT = 2.0**-23  # relative error of one addition, truncation included


@dataclass(frozen=True)
class Judgement:
    """What came of a case. low, high: the accepted results, equal for an aimed case. got: None if there is none."""

    case: GemmCase
    low: NDArray[Any]
    high: NDArray[Any]
    got: NDArray[Any] | None

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Which results are not accepted; all NaN are one."""
        if self.got is None:
            return np.ones(self.low.shape, np.bool_)
        low, high, got = (part.astype(F) for part in (self.low, self.high, self.got))
        nan = np.isnan(low)
        if self.case.aimed:
            kind = f"u{self.low.dtype.itemsize}"
            return np.where(nan, ~np.isnan(got), self.low.view(kind) != self.got.view(kind))
        return ~((low <= got) & (got <= high))

    @property
    def equal(self) -> bool:
        """Whether every result is accepted."""
        return not self.wrong.any()


def operand(q: Quantized) -> Operand:
    """The row direction of a tensor."""
    return Operand(*q.direction("row"), q.spec, q.scale_layout)


def epilogue(to: str, rule: AlphaRule) -> Epilogue:
    """Nothing but the amaxes, and one cast."""
    return Epilogue(F(1), None, None, INPUT_DTYPES[to], rule)


def judge(case: GemmCase, got: NDArray[Any] | None, to: str, rule: AlphaRule = AlphaRule.RECIPROCAL) -> Judgement:
    """What a kernel's result [M, N] of type `to` is worth. Rules: GEM-13, GEM-14."""
    low, high = accepted(case, to, rule)
    return Judgement(case, low, high, got)


@ignoring_float_warnings
def accepted(case: GemmCase, to: str, rule: AlphaRule) -> tuple[NDArray[Any], NDArray[Any]]:
    """The smallest and the largest result that is right.

    What follows the sums is monotone, so it maps the ends of their interval to the ends of the results'.

    Rules: GEM-13, GEM-14.
    """
    a, b = operand(case.a), operand(case.b)
    if case.aimed:
        wanted = finish(exact(a, b), a, b, epilogue(to, rule))
        return wanted, wanted
    ends = [finish(end, a, b, epilogue(to, rule)) for end in interval(a, b)]
    return ends[0], ends[1]


@ignoring_float_warnings
def interval(a: Operand, b: Operand) -> tuple[Floats, Floats]:
    """The sums that float32 additions in any order can give, rounded outward; of finite operands.

    Computed in float64, whose own error, below K * 2^-52 of the sum of magnitudes, is added.

    Rules: GEM-14.
    """
    left, right = values(a).astype(np.float64), values(b).astype(np.float64)
    depth = a.shape[1]
    share = depth * UNIT / (1 - depth * UNIT) + depth * 2.0**-52
    middle, width = left @ right.T, share * (np.abs(left) @ np.abs(right).T) + depth * 2.0**-126
    low, high = (middle - width).astype(F), (middle + width).astype(F)
    low = np.where(low.astype(np.float64) > middle - width, np.nextafter(low, F(-np.inf)), low)
    high = np.where(high.astype(np.float64) < middle + width, np.nextafter(high, F(np.inf)), high)
    return low, high
