"""A block shown alone: each of its elements, as it is and as it should be."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.dumps.cases import NOTE, CaseID, cut, expected
from fp4ref.conformance.dumps.files import Dump, write_dump
from fp4ref.conformance.judge.compare import codes_of, hexadecimal, shown_inputs, unequal
from fp4ref.conformance.verdict.dumps import DumpRequest, dumps, given, verify
from fp4ref.errors import DomainError
from fp4ref.files.kinds import saved_case
from fp4ref.model.quantize import global_amax
from fp4ref.model.tiles import Matrix
from fp4ref.spec import Granularity, Spec

SAVED = saved_case(NOTE)


class Element(NamedTuple):
    """An element of a block: the quantizer's input, and its code."""

    column: int
    bits: str
    value: float
    got: int
    expected: int
    differs: bool


@dataclass(frozen=True)
class Replay:
    """The row of a block that a case names. amax: None without a global scale. codes: how many differ in the block."""

    case: CaseID
    spec: Spec
    amax: float | None
    got_scale: int
    expected_scale: int
    scale_differs: bool
    codes: int
    elements: tuple[Element, ...]

    @property
    def equal(self) -> bool:
        """True if every byte of the block is right."""
        return not self.codes and not self.scale_differs

    @property
    def headline(self) -> str:
        """The finding in a line."""
        what = ["the scale"] if self.scale_differs else []
        what += [f"{self.codes} code{'s' * (self.codes > 1)}"] if self.codes else []
        return f"differs from {self.spec.name} in {' and '.join(what)}" if what else f"conforms to {self.spec.name}"

    def to_json(self) -> dict[str, Any]:
        """Return the replay as JSON data; a value that is not finite is null, its bits say what it is."""
        finite = self.amax is None or math.isfinite(self.amax)
        return {
            "case": str(self.case),
            "spec": self.spec.name,
            "equal": self.equal,
            "headline": self.headline,
            "amax": self.amax if finite else str(self.amax),
            "scale": {"got": self.got_scale, "expected": self.expected_scale},
            "elements": [
                element._asdict() | {"value": element.value if math.isfinite(element.value) else None}
                for element in self.elements
            ],
        }


def first_case(request: DumpRequest) -> CaseID:
    """Return the first block of a file that differs; one without an excuse before one with."""
    undiagnosed = replace(request, seconds=0)
    found = [(result, item) for result in verify(undiagnosed).results for item in result.compared.differences]
    if not found:
        raise DomainError(f"verify {os.fspath(request.path)}", "no block that differs", "--case ID", "CNF-2")
    result, item = min(found, key=lambda pair: pair[1].excuse is not None)
    return result.case(item)


def block_of(request: DumpRequest, case: CaseID) -> Dump:
    """Return the block of a case as a dump, with the amax that its bytes are judged by. Rules: GLB-4, HAD-4."""
    for dump in dumps(request):
        if dump.name == case.tensor:
            assert dump.x is not None
            got, _ = dump.quantized.direction(case.direction)
            spec = dump.quantized.spec
            amax: NDArray[np.float32] | None = got.amax
            if spec.global_scale is not Granularity.NONE and not given(request):
                amax = global_amax(dump.x, spec, case.direction)
            return cut(dump, case, amax)
    raise DomainError(f"verify {os.fspath(request.path)}", f"no tensor {case.tensor!r}", "a case of this file", "CNF-2")


def replay(block: Dump, case: CaseID) -> Replay:
    """Compare one block, element by element. Rules: CNF-1, GLB-4."""
    q = block.quantized
    got, (rows, columns) = q.direction(case.direction)
    wanted = expected(block, case.direction, q.spec, got.amax)
    whole = slice(0, rows), slice(0, columns)
    codes, right = (codes_of(part.data, whole, q.spec) for part in (got, wanted))
    bad = unequal(q.spec.element, codes, right, q.spec)
    bad_scales = unequal(q.spec.scale, np.asarray(got.scales), wanted.scales, q.spec)
    row = case.row % q.spec.block.rows
    assert block.x is not None
    values = shown_inputs(Matrix(block.x, case.direction), whole, q.spec, case.direction)[row]
    amax = None if got.amax is None else float(got.amax[row if q.spec.global_scale is Granularity.ROW else 0])
    elements = tuple(
        Element(
            case.block * q.spec.block.columns + column,
            hexadecimal(values[column]),
            float(values[column]),
            int(codes[row, column]),
            int(right[row, column]),
            bool(bad[row, column]),
        )
        for column in range(columns)
    )
    scales = int(got.scales[row, 0]), int(wanted.scales[row, 0])
    return Replay(case, q.spec, amax, *scales, bool(bad_scales.any()), int(np.count_nonzero(bad)), elements)


def save(
    path: str | os.PathLike[str],
    block: Dump,
    case: CaseID,
    source: str | os.PathLike[str],
    *,
    force: bool = False,
) -> None:
    """Write one block as a dump that shows the same differences: its amax is the one it was judged by, and stays so.

    force: replace a file that is not a saved case.

    Rules: FIL-3, FIL-4, FIL-6, GLB-4.
    """
    note = {"amax": "given", "case": str(case), "from": Path(source).name}
    write_dump(path, [block], [source], {NOTE: json.dumps(note)}, SAVED, force=force)
