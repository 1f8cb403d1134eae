"""Measurements of the values that a dequantizer returns: the values of codes, a factor, an order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.conformance.diagnosis.dequantizer_ways import FORMS
from fp4ref.conformance.diagnosis.dequantizing import Values, Way, made, top
from fp4ref.conformance.diagnosis.measured.order import GROUPS, Order, groups, reordered, smallest
from fp4ref.conformance.diagnosis.measured.scales import nicest
from fp4ref.conformance.diagnosis.measured.swizzles import Swizzle, swizzles
from fp4ref.conformance.families import Case
from fp4ref.conformance.mistakes.places import EVERYWHERE, Place
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.conformance.mistakes.said import moved
from fp4ref.conformance.subjects.subject import Declaration, expected_values, golden
from fp4ref.formats import F, Floats
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity, Spec

Exact = NDArray[np.float64]
ORDERED = 1 << 20  # elements from which an order is measured
MEASURED = 64  # elements with one code from which its value is measured


@np.errstate(all="ignore")
def measured_elements(
    declared: Declaration,
    spec: Spec,
    results: Iterable[tuple[Case, Values]],
    other: tuple[Way, ...],
    place: Place = EVERYWHERE,
) -> Way | None:
    """Another value for some codes, if values with each code are one multiple of what the code for 1 gives.

    place: only values in it are looked at.
    """
    count = 1 << spec.element.format.bits
    one = Way("", Slot.CODE, "", elements=np.ones(count, F))
    seen: list[list[Floats]] = [[] for _ in range(count)]
    for case, got in results:
        wide, q = made((*other, one), case, declared), golden(case)
        if wide is None:
            return None
        for way in other:
            q = q if way.inputs is None else way.inputs(case, declared, q)
        codes = packing.unpack(q.data, case.matrix[1], spec.element.format)
        usual = (np.abs(wide.astype(F)) > F(2.0**-90)) & (np.abs(wide.astype(F)) < F(2.0**90)) & _inside(place, case)
        ratio = got.astype(F) / wide.astype(F)
        for code in range(count):
            seen[code].append(ratio[usual & (codes == code)])
    right = spec.element.decode(np.arange(count).astype(np.uint8))
    table = right.copy()
    for code in range(count):
        ratios = np.concatenate(seen[code])
        if ratios.size >= MEASURED:
            table[code] = _short(float(np.median(ratios)))
            if table[code] == 0:
                table[code] = np.copysign(F(0), F(0.5) - np.signbit(ratios).mean())
    changed = np.flatnonzero((table.view(np.uint32) != right.view(np.uint32)) & ~(np.isnan(table) & np.isnan(right)))
    if not 0 < len(changed) <= count // 2:
        return None
    said = [f"{code:#x} is decoded as {_said(table[code])} instead of {_said(right[code])}" for code in changed[:4]]
    more = f", and {len(changed) - 4} more" if changed[4:].size else ""
    text = f"code {', code '.join(said)}{more}"
    return Way("element-inferred-values", Slot.CODE, text, elements=table)


def _said(value: F) -> str:
    return "NaN" if np.isnan(value) else f"{value:+g}" if value == 0 else f"{value:g}"


def _inside(place: Place, case: Case) -> Any:
    """Return which values of a case are in a place."""
    return place.of_elements(case, case.spec.block.columns, slice(None), slice(None)) if place.predicates else True


@np.errstate(all="ignore")
def measured_scales(
    declared: Declaration, spec: Spec, results: Iterable[tuple[Case, Values]], place: Place = EVERYWHERE
) -> Way | None:
    """Another value for some scale bytes, if values under each byte are one multiple of what the scale 1 gives."""
    count = 1 << spec.scale.format.bits
    one = Way("", Slot.SCALE_CODEC, "", scales=lambda s, byte: np.ones_like(s))
    seen: list[list[Exact]] = [[] for _ in range(count)]
    for case, got in results:
        wide = made((one,), case, declared)
        if wide is None or case.encoded is None:
            continue
        unit = wide.astype(np.float64)
        usual = (np.abs(unit) > 2.0**-90) & (np.abs(unit) < 2.0**90) & _inside(place, case)
        ratio = got.astype(np.float64) / unit
        bytes_of = np.repeat(golden(case).scales, spec.block.columns, axis=1)[:, : case.matrix[1]]
        for byte in np.unique(bytes_of):
            seen[byte].append(ratio[usual & (bytes_of == byte)])
    right = spec.scale.decode(np.arange(count).astype(np.uint8))
    table = right.copy()
    for byte in range(count):
        ratios = np.concatenate([np.zeros(0), *seen[byte]])
        finite = ratios[np.isfinite(ratios)]  # products of the largest scales overflow
        ratios = finite if finite.size else ratios
        if ratios.size:
            table[byte] = _short(float(np.sort(ratios)[ratios.size // 2]))
    changed = np.flatnonzero((table.view(np.uint32) != right.view(np.uint32)) & ~(np.isnan(table) & np.isnan(right)))
    if not 0 < len(changed) < count:
        return None
    said = ", ".join(f"{byte:#04x} as {table[byte]:.6g} instead of {right[byte]:.6g}" for byte in changed[:3])
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    text = f"scale bytes are decoded otherwise: {said}{more}"
    return Way("scale-inferred-values", Slot.SCALE_CODEC, text, scales=lambda s, byte: table[byte])


def _short(value: float) -> F:
    """Return the nearest number of eight bits: what a scale byte can stand for."""
    if not np.isfinite(value) or value == 0:
        return F(value)
    fraction, exponent = np.frexp(value)
    return F(np.ldexp(np.round(fraction * 256) / 256, exponent))


@np.errstate(all="ignore")
def measured_factor(
    declared: Declaration,
    spec: Spec,
    results: Iterable[tuple[Case, Values]],
    other: tuple[Way, ...],
    place: Place = EVERYWHERE,
) -> Iterator[Way]:
    """Another constant in the global scale, or a factor, if all values are one multiple of the right ones."""
    low, high, count = np.inf, 0.0, 0
    for case, got in results:
        wide = made(other, case, declared)
        if wide is None:
            return
        size = np.abs(wide.astype(np.float64))
        usual = (size > 2.0**-90) & (size < 2.0**90) & _inside(place, case)
        ratio = got.astype(np.float64)[usual] / wide.astype(np.float64)[usual]
        count += ratio.size
        low, high = min(low, ratio.min(initial=np.inf)), max(high, ratio.max(initial=0))
    close = 2.0**-21 if declared.to == "float32" else 2.0**-7
    if count < MEASURED or not 0 < low <= high < low * (1 + close) or low <= 1 <= high:
        return
    low, high = low * (1 - close), high * (1 + close)
    if spec.global_scale is Granularity.NONE:
        factor = nicest(low, high)
        times = partial(np.multiply, F(factor))
        yield Way(f"values-inferred-{factor:g}", Slot.SIGN, f"values are {factor:g} times too large", after=times)
        return
    number = nicest(float(top(spec)) / high, float(top(spec)) / low)
    text = f"the global scale is amax / {number:g} instead of amax / {top(spec):g}"
    for _, _, form in FORMS:
        over = partial(lambda n, a: a / n, F(number))
        yield Way(f"global-inferred-{number:g}", Slot.GLOBAL, text, decode=over, form=form)


def measured_orders(declared: Declaration, results: Iterable[tuple[Case, Values]]) -> Iterator[Way]:
    """Yield other orders along a row, and of rows, in groups of the smallest size that shows one.

    results: small ones first, of which as many are looked at as the measurement needs.

    Values move with their scales, or codes without them; whole groups of a row, or its last group filled up as well.
    """
    seen, elements = [], 0
    for case, got in results:
        seen.append((got.astype(F), expected_values(case, declared, golden(case)).astype(F)))
        elements += got.size
        if elements > ORDERED:
            break
    bits = [(got.view(np.uint32), right.view(np.uint32)) for got, right in seen]
    for axis, what in ((1, "elements"), (0, "rows of elements")):
        order = smallest(
            (groups((got for got, _ in bits), size, axis), groups((right for _, right in bits), size, axis))
            for size in GROUPS
        )
        if order is None:
            continue
        stands = tuple(np.argsort(order).tolist())
        name, text = f"{'elements' if axis else 'rows'}-order-inferred-{len(order)}", moved(order, what)
        yield Way(name, Slot.PACKING, f"{text}; the rest stays", partial(_codes_at, stands, axis, False))
        yield Way(name, Slot.PACKING, f"{text}; the rest is filled up", partial(_codes_at, stands, axis, True))
        yield Way(name, Slot.PACKING, f"{text}, with their scales", after=partial(_placed, stands, axis))


def swizzled_reads(declared: Declaration, results: Iterable[tuple[Case, Values]]) -> Iterator[Way]:
    """Yield bytes of data, and scales, that are read at places which depend on the row, if they make the first result.

    results: wrong ones first.
    """
    for case, got in results:
        (rows, columns), form = case.matrix, case.spec.element.format
        blocks = -(-columns // case.spec.block.columns)
        for what, one, many, wide, per_byte in (
            ("codes", "byte", "bytes of data", columns, 8 // form.bits),
            ("scales", "scale byte", "scale bytes", blocks, 1),
        ):
            for swizzle in swizzles(rows, wide, per_byte):
                text = f"{swizzle.text(one, many, per_byte)}, as they are read"
                name = f"{what}-swizzled-{swizzle.name}"
                way = Way(name, Slot.PACKING, text, partial(_turned, swizzle, what))
                wrong = made((way,), case, declared)
                if wrong is not None and got.shape == wrong.shape and got.tobytes() == wrong.tobytes():
                    yield way
        return


def _turned(swizzle: Swizzle, what: str, case: Case, declared: Declaration, q: DirectionData) -> Any:
    if what == "scales":
        return q._replace(scales=swizzle(q.scales))
    form = case.spec.element.format
    return q._replace(data=swizzle.of_data(q.data, case.matrix[1], form))


def _codes_at(stands: Order, axis: int, fill: bool, case: Case, declared: Declaration, q: DirectionData) -> Any:
    """Return the data with codes at other places. fill: spare nibbles of a row belong to its last group."""
    form = case.spec.element.format
    width = q.data.shape[1] * 8 // form.bits if fill else case.matrix[1]
    codes = packing.unpack(q.data, width, form)
    return q._replace(data=packing.pack(_placed(stands, axis, codes), form))


def _placed(stands: Order, axis: int, values: Any) -> Any:
    """Values that stand at their places of whole groups."""
    found = reordered(stands, values if axis else values.T)
    return np.ascontiguousarray(found if axis else found.T)
