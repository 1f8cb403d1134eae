"""Walking a matrix in tiles of whole blocks, so that every operation needs bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.formats import F, Floats
from fp4ref.quantized import Direction, matrix_shape
from fp4ref.spec import Block

Scalar = TypeVar("Scalar", bound=np.generic)
ELEMENTS = 1 << 18  # per tile: float32 intermediates stay in a second-level cache
WIDTH = 1 << 11  # columns per tile at most, a multiple of every block's columns and of 16


class Matrix:
    """The [M, K] matrix of a tensor, or its transpose, read in tiles; a tensor's view is never copied.

    Rules: NUM-3, NUM-4, BLK-8.
    """

    def __init__(self, x: NDArray[np.generic], direction: Direction) -> None:
        rows, columns = matrix_shape(x.shape)
        self._transposed = direction == "column"
        self._tensor = x[None] if x.ndim == 1 else x
        self.shape = (columns, rows) if self._transposed else (rows, columns)

    def __getitem__(self, tile: tuple[slice, slice]) -> NDArray[np.generic]:
        rows, columns = tile[::-1] if self._transposed else tile
        if self._tensor.ndim == 2:
            part = self._tensor[rows, columns]
        else:  # gathered row by row: flattening the whole view could copy it
            index = np.unravel_index(np.arange(rows.start, rows.stop), self._tensor.shape[:-1])
            part = self._tensor[..., columns][index]
        return np.ascontiguousarray(part.T if self._transposed else part)


def widen(part: NDArray[np.generic]) -> Floats:
    """float32, bfloat16 or float16 as float32; exact. Rules: NUM-10. Certificates: widen-*."""
    if part.dtype == ml_dtypes.bfloat16:
        return (part.view(np.uint16).astype(np.uint32) << 16).view(F)
    return part.astype(F)


def tiles(shape: tuple[int, int], block: Block) -> Iterator[tuple[slice, slice]]:
    """Row and column ranges that cover a matrix; every range starts at a multiple of the block."""
    rows, columns = shape
    unit = 16 * block.columns
    width = min(max(-(-columns // unit), 1), max(WIDTH // unit, 1)) * unit
    height = max(ELEMENTS // max(width, 1) // block.rows, 1) * block.rows
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            yield slice(row, min(row + height, rows)), slice(column, min(column + width, columns))


def split(tile: NDArray[Scalar], block: Block) -> NDArray[Scalar]:
    """[rows, columns] -> [block row, block column, row, column], padded with zeros. Rules: BLK-1."""
    rows, columns = tile.shape
    below, right = -rows % block.rows, -columns % block.columns
    if below or right:
        padded = np.zeros((rows + below, columns + right), tile.dtype)
        padded[:rows, :columns] = tile
        tile = padded
    blocks = tile.reshape(tile.shape[0] // block.rows, block.rows, tile.shape[1] // block.columns, block.columns)
    return blocks.transpose(0, 2, 1, 3)


def join(blocks: NDArray[Scalar], shape: tuple[int, int]) -> NDArray[Scalar]:
    """Inverse of `split`, without the padding."""
    down, across, rows, columns = blocks.shape
    return blocks.transpose(0, 2, 1, 3).reshape(down * rows, across * columns)[: shape[0], : shape[1]]
