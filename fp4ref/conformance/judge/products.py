"""Judging one product: bit for bit where no order of additions can matter, else by the bound of float32 additions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.formats import F, Floats, ignoring_float_warnings
from fp4ref.layout import layout
from fp4ref.model.epilogue import finish, total_alpha
from fp4ref.model.gemm import exact, values
from fp4ref.operands import AlphaRule, Epilogue, Operand
from fp4ref.quantized import Quantized

UNIT = 2.0**-23  # relative error of one addition, truncation included
HALF_STEP = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # the most that a cast moves a result


@dataclass(frozen=True)
class ProductJudgement:
    """The result of a case. low, high: the accepted results, equal if only one is right. got: None without a result."""

    case: GemmCase
    low: NDArray[Any]
    high: NDArray[Any]
    got: NDArray[Any] | None

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Results that are not accepted; all NaN are equal."""
        if self.got is None:
            return np.ones(self.low.shape, np.bool_)
        low, high, got = (part.astype(F) for part in (self.low, self.high, self.got))
        kind = f"u{self.low.dtype.itemsize}"
        one = (self.low.view(kind) == self.high.view(kind)) & self.case.aimed
        right = np.where(one, self.low.view(kind) == self.got.view(kind), (low <= got) & (got <= high))
        return np.where(np.isnan(low), ~np.isnan(got), ~right)

    @property
    def equal(self) -> bool:
        """True if every result is accepted."""
        return not self.wrong.any()


def operand(q: Quantized) -> Operand:
    """Return the row direction of a tensor."""
    return Operand(*q.direction("row"), q.spec, layout(q.scale_layout))


def judge(
    case: GemmCase, got: NDArray[Any] | None, to: str, rule: AlphaRule = AlphaRule.RECIPROCAL
) -> ProductJudgement:
    """Judge a kernel's result [M, N] of type `to` against its accepted intervals. Rules: GEM-13, GEM-14."""
    low, high = accepted(case, to, rule)
    return ProductJudgement(case, low, high, got)


@ignoring_float_warnings
def accepted(case: GemmCase, to: str, rule: AlphaRule) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the smallest and the largest result that is right.

    The steps after the sums are monotone, so they map the ends of their interval to the ends of the results'.

    Rules: GEM-13, GEM-14, GEM-15, GEM-52.
    """
    (a, b), rest = case.operands, case.epilogue(to, rule)
    sums = (exact(a, b),) * 2 if case.aimed else interval(a, b)
    if not adds(case) or (case.aimed and _scales_exactly(a, b, rest)):
        ends = [finish(end, a, b, rest) for end in sums]
        return ends[0], ends[1]
    plain = rest._replace(bias=None, accumulate=None, dtype=np.dtype(F))
    low, high = (finish(end, a, b, plain) for end in sums)
    return with_additions(case, low, high, INPUT_DTYPES[to], row_scaled=a.row_scaled or b.row_scaled)


def adds(case: GemmCase) -> bool:
    """Return True if anything but zeros is added."""
    return any(part is not None and part.any() for part in (case.bias, case.accumulate))


def _scales_exactly(a: Operand, b: Operand, rest: Epilogue) -> bool:
    """Return True if alpha is a power of two, and no row has an amax of its own."""
    return not (a.row_scaled or b.row_scaled) and bool(np.frexp(total_alpha(a, b, rest))[0] == 0.5)


def with_additions(
    case: GemmCase, low: Floats, high: Floats, to: np.dtype[Any], *, row_scaled: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ends after additions in any order, each rounded or truncated, or fused with what comes before.

    Within four roundings of 2^-23 of the magnitudes; with amaxes of rows one more before C, to the result's type.

    Rules: GEM-15, GEM-52.
    """
    parts = [part.astype(np.float64) for part in (case.bias, case.accumulate) if part is not None]
    size = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
    middle = np.zeros(low.shape)
    for part in parts:
        size, middle = size + np.abs(part), middle + part
    between = row_scaled and case.accumulate is not None and case.accumulate.any()
    slack = size * (4 * UNIT + (HALF_STEP[to.name] if between else 0))
    return (low + middle - slack).astype(F).astype(to), (high + middle + slack).astype(F).astype(to)


@ignoring_float_warnings
def interval(a: Operand, b: Operand) -> tuple[Floats, Floats]:
    """Return the sums that float32 additions in any order can give, rounded outward; of finite operands.

    Computed in float64, whose own error, below K * 2^-52 of the sum of magnitudes, is added.

    Rules: GEM-14. Certificates: sum-interval.
    """
    left, right = values(a).astype(np.float64), values(b).astype(np.float64)
    depth = a.shape[1]
    share = depth * UNIT / (1 - depth * UNIT) + depth * 2.0**-52
    middle, width = left @ right.T, share * (np.abs(left) @ np.abs(right).T) + depth * 2.0**-126
    low, high = (middle - width).astype(F), (middle + width).astype(F)
    low = np.where(low.astype(np.float64) > middle - width, np.nextafter(low, F(-np.inf)), low)
    high = np.where(high.astype(np.float64) < middle + width, np.nextafter(high, F(np.inf)), high)
    return low, high
