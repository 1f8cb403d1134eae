"""Known mistakes of dequantizers, conversions of layouts and transforms, each searched for in the place where it holds.

A conversion's bytes are compared scale by scale; if its padding is not right, all bytes of the buffer are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.explanations import Explanation
from fp4ref.conformance.diagnosis.placed_results import KnownResult, ResultSite, explained
from fp4ref.conformance.families import Case
from fp4ref.conformance.mistakes.record import Cause, Slot
from fp4ref.conformance.mistakes.result_places import result_mistakes
from fp4ref.conformance.subjects.subject import Declaration, expected_values, golden
from fp4ref.layout import layout

Values = NDArray[Any]
Result = tuple[Case, Values]
CALLED = {"dequantize": "values", "to_layout": "scale bytes", "hadamard": "values"}


class KnownOperation(NamedTuple):
    """Mistakes, one or two: their names, the first one's stage, a sentence, and what they make of a case.

    made gives None where they mean nothing. causes: each of them, where their stages are known.
    """

    names: tuple[str, ...]
    stage: Slot
    text: str
    made: Callable[[Case, Declaration], Values | None]
    causes: tuple[Cause, ...] = ()

    @property
    def explanation(self) -> Explanation:
        """The mistakes as an explanation of everything."""
        return Explanation(self.names, self.stage.value, self.text, causes=self.causes)


def in_places(
    declared: Declaration, results: Sequence[Result], known: Sequence[KnownOperation], tick: Callable[[], None]
) -> list[Explanation]:
    """Return single mistakes that explain everything, each in one place.

    results: wrong ones first, small ones first. known: single mistakes. tick: raises when the time is over.

    Rules: CNF-26.
    """
    search = _PlacedOperations(declared, [(case, got) for case, got in results if got.size], tick)
    if not search.tidy:
        return []
    return explained(search.sites, search.mistakes(known), tick, by_element=declared.operation != "to_layout")


class _PlacedOperations:
    """Results as matrices: values, or scale bytes in rows."""

    def __init__(self, declared: Declaration, results: Sequence[Result], tick: Callable[[], None]) -> None:
        self.declared, self.tidy, self.sites, self.padded = declared, True, [], False
        self.cases: list[Case] = []
        bytewise = declared.operation == "to_layout"
        given = []
        for case, got in results:
            tick()
            wanted = expected_values(case, declared, golden(case))
            if got.shape != wanted.shape or not (bytewise or wanted.size == np.prod(case.matrix)):
                self.tidy = False
                return
            if bytewise and not np.array_equal(self._padding(case, got), self._padding(case, wanted)):
                self.padded = True
            given.append((case, got, wanted))
        for case, got, wanted in given:
            tick()
            block = case.spec.block.columns
            pair = self._matrix(case, got), self._matrix(case, wanted)
            self.sites.append(ResultSite(case, *pair, block if bytewise else 1, block))
            self.cases.append(case)

    def mistakes(self, known: Sequence[KnownOperation]) -> Iterator[KnownResult]:
        """Yield mistakes of the operation, then those in where a result is written."""
        for item in known:
            yield KnownResult(item.names, item.stage.value, item.text, partial(self._made, item), causes=item.causes)
        operation = self.declared.operation
        for name, text, change in result_mistakes(numbers=operation != "to_layout"):
            said = text.format(CALLED[operation])
            yield KnownResult((name,), CALLED[operation], said, partial(self._changed, change))

    def _made(self, known: KnownOperation, index: int) -> Values | None:
        made = known.made(self.cases[index], self.declared)
        wanted = self.sites[index].right
        if made is None or (self.declared.operation != "to_layout" and made.size != wanted.size):
            return None
        return self._matrix(self.cases[index], made)

    def _changed(self, change: Callable[[Values], Values], index: int) -> Values:
        with np.errstate(all="ignore"):
            return change(self.sites[index].right)

    def _blocks(self, case: Case) -> tuple[int, int]:
        return case.matrix[0], -(-case.matrix[1] // case.spec.block.columns)

    def _matrix(self, case: Case, values: Values) -> Values:
        if self.padded:
            order, (rows, blocks) = layout(self.declared.scale_layout), self._blocks(case)
            down, across = order.padded(rows, blocks)
            offsets = order.offset(np.arange(down)[:, None], np.arange(across)[None], blocks, rows)
            return np.asarray(values.reshape(-1)[offsets])
        if self.declared.operation == "to_layout":
            return np.asarray(layout(self.declared.scale_layout).to_linear(values, *self._blocks(case)))
        return values.reshape(case.matrix)

    def _padding(self, case: Case, values: Values) -> Values:
        order = layout(self.declared.scale_layout)
        return np.where(order.valid(*self._blocks(case)) | (not order.pads_compared), 0, values)
