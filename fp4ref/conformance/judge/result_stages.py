"""The rules at fault of a kernel that dequantizes, moves scales or transforms, by which of its results are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import hadamard, packing
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families import Case
from fp4ref.conformance.families.rules import PACKED, value_rule
from fp4ref.conformance.judge.excuses import Bools
from fp4ref.conformance.judge.hadamard_stages import spreads
from fp4ref.conformance.mistakes.data_readers import DATA_READERS
from fp4ref.conformance.mistakes.readers import fits, scale_readers
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.conformance.subjects.subject import POISON, Declaration, poisoned, signs, transform_input
from fp4ref.formats import Codes, F, Floats, ignoring_float_warnings
from fp4ref.layout import layout
from fp4ref.model.quantize import constants
from fp4ref.model.tiles import widen
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity

Values = NDArray[Any]
Wholes = NDArray[np.int64]
NEAR = 4  # float32 steps that another order of a product can move it by
LARGE = 1 << 18  # wrong results that are looked at in detail, and elements whose codes are read otherwise, at most
SAMPLE = 64  # wrong results on which a reading is tried before it is tried on all
TINY = F(2.0**-126)  # the smallest normal float32


class ResultPart(StrEnum):
    """A part of the work whose results a rule decides."""

    CODE = "value of a code"
    SCALE = "value of a scale byte"
    NAN_SCALE = "NaN scale"
    PRODUCT = "product"
    SUBNORMAL = "subnormal value"
    CAST = "rounding to the type"
    PLACE = "place of scales"
    SOURCE = "place of scales in the source"
    PADDING = "padding that is written"
    READ = "padding that is read"
    PACKING = "packing"
    TRANSPOSED = "transposition"
    TRANSFORM = "transform"
    BOUND = "bound on orders of additions"


def broken(
    rules: Sequence[str],
    case: Case,
    declared: Declaration,
    got: Values,
    wanted: Values,
    wrong: Bools,
    given: DirectionData,
) -> frozenset[str]:
    """Return the rules that decide a wrong result.

    wanted: the right results. wrong: which ones differ from them and are not accepted. given: the bytes that a
    dequantizer or a conversion reads, scales linear.

    Rules: CNF-78.
    """
    work = {"dequantize": _dequantized, "to_layout": _moved, "hadamard": _transformed}[declared.operation]
    parts = work(case, declared, got, wanted, wrong, given)
    deciding = _deciding(case, declared)
    return frozenset(rule for rule in rules if deciding.get(rule, frozenset(ResultPart)) & parts)


def _deciding(case: Case, declared: Declaration) -> dict[str, frozenset[ResultPart]]:
    """Return the parts that each rule decides."""
    spec = case.spec
    found: dict[str, set[ResultPart]] = {
        "DEQ-1": {ResultPart.PRODUCT},
        "DEQ-2": {ResultPart.PRODUCT, ResultPart.NAN_SCALE},
        "DEQ-3": {ResultPart.CAST},
        "DEQ-4": {ResultPart.TRANSPOSED},
        "DEQ-5": {ResultPart.PRODUCT},
        "NUM-1": {ResultPart.SUBNORMAL},
        "LAY-5": {ResultPart.PADDING},
        "LAY-6": {ResultPart.READ},
        "LAY-7": {ResultPart.SOURCE},
        "HAD-1": {ResultPart.TRANSFORM},
        "HAD-2": {ResultPart.TRANSFORM},
        "HAD-3": {ResultPart.CAST},
        "HAD-7": {ResultPart.BOUND},
        PACKED[spec.element.format.bits]: {ResultPart.PACKING},
        layout(declared.scale_layout).rule: {ResultPart.PLACE},
    }
    found.setdefault(value_rule(spec.element.format), set()).add(ResultPart.CODE)
    found.setdefault(value_rule(spec.scale.format), set()).update({ResultPart.SCALE, ResultPart.NAN_SCALE})
    return {rule: frozenset(parts) for rule, parts in found.items()}


def differing(got: Values, wanted: Values) -> Bools:
    """Return where values differ in a bit; all NaN are one. Rules: CNF-1, NUM-2."""
    kind = f"u{wanted.dtype.itemsize}"
    bad = got.view(kind) != wanted.view(kind)
    return np.asarray(bad & ~(np.isnan(got.astype(F)) & np.isnan(wanted.astype(F))))


# Dequantizers


@ignoring_float_warnings
def _dequantized(
    case: Case, declared: Declaration, got: Values, wanted: Values, wrong: Bools, given: DirectionData
) -> set[ResultPart]:
    """Return the parts at fault: another reading, if one gives every result; else those of each wrong result."""
    work = _Products(case, declared, given)
    if case.direction == "column" and not differing(np.ascontiguousarray(wanted.T).reshape(got.shape), got).any():
        return {ResultPart.TRANSPOSED}
    places = _spread(np.flatnonzero(wrong), LARGE)
    chosen = np.divmod(_spread(places, SAMPLE), wrong.shape[1])
    for parts, codes, scales in work.readings():
        row, column = chosen
        if differing(work.cast(work(row, column, codes, scales)), got[row, column]).any():
            continue
        row, column = np.arange(wrong.shape[0])[:, None], np.arange(wrong.shape[1])[None, :]
        if not differing(work.cast(work(row, column, codes, scales)), got).any():
            return parts
    return work.parts(got, wanted, wrong, places)


def _spread(places: Wholes, count: int) -> Wholes:
    """Return at most `count` of the places, evenly spread."""
    return places[:: max(-(-len(places) // count), 1)]


class _Products:
    """The values of a case's elements, from any codes and scale bytes."""

    def __init__(self, case: Case, declared: Declaration, given: DirectionData) -> None:
        self.case, self.declared, self.spec = case, declared, case.spec
        self.to = INPUT_DTYPES[declared.to]
        self.data, self.scales = np.asarray(given.data), np.asarray(given.scales)
        self.codes = packing.unpack(self.data, case.matrix[1], self.spec.element.format)
        self.read_otherwise = self.codes.size <= LARGE
        self.amax = None if given.amax is None else np.asarray(given.amax, F)

    def __call__(self, row: Wholes, column: Wholes, codes: Codes, scales: Codes) -> Floats:
        """Return the float32 values of elements."""
        spec = self.spec
        q = spec.element.decode(codes[row, column])
        s = spec.scale.decode(scales[row, column // spec.block.columns])
        if self.amax is None:
            return np.asarray(q * s, F)
        amax = self.amax[row] if spec.global_scale is Granularity.ROW else self.amax[0]
        return np.asarray(spec.arithmetic.dequantized(q, s, amax, constants(spec, self.case.x.dtype)), F)

    def cast(self, values: Floats) -> Values:
        """Return values in the type of the results."""
        return np.asarray(values.astype(self.to))

    def readings(self) -> Iterator[tuple[set[ResultPart], Codes, Codes]]:
        """Yield known other readings of the buffers: the parts at fault, codes, scale bytes."""
        order = layout(self.declared.scale_layout)
        buffer = poisoned(self.scales, order.name).reshape(-1)
        valid = order.valid(*self.scales.shape).reshape(-1)
        for reader in scale_readers(order):
            offsets = reader.offsets(order, *self.scales.shape)
            if fits(offsets, buffer.size):
                parts = {ResultPart.PLACE} if valid[offsets].all() else {ResultPart.PLACE, ResultPart.READ}
                yield parts, self.codes, buffer[offsets]
        form = self.spec.element.format
        for packed in DATA_READERS if form.bits == 4 and self.read_otherwise else ():
            read = packed.read(self.data, self.case.matrix, form) if packed.stage is Slot.PACKING else None
            if read is not None and read.shape == self.codes.shape:
                yield {ResultPart.PACKING}, read & np.uint8(15), self.scales

    def parts(self, got: Values, wanted: Values, wrong: Bools, places: Wholes) -> set[ResultPart]:
        """Return the parts at fault that single results tell. places: of wrong results in the flat matrix."""
        row, column = np.divmod(places, wrong.shape[1])
        codes, scales = self.codes[row, column], self.scales[row, column // self.spec.block.columns]
        found: set[ResultPart] = set()
        left = np.ones(len(row), np.bool_)

        def told(part: ResultPart, where: Bools) -> None:
            nonlocal left
            if (left & where).any():
                found.add(part)
            left = left & ~where

        value, made, right = self(row, column, self.codes, self.scales), got[row, column], wanted[row, column]
        told(ResultPart.NAN_SCALE, np.isnan(self.spec.scale.decode(scales)))
        told(ResultPart.CODE, np.isnan(self.spec.element.decode(codes)))
        near = self._near(value, made)
        told(ResultPart.CAST, neighbour(made, right, value) & (_is_tie(value, self.to) | ~near))
        told(ResultPart.SUBNORMAL, (np.abs(value) < TINY) & (value != 0) & (made == 0) & (right != 0))
        told(ResultPart.PRODUCT, near)
        if left.any() and self.read_otherwise:
            far = np.zeros_like(wrong)
            far[row[left], column[left]] = True
            found.add(self._odd(far, wrong, wanted))
        return found

    def _near(self, value: Floats, made: Values) -> Bools:
        """Return which results are those of a float32 value that is a few steps from the right one."""
        low, high = value, value
        for _ in range(NEAR):
            low, high = np.nextafter(low, F(-np.inf)), np.nextafter(high, F(np.inf))
        ends = [self.cast(end).astype(F) for end in (low, high)]
        own = made.astype(F)
        return np.asarray((ends[0] <= own) & (own <= ends[1]) & (np.signbit(own) == np.signbit(value)))

    def _odd(self, far: Bools, wrong: Bools, wanted: Values) -> ResultPart:
        """Return the codes, or the scale bytes, that never give a right result while the others do; else the product.

        A zero tells nothing about the value of its scale byte, nor about its code unless that stands for zero. If both
        explain the wrong results and are as few, the scale bytes are named.
        """
        number, zeros = ~np.isnan(wanted.astype(F)), np.asarray(wanted.astype(F) == 0)
        scales = np.repeat(self.scales, self.spec.block.columns, axis=1)[:, : far.shape[1]]
        right = number & ~wrong
        found = []
        for part, bytes_, blank in (
            (ResultPart.SCALE, scales, zeros),
            (ResultPart.CODE, self.codes, zeros & (self.spec.element.decode(self.codes) != 0)),
        ):
            odd, others = (np.bincount(bytes_[at], minlength=256) > 0 for at in (far, right & ~blank))
            if not (odd & others).any() and (right & ~zeros).any():
                found.append((int(odd.sum()), part))
        return min(found, key=itemgetter(0))[1] if found else ResultPart.PRODUCT


def _keys(values: Values) -> Wholes:
    """Return integers in the order of the values, neighbours one apart."""
    size = values.dtype.itemsize
    bits = values.view(f"u{size}").astype(np.int64)
    sign = 1 << 8 * size - 1
    return np.where(bits & sign, -(bits & ~np.int64(sign)), bits)


def neighbour(made: Values, right: Values, value: Floats) -> Bools:
    """Return which results are the other one of the two between which a float32 value is."""
    if right.dtype.itemsize == 4:
        return np.zeros(right.shape, np.bool_)
    side = np.sign(value.astype(np.float64) - right.astype(np.float64))
    past = np.where(np.isinf(right.astype(F)) & ~np.isinf(value), -np.sign(value), side)
    return np.asarray((past != 0) & (_keys(made) - _keys(right) == past))


def _is_tie(value: Floats, to: np.dtype[Any]) -> Bools:
    """Return which float32 values are midway between two of a type: a step to each side rounds to either."""
    if to.itemsize == 4:
        return np.zeros(value.shape, np.bool_)
    low, middle, high = (_keys(np.nextafter(value, F(end)).astype(to)) for end in (-np.inf, value, np.inf))
    return np.asarray((low != high) & ((low == middle) | (middle == high)))


# Layouts


def _moved(
    case: Case, declared: Declaration, got: Values, wanted: Values, wrong: Bools, given: DirectionData
) -> set[ResultPart]:
    """Return the parts at fault of a conversion: the padding, what is read, and where it is written."""
    order, source = layout(declared.scale_layout), layout(declared.source_layout)
    shape = np.asarray(given.scales).shape
    valid = order.valid(*shape)
    found: set[ResultPart] = set()
    if (wrong & ~valid).any():
        found.add(ResultPart.PADDING)
    buffer = poisoned(np.asarray(given.scales), source.name).reshape(-1)
    if buffer.size > shape[0] * shape[1] and (wrong & (got == POISON)).any():
        found.add(ResultPart.READ)
    if (wrong & valid).any():
        read = order.to_linear(got, *shape)
        offsets = (reader.offsets(source, *shape) for reader in scale_readers(source))
        other = any(fits(each, buffer.size) and np.array_equal(buffer[each], read) for each in offsets)
        found.add(ResultPart.SOURCE if other else ResultPart.PLACE)
    return found


# Transforms


@ignoring_float_warnings
def _transformed(
    case: Case, declared: Declaration, got: Values, wanted: Values, wrong: Bools, given: DirectionData
) -> set[ResultPart]:
    """Return the parts at fault of a transform: a rounding or the sign of a zero, or the transform itself."""
    groups = widen(transform_input(case)).reshape(-1, hadamard.POINTS)
    signed = groups * (hadamard.sign_vector(signs(case.spec)) * hadamard.NORM)
    value = hadamard.butterfly(signed).reshape(wrong.shape)[wrong]
    made, right = got[wrong], wanted[wrong]
    cast = neighbour(made, right, value) | ((made == 0) & (right == 0))
    bounded = spreads(groups)[:, None] & wrong.reshape(-1, hadamard.POINTS)
    found = {ResultPart.BOUND} if bounded.any() else set()
    found |= {ResultPart.CAST} if cast.any() else set()
    return found | ({ResultPart.TRANSFORM} if not cast.all() else set())
