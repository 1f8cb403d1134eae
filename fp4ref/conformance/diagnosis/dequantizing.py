"""A dequantizer of which each step can be done otherwise: reading its inputs, decoding, multiplying, writing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families import Case
from fp4ref.conformance.mistakes.kernel import Map
from fp4ref.conformance.mistakes.readers import ScaleReader, fits
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.conformance.mistakes.tile_places import Place
from fp4ref.conformance.subjects.subject import Declaration, expected_values, golden, poisoned
from fp4ref.formats import Codes, F, Floats
from fp4ref.layout import layout
from fp4ref.model.quantize import constants
from fp4ref.quantized import DirectionData
from fp4ref.spec import Spec

Values = NDArray[Any]
Inputs = Callable[[Case, Declaration, DirectionData], DirectionData]
Form = Callable[[Floats, Floats, Floats], Floats]  # (element, scale, decode scale) -> value


@dataclass(frozen=True)
class Way:
    """A step that a kernel computes in another way.

    inputs: other bytes or amaxes. elements: values of the codes. scales: values of the scale bytes. decode: the global
    decode scale, made of amax. form: the order of the product. after: of the values, before they are narrowed. cast:
    the narrowing. width: columns that share a scale. Steps that are None are the specification's. alone: it is never
    paired with a second one.
    """

    name: str
    stage: Slot
    text: str
    inputs: Inputs | None = None
    elements: Floats | None = None
    scales: Callable[[Floats, Codes], Floats] | None = None
    decode: Map | None = None
    form: Form | None = None
    after: Map | None = None
    width: int | None = None
    factor: Map | None = None
    alone: bool = False


def made(ways: tuple[Way, ...], case: Case, declared: Declaration) -> Values | None:
    """Return the values of a dequantizer with these mistakes, None where they mean nothing. Rules: DEQ-1, DEQ-2."""
    q = golden(case)
    with np.errstate(all="ignore"):
        try:
            for way in ways:
                q = q if way.inputs is None else way.inputs(case, declared, q)
        except ValueError:
            return None
        q = q._replace(scales=np.asarray(q.scales, np.uint8))
        slots = [[getattr(way, slot) for way in ways if getattr(way, slot) is not None] for slot in SLOTS]
        if not any(slots):
            return expected_values(case, declared, q)
        if any(len(slot) > 1 for slot in slots):
            return None
        values = _values([next(iter(slot), None) for slot in slots], case, q)
        for after in slots[4]:
            values = after(values)
        return np.ascontiguousarray(values.astype(INPUT_DTYPES[declared.to]))


PastEnd = Literal["clip", "wrap", "zeros"]  # the last byte, the first bytes again, zeros
PAST_END: tuple[PastEnd, ...] = get_args(PastEnd)
SLOTS = ("elements", "scales", "decode", "form", "after", "width", "factor")


def _values(steps: Sequence[Any], case: Case, q: DirectionData) -> Floats:
    """Return the float32 product, with other steps in the order of SLOTS."""
    elements, scales, decode, form, _, width, factor = steps
    spec, (_, columns) = case.spec, case.matrix
    codes = packing.unpack(q.data, columns, spec.element.format)
    x = spec.element.decode(codes) if elements is None else elements[codes]
    s = spec.scale.decode(q.scales)
    s = s if scales is None else scales(s, q.scales)
    s = s[:, np.minimum(np.arange(columns) // (width or spec.block.columns), s.shape[1] - 1)]
    if factor is not None:
        one, amax = np.ones((1, 1), F), None if q.amax is None else np.asarray(q.amax, F)[:, None]
        own = s if amax is None else spec.arithmetic.dequantized(one, s, amax, constants(spec, case.x.dtype))
        return np.asarray(x * factor(np.asarray(own, F)), F)
    if q.amax is None:
        return np.asarray(x * s if form is None else form(x, s, np.ones((1, 1), F)), F)
    amax = np.asarray(q.amax, F)[:, None]
    if form is None and decode is None:
        return spec.arithmetic.dequantized(x, s, amax, constants(spec, case.x.dtype))
    g = amax / top(spec) if decode is None else decode(amax)
    return np.asarray((form or inner)(x, s, g), F)


def inner(q: Floats, s: Floats, g: Floats) -> Floats:
    """Multiply by the product of both scales."""
    return q * (s * g)


def top(spec: Spec) -> F:
    """Return the largest product of an element and a scale."""
    return F(spec.scale_max) * F(spec.element_max or spec.element.format.max)


def taken(reader: ScaleReader, declared: str, buffer: Codes, shape: tuple[int, ...]) -> Codes:
    """Return the scales that a reader finds in a buffer; ValueError where it reads outside."""
    offsets = reader.offsets(layout(declared), *shape)
    if not fits(offsets, buffer.size):
        raise ValueError
    return np.asarray(buffer.reshape(-1)[offsets], np.uint8)


def read_at(place: Place, mode: PastEnd, case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    """Return bytes whose scales are read at other offsets of the buffer; the mode decides what follows its end."""
    if not q.scales.size:
        return q
    rows, blocks = q.scales.shape
    flat = poisoned(q.scales, declared.scale_layout).reshape(-1)
    flat = np.append(flat, np.uint8(0)) if mode == "zeros" else flat
    offsets = place(np.arange(rows)[:, None], np.arange(blocks)[None, :], rows, blocks)
    return q._replace(scales=np.take(flat, offsets, mode="wrap" if mode == "wrap" else "clip"))
