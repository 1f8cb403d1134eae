"""A candidate's buffers for one case, and what readers of layouts and packings find in them.

For example, a kernel that is declared with linear scales may store them in tiles of 128 rows and 4 columns. The reader
of that layout finds the right byte for every block in the same buffer, and the declared reader does not.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.mistakes.data_readers import DataReader
from fp4ref.conformance.mistakes.exhibit import CaseLike, Exhibit
from fp4ref.conformance.mistakes.readers import DECLARED, ScaleReader, fits
from fp4ref.conformance.mistakes.tile_places import Offsets
from fp4ref.errors import Fp4Error
from fp4ref.formats import Codes, F
from fp4ref.layout import Layout
from fp4ref.quantized import DirectionData
from fp4ref.spec import Spec

Bools = NDArray[np.bool_]
FAILURES = (  # of a mistake that means nothing for a case, or whose function, written by a user, is wrong
    Fp4Error,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)


FEW = 1 << 14  # scales of a matrix whose places are remembered


class Readings:
    """A case with the candidate's bytes, as far as readers find scales and codes in them."""

    def __init__(self, case: CaseLike, got: DirectionData, spec: Spec, declared: Layout) -> None:
        self.exhibit = Exhibit(case)
        self.spec, self.declared = spec, declared
        self.rows, self.columns = self.exhibit.shape
        self.blocks = -(-self.columns // spec.block.columns)
        self.data, self.stored = np.asarray(got.data), np.asarray(got.scales).reshape(-1)
        self.amax = None if got.amax is None else np.array(got.amax, F).reshape(-1)
        self._scales: dict[str, Codes | None] = {}
        self._codes: dict[str, Codes | None] = {}
        self._stray: dict[str, bool] = {}
        self._shared: dict[str, Bools] = {}

    @property
    def size(self) -> int:
        """Count of elements."""
        return self.rows * self.columns

    def scales(self, reader: ScaleReader) -> Codes | None:
        """Return the scale bytes [rows, blocks] as a reader finds them; None if they cannot be stored that way."""
        if reader.name not in self._scales:
            found = None
            try:
                offsets = self._offsets(reader)
                found = self.stored[offsets] if fits(offsets, self.stored.size) else None
            except FAILURES:
                pass
            if not reader.remembered:
                return found
            self._scales[reader.name] = found
        return self._scales[reader.name]

    def _offsets(self, reader: ScaleReader) -> Offsets:
        """Return the byte of every scale, [rows, blocks], as a reader takes it."""
        if reader.place is None:
            return self._declared_offsets
        return reader.offsets(self.declared, self.rows, self.blocks)

    @cached_property
    def _declared_offsets(self) -> Offsets:
        if self.rows * self.blocks > FEW:
            return DECLARED.offsets(self.declared, self.rows, self.blocks)
        return _declared(self.declared, self.rows, self.blocks)

    def shared(self, reader: ScaleReader) -> Bools:
        """Return the scales [rows, blocks] whose byte is also that of another scale or of padding."""
        if reader.name not in self._shared:
            down, across = self.declared.padded(self.rows, self.blocks)
            assert reader.place is not None
            offsets = reader.place(np.arange(down)[:, None], np.arange(across)[None, :], self.rows, self.blocks)
            twice = np.asarray(np.bincount(offsets.reshape(-1))[offsets] > 1)[: self.rows, : self.blocks]
            if not reader.remembered:
                return twice
            self._shared[reader.name] = twice
        return self._shared[reader.name]

    def codes(self, reader: DataReader) -> Codes | None:
        """Return the codes [rows, columns] as a reader finds them."""
        if reader.name not in self._codes:
            try:
                found = reader.read(self.data, self.exhibit.shape, self.spec.element.format)
            except FAILURES:
                found = None
            self._codes[reader.name] = found
        return self._codes[reader.name]

    def stray(self, reader: ScaleReader) -> bool:
        """Return True if a specified byte of padding, as a reader takes it, is not its fill. Rules: LAY-5, LAY-15."""
        if not self.declared.pads_compared:
            return False
        if not reader.remembered:
            return self._strays(reader)
        if reader.name not in self._stray:
            self._stray[reader.name] = self._strays(reader)
        return self._stray[reader.name]

    def _strays(self, reader: ScaleReader) -> bool:
        if reader.place is None and self.stored.size == self.rows * self.blocks:
            return False  # nothing is padded
        offsets = self._offsets(reader)
        compared, blank = _padding(self.declared, self.rows, self.blocks)
        left = compared.copy()
        if left.size != self.stored.size or not fits(offsets, self.stored.size):
            return False
        left[offsets] = False
        return bool((self.stored != blank)[left].any())

    def spare(self) -> bool:
        """Return True if spare bits of a row's last byte are not zero. Rules: PACK-2, PACK-5."""
        used = self.columns * self.spec.element.format.bits % 8
        return bool(used and self.data.size and (self.data.reshape(self.rows, -1)[:, -1] >> used).any())


@lru_cache(maxsize=64)
def _declared(declared: Layout, rows: int, blocks: int) -> Offsets:
    """Return the byte of every scale of a matrix that has the shape of many."""
    return DECLARED.offsets(declared, rows, blocks)


@lru_cache(maxsize=64)
def _padding(declared: Layout, rows: int, blocks: int) -> tuple[Bools, Codes]:
    """Return which bytes of a layout's buffer are compared, and the buffer with padding alone."""
    blank = declared.from_linear(np.zeros((rows, blocks), np.uint8))
    return declared.compared(rows, blocks).reshape(-1), blank.reshape(-1)
