"""A part of a case, as readers of layouts and packings find its bytes.

For example, a part of 32 rows and 256 columns has a scale byte for each of its blocks wherever a reader finds them, and
those of the right reader are the ones that a hypothesis makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from fp4ref.conformance.diagnosis.glances import FEWEST, Found, Glance
from fp4ref.conformance.diagnosis.marks import Marked, Tier
from fp4ref.conformance.judge.compare import unequal
from fp4ref.conformance.mistakes.data_readers import ABSENT, LOST, LOW_FIRST, DataReader
from fp4ref.conformance.mistakes.exhibit import EVERY
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide
from fp4ref.conformance.mistakes.readers import DECLARED, ScaleReader
from fp4ref.formats import Codes

GLANCED = 1 << 17  # elements of a case whose readers are all looked at before one is compared


class ReadPart:
    """Some rows and columns of a case, whose bytes are compared with those that are wanted.

    blocks, elements: what is compared, None for all. amax: whether the maxima are.
    """

    def __init__(self, item: Marked, rows: slice, columns: slice, tier: Tier) -> None:
        self._case, self.rows, self.columns = item, rows, columns
        width = item.spec.block.columns
        self.across = EVERY if columns == EVERY else slice(columns.start // width, -(-columns.stop // width))
        marks = item.marks(tier)
        self.whole = rows == EVERY and columns == EVERY
        self.blocks = None if marks is None else marks.blocks[rows, self.across]
        self.elements = None if marks is None else marks.elements[rows, columns]
        self.amax = marks is None or marks.amax

    @property
    def declared_scales(self) -> Codes | None:
        """The candidate's scale bytes [rows, blocks] of the part, read where they are declared to be."""
        got = self._case.scales(DECLARED)
        return None if got is None else got[self.rows, self.across]

    @cached_property
    def form(self) -> tuple[int, int]:
        """The rows and blocks in the part."""
        return len(range(self._case.rows)[self.rows]), len(range(self._case.blocks)[self.across])

    @property
    def count(self) -> int:
        """The number of blocks in the part."""
        return math.prod(self.form)

    @property
    def glances(self) -> bool:
        """True if reading the part in every way takes little time and memory."""
        return self._case.size <= GLANCED

    def bytes_match(self, kernel: Kernel, side: ScaleSide, reader: ScaleReader) -> bool:
        """Return True if the scale bytes are the candidate's."""
        found = self._stored(reader)
        if found is None or found.bytes.shape != side.scales.shape:
            return False
        bad = unequal(kernel.spec.scale, found.bytes, side.scales, kernel.spec)
        if found.free is not None:
            bad &= ~found.free
        return not (bad if self.blocks is None else bad & self.blocks).any()

    def surely_wrong(self, kernel: Kernel, side: ScaleSide) -> bool:
        """Return True if scale bytes are not those where they are declared, whichever NaN is meant."""
        got = self.declared_scales
        if got is None or got.shape != side.scales.shape:
            return True
        bad = got != side.scales
        if self.blocks is not None:
            bad &= self.blocks
        if bad.any():
            decode = kernel.spec.scale.decode
            bad &= ~(np.isnan(decode(got)) & np.isnan(decode(side.scales)))
        return bool(bad.any())

    def matching(
        self, kernel: Kernel, side: ScaleSide, readers: Sequence[ScaleReader], tick: Callable[[], None]
    ) -> Iterator[ScaleReader]:
        """Yield the readers that find the right scale bytes. tick: of a large case each takes a while."""
        if len(readers) >= FEWEST and self.glances and all(reader.remembered for reader in readers):
            readers = self._scale_glance.possible(
                readers, side.scales, lambda a, b: unequal(kernel.spec.scale, a, b, kernel.spec)
            )
        for reader in readers:
            tick()
            if self.bytes_match(kernel, side, reader):
                yield reader

    def _stored(self, reader: ScaleReader) -> Found | None:
        """Return the scale bytes that a reader finds."""
        got = self._case.scales(reader)
        if got is None:
            return None
        shared = self._case.shared(reader)[self.rows, self.across] if reader.shares else None
        return Found(got[self.rows, self.across], shared)

    @cached_property
    def _scale_glance(self) -> Glance[ScaleReader]:
        return Glance(self.form, self.blocks, self._stored)

    @cached_property
    def _code_glance(self) -> Glance[DataReader]:
        shape = len(range(self._case.rows)[self.rows]), len(range(self._case.columns)[self.columns])
        return Glance(shape, self.elements, self._written)

    def likely(self, kernel: Kernel, wanted: Codes, readers: Sequence[DataReader]) -> Sequence[DataReader]:
        """Return the readers that find the wanted codes as far as a glance tells."""
        if len(readers) < FEWEST or not self.glances:
            return readers
        return self._code_glance.possible(readers, wanted, lambda a, b: unequal(kernel.spec.element, a, b, kernel.spec))

    def finds(self, kernel: Kernel, wanted: Codes, reader: DataReader) -> bool:
        """Return True if a reader finds these codes in the candidate's data."""
        found = self._written(reader)
        if found is None or found.bytes.shape != wanted.shape:
            return False
        got = found.bytes if found.free is None else np.where(found.free, wanted, found.bytes).astype(np.uint8)
        bad = unequal(kernel.spec.element, got, wanted, kernel.spec)
        return not (bad if self.elements is None else bad & self.elements).any()

    def _written(self, reader: DataReader) -> Found | None:
        """Return the codes that a reader finds, and where it finds that there is none."""
        got = self._case.codes(reader)
        if got is None:
            return None
        got = got[self.rows, self.columns]
        free = None
        if reader is not LOW_FIRST and self._case.spec.element.format.bits < 8:
            free = got == LOST
        if got.dtype != np.uint8:
            free = got == ABSENT if free is None else free | (got == ABSENT)
        return Found(got, free)
