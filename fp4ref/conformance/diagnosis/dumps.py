"""The diagnosis of a wrong dump: evidence from its tensors, large ones by a part."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.budget import SECONDS
from fp4ref.conformance.diagnosis.diagnose import diagnose
from fp4ref.conformance.diagnosis.explanations import Diagnosis
from fp4ref.conformance.dumps.files import Dump
from fp4ref.conformance.judge.comparison import Comparison
from fp4ref.errors import LayoutError
from fp4ref.formats import Codes
from fp4ref.layout import Layout, layout
from fp4ref.model.tiles import Matrix
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Granularity, Spec

TENSORS = 8  # of those that differ
ELEMENTS = 1 << 20  # of a tensor that is looked at as a whole
ROWS = 128  # whole tiles of every layout, and whole blocks


class Cut(NamedTuple):
    """A tensor, or some rows of a direction's matrix with the amax that their bytes were made with."""

    x: NDArray[Any]
    direction: Direction
    amax: NDArray[np.float32] | None
    random_bits: NDArray[np.uint8] | None


class DumpEvidence:
    """The first tensors of a dump that differ, for as long as they have one specification and one layout."""

    def __init__(self) -> None:
        self._form: tuple[Spec, str] | None = None
        self._mixed = False
        self._pairs: list[tuple[Cut, DirectionData]] = []

    def add(self, dump: Dump, direction: Direction, got: DirectionData, compared: Comparison, amax_given: bool) -> None:
        """Keep a direction of a tensor that differs."""
        assert dump.x is not None
        form = dump.quantized.spec, dump.quantized.scale_layout
        self._form = self._form or form
        self._mixed |= self._form != form
        if compared.equal or self._mixed or len(self._pairs) >= TENSORS:
            return
        bits = getattr(dump.random_bits, direction)
        whole = Cut(dump.x, direction, got.amax if amax_given else None, bits)
        if compared.shape[0] * compared.shape[1] <= ELEMENTS:
            self._pairs.append((whole, got))
            return
        first = compared.differences[0].row if compared.differences else 0
        self._pairs.append(_rows(whole, got, compared.shape, first // ROWS * ROWS, *form))

    def diagnosis(self, seconds: float = SECONDS) -> Diagnosis | None:
        """Return the explanation of them; None if there is nothing to explain, or no single explanation."""
        if self._form is None or self._mixed or not self._pairs:
            return None
        found = diagnose(*self._form, self._pairs, seconds)
        return Diagnosis(conforms=False, first_stage="amax") if found.conforms else found


def _rows(
    whole: Cut, got: DirectionData, shape: tuple[int, int], start: int, spec: Spec, scale_layout: str
) -> tuple[Cut, DirectionData]:
    """Return some rows of a direction's matrix and their bytes, judged by the dump's own amax. Rules: GLB-4, LAY-9."""
    rows, columns = shape
    stop = min(start + max(ELEMENTS // columns // ROWS, 1) * ROWS, rows)
    x = Matrix(whole.x, whole.direction)[slice(start, stop), slice(0, columns)]
    x = x if whole.direction == "row" else np.ascontiguousarray(x.T)
    order, blocks = layout(scale_layout), -(-columns // spec.block.columns)
    stored = _stored(np.asarray(got.scales), order, slice(start, stop), rows, blocks)
    own = got.amax
    if own is not None and spec.global_scale is Granularity.ROW:
        own = own[start:stop]
    bits = None if whole.random_bits is None else whole.random_bits[start:stop]
    data = DirectionData(
        np.asarray(got.data)[start:stop], stored.reshape(order.padded_shape(stop - start, blocks)), own
    )
    return Cut(x, whole.direction, own, bits), data


def _stored(scales: Codes, order: Layout, part: slice, rows: int, blocks: int) -> Codes:
    """Return the buffer of some rows: their bytes and padding, or the scales alone if these are not one piece.

    Rules: LAY-9.
    """
    try:
        owned = order.row_range(part.start, part.stop, rows, blocks)
    except LayoutError:
        return order.from_linear(order.to_linear(scales, rows, blocks)[part])
    stored = np.zeros(order.padded_shape(part.stop - part.start, blocks), np.uint8).reshape(-1)
    piece = scales.reshape(-1)[owned][: stored.size]
    stored[: piece.size] = piece
    return stored
