"""Evidence: a candidate's bytes on some cases, cut small enough to try hundreds of hypotheses on it.

An item is one case with the candidate's amax, scale bytes and codes, as a reader of a declared layout finds them. A
large item is also cut to a piece: 32 rows and some columns around the first block that differs. A hypothesis is tried
on the piece first, and on the whole only if it makes all bytes of the piece. For example, a wrong tile of a matrix of
4096 x 4096 elements is first tried as 32 rows of that tile.

Special input (NaN, infinities, zeros, subnormals) is set apart in tiers: a hypothesis may explain all ordinary blocks
first, and the rules for special values are looked for afterwards.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.marks import Marked, Tier
from fp4ref.conformance.diagnosis.read_parts import ReadPart
from fp4ref.conformance.diagnosis.readings import FAILURES
from fp4ref.conformance.diagnosis.special_input import Special
from fp4ref.conformance.judge.compare import unequal
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST, DataReader
from fp4ref.conformance.mistakes.exhibit import EVERY
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide, kernel_of
from fp4ref.conformance.mistakes.places import Place
from fp4ref.conformance.mistakes.readers import DECLARED, ScaleReader
from fp4ref.conformance.mistakes.sides import code_side, scale_side, scales_tried
from fp4ref.formats import Codes, F, Floats
from fp4ref.specs import OWN

Bools = NDArray[np.bool_]
STRICT = frozenset(OWN)  # specifications of which every bit of a maximum counts


SMALL = 1 << 13  # elements of a piece on which hypotheses are tried first
LARGE = 1 << 22  # elements of a case of which a kernel that needs the whole is asked
WHOLE = 1 << 25  # elements of the largest case that an explanation which needs the whole is compared with
KEPT = 8  # kernels of which it is remembered that they make a case
STEP = 128  # rows and columns at whose multiples a piece begins, if whole blocks end there


class Item(Marked):
    """A case with the candidate's bytes, readings of its buffers, and classes of its input.

    call: the number of the call, in the order of calls.
    """

    def __init__(self, *given: Any, call: int = 0, **options: Any) -> None:
        super().__init__(*given, **options)
        self.call = call
        self._right: deque[tuple[Kernel, str, str]] = deque(maxlen=KEPT)
        self.told: tuple[Floats, bool, bool] | None = None  # maxima that were compared last, and whether they are right
        self._tried: tuple[Kernel, ScaleSide | None] | None = None
        self._coded: tuple[Kernel, ScaleSide, Codes] | None = None

    @cached_property
    def equal(self) -> bool:
        """True if the candidate's bytes are the specification's, padding and spare nibbles left out."""
        return self.matches(self.kernel, DECLARED, LOW_FIRST, tier=True)

    def made_amax(self, kernel: Kernel) -> bool:
        """Return True if a kernel's own maxima, bit for bit, are those that the candidate returns."""
        if self.amax is None or kernel.placed or kernel.other is not None:
            return False
        try:
            made = self.exhibit.amax(kernel)
        except FAILURES:
            return False
        return made is not None and made[0].shape == self.amax.shape and made[0].tobytes() == self.amax.tobytes()

    @cached_property
    def own_amax(self) -> Callable[..., Floats]:
        """The function that gives the candidate's maxima in place of a kernel's."""
        assert self.amax is not None
        own = self.amax
        return lambda values, keep_nan, by_row: own

    def inside(self, place: Place) -> Item | None:
        """Return the case as far as it is inside a place; None if nothing of it is."""
        found = Item.__new__(Item)
        vars(found).update(vars(self), within=place, _marks={}, _right=deque(maxlen=KEPT))
        for name in ("_inside", "equal", "wrong"):
            vars(found).pop(name, None)
        return found if found._inside.any() else None

    def matches(self, kernel: Kernel, scales: ScaleReader, data: DataReader, tier: Tier) -> bool:
        """Return True if a kernel makes the candidate's bytes of the whole case, and so those of every tier."""
        if kernel.whole and self.size > WHOLE:
            return False
        made = kernel, scales.name, data.name
        if any(known[0] is kernel and known[1:] == made[1:] for known in self._right):
            return True
        if (tier is True or self.size <= SMALL) and self._matches(kernel, scales, data, True):
            self._right.append(made)
            return True
        return tier is not True and self._matches(kernel, scales, data, tier)

    def _matches(self, kernel: Kernel, scales: ScaleReader, data: DataReader, tier: Tier) -> bool:
        """Return True if a kernel makes the candidate's bytes of a tier, in slices of rows of a large case."""
        step = math.lcm(STEP, self.spec.block.rows)
        rows = self.rows if kernel.whole else max(LARGE // 4 // max(self.columns, 1) // step, 1) * step
        slices = [slice(row, row + rows) for row in range(0, self.rows, rows)] if 0 < rows < self.rows else [EVERY]
        for rows_of_part in slices:
            part = Part(self, rows_of_part, EVERY, tier)
            side = self._side_of(kernel, part) if part.whole else part.side(kernel)
            if side is None or not part.scales_match(kernel, side, scales) or not part.codes_match(kernel, side, data):
                return False
        return True

    def _side_of(self, kernel: Kernel, whole: Part) -> ScaleSide | None:
        """Return the scales of the whole case; the last kernel's are kept, of which every tier is asked about."""
        if self._tried is None or self._tried[0] is not kernel:
            self._tried = kernel, whole.side(kernel)
        return self._tried[1]

    def codes_of(self, kernel: Kernel, side: ScaleSide) -> Codes:
        """Return the codes that a kernel makes after its scales; those made last are kept."""
        if kernel is self.kernel and side is self.base:
            return self.base_codes
        if self._coded is None or self._coded[0] is not kernel or self._coded[1] is not side:
            self._coded = kernel, side, code_side(kernel, side, self.exhibit)
        return self._coded[2]

    def made(self, kernel: Kernel) -> tuple[bytes, bytes] | None:
        """Return the scale bytes and codes that a kernel makes; None where it means nothing."""
        if self.size > LARGE:
            return None
        try:
            side = scale_side(kernel, self.exhibit, EVERY)
            return side.scales.tobytes(), code_side(kernel, side).tobytes()
        except FAILURES:
            return None

    def parts(self, tier: Tier) -> list[Part]:
        """Return the case as hypotheses are tried on it; a large case also as a piece where the candidate differs."""
        whole = Part(self, EVERY, EVERY, tier)
        if self.size <= SMALL:
            return [whole]
        marks = self.marks(tier)
        first = np.argwhere(self.wrong & marks.blocks if marks else self.wrong)[:1]
        row, block = (int(first[0, 0]), int(first[0, 1])) if first.size else (0, 0)
        high, step = math.lcm(32, self.spec.block.rows), math.lcm(STEP, self.spec.block.columns)
        wide = max(SMALL // 32 // step, 1) * step
        top, left = row // high * high, block * self.spec.block.columns // step * step
        piece = Part(self, slice(top, min(top + high, self.rows)), slice(left, min(left + wide, self.columns)), tier)
        return [piece, whole]

    @cached_property
    def wrong(self) -> Bools:
        """Return True for blocks [rows, blocks] that differ from the specification's, read as declared."""
        got, codes = self.scales(DECLARED), self.codes(LOW_FIRST)
        if got is None or codes is None:
            return np.ones((self.rows, self.blocks), np.bool_)
        starts = range(0, self.columns, self.spec.block.columns)
        scales = (got != self.base.scales) & self._inside[:, :: self.spec.block.columns]
        return np.asarray(scales | np.logical_or.reduceat(self.wrong_codes, starts, axis=1))

    @property
    def wrong_codes(self) -> Bools:
        """Return True for elements [rows, columns] whose codes differ from the specification's, read as declared."""
        codes = self.codes(LOW_FIRST)
        if codes is None:
            return np.ones((self.rows, self.columns), np.bool_)
        return np.asarray((codes != self.base_codes) & self._inside)

    @cached_property
    def base_codes(self) -> Codes:
        """The specification's own codes."""
        return code_side(self.kernel, self.base)

    def differs_on(self, kind: Special) -> bool:
        """Return True if a byte of a class of special input is not the specification's, or the amax of such a case."""
        if kind not in self.kinds():
            return False
        if not Part(self, EVERY, EVERY, tier=True).amax_matches(self.kernel, self.base):
            return True
        if kind is Special.MINUS_ZERO:
            return bool((self.wrong_codes & self.minus_zero).any())
        return bool((self.wrong & (self.classes == 1 + list(Special).index(kind))).any())

    @property
    def differing(self) -> int:
        """Count of blocks that differ; of all of them where the maxima do."""
        maxima = Part(self, EVERY, EVERY, tier=True).amax_matches(kernel_of(self.spec), self.base)
        return int(np.count_nonzero(self.wrong)) if maxima else self.wrong.size


class Part(ReadPart):
    """Some rows and columns of a case, on which hypotheses are tried."""

    def __init__(self, item: Item, rows: slice, columns: slice, tier: Tier) -> None:
        super().__init__(item, rows, columns, tier)
        self.item = item

    def serves(self, kernel: Kernel) -> bool:
        """Return True if a hypothesis is tried here: on a piece if possible, else on a whole of limited size."""
        if self.item.size <= SMALL:
            return True
        return (self.whole == kernel.whole and self.item.size <= LARGE) or (not self.whole and not kernel.whole)

    def side(self, kernel: Kernel) -> ScaleSide | None:
        """Return a kernel up to its scales; None where it means nothing."""
        try:
            if kernel is self.item.kernel:
                return self._base
            if kernel.same_until_bytes(self.item.kernel):
                return self._base._replace(scales=kernel.scales(self._base.scales))
            return scale_side(kernel, self.item.exhibit, self.rows, self.columns)
        except FAILURES:
            return None

    @cached_property
    def _base(self) -> ScaleSide:
        """The specification's own result."""
        return (
            self.item.base if self.whole else scale_side(self.item.kernel, self.item.exhibit, self.rows, self.columns)
        )

    def side_after_amax(self, kernel: Kernel) -> ScaleSide | None:
        """Return a kernel up to its scales, which are not made where its maxima are not the candidate's already."""
        if kernel.placed or kernel.other is not None:  # whose maxima are known with the scales
            side = self.side(kernel)
            return side if side is not None and self.amax_matches(kernel, side) else None
        if self.item.amax is not None and self.amax:
            try:
                maxima = self.item.exhibit.amax(kernel)
                if maxima is not None and not self._same_amax(kernel, kernel.report(maxima[0])):
                    return None
            except FAILURES:
                return None
        return self.side(kernel)

    def may_choose(self, kernel: Kernel) -> bool:
        """Return False if 4over6 tries scale bytes of which none is the candidate's, so that no choice makes these."""
        got = None if kernel.search is None else self.declared_scales
        try:
            tried = [] if got is None else scales_tried(kernel, self.item.exhibit, self.rows, self.columns)
        except FAILURES:
            return True
        if got is None or not tried or tried[0].shape != got.shape:
            return True
        bad = np.logical_and.reduce([unequal(kernel.spec.scale, got, one, kernel.spec) for one in tried])
        return not (bad if self.blocks is None else bad & self.blocks).any()

    def scales_match(self, kernel: Kernel, side: ScaleSide, reader: ScaleReader) -> bool:
        """Return True if maxima and scale bytes are the candidate's."""
        return self.amax_matches(kernel, side) and self.bytes_match(kernel, side, reader)

    def amax_matches(self, kernel: Kernel, side: ScaleSide) -> bool:
        """Return True if the maxima are the candidate's, if it has them. Rules: CNF-1, PRO-1."""
        if self.item.amax is None or side.amax is None or not self.amax:
            return True
        return self._same_amax(kernel, side.amax)

    def _same_amax(self, kernel: Kernel, made: Floats) -> bool:
        strict, told = kernel.spec in STRICT, self.item.told
        if told is None or told[0] is not made or told[1] is not strict:
            told = self.item.told = made, strict, self._equal_amax(made, strict=strict)
        return told[2]

    def _equal_amax(self, made: Floats, *, strict: bool) -> bool:
        got, wanted = self.item.amax, np.asarray(made, F)
        assert got is not None
        if got.shape != wanted.shape:
            return False
        bad = got.view(np.uint32) != wanted.view(np.uint32)
        if not strict and bad.any():
            bad &= ~(np.isnan(got) & np.isnan(wanted))
        return not bad.any()

    def codes_match(self, kernel: Kernel, side: ScaleSide, reader: DataReader) -> bool:
        """Return True if the codes are the candidate's."""
        return bool(self.reading(kernel, side, [reader]))

    def reading(self, kernel: Kernel, side: ScaleSide, readers: Sequence[DataReader]) -> list[DataReader]:
        """Return the readers by which the codes are the candidate's."""
        try:
            wanted = self.item.codes_of(kernel, side)
        except FAILURES:
            return []
        likely = self.likely(kernel, wanted, readers)
        return [reader for reader in likely if self.finds(kernel, wanted, reader)]
