"""The matrix of a transform, measured in the codes: which input each output has, and with which sign."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fp4ref.arithmetic import narrow_bfloat16
from fp4ref.conformance.diagnosis.evidence import Part
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.kernel import Kernel, Turn
from fp4ref.conformance.mistakes.record import Mistake, Slot, known
from fp4ref.conformance.mistakes.said import moved, runs
from fp4ref.conformance.mistakes.transforms import MATRIX
from fp4ref.formats import F, Floats, grid
from fp4ref.hadamard import POINTS

CLEAR = 0.35  # the least magnitude of an entry, as a share of the mean one
ENOUGH = 512  # groups that are compared

Matrix = NDArray[np.float64]


@np.errstate(all="ignore")
def transform_matrix(kernel: Kernel, parts: Sequence[Part]) -> Mistake | None:
    """Another matrix of signs than the specification's, if all 256 entries are clear."""
    if not isinstance(kernel.transform, Turn):
        return None
    inputs, outputs = [np.zeros((0, POINTS))], [np.zeros((0, POINTS))]
    values, sign = grid(kernel.codec.format), kernel.codec.format.sign_bit
    for part in parts:
        got, item = part.item.codes(LOW_FIRST), part.item
        if not part.whole or got is None or item.columns % POINTS or item.exhibit.case.direction not in kernel.turned:
            continue
        decoded = values[np.minimum(got & (sign - 1), len(values) - 1)] * np.where(got & sign, -1, 1)
        before = item.exhibit.matrix.reshape(-1, POINTS).astype(np.float64)
        scale = np.sqrt((before**2).sum(axis=1, keepdims=True))
        use = (np.isfinite(scale) & (scale > 0))[:, 0] & (decoded.reshape(-1, POINTS) != 0).any(axis=1)
        inputs.append(before[use] / scale[use])
        outputs.append(decoded.reshape(-1, POINTS)[use])
    x, y = np.concatenate(inputs), np.concatenate(outputs)
    if len(x) < ENOUGH:
        return None
    found = np.linalg.lstsq(x, y, rcond=None)[0].T
    matrix = np.where(found < 0, -1.0, 1.0)
    right = np.sign(kernel.transform(np.eye(POINTS, dtype=F)).T.astype(np.float64))
    if (np.abs(found) < CLEAR * np.abs(found).mean()).any() or (matrix == right).all():
        return None
    return known(
        Slot.HADAMARD,
        f"hadamard-inferred-{kind_of(matrix, right)[0]}",
        f"Hadamard: {kind_of(matrix, right)[1]}",
        breaks=MATRIX,
        transform=partial(_by, matrix),
    )


def kind_of(matrix: Matrix, right: Matrix) -> tuple[str, str]:
    """Return a name and words for a measured transform: signs or an order of the right one's inputs or outputs."""
    for name, what, fit in (("inputs", "inputs", right.T @ matrix), ("outputs", "outputs", (matrix @ right.T).T)):
        if (np.count_nonzero(fit, axis=0) == 1).all():
            order = np.abs(fit).argmax(axis=0)
            minus = fit[order, range(POINTS)] < 0
            said = " ".join(("-" if m else "") + str(i) for m, i in zip(minus, order, strict=True))
            if (order == np.arange(POINTS)).all():
                flipped = np.flatnonzero(minus)
                subject, has = (what, "have") if len(flipped) > 1 else (what.removesuffix("s"), "has")
                return f"{name}-signs", f"{subject} {runs(flipped)} of each 16 {has} the opposite sign"
            if not minus.any():
                return name, moved(order.tolist(), what, "taken")
            return name, f"{what} 0 to 15 stand for {said}"
    return "matrix", "the matrix is another one"


def _by(matrix: Matrix, values: Floats) -> Floats:
    """Return sums that are exact, rounded once to float32 and once to bfloat16."""
    groups = values.reshape(*values.shape[:-1], -1, POINTS).astype(np.float64)
    sums = (groups[..., None, :] * matrix).sum(axis=-1) / 4
    return narrow_bfloat16((sums + 0.0).astype(F)).reshape(values.shape)
