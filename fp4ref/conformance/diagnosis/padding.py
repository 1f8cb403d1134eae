"""The content of the padding of scales, and of spare nibbles, where it is not zero: in words, and as functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.mistakes.places import units_of
from fp4ref.conformance.mistakes.readers import ScaleReader
from fp4ref.conformance.mistakes.record import Mistake
from fp4ref.formats import Codes
from fp4ref.layout import Layout

WORDS = {"": ("padding is", "padding repeats"), "rows": ("padding rows are", "padding rows repeat")}
WORDS["columns"] = "padding columns are", "padding columns repeat"


class Padding(NamedTuple):
    """The content of the padding: one byte, the scales at an edge, or those that follow in memory.

    where: all, rows below or columns behind. corner: these have it where both are, too.
    """

    text: str
    byte: int = 0
    edge: bool = False
    where: str = ""
    corner: bool = False
    follows: bool = False

    @property
    def name(self) -> str:
        """The name of the mistake, of its own for each content; the text may be that of another one's."""
        content = "next-row" if self.follows else "edge" if self.edge else f"{self.byte:02x}"
        return "-".join(filter(None, ("padding", self.where, "corner" * self.corner, content)))

    def filled(self, scales: Codes, shape: tuple[int, int]) -> Codes:
        """Return scales [rows, blocks] with padding up to a shape."""
        rows, blocks = scales.shape
        edges = ((0, shape[0] - rows), (0, shape[1] - blocks))
        if self.follows:
            flat = np.append(scales.reshape(-1), np.zeros(shape[1], np.uint8))
            made: Codes = flat[np.arange(rows)[:, None] * blocks + np.arange(shape[1])]
            return np.pad(made, ((0, shape[0] - rows), (0, 0)))
        made = np.pad(scales, edges, "edge") if self.edge else np.pad(scales, edges, constant_values=self.byte)
        if self.where and not self.corner:
            made[rows:, blocks:] = 0
        if self.where == "rows":
            made[:rows, blocks:] = 0
        if self.where == "columns":
            made[rows:, :blocks] = 0
        return made


def paddings(numbers: Sequence[int]) -> Iterator[Padding]:
    """Yield what the padding may be instead of zeros. numbers: the bytes that come into question."""
    yield Padding("padding columns hold the first scales of the next row instead of 0", follows=True)
    for where, (are, repeat) in WORDS.items():
        for corner in (False, True) if where else (False,):
            for byte in numbers:
                yield Padding(f"{are} {byte:#04x} instead of 0", byte, where=where, corner=corner)
            yield Padding(f"{repeat} the last scales instead of 0", edge=True, where=where, corner=corner)


def in_padding(items: Sequence[Item], read: ScaleReader, mistakes: Sequence[Mistake]) -> bool:
    """Return True if padding of the scales is not zero as a reader takes it, and none of the mistakes fills it so."""
    stray = [item for item in items if item.scales(read) is not None and item.stray(read)]
    return not all(any(_fills(mistake, item) for mistake in mistakes) for item in stray)


def _fills(mistake: Mistake, item: Item) -> bool:
    """Return True if a mistake that moves scale bytes of the padding as well makes every byte of the buffer."""
    if mistake.grid is None:
        return False
    down, across = item.declared.padded(item.rows, item.blocks)
    grid = np.zeros((down, across), np.uint8)
    grid[: item.rows, : item.blocks] = item.base.scales
    made, row, block = mistake.grid(grid), np.arange(down)[:, None], np.arange(across)[None]
    if mistake.within is not None:
        width = item.spec.block.columns
        inside = mistake.within.holds(units_of(item.exhibit.case, width, row, block * width))
        made = np.where(inside, made, grid)
    stored = item.stored[item.declared.offset(row, block, item.blocks, item.rows)]
    compared = item.declared.compared(item.rows, item.blocks).reshape(-1)
    return bool((stored == made)[compared[item.declared.offset(row, block, item.blocks, item.rows)]].all())


class WithBuffers(Protocol):
    """A case with the candidate's buffers."""

    declared: Layout
    stored: Codes
    data: Codes
    rows: int
    blocks: int


def padding_text(items: Sequence[WithBuffers]) -> str:
    """Return words for the bytes in the padding of all cases, if one kind of content explains them; else empty."""
    grids = []
    for item in items:
        shape = item.declared.padded(item.rows, item.blocks)
        down, across = np.arange(shape[0])[:, None], np.arange(shape[1])[None]
        grid = item.stored[item.declared.offset(down, across, item.blocks, item.rows)]
        grids.append((grid, grid[: item.rows, : item.blocks]))
    outside = [
        np.concatenate([grid[len(own) :].ravel(), grid[: len(own), own.shape[1] :].ravel()]) for grid, own in grids
    ]
    numbers = np.unique(np.concatenate([np.zeros(0, np.uint8), *outside]))
    one = [int(byte) for byte in numbers if byte] if np.count_nonzero(numbers) == 1 else []
    found = paddings(one)
    return next((one.text for one in found if all(_is(one, *pair) for pair in grids)), "")


def _is(padding: Padding, grid: Codes, own: Codes) -> bool:
    return bool((padding.filled(own, (grid.shape[0], grid.shape[1])) == grid).all())


def _next_first(data: Codes) -> Codes:
    return np.append(data[1:, 0] & 15, np.uint8(0))


SPARE = (
    ("the first code of the next row", _next_first),
    ("the row's last code again", lambda data: data[:, -1] & 15),
    ("the first code of the row", lambda data: data[:, 0] & 15),
    ("0xf", partial(lambda code, data: np.full(len(data), code, np.uint8), 15)),
)


def spare_text(items: Sequence[WithBuffers]) -> str:
    """Return words for the spare nibbles of odd rows of 4-bit codes, if one kind of content explains them."""
    rows = [item.data.reshape(item.rows, -1) for item in items]
    return next((f"they hold {said}" for said, of in SPARE if all((of(d) == d[:, -1] >> 4).all() for d in rows)), "")
