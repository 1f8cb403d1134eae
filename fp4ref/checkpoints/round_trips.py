"""Round trips: the blocks that change if a weight's decoded values are quantized again."""

from __future__ import annotations

import numpy as np

from fp4ref.checkpoints.lossless import LosslessVerdict
from fp4ref.checkpoints.transfer.quantizing import requantized
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.spec import Spec

ROWS = 16  # rows that pieces of a weight and of its quantization have a multiple of
ROUNDING = 2.0**-20


def requantize(weight: Weight, spec: Spec, verdict: LosslessVerdict) -> None:
    """Note which blocks change if the decoded values are quantized again by a specification.

    Values that differ by less than 2^-20 of themselves are the same but for the rounding of a global scale.

    Rules: CNV-49.
    """
    again = requantized(weight, spec)
    wide = spec.block.columns
    alike = (weight.element, weight.scale, weight.block) == (again.element, again.scale, again.block)
    verdict.moved = 0
    for old, new in zip(weight.read(ROWS), again.read(ROWS), strict=True):
        values = weight.decoded(old).astype(np.float64)
        differs = np.zeros((len(values), -(-weight.columns // wide) * wide), np.bool_)
        differs[:, : weight.columns] = np.abs(again.decoded(new) - values) > np.abs(values) * ROUNDING
        moved = differs.reshape(len(values), -1, wide).any(-1)
        rescaled = np.zeros_like(moved)
        if alike and old.scales is not None and new.scales is not None:
            rescaled |= new.scales != old.scales
        verdict.moved += int(moved.sum())
        verdict.rescaled += int(rescaled.sum())
        if not verdict.first and (moved | rescaled).any():
            down, across = (int(each[0]) for each in np.nonzero(moved | rescaled))
            verdict.first = f"row {old.row + down}, column {across * wide}"
