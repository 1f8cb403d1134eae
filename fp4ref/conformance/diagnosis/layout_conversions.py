"""Known mistakes of a layout conversion: scales stored or read in another layout, and other padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis import dequantizing
from fp4ref.conformance.diagnosis.clock import Deadline
from fp4ref.conformance.diagnosis.diagnose import diagnose
from fp4ref.conformance.diagnosis.evidence import Item
from fp4ref.conformance.diagnosis.measured import bytes_moved as measured_bytes
from fp4ref.conformance.diagnosis.measured.order import scale_orders
from fp4ref.conformance.diagnosis.padding import Padding, paddings
from fp4ref.conformance.diagnosis.placed_operations import KnownOperation
from fp4ref.conformance.families import Case
from fp4ref.conformance.mistakes.kernel import kernel_of
from fp4ref.conformance.mistakes.readers import DECLARED, ScaleReader, fits, scale_readers
from fp4ref.conformance.mistakes.record import Cause, Slot
from fp4ref.conformance.subjects.subject import POISON, Declaration, expected_values, golden, poisoned
from fp4ref.layout import layout

# Layouts


KEPT = 4  # bytes that are tried as the one of all padding
Values = NDArray[Any]
Bools = NDArray[np.bool_]
Result = tuple[Case, Values]  # a case, and what a kernel made of it


def layout_mistakes(
    declared: Declaration, results: Sequence[Result], tick: Deadline
) -> Iterator[Iterable[KnownOperation]]:
    """Single mistakes; another place and other padding; then scales that were placed in an order that was measured."""
    places = [DECLARED, *scale_readers(layout(declared.scale_layout))]
    sources = [DECLARED, *scale_readers(layout(declared.source_layout))]
    right, padded = (DECLARED, DECLARED, PADDINGS[0]), _paddings(declared, results)
    singles = [(place, DECLARED, PADDINGS[0]) for place in places]
    singles += [(DECLARED, source, PADDINGS[0]) for source in sources]
    singles += [(DECLARED, DECLARED, padding) for padding in padded]
    unmoved = KnownOperation(("layout-unmoved",), Slot.LAYOUT, "bytes are copied in the order of the source", _unmoved)
    yield [*(_moved(*single) for single in singles if single != right), unmoved]
    pairs = [(place, source, PADDINGS[0]) for place in places[1:] for source in sources[1:]]
    pairs += [(place, DECLARED, padding) for place in places[1:] for padding in padded]
    pairs += [(DECLARED, source, padding) for source in sources[1:] for padding in padded]
    yield _measured_orders(declared, results, padded)
    yield (_moved(*pair) for pair in pairs)
    yield _measured_bytes(declared, results)
    yield _measured_places(declared, results, tick.left)


def _moved(place: ScaleReader, source: ScaleReader, padding: Padding) -> KnownOperation:
    parts = [(place.name, place.stage, place.text)] if place.name else []
    read = f"source-{source.name}", source.stage, f"the source is read wrongly: {source.text}"
    parts += [read] if source.name else []
    parts += [(padding.name, Slot.PADDING, padding.text)] if padding.text else []
    causes = tuple(Cause(name, stage) for name, stage, _ in parts)
    names, stages = tuple(cause.name for cause in causes), [*(stage for _, stage, _ in parts), Slot.LAYOUT]
    said, made = "; ".join(text for *_, text in parts), partial(_placed, place, source, padding)
    return KnownOperation(names, stages[0], said, made, causes)


PADDINGS = Padding(""), Padding("padding is that of the source instead of 0", POISON)


def _paddings(declared: Declaration, results: Sequence[Result]) -> list[Padding]:
    """Return paddings by other bytes than zeros: of bytes those that some result has there, if they are few."""
    found = [np.unique(got[~valid]) for case, got in results if got.shape == (valid := _valid(case, declared)).shape]
    numbers = np.unique(np.concatenate([np.zeros(0, np.uint8), *found]))
    held = [int(number) for number in numbers if number]
    return [*PADDINGS[1:], *paddings(held if len(held) <= KEPT else ())]


def _unmoved(case: Case, declared: Declaration) -> Values:
    source = poisoned(golden(case).scales, declared.source_layout).reshape(-1)
    order = layout(declared.scale_layout)
    out = np.zeros(order.padded_shape(case.matrix[0], -(-case.matrix[1] // case.spec.block.columns)), np.uint8)
    out.reshape(-1)[: source.size] = source[: out.size]
    return out


def _measured_bytes(declared: Declaration, results: Sequence[Result]) -> Iterator[KnownOperation]:
    """Yield the map that a conversion applies to the bytes that it moves, if each byte becomes one other."""
    found = measured_bytes.byte_map(
        (got, expected_values(case, declared, golden(case)), _valid(case, declared)) for case, got in results
    )
    if found is not None:
        text, table = found

        def mapped(case: Case, declared: Declaration) -> Values:
            wanted = expected_values(case, declared, golden(case))
            return np.where(_valid(case, declared), table[wanted], wanted)

        yield KnownOperation(("scale-bytes-changed",), Slot.SCALE_CODEC, text, mapped)


def _valid(case: Case, declared: Declaration) -> Bools:
    """Return True where a byte of a conversion's result is a scale."""
    return layout(declared.scale_layout).valid(case.matrix[0], -(-case.matrix[1] // case.spec.block.columns))


def _measured_orders(
    declared: Declaration, results: Sequence[Result], padded: Sequence[Padding]
) -> Iterator[KnownOperation]:
    """Yield scales that were placed in an order that is measured, with every padding."""
    spec, order = results[0][0].spec, layout(declared.scale_layout)
    made = (Item(case, golden(case)._replace(scales=got), spec, order) for case, got in results)
    parts = [part for item in made if item.size for part in item.parts(True)]
    for place in scale_orders(kernel_of(spec), parts):
        yield from (_moved(place, DECLARED, padding) for padding in (PADDINGS[0], *padded))


def _measured_places(declared: Declaration, results: Sequence[Result], seconds: float) -> Iterator[KnownOperation]:
    """Yield measured placements: those of a quantizer with right codes and these scales."""
    evidence = [(case, golden(case)._replace(scales=got)) for case, got in results]
    found = diagnose(results[0][0].spec, declared.scale_layout, evidence, seconds)
    given = {id(case): got for case, got in results}
    for told in found.explanations:
        yield KnownOperation(
            told.names, Slot(told.stage), told.text, lambda case, declared: given[id(case)], told.causes
        )


def _placed(
    place: ScaleReader, source: ScaleReader, padding: Padding, case: Case, declared: Declaration
) -> Values | None:
    scales, order = golden(case).scales, layout(declared.scale_layout)
    if source.name:
        try:
            buffer = poisoned(scales, declared.source_layout)
            scales = dequantizing.taken(source, declared.source_layout, buffer, scales.shape)
        except ValueError:
            return None
    rows, blocks = scales.shape
    high, wide = order.padded(rows, blocks)
    out = order.from_linear(np.zeros_like(scales))
    if padding.text:
        scales = padding.filled(scales, (high, wide))
    offsets = place.offsets(order, *scales.shape)
    if not fits(offsets, out.size):
        return None
    out.reshape(-1)[offsets] = scales
    return out


# Transforms
