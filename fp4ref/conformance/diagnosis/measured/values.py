"""The matrix of a Hadamard kernel, measured in the values that it returns."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.measured.transform import kind_of
from fp4ref.conformance.mistakes.kernel import Kernel, Turn
from fp4ref.formats import F
from fp4ref.hadamard import POINTS

Matrix = NDArray[np.float64]
ENOUGH = 64  # groups
UNIT = 64  # entries are multiples of its reciprocal
SLACK = 2.0**-19  # of sums of 16 in float32, as a share of the sum of magnitudes


@np.errstate(all="ignore")
def matrix_of(kernel: Kernel, results: Sequence[tuple[Matrix, Matrix]]) -> tuple[str, str, Matrix] | None:
    """Return a name, a sentence and the matrix [output, input] that fits groups, if it is another."""
    before = [x.astype(np.float64).reshape(-1, POINTS) for x, y in results if x.shape[1] % POINTS == 0]
    after = [y.astype(np.float64).reshape(-1, POINTS) for x, y in results if x.shape[1] % POINTS == 0]
    if not before or sum(map(len, before)) < ENOUGH or kernel.transform is None:
        return None
    x, y = np.concatenate(before), np.concatenate(after)
    scale = np.sqrt((x**2).sum(axis=1, keepdims=True))
    use = (np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)) & ((scale > 2.0**-90) & (scale < 2.0**90))[:, 0]
    if np.count_nonzero(use) < ENOUGH:
        return None
    found = np.linalg.lstsq(x[use] / scale[use], y[use] / scale[use], rcond=None)[0].T
    matrix = np.round(found * UNIT) / UNIT
    right = kernel.transform(np.eye(POINTS, dtype=F)).T.astype(np.float64)
    if (matrix == right).all() or not matrix.any():
        return None
    plus = np.abs(matrix).max()
    if (np.abs(matrix) == plus).all():
        name, text = kind_of(np.sign(matrix), np.sign(right))
        factor = f" and the factor is {plus:g}" if plus != np.abs(right).max() else ""
        return f"hadamard-inferred-{name}", f"Hadamard: {text}{factor}", matrix
    return "hadamard-inferred-matrix", "Hadamard: the matrix is another one", matrix


def signs_of(matrix: Matrix) -> int | None:
    """Return the mask of signs whose transform has this matrix, None if none has."""
    plain = Turn(0)(np.eye(POINTS, dtype=F)).T
    mask = sum(1 << i for i in range(POINTS) if (matrix[:, i] == -plain[:, i]).all())
    return mask if (matrix == Turn(mask)(np.eye(POINTS, dtype=F)).T).all() else None


@np.errstate(all="ignore")
def may_give(matrix: Matrix, values: Matrix, got: Matrix) -> bool:
    """Return True if sums with this matrix, in any order of float32 additions, may be rounded to what was got."""
    if values.shape[1] % POINTS:
        return False
    groups = values.astype(np.float64).reshape(-1, 1, POINTS)
    terms = groups * matrix
    usual = np.isfinite(groups).all(axis=2)
    sums, slack = terms.sum(axis=2), SLACK * np.abs(terms).sum(axis=2)
    y = got.astype(np.float64).reshape(-1, POINTS)
    low, high = (v.astype(F).astype(ml_dtypes.bfloat16).astype(np.float64) for v in (sums - slack, sums + slack))
    inside = (low <= y) & (y <= high)
    return bool((inside | ~usual & ~np.isfinite(y)).all())
