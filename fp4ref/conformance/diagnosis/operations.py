"""Diagnosis of a wrong dequantizer, layout conversion or Hadamard kernel: known mistakes, singly and in pairs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.diagnosis import dequantizing
from fp4ref.conformance.diagnosis.budget import OPERATION_SECONDS
from fp4ref.conformance.diagnosis.clock import Deadline, OutOfTimeError
from fp4ref.conformance.diagnosis.dequantizer_ways import ways
from fp4ref.conformance.diagnosis.dequantizing import Way
from fp4ref.conformance.diagnosis.explanations import Diagnosis, Explanation
from fp4ref.conformance.diagnosis.hypotheses import ORDER
from fp4ref.conformance.diagnosis.layout_conversions import layout_mistakes
from fp4ref.conformance.diagnosis.likely_place import confined
from fp4ref.conformance.diagnosis.measured import values as measured_values
from fp4ref.conformance.diagnosis.measured.dequantizer import (
    measured_elements,
    measured_factor,
    measured_orders,
    measured_scales,
    swizzled_reads,
)
from fp4ref.conformance.diagnosis.placed_operations import KnownOperation, in_places
from fp4ref.conformance.diagnosis.session import KEPT
from fp4ref.conformance.families import Case, cases
from fp4ref.conformance.judge.result_stages import differing
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.mistakes.kernel import Kernel, Map, Turn, kernel_of
from fp4ref.conformance.mistakes.places import EVERYWHERE, Place
from fp4ref.conformance.mistakes.record import Cause, Mistake, Slot
from fp4ref.conformance.mistakes.transforms import MATRIX
from fp4ref.conformance.subjects.subject import Declaration, expected_values, golden, signs, transform_input
from fp4ref.layout import layout
from fp4ref.model.tiles import widen
from fp4ref.spec import Hadamard, Spec

Values = NDArray[Any]


Bools = NDArray[np.bool_]


Result = tuple[Case, Values]  # a case, and what a kernel made of it


def diagnose_operation(
    declared: Declaration, results: Sequence[Result], budget_seconds: float = OPERATION_SECONDS
) -> Diagnosis:
    """Explain what a kernel other than a quantizer made of some cases. Rules: CNF-2, CNF-26."""
    tick = Deadline(budget_seconds)
    if declared.operation != "hadamard":
        results = [(replace(case, made=golden(case)), got) for case, got in results]
    ordered = sorted(results, key=lambda result: result[1].size)
    marks = [~equal(declared, case, got, expected_values(case, declared, golden(case))) for case, got in ordered]
    right = [not wrong.any() for wrong in marks]
    if all(right):
        return Diagnosis(conforms=True)
    wrong = [result for result, equal in zip(ordered, right, strict=True) if not equal]
    rest = [result for result, equal in zip(ordered, right, strict=True) if equal]
    found: list[Explanation] = []
    complete = True
    try:
        for item in _search(declared, [*wrong, *rest], tick):
            if item.text not in [known.text for known in found]:
                found.append(item)
    except OutOfTimeError:
        complete = False
    stage = {"dequantize": "values", "to_layout": "layout", "hadamard": "hadamard"}[declared.operation]
    told = tuple(found)
    return Diagnosis(
        conforms=False,
        explanations=told,
        first_stage=told[0].stage if told else stage,
        complete=bool(told) or complete,
        place="" if told else _likely_place(ordered, marks).text,
    )


def single_mistakes(declared: Declaration, spec: Spec) -> Iterator[KnownOperation]:
    """Yield the mistakes of an operation that are tried alone."""
    case = next(iter(cases(spec, families=("normal",))))
    right = expected_values(case, declared, golden(case))
    yield from next(SEARCHES[declared.operation](declared, [(case, right)], Deadline(OPERATION_SECONDS)))


def _search(declared: Declaration, results: Sequence[Result], tick: Deadline) -> Iterator[Explanation]:
    """Yield the explanations of the first kind that has any: single mistakes, those in one place, then the others.

    results: wrong ones first.
    """
    first = True
    for alternatives in SEARCHES[declared.operation](declared, results, tick):
        known = list(alternatives) if first else alternatives
        count = 0
        for told in itertools.islice(_explaining(known, declared, results, tick), KEPT):
            count += 1
            yield told
        if not count and first:
            everywhere = list(_measured_everywhere(declared, results, tick))
            yield from everywhere
            if everywhere:
                return
            placed = in_places(declared, results, list(known), tick)
            placed = placed or in_places(declared, results, list(_measured_inside(declared, results, tick)), tick)
            yield from placed
            count = len(placed)
        if count:
            return
        first = False


def _measured_everywhere(declared: Declaration, results: Sequence[Result], tick: Deadline) -> Iterator[Explanation]:
    """Yield what is measured of a dequantizer's values and explains all, before a known mistake in one place."""
    if declared.operation == "dequantize":
        yield from _explaining(_measured_values(declared, results, [()], tick), declared, results, tick)


def _measured_inside(declared: Declaration, results: Sequence[Result], tick: Deadline) -> Iterator[KnownOperation]:
    """Yield what is measured of a dequantizer's values in the place of everything that differs."""
    if declared.operation != "dequantize":
        return
    marks = [~equal(declared, case, got, expected_values(case, declared, golden(case))) for case, got in results]
    place, spec = _likely_place(results, marks), results[0][0].spec
    if not place.predicates:
        return
    inside = [(case, got) for case, got in results if got.size == case.matrix[0] * case.matrix[1]]
    yield from (_ways(way) for way in measured_factor(declared, spec, _ticked(inside, tick), (), place))
    for way in (
        measured_elements(declared, spec, _ticked(inside, tick), (), place),
        measured_scales(declared, spec, _ticked(inside, tick), place),
    ):
        if way is not None:
            yield _ways(way)


def same(declared: Declaration, case: Case, got: Values, wanted: Values) -> bool:
    """Return True if results are equal, all NaN being one and unspecified bytes ignored. Rules: CNF-1, LAY-37."""
    return bool(equal(declared, case, got, wanted).all())


def equal(declared: Declaration, case: Case, got: Values, wanted: Values) -> Bools:
    """Return which values or bytes are equal; a single False if the shapes differ. Rules: CNF-1, LAY-37."""
    if got.shape != wanted.shape:
        return np.zeros((1, 1), np.bool_)
    if declared.operation == "to_layout":
        shape = case.matrix[0], -(-case.matrix[1] // case.spec.block.columns)
        return np.asarray((got == wanted) | ~layout(declared.scale_layout).compared(*shape))
    return ~differing(got, wanted)


def _likely_place(results: Sequence[Result], marks: Sequence[Bools]) -> Place:
    """Return where everything that differs is. marks: what differs of each result. Rules: CNF-44."""
    seen = []
    for (case, got), differs in zip(results, marks, strict=True):
        if not got.size:
            continue
        # of scales in a layout only the tensor is told
        wrong = differs if differs.shape == case.matrix else np.full((1, 1), differs.any())
        starts = range(0, wrong.shape[1], case.spec.block.columns)
        seen.append((case, np.logical_or.reduceat(wrong, starts, axis=1)))
    return confined(seen, results[0][0].spec.block.columns) if seen else EVERYWHERE


def _explaining(
    known: Iterable[KnownOperation], declared: Declaration, results: Sequence[Result], tick: Deadline
) -> Iterator[Explanation]:
    """Yield the mistakes that explain everything."""
    for item in known:
        tick()
        if _explains(item, declared, results, tick):
            yield item.explanation


def _explains(known: KnownOperation, declared: Declaration, results: Sequence[Result], tick: Deadline) -> bool:
    for case, got in results:
        tick()
        made = known.made(case, declared)
        if made is None or not same(declared, case, got, made):
            return False
    return True


# Dequantizers


def _dequantizers(
    declared: Declaration, results: Sequence[Result], tick: Deadline
) -> Iterator[Iterable[KnownOperation]]:
    """Single mistakes; pairs in different stages; elements whose values were measured."""
    known = list(ways(declared, results[0][0].spec))
    yield (_ways(way) for way in known)
    yield (_ways(way) for way in measured_orders(declared, _ticked(results, tick)))
    yield (_ways(way) for way in swizzled_reads(declared, results))
    known = [way for way in known if not way.alone]
    pairs = (sorted(pair, key=lambda way: ORDER.index(way.stage)) for pair in itertools.combinations(known, 2))
    yield (_ways(one, other) for one, other in pairs if one.stage is not other.stage)
    yield _measured_values(declared, results, [(way,) for way in known if way.inputs is not None], tick)


def _ways(*several: Way) -> KnownOperation:
    names, text = tuple(way.name for way in several), "; ".join(way.text for way in several)
    causes = tuple(Cause(way.name, way.stage) for way in several)
    return KnownOperation(names, several[0].stage, text, partial(dequantizing.made, several), causes)


def _measured_values(
    declared: Declaration, results: Sequence[Result], others: Iterable[tuple[Way, ...]], tick: Deadline
) -> Iterator[KnownOperation]:
    spec = results[0][0].spec
    for other in others:
        yield from (_ways(*other, way) for way in measured_factor(declared, spec, _ticked(results, tick), other))
        way = measured_elements(declared, spec, _ticked(results, tick), other)
        if way is not None:
            yield _ways(*other, way)
        way = None if other else measured_scales(declared, spec, _ticked(results, tick))
        if way is not None:
            yield _ways(way)


def _ticked(results: Sequence[Result], tick: Deadline) -> Iterator[Result]:
    """Yield results while there is time."""
    for result in results:
        tick()
        yield result


def _transforms(declared: Declaration, results: Sequence[Result], tick: Deadline) -> Iterator[Iterable[KnownOperation]]:
    """Single mistakes; pairs of them; then a matrix that was measured."""
    spec = results[0][0].spec
    spec = spec if spec.hadamard else spec.replace(hadamard=Hadamard())
    kernel = kernel_of(spec).but(transform=Turn(signs(spec)))
    singles = []
    for mistake in MISTAKES:
        changed = mistake.apply(kernel) if mistake.stage is Slot.HADAMARD else None
        if changed is not None and changed.turned == kernel.turned:
            singles.append((mistake, changed))
    yield [_transform((one,), changed) for one, changed in singles]
    yield (
        _transform((one, other), both)
        for one, changed in singles
        for other, _ in singles
        if other is not one and (both := other.apply(changed)) is not None and both.turned == kernel.turned
    )
    measured = measured_values.matrix_of(kernel, [(transform_input(case), got) for case, got in results])
    if measured is not None:
        name, text, matrix = measured
        given = {id(case): got for case, got in results}

        def whole(case: Case, declared: Declaration) -> Values | None:
            got = given[id(case)]
            return got if measured_values.may_give(matrix, transform_input(case), got) else None

        mask = measured_values.signs_of(matrix)
        made = whole if mask is None else partial(_turned, Turn(mask))
        yield [KnownOperation((name,), Slot.HADAMARD, text, made, (Cause(name, Slot.HADAMARD, MATRIX),))]


def _transform(mistakes: Sequence[Mistake], changed: Kernel) -> KnownOperation:
    names, text = tuple(mistake.name for mistake in mistakes), "; ".join(mistake.text for mistake in mistakes)
    causes = tuple(mistake.cause for mistake in mistakes)
    return KnownOperation(names, Slot.HADAMARD, text, partial(_turned, changed.transform), causes)


@np.errstate(all="ignore")
def _turned(transform: Map | None, case: Case, declared: Declaration) -> Values | None:
    values = widen(transform_input(case))
    made = values if transform is None else transform(values)
    return made.astype(INPUT_DTYPES["bfloat16"]) if made.shape == values.shape else None


SEARCHES = {"dequantize": _dequantizers, "to_layout": layout_mistakes, "hadamard": _transforms}
