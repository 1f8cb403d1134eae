"""Block scales that are numbers, those of FP8 weights: for the whole tensor, for each row, or for each square."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.convention import part_of_block, square_grid
from fp4ref.files.tensors import DTYPES

EXPONENTS = ("U8", "F8_E8M0")  # element types of scales that are bytes of E8M0


class FloatScales(NamedTuple):
    """Scales as stored. data: their bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def numbers(self) -> NDArray[np.float32]:
        """Return the values, in the order of memory: powers of two where bytes of E8M0 are stored."""
        if self.dtype in EXPONENTS:
            return bounds.values("e8m0")[np.frombuffer(self.data, np.uint8)]
        return np.frombuffer(self.data, DTYPES[self.dtype].array).astype(np.float32)


def part_of(block: tuple[int, int], count: int, shape: tuple[int, ...]) -> str:
    """Return the part of a weight that each of `count` scales is for: that of the block if the number fits; else "".

    shape: [..., rows, columns] of the weight.

    Rules: CKP-10.
    """
    *front, rows, _ = shape
    matrices = math.prod(front)
    declared = part_of_block(block)
    sizes = {"tensor": {1, matrices}, "row": {matrices * rows}}
    if declared == "square":
        sizes["square"] = {math.prod(square_grid(block, shape))}
    return next((each for each in (declared, *sizes) if count in sizes[each]), "")


def factors(
    numbers: NDArray[np.float32], block: tuple[int, int], shape: tuple[int, ...], matrix: int, rows: range
) -> Any:
    """Return the scales of some rows of a matrix, in a shape that multiplies their values.

    numbers: as many as `part_of` has a name for.

    Rules: CKP-10.
    """
    part, matrices = part_of(block, numbers.size, shape), math.prod(shape[:-2])
    if part == "tensor":
        return numbers[matrix if numbers.size > 1 else 0]
    if part == "row":
        return numbers.reshape(matrices, -1)[matrix, rows.start : rows.stop, None]
    squares = numbers.reshape(matrices, *square_grid(block, shape)[-2:])[matrix]
    return np.repeat(squares[np.arange(rows.start, rows.stop) // block[0]], block[1], 1)[:, : shape[-1]]
