"""Classes of special input: what may excuse a block that differs, and how far a special value reaches.

Implementations that agree on every finite input differ on these, and a verdict names them instead of calling the
candidate wrong.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.model.tiles import Matrix, split, tiles, widen
from fp4ref.quantized import Direction
from fp4ref.spec import Block, Granularity, Spec

Bools = NDArray[np.bool_]
Tile = tuple[slice, slice]


class Excuse(StrEnum):
    """The special property of a block's input; the first that applies counts."""

    NAN = "NaN"
    INF = "Inf"
    UNDERFLOW = "scale underflow"
    MINUS_ZERO = "-0"


EXCUSES: tuple[Excuse | None, ...] = (None, *Excuse)  # an array of excuses holds indices into these
NOT_FINITE = (EXCUSES.index(Excuse.NAN), EXCUSES.index(Excuse.INF))


def per_block(flags: NDArray[Any], spec: Spec) -> NDArray[Any]:
    """[rows, blocks] -> [block rows, blocks, row of the block]."""
    return split(flags, Block(spec.block.rows, 1))[:, :, :, 0]


def excuses(
    matrix: Matrix,
    tile: Tile,
    spec: Spec,
    direction: Direction,
    influence: Influence,
    expected_scales: NDArray[np.uint8],
    bad: tuple[Bools, Bools],
) -> NDArray[np.intp]:
    """Return the excuse of each block of a tile: indices into EXCUSES [block rows, blocks].

    bad: which codes [rows, columns] and which scales [rows, blocks] of the tile differ.

    Rules: CNF-2.
    """
    bad_codes, bad_scales = bad
    values = widen(matrix[tile])
    blocks = split(values, spec.block)
    nan, inf = (per_block(flags[:, None], spec).any(axis=2) for flags in influence.of(tile[0]))
    nan = nan | np.isnan(blocks).any(axis=(2, 3))
    inf = inf | np.isinf(blocks).any(axis=(2, 3))
    underflow = (per_block(expected_scales, spec) == 0).all(axis=2) & (blocks != 0).any(axis=(2, 3))
    minus_zero = (values == 0) & np.signbit(values) & (spec.hadamard is None or direction == "row")
    only_zeros = ~split(bad_codes & ~minus_zero, spec.block).any(axis=(2, 3))
    only_zeros &= ~per_block(bad_scales, spec).any(axis=2) & split(bad_codes, spec.block).any(axis=(2, 3))
    return np.select([nan, inf, underflow, only_zeros], [EXCUSES.index(excuse) for excuse in Excuse], 0)


class Influence:
    """The rows of a matrix that a NaN or an infinity reaches through a global amax.

    possible: whether there is a global amax that a special value may have changed; the input is only then read.

    Rules: GLB-1, GLB-3, GLB-5.
    """

    def __init__(self, matrix: Matrix, spec: Spec, possible: bool) -> None:
        self._matrix, self._spec, self._possible = matrix, spec, possible
        self._rows: tuple[Bools, Bools] | None = None

    def anywhere(self) -> Excuse | None:
        """Return the class of special input that the matrix holds."""
        nan, inf = self._special()
        return Excuse.NAN if nan.any() else Excuse.INF if inf.any() else None

    def of(self, rows: slice) -> tuple[Bools, Bools]:
        """Return, for each of these rows, True if NaN reaches it, and True if Inf does."""
        if not self._possible:
            nothing = np.zeros(rows.stop - rows.start, np.bool_)
            return nothing, nothing
        nan, inf = self._special()
        if self._spec.global_scale is Granularity.ROW:
            return nan[rows], inf[rows]
        return np.full_like(nan[rows], nan.any()), np.full_like(inf[rows], inf.any())

    def _special(self) -> tuple[Bools, Bools]:
        """Rows that hold a NaN, and rows that hold an infinity."""
        if self._rows is None:
            nan, inf = np.zeros((2, self._matrix.shape[0]), np.bool_)
            for tile in tiles(self._matrix.shape, self._spec.block):
                values = widen(self._matrix[tile])
                nan[tile[0]] |= np.isnan(values).any(axis=1)
                inf[tile[0]] |= np.isinf(values).any(axis=1)
            self._rows = nan, inf
        return self._rows
