"""Random bytes as other implementations draw them: named maps from an element to a counter and a word.

A map says which sequence (the upper half of a Philox counter) an element's thread has, and which word of that sequence
the element's group of four takes. Word n is component n % 4 of the output at counter `offset + n // 4`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp4ref.errors import DomainError, ShapeError
from fp4ref.formats import Codes
from fp4ref.philox import philox4x32
from fp4ref.quantized import DIRECTIONS, Direction, DirectionChoice, Directions, matrix_shape

Places = NDArray[np.int64]
# (row, column, (rows, columns) of the matrix, whether both directions are made) -> sequence, word; of the group of four
# whose first element lies at that row and column of the matrix.
Map = Callable[[Places, Places, tuple[int, int], bool], tuple[Places, Places]]
GROUP = 4  # elements that share a word
ROWS_AT_ONCE = 128


@dataclass(frozen=True, kw_only=True)
class RandomMap:
    """An implementation's map from elements to random bytes, as a function of shape, seed and offset.

    row, column: the maps of the two directions. multiples: of rows and columns, which the kernel needs.
    directions: what it can produce. certain, inferred: what is known of it, and what is only assumed.

    Rules: SR-10.
    """

    name: str
    row: Map
    column: Map
    multiples: tuple[int, int]
    directions: tuple[str, ...]
    certain: str
    inferred: str

    def __call__(
        self,
        shape: tuple[int, ...],
        seed: int = 0,
        offset: int = 0,
        directions: DirectionChoice = "both",
        rounds: int = 10,
    ) -> Directions:
        """Make the random bytes of a tensor: uint8 [M, K] and [K, M], None where a direction is not produced.

        seed, offset: 64 bits each, the generator's state when the kernel starts. rounds: of the Philox function.

        Errors: ShapeError, DomainError.

        Rules: SR-6, SR-10.
        """
        for value, name in ((seed, "seed"), (offset, "offset")):
            if not isinstance(value, (int, np.integer)) or not 0 <= value < 1 << 64:
                raise DomainError(f"random map {self.name}", f"{name} {value!r}", "an integer of 64 bits", "SR-10")
        places = self.places(shape, directions)
        return Directions(*(None if part is None else _drawn(part, int(seed), int(offset), rounds) for part in places))

    def places(self, shape: tuple[int, ...], directions: DirectionChoice = "both") -> Directions:
        """Return the source of the bytes: int64 [rows, columns / 4, 2] of each direction, the sequence and the word.

        Errors: ShapeError, DomainError.

        Rules: SR-10.
        """
        if directions not in self.directions:
            got, needed = f"directions {directions!r}", " or ".join(self.directions)
            raise DomainError(f"random map {self.name}", got, needed, "SR-10")
        matrix = rows, columns = matrix_shape(tuple(map(int, shape)))
        if rows % self.multiples[0] or columns % self.multiples[1]:
            needed = f"multiples of {self.multiples[0]} and {self.multiples[1]}"
            raise ShapeError(f"random map {self.name}", f"{rows} x {columns}", needed, "SR-10")
        both = directions == "both"
        return Directions(
            *(_places(self, name, matrix, both) if both or name == directions else None for name in DIRECTIONS)
        )


def _places(of: RandomMap, direction: Direction, matrix: tuple[int, int], both: bool) -> Places:
    """Rows are those of the direction, so the column direction comes out transposed."""
    rows, columns = matrix
    if direction == "row":
        found = of.row(np.arange(rows)[:, None], np.arange(0, columns, GROUP)[None], matrix, both)
    else:
        found = of.column(np.arange(0, rows, GROUP)[None], np.arange(columns)[:, None], matrix, both)
    return np.stack(np.broadcast_arrays(*found), axis=-1)


def _drawn(places: Places, seed: int, offset: int, rounds: int) -> Codes:
    """Return the bytes at places; byte i of a word, the low one first, is that of element i."""
    lines, groups, _ = places.shape
    result = np.empty((lines, groups, GROUP), np.uint8)
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint64)
    for first in range(0, lines, ROWS_AT_ONCE):
        sequence, word = np.moveaxis(places[first : first + ROWS_AT_ONCE].astype(np.uint64), -1, 0)
        block = word // np.uint64(4)
        low = np.uint64(offset) + block
        high = sequence + (low < block)  # the counter has 128 bits
        counter = np.stack(
            [low & np.uint64(0xFFFFFFFF), low >> np.uint64(32), high & np.uint64(0xFFFFFFFF), high >> np.uint64(32)], -1
        )
        words = philox4x32(counter, key, rounds).astype("<u4")
        taken = np.take_along_axis(words, (word % np.uint64(4)).astype(np.intp)[..., None], axis=-1)
        result[first : first + ROWS_AT_ONCE] = taken.view(np.uint8)
    return result.reshape(lines, groups * GROUP)


# Chunks of 128 x 128 elements, one per block of threads, side by side first.


def _sequence(thread: Places, row: Places, column: Places, matrix: tuple[int, int], threads: int) -> Places:
    across = -(-matrix[1] // 128)
    return thread + threads * (column // 128 + row // 128 * across)


def _halves(thread: Places, column: Places) -> Places:
    """Word of a row's 16 elements in a thread that takes 8 of them, then the other 8; half of a warp begins above."""
    half, lane = column % 16 // 8, thread % 32
    return (half - lane // 16) % 2 * 2 + column % 8 // 4


def _tuned_row(row: Places, column: Places, matrix: tuple[int, int], both: bool) -> tuple[Places, Places]:
    """Four stages of 64 x 64; in each the rows, in two steps of 32, come before the columns."""
    stage = row % 128 // 64 * 2 + column % 128 // 64
    thread = row % 32 * 4 + column % 64 // 16
    word = stage * (16 if both else 8) + row % 64 // 32 * 4 + _halves(thread, column)
    return _sequence(thread, row, column, matrix, 128), word


def _tuned_column(row: Places, column: Places, matrix: tuple[int, int], both: bool) -> tuple[Places, Places]:
    """Return the thread and word of a place: a lane takes two columns, and its warp's 16 rows rotate with the lane."""
    stage = row % 128 // 64 * 2 + column % 128 // 64
    lane = column % 64 // 2
    warp = (row % 64 // 16 - lane // 2) % 4
    word = stage * 16 + 8 + column % 2 * 4 + row % 16 // 4
    return _sequence(warp * 32 + lane, row, column, matrix, 128), word


def _strips_row(row: Places, column: Places, matrix: tuple[int, int], both: bool) -> tuple[Places, Places]:
    """Four stages of 32 x 128; in each the columns, in two steps of 16 rows, come before the rows."""
    thread = row % 16 * 8 + column % 128 // 16
    word = row % 128 // 32 * (16 if both else 8) + (8 if both else 0) + row % 32 // 16 * 4 + _halves(thread, column)
    return _sequence(thread, row, column, matrix, 128), word


def _strips_column(row: Places, column: Places, matrix: tuple[int, int], both: bool) -> tuple[Places, Places]:
    word = row % 128 // 32 * (16 if both else 8) + row % 32 // 16 * 4 + row % 16 // 4
    return _sequence(column % 128, row, column, matrix, 128), word


def _fallback_row(row: Places, column: Places, matrix: tuple[int, int], both: bool) -> tuple[Places, Places]:
    """All rows, in four steps of 32, come before all columns."""
    word = row % 128 // 32 * 4 + column % 16 // 4
    return _sequence(row % 32 * 8 + column % 128 // 16, row, column, matrix, 256), word


def _fallback_column(row: Places, column: Places, matrix: tuple[int, int], both: bool) -> tuple[Places, Places]:
    thread = column % 64 // 2 * 8 + row % 128 // 16
    word = (16 if both else 0) + column % 128 // 64 * 8 + column % 2 * 4 + row % 16 // 4
    return _sequence(thread, row, column, matrix, 256), word


# Tiles of 128 columns by up to 1024 rows, walked in steps of 128 rows; each step starts its sequences anew.


def _steps(matrix: tuple[int, int]) -> int:
    return -(-min(matrix[0], 1024) // 128)


def _tile(row: Places, column: Places, matrix: tuple[int, int]) -> Places:
    return column // 128 + row // 1024 * (matrix[1] // 128)


def _fused_row(row: Places, column: Places, matrix: tuple[int, int], both: bool) -> tuple[Places, Places]:
    """Threads 256 to 511, two per row; they count their step before they use it."""
    thread = 256 + row % 128 * 2 + column % 128 // 64
    step = row % 1024 // 128 + 1
    return thread + 512 * (step + _steps(matrix) * _tile(row, column, matrix)), column % 64 // 4


def _fused_column(row: Places, column: Places, matrix: tuple[int, int], both: bool) -> tuple[Places, Places]:
    """Threads 128 to 255, one per column."""
    step = row % 1024 // 128
    return 128 + column % 128 + 512 * (step + _steps(matrix) * _tile(row, column, matrix)), row % 128 // 4


def _grouped_row(row: Places, column: Places, matrix: tuple[int, int], both: bool) -> tuple[Places, Places]:
    """Do the same as `_fused_row`, past every sequence of the columns."""
    sequence, word = _fused_row(row, column, matrix, both)
    tiles = matrix[1] // 128 * -(-matrix[0] // 1024)
    return sequence + 512 * _steps(matrix) * tiles, word


_BYTES = "that byte i of a word, the low one first, serves element i where the native instruction rounds"
_EMULATED = "sequences, order of the words, and the bytes where the rounding is emulated (read in the source, not run)"

MAPS: dict[str, RandomMap] = {
    each.name: each
    for each in (
        RandomMap(
            name="te.tuned_1d",
            row=_tuned_row,
            column=_tuned_column,
            multiples=(32, 32),
            directions=("row", "both"),
            certain=_EMULATED,
            inferred=_BYTES,
        ),
        RandomMap(
            name="te.2d",
            row=_strips_row,
            column=_strips_column,
            multiples=(32, 32),
            directions=("row", "column", "both"),
            certain=_EMULATED,
            inferred=_BYTES,
        ),
        RandomMap(
            name="te.fallback",
            row=_fallback_row,
            column=_fallback_column,
            multiples=(16, 16),
            directions=("row", "column", "both"),
            certain=_EMULATED,
            inferred=_BYTES,
        ),
        RandomMap(
            name="te.rht_fused",
            row=_fused_row,
            column=_fused_column,
            multiples=(64, 128),
            directions=("row", "column", "both"),
            certain="sequences by thread, step and tile; a fresh Philox output for every 16 elements (read, not run)",
            inferred=f"which elements a thread has, the order of the tiles, and {_BYTES}; there is no emulated path",
        ),
        RandomMap(
            name="te.rht_fused_grouped",
            row=_grouped_row,
            column=_fused_column,
            multiples=(64, 128),
            directions=("row", "column", "both"),
            certain="as te.rht_fused, and the distance between the sequences of rows and columns (read, not run)",
            inferred=f"which elements a thread has, the order of the tiles, one group, and {_BYTES}",
        ),
    )
}
