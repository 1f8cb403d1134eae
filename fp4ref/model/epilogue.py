"""From the float32 sums of a GEMM to its result: alpha, the amaxes of rows, what is added, and one cast."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import F, Floats, ignoring_float_warnings
from fp4ref.operands import AlphaRule, Epilogue, Operand, alpha_factor

Result = NDArray[Any]


@ignoring_float_warnings
def finish(sums: Floats, a: Operand, b: Operand, epilogue: Epilogue) -> Result:
    """Return the result [M, N] of float32 sums.

    Rules: GEM-5, GEM-6, GEM-7, GEM-8, GEM-24, GEM-26, GEM-27. Certificates: product-*.
    """
    y = sums * total_alpha(a, b, epilogue)
    if not (a.row_scaled or b.row_scaled):
        for added in (epilogue.accumulate, epilogue.bias):
            if added is not None:
                y = y + np.asarray(added).astype(F)
        return _cast(y, epilogue)
    y = _row_scaled(y, a, b)
    if epilogue.bias is not None:
        y = y + np.asarray(epilogue.bias).astype(F)
    result = _cast(y, epilogue)
    if epilogue.accumulate is not None:
        result = _cast(result.astype(F) + np.asarray(epilogue.accumulate).astype(F), epilogue)
    return result


@ignoring_float_warnings
def total_alpha(a: Operand, b: Operand, epilogue: Epilogue) -> np.float32:
    """((alpha * amax_A) * amax_B) * fp32(1 / factor); amaxes of rows come later, so both count as 1 here.

    Rules: GEM-5, GEM-6, GEM-7.
    """
    factor = alpha_factor(a.spec, b.spec)
    if factor is None:
        return epilogue.alpha
    alpha = epilogue.alpha
    if not (a.row_scaled or b.row_scaled):
        alpha = F(F(alpha * F(a.data.amax[0])) * F(b.data.amax[0]))
    return F(alpha / factor) if epilogue.alpha_rule is AlphaRule.DIVISION else F(alpha * F(F(1) / factor))


def _row_scaled(y: Floats, a: Operand, b: Operand) -> Floats:
    """Multiply by the amax of every row: by a product of two amaxes if one of them is a tensor's. Rules: GEM-7."""
    rows, columns = np.asarray(a.data.amax, F)[:, None], np.asarray(b.data.amax, F)[None, :]
    if a.row_scaled and b.row_scaled:
        return np.asarray(y * rows * columns)
    return np.asarray(y * (rows * columns))


def _cast(y: Floats, epilogue: Epilogue) -> Result:
    """Round once to the result's type; every NaN becomes the positive quiet one. Rules: GEM-24, GEM-8."""
    return np.where(np.isnan(y), F(np.nan), y).astype(epilogue.dtype)
