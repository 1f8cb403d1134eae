"""Every intermediate of an element that differs, beside what was got."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fp4ref import packing
from fp4ref.conformance.explain.formulas import decimal
from fp4ref.conformance.explain.steps import sections
from fp4ref.conformance.explain.way import explain
from fp4ref.conformance.judge.comparison import Difference
from fp4ref.conformance.judge.isolation import attempted
from fp4ref.conformance.reports.view import ShownDirection, View
from fp4ref.formats import Codec
from fp4ref.layout import layout
from fp4ref.spec import Granularity

INTERMEDIATES = "list of intermediate values"
FIRST = 3  # differing blocks of an exhibit that are explained
Line = tuple[str, str, str, str, tuple[str, ...], str]  # step, expected, bits, got, rules, note


@dataclass(frozen=True)
class Explained:
    """An element: a title, and a line for every step of the specification."""

    title: str
    steps: tuple[Line, ...]


def explained(exhibit: ShownDirection, difference: Difference) -> Explained:
    """Return the steps of the specification for an element; what was got stands at the steps that leave bytes.

    Rules: CNF-1, BLK-3, BLK-4, GLB-4.
    """
    spec = exhibit.spec
    at = difference.row, difference.column
    element = at if exhibit.direction == "row" else at[::-1]
    amax = None
    if exhibit.amax is not None and spec.global_scale is not Granularity.NONE:
        amax = float(np.ravel(exhibit.amax)[at[0] if spec.global_scale is Granularity.ROW else 0])
    stages = explain(exhibit.x, spec, *element, exhibit.direction, amax, exhibit.random_bits)
    got = _got(exhibit, at)
    lines = [
        (step.name, step.value, step.bits, got.get(step.name, ""), step.rules, step.note)
        for section in sections(stages)
        for step in section.steps
    ]
    title = f"row {at[0]}, block {difference.block}, element {at[1]}: input {difference.bits} ({difference.value:.9g})"
    if difference.got is not None:
        title += f", code {difference.expected} expected, {difference.got} got"
    if difference.got_scale != difference.expected_scale:
        title += f", scale 0x{difference.expected_scale:02x} expected, 0x{difference.got_scale:02x} got"
    return Explained(title, tuple(lines))


def first_explained(exhibit: ShownDirection) -> list[Explained]:
    """Return the first blocks that differ."""
    return [explained(exhibit, difference) for difference in exhibit.compared.differences[:FIRST]]


def with_intermediates(record: dict[str, Any], view: View) -> dict[str, Any]:
    """Return a report's JSON data with every intermediate of the first blocks that differ. Rules: CNF-10."""
    names, errors = ("step", "expected", "bits", "got", "rules", "how"), list(view.errors)
    explained = [
        {
            "tensor": exhibit.name,
            "direction": exhibit.direction,
            "element": found.title,
            "steps": [dict(zip(names, line, strict=True)) for line in found.steps],
        }
        for exhibit in view.exhibits
        for found in attempted(INTERMEDIATES, partial(first_explained, exhibit), errors) or ()
    ]
    return record | {"explained": explained, "internal_errors": [error.to_json() for error in errors]}


def _got(exhibit: ShownDirection, at: tuple[int, int]) -> dict[str, str]:
    """Return the candidate's scale byte, code and amax at an element, by the name of the step that makes each."""
    spec, (row, column) = exhibit.spec, at
    rows, columns = exhibit.compared.shape
    code = int(packing.unpack(np.asarray(exhibit.got.data[row : row + 1]), columns, spec.element.format)[0, column])
    blocks, block = -(-columns // spec.block.columns), column // spec.block.columns
    offset = layout(exhibit.scale_layout).offset(row, block, blocks, rows)
    scale = int(np.asarray(exhibit.got.scales).reshape(-1)[offset])
    digits = spec.element.format.digits
    found = {"scale byte": _coded(spec.scale, scale, 2), "code": _coded(spec.element, code, digits)}
    if exhibit.got.amax is not None:
        values = np.ravel(np.asarray(exhibit.got.amax))
        found["global amax"] = decimal(values[row if spec.global_scale is Granularity.ROW else 0])
    return found


def _coded(codec: Codec, code: int, digits: int) -> str:
    return f"0x{code:0{digits}x} = {decimal(codec.decode(np.array([code], np.uint8))[0])}"
