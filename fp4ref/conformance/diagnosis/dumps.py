"""The diagnosis of a wrong dump: evidence from its tensors, large ones by a part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.budget import SECONDS, TOGETHER
from fp4ref.conformance.diagnosis.clock import processor_time
from fp4ref.conformance.diagnosis.diagnose import diagnose
from fp4ref.conformance.diagnosis.explanations import DiagnosedTensors, Diagnosis, Explanation, verdict
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
ROWS = 128  # whole tiles of the standard's layouts
Form = tuple[Spec, str]  # a specification and the layout of its scales


class Cut(NamedTuple):
    """A tensor, or some rows of a direction's matrix with the amax that their bytes were made with."""

    x: NDArray[Any]
    direction: Direction
    amax: NDArray[np.float32] | None
    random_bits: NDArray[np.uint8] | None


class Kept(NamedTuple):
    """A direction of a tensor that differs. first: the row of its matrix with which the cut begins."""

    tensor: str
    form: Form
    cut: Cut
    got: DirectionData
    first: int = 0


class DumpEvidence:
    """The first tensors of a dump that differ."""

    def __init__(self) -> None:
        self._kept: list[Kept] = []
        self._left: set[str] = set()

    def add(self, dump: Dump, direction: Direction, got: DirectionData, compared: Comparison, amax_given: bool) -> None:
        """Keep a direction of a tensor that differs."""
        assert dump.x is not None
        if compared.equal:
            return
        names = {kept.tensor for kept in self._kept}
        if dump.name not in names and len(names) >= TENSORS:
            self._left.add(dump.name)
            return
        form = dump.quantized.spec, dump.quantized.scale_layout
        bits = getattr(dump.random_bits, direction)
        cut = Cut(dump.x, direction, got.amax if amax_given else None, bits)
        start = 0
        if compared.shape[0] * compared.shape[1] > ELEMENTS:
            step = math.lcm(ROWS, form[0].block.rows)
            start = (compared.differences[0].row if compared.differences else 0) // step * step
            stop = min(start + max(ELEMENTS // compared.shape[1] // step, 1) * step, compared.shape[0])
            cut, got = _rows(cut, got, compared.shape, slice(start, stop), *form)
        self._kept.append(Kept(dump.name, form, cut, got, start))

    def diagnosis(self, seconds: float = SECONDS) -> Diagnosis | None:
        """Return the explanation of them; None if there is nothing to explain.

        Tensors of one specification and layout are explained together. If nothing explains them, each is diagnosed on
        its own, in what is left of the time. seconds: of processor time.

        Rules: CNF-2, CNF-30, CNF-49, CNF-90.
        """
        if not self._kept:
            return None
        end, groups = processor_time() + seconds, list[DiagnosedTensors]()
        forms = {kept.form: [one for one in self._kept if one.form == kept.form] for kept in self._kept}
        for done, (form, kept) in enumerate(forms.items()):
            share = max(end - processor_time(), 0.0) / (len(forms) - done)
            groups += _groups(form, kept, share)
        found = _joined(groups)
        return replace(found, undiagnosed=len(self._left))


def _groups(form: Form, kept: Sequence[Kept], seconds: float) -> Iterator[DiagnosedTensors]:
    """Yield all the tensors with their explanation, or each with its own if some have one."""
    names = tuple(dict.fromkeys(one.tensor for one in kept))
    end = processor_time() + seconds
    together = DiagnosedTensors(names, form[0], _found(form, kept, seconds if len(names) == 1 else TOGETHER * seconds))
    if together.found.explained or together.found.partial or len(names) == 1:
        yield together
        return
    apart = []
    for done, name in enumerate(names):
        left = max(end - processor_time(), 0.0) / (len(names) - done)
        own = _found(form, [one for one in kept if one.tensor == name], left)
        apart.append(DiagnosedTensors((name,), form[0], own))
    yield from apart if any(group.found.explained for group in apart) else [together]


def _found(form: Form, kept: Sequence[Kept], seconds: float) -> Diagnosis:
    found = diagnose(*form, [(one.cut, one.got) for one in kept], seconds)
    found = Diagnosis(conforms=False, first_stage="amax") if found.conforms else found
    return _counted(found, {one.first for one in kept})


def _counted(found: Diagnosis, first: set[int]) -> Diagnosis:
    """Return a diagnosis whose words say from which row of the tensor they count. Rules: CNF-44."""
    if first == {0}:
        return found
    words = f" (counted from row {first.pop()})" if len(first) == 1 else " (counted from the first row of each part)"

    def of(place: str) -> str:
        return words if "row" in place else ""

    def said(one: Explanation) -> Explanation:
        return replace(one, text=one.text + of(one.place), place=one.place + of(one.place))

    return replace(
        found,
        explanations=tuple(map(said, found.explanations)),
        partial=found.partial and said(found.partial),
        where=found.where and found.where + words,
        place=found.place + of(found.place),
    )


def _joined(groups: Sequence[DiagnosedTensors]) -> Diagnosis:
    """Join the diagnoses of groups of tensors; groups with the same explanation become one."""
    same: dict[Any, list[DiagnosedTensors]] = {}
    for group in groups:
        told = verdict(group.found) if group.found.explained else group.tensors
        same.setdefault(told, []).append(group)
    joined = [replace(of[0], tensors=tuple(name for one in of for name in one.tensors)) for of in same.values()]
    if len(joined) == 1:
        return joined[0].found
    complete = all(group.found.complete for group in joined)
    first = joined[0].found.first_stage
    return Diagnosis(conforms=False, first_stage=first, complete=complete, groups=tuple(joined))


def _rows(
    whole: Cut, got: DirectionData, shape: tuple[int, int], part: slice, spec: Spec, scale_layout: str
) -> tuple[Cut, DirectionData]:
    """Return some rows of a direction's matrix and their bytes, judged by the dump's own amax. Rules: GLB-4, LAY-9."""
    (rows, columns), start, stop = shape, part.start, part.stop
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
