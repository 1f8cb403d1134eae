"""The parts of the evidence in which a search looks for places: whole cases, or some rows of very large ones.

Each block of such a part has the mistake's bytes, the specification's, both or neither. For example, a kernel that
rounds up in row 127 has the bytes of "rounded up" there and the specification's elsewhere. A block of zeros has both,
and says nothing about the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import Item, Part
from fp4ref.conformance.diagnosis.marks import Tier
from fp4ref.conformance.diagnosis.place_rounds import drawn
from fp4ref.conformance.diagnosis.readings import FAILURES
from fp4ref.conformance.diagnosis.scale_stage import given_amax
from fp4ref.conformance.judge.compare import unequal
from fp4ref.conformance.mistakes.data_readers import LOW_FIRST
from fp4ref.conformance.mistakes.exhibit import EVERY
from fp4ref.conformance.mistakes.kernel import Kernel, ScaleSide, kernel_of
from fp4ref.conformance.mistakes.places import Place, Tensor, Units, units_of
from fp4ref.conformance.mistakes.readers import DECLARED
from fp4ref.formats import Codes, F
from fp4ref.spec import Granularity

Bools = NDArray[np.bool_]
WIDE = 1 << 21  # elements above which windows of rows stand for a case
WINDOW = 128  # rows of a window


class Labels(NamedTuple):
    """The blocks and elements that must be inside a place, and those that must be outside.

    mixed: some blocks are partly inside, so only elements can say. about_tensor: so do the maxima of tensors.
    """

    blocks: tuple[Bools, Bools]
    elements: tuple[Bools, Bools]
    mixed: bool = False
    about_tensor: bool = False

    def of(self, *, by_element: bool) -> tuple[Bools, Bools]:
        """Return the units inside and outside."""
        return self.elements if by_element else self.blocks


class PlacedPart:
    """A case, or some of its rows, with the candidate's bytes and the specification's.

    given: kernels are given the candidate's own maxima.
    """

    def __init__(self, item: Item, rows: slice, tier: Tier, *, given: bool = False) -> None:
        self.item, self.rows, self.given = item, rows, given
        self.part = Part(item, rows, EVERY, tier)

    @property
    def _by_row(self) -> bool:
        """Return True if each row has an amax of its own."""
        return self.item.spec.global_scale is Granularity.ROW

    @property
    def family(self) -> str | None:
        """The family of the case."""
        return family_of(self.item.exhibit.case)

    @cached_property
    def got(self) -> tuple[Codes, Codes] | None:
        """The candidate's scale bytes and codes."""
        scales, codes = self.item.scales(DECLARED), self.item.codes(LOW_FIRST)
        return None if scales is None or codes is None else (scales[self.rows], codes[self.rows])

    @cached_property
    def plain(self) -> tuple[Bools, Bools]:
        """Return the marks of scale bytes and codes that are the specification's, or do not count."""
        kernel = self._given(kernel_of(self.item.spec))
        found = self._compared(kernel, self._base)
        assert found is not None
        return found

    @cached_property
    def right(self) -> Bools:
        """The marks of blocks that are the specification's."""
        return self.blockwise(*self.plain)

    def blockwise(self, scales: Bools, codes: Bools) -> Bools:
        """Return which blocks are equal in their scale and in every code."""
        return np.asarray(scales & of_blocks(codes, self.item.spec.block.columns))

    def _compared(self, kernel: Kernel, side: ScaleSide, or_else: Bools | None = None) -> tuple[Bools, Bools] | None:
        """Return which scale bytes and codes a kernel makes; the amax of a row counts as a part of its scales.

        or_else: None where any other block has a scale that the kernel does not make.
        """
        spec = self.item.spec
        assert self.got is not None
        same = self._same_scales(side)
        if same is None or (or_else is not None and not (same | or_else).all()):
            return None
        codes = self.item.codes_of(kernel, side)
        if codes.shape != self.got[1].shape:
            return None
        alike = ~unequal(spec.element, self.got[1], codes, spec)
        if self.part.elements is not None:
            alike |= ~self.part.elements
        return same, alike

    def _same_scales(self, side: ScaleSide) -> Bools | None:
        """Return which scale bytes a kernel makes."""
        spec, part, scales = self.item.spec, self.part, side.scales
        assert self.got is not None
        if scales.shape != self.got[0].shape:
            return None
        same = ~unequal(spec.scale, self.got[0], scales, spec)
        if self._by_row and part.amax and self.item.amax is not None and side.amax is not None:
            got, wanted = self.item.amax, np.asarray(side.amax, F)
            if got.shape != wanted.shape:
                return None
            same &= (got.view(np.uint32) == wanted.view(np.uint32))[self.rows, None]
        if part.blocks is not None:
            same |= ~part.blocks
        return same

    def _given(self, kernel: Kernel) -> Kernel:
        return given_amax(kernel, self.item) if self.given else kernel

    def labels(self, kernel: Kernel) -> Labels | None:
        """Return which units are the kernel's only, and which the specification's only; None if some are neither's."""
        kernel = self._given(kernel)
        if kernel.whole and self.rows != EVERY:
            none = np.zeros(self.right.shape, np.bool_)
            return Labels((none, none), (np.zeros(self.plain[1].shape, np.bool_),) * 2)
        try:
            side = self.part.side(kernel)
            made = None if side is None else self._compared(kernel, side, self.right)
        except FAILURES:
            return None
        if side is None or made is None:
            return None
        found = self._labels(*made)
        maxima = self.part.amax_matches(kernel, side), self._right_maxima
        if found is None or not (self._by_row or any(maxima)):
            return None
        if self._by_row or maxima[0] == maxima[1]:
            return found
        inside, outside = found.blocks
        inside[:1, :1] |= maxima[0]
        outside[:1, :1] |= maxima[1]
        return None if (inside & outside).any() or found.mixed else found._replace(about_tensor=True)

    def own(self, kernel: Kernel) -> Bools | None:
        """Return which blocks are a kernel's; None where it means nothing or its maxima are not the candidate's."""
        if kernel.whole and self.rows != EVERY:
            return None
        try:
            side = self.part.side(kernel)
            made = None if side is None else self._compared(kernel, side)
        except FAILURES:
            return None
        right = made is not None and side is not None and (self._by_row or self.part.amax_matches(kernel, side))
        return self.blockwise(*made) if right and made is not None else None

    def _labels(self, scales: Bools, codes: Bools) -> Labels | None:
        own, right = self.blockwise(scales, codes), self.right
        mixed = ~(own | right)
        if mixed.any():
            shared = self.blockwise(scales & self.plain[0], codes | self.plain[1])
            if (mixed & ~shared).any():
                return None
        elements = codes & ~self.plain[1], self.plain[1] & ~codes
        return Labels((own & ~right, right & ~own), elements, mixed=bool(mixed.any()))

    @cached_property
    def _base(self) -> ScaleSide:
        found = self.part.side(self._given(kernel_of(self.item.spec)))
        assert found is not None
        return found

    @cached_property
    def _right_maxima(self) -> bool:
        return self.part.amax_matches(self._given(kernel_of(self.item.spec)), self._base)

    def units(self, chosen: Bools, count: int, *, by_element: bool) -> Units:
        """Return some of the units that are marked, as arrays."""
        row, across = drawn(chosen, count)
        width = self.item.spec.block.columns
        first = self.rows.start or 0
        column = across if by_element else across * width
        return units_of(self.item.exhibit.case, width, row + first, column)

    def inside(self, place: Place, *, by_element: bool) -> Bools:
        """Return which units are in a place."""
        width = self.item.spec.block.columns
        mask = place.of_elements(self.item.exhibit.case, width, self.rows, EVERY)
        return mask if by_element else mask[:, ::width]


def of_blocks(marks: Bools, width: int) -> Bools:
    """Return which blocks [rows, blocks] of a width are marked in every element.

    >>> of_blocks(np.array([[1, 1, 1, 1, 1, 1, 1, 1, 1, 0]], np.bool_), 8)
    array([[ True, False]])
    """
    if width not in {8, 16, 32, 64}:
        return np.asarray(np.logical_and.reduceat(marks, range(0, marks.shape[1], width), axis=1))
    left_out = np.packbits(~marks, axis=1)  # a bit for each element, and zeros after the last
    size, rest = width // 8, -left_out.shape[1] % (width // 8)
    if rest:
        left_out = np.concatenate([left_out, np.zeros((len(left_out), rest), np.uint8)], axis=1)
    return np.asarray(left_out.view(f"u{size}") == 0)


def views(items: Sequence[Item], tier: Tier, *, given: bool = False) -> list[PlacedPart]:
    """Return the parts of the evidence to look at: whole cases, and some rows of very large ones.

    given: kernels are given the candidate's own maxima.

    Rows of a window are around the first and last ones that differ, and at both ends of the matrix.
    """
    found = []
    for item in items:
        if item.scales(DECLARED) is None or item.codes(LOW_FIRST) is None:
            return []
        found += [PlacedPart(item, rows, tier, given=given) for rows in _windows(item)]
    return [view for view in found if view.part.side(kernel_of(view.item.spec)) is not None]


def _windows(item: Item) -> list[slice]:
    if item.size <= WIDE or item.rows <= 4 * WINDOW:
        return [EVERY]
    wrong = np.flatnonzero(item.wrong.any(axis=1))
    rows = [0, item.rows - 1, *(wrong[[0, -1]].tolist() if wrong.size else ())]
    starts = sorted({int(row) // WINDOW * WINDOW for row in rows})
    return [slice(start, min(start + WINDOW, item.rows)) for start in starts]


def family_of(case: Tensor) -> str | None:
    """Return the family of a case."""
    return getattr(case, "family", None)
