"""The verdict on a dump: whether its bytes are the golden model's, and if not, what they are.

A file is read tensor by tensor; a second time only where it differs, to ask whether a profile made the bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnosis.budget import SECONDS
from fp4ref.conformance.diagnosis.dumps import DumpEvidence
from fp4ref.conformance.dumps.cases import NOTE, CaseID, cut
from fp4ref.conformance.dumps.files import Dump, read_dump
from fp4ref.conformance.judge.cases import compare_direction
from fp4ref.conformance.judge.comparison import Comparison, Difference
from fp4ref.conformance.judge.isolation import DIAGNOSIS, InternalError, attempted
from fp4ref.conformance.run.machine import require_no_flush
from fp4ref.conformance.verdict.dump_report import DumpReport, Result, Verdict
from fp4ref.conformance.verdict.telling import told
from fp4ref.errors import DomainError, Fp4Error, ShapeError
from fp4ref.files import TensorFile, open_tensors
from fp4ref.packings import CANONICAL
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData, matrix_shape
from fp4ref.spec import Spec

SAMPLES = 8  # differing blocks on which a profile is tried first
PROFILES_TRIED = "comparison with profiles"


@dataclass(frozen=True, kw_only=True)
class DumpRequest:
    """A request to verify something, with its options.

    spec, scale_layout, dtype: take the place of the file's metadata; dtype is that of x, and says what 16-bit integers
    mean. packing: that of the file's data, which are judged in the canonical one.
    inputs: a file that holds x where the dump has none.
    select: picks the tensors by name. amax: "given" judges the bytes by the amax in the file, "computed" by that of x;
    None is that of the file, else computed. keep: how many differing blocks of a direction are described.
    seconds: of processor time that a diagnosis may take; 0 for none.
    """

    path: str | os.PathLike[str]
    spec: Spec | None = None
    scale_layout: str | None = None
    dtype: str | None = None
    packing: str = CANONICAL
    inputs: str | os.PathLike[str] | None = None
    select: Callable[[Sequence[str]], Sequence[str]] = tuple
    amax: str | None = None
    keep: int = 16
    seconds: float = SECONDS


def verify(request: DumpRequest, progress: Callable[[str], None] = lambda name: None) -> DumpReport:
    """Compare every tensor of a dump with the golden model, and say what the whole file is.

    progress: called with each tensor's name before it is compared.

    Rules: CNF-1, CNF-2, CNF-3, CNF-4, CNF-10.
    """
    require_no_flush("verify")
    results: list[Result] = []
    samples: list[tuple[Dump, Direction]] = []
    evidence, errors = DumpEvidence(), list[InternalError]()
    for dump in dumps(request):
        progress(dump.name)
        for direction, got in _directions(dump):
            compared = _compared(dump, direction, got, dump.quantized.spec, given(request), request.keep)
            q = dump.quantized
            results.append(Result(dump.name, q.spec, q.dtype, q.shape, q.scale_layout, compared))
            first = compared.differences[:SAMPLES]
            samples += attempted(PROFILES_TRIED, partial(_samples, dump, direction, got, first), errors) or []
            kept = partial(evidence.add, dump, direction, got, compared, given(request))
            attempted(DIAGNOSIS, kept, errors)
    if all(result.compared.equal for result in results):
        return DumpReport(os.fspath(request.path), Verdict.CONFORMS, (), tuple(results), amax_given=given(request))
    tried = attempted(PROFILES_TRIED, partial(_profiles, request, results, samples, progress), errors)
    profiles = tried or ()
    excused = not any(result.compared.unexcused for result in results)
    special = excused and any(result.compared.judged for result in results)
    kind = Verdict.EXCEPT if special else Verdict.PROFILE if profiles else Verdict.WRONG
    diagnosis = None
    if kind is not Verdict.PROFILE and request.seconds:  # a profile is the explanation
        progress("diagnosis")
        diagnosis = told(partial(evidence.diagnosis, request.seconds), errors)
    return DumpReport(os.fspath(request.path), kind, profiles, tuple(results), diagnosis, tuple(errors), given(request))


def dumps(request: DumpRequest) -> Iterator[Dump]:
    """Yield the chosen tensors of a dump, one at a time, each with its input."""
    with read_dump(request.path, request.spec, request.scale_layout, request.dtype, request.packing) as file:
        chosen = set(request.select(file.names))
        for index, name in enumerate(file.names):
            if name in chosen:
                yield _with_input(file[index], request)


def given(request: DumpRequest) -> bool:
    """Return True if the bytes are judged by the amax in the file. Rules: GLB-4."""
    if request.amax is not None:
        return request.amax == "given"
    with open_tensors(request.path) as file:
        note = file.metadata.get(NOTE, "{}")
    try:
        value = json.loads(note)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("amax") == "given"


def _with_input(dump: Dump, request: DumpRequest) -> Dump:
    """Return the dump with its input, found in the other file if need be."""
    label = f"tensor {dump.name!r}" if dump.name else "the tensor"
    if dump.x is None and request.inputs is None:
        raise DomainError(
            f"verify {os.fspath(request.path)}", f"no input x of {label}", "--input FILE that has it", "FIL-3"
        )
    if dump.x is not None and request.inputs is None:
        return dump
    assert request.inputs is not None
    with open_tensors(request.inputs) as file:
        x = _input(file, dump)
    if x.shape != dump.quantized.shape and matrix_shape(x.shape or (0,)) != dump.quantized.matrix:
        got = f"input of {label} has shape {list(x.shape)}"
        raise ShapeError(f"verify {os.fspath(request.path)}", got, f"{list(dump.quantized.shape)}", "NUM-4")
    return dump._replace(x=x)


def _input(file: TensorFile, dump: Dump) -> NDArray[Any]:
    """Return the input of a dump from another file: NAME.x, NAME, or the only tensor for a dump without a name."""
    names = [f"{dump.name}.x", dump.name] if dump.name else ["x"]
    if not dump.name and len(file.names) == 1:
        names += file.names
    found = next((name for name in names if name in file.names), None)
    if found is None:
        raise file.refused(f"no {' or '.join(names)}", f"the input of tensor {dump.name!r}")
    x = file.read(found)
    bits = x.dtype == np.uint16 and dump.quantized.dtype != "float32"
    return x.view(INPUT_DTYPES[dump.quantized.dtype]) if bits else x


def _directions(dump: Dump) -> Iterator[tuple[Direction, DirectionData]]:
    for direction in DIRECTIONS:
        data = dump.quantized.row if direction == "row" else dump.quantized.column
        if data is not None:
            yield direction, data


def _compared(
    dump: Dump, direction: Direction, got: DirectionData, spec: Spec, amax_given: bool, keep: int
) -> Comparison:
    """Compare one direction; a transformed one may have been added up in another order. Rules: CNF-1, HAD-7."""
    assert dump.x is not None
    bits = getattr(dump.random_bits, direction)
    amax = got.amax if amax_given else None
    return compare_direction(dump.x, spec, direction, dump.quantized.scale_layout, got, amax, bits, keep)


def _samples(
    dump: Dump, direction: Direction, got: DirectionData, differences: Sequence[Difference]
) -> list[tuple[Dump, Direction]]:
    """Differing blocks, cut out, with the candidate's own amax."""
    if got.amax is not None and not (np.asarray(got.amax) >= 0).all():
        return []
    ids = (CaseID(dump.name, direction, found.row, found.block) for found in differences)
    return [(cut(dump, case, got.amax), direction) for case in ids]


def _profiles(
    request: DumpRequest,
    results: Sequence[Result],
    samples: Sequence[tuple[Dump, Direction]],
    progress: Callable[[str], None],
) -> tuple[str, ...]:
    """Names of the profiles whose bytes are those of the whole file; tried first on the blocks that differ."""
    specs = list(dict.fromkeys(result.spec for result in results))
    if len(specs) != 1:
        return ()
    left = [spec for spec in PROFILES.values() if _same_form(spec, specs[0])]
    for dump, direction in samples:
        got = dump.quantized.direction(direction)[0]
        left = [spec for spec in left if _equals(dump, direction, got, spec, amax_given=True)]
    for dump in dumps(request) if left else ():
        progress(dump.name)
        for direction, got in _directions(dump):
            left = [spec for spec in left if _equals(dump, direction, got, spec, given(request))]
    return tuple(dict.fromkeys(spec.name for spec in left))


def _same_form(a: Spec, b: Spec) -> bool:
    """Return True if two specifications have buffers of the same shapes and meaning, and different settings."""

    def form(spec: Spec) -> tuple[Any, ...]:
        return spec.element.format, spec.scale.format, spec.block, spec.global_scale, spec.hadamard, spec.stochastic

    return form(a) == form(b) and a != b


def _equals(dump: Dump, direction: Direction, got: DirectionData, spec: Spec, amax_given: bool) -> bool:
    try:
        return _compared(dump, direction, got, spec, amax_given, keep=0).equal
    except Fp4Error:
        return False  # a specification that refuses the input did not make the bytes
