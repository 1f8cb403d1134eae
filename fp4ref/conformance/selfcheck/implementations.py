"""The installed implementations against the standard.

Every vector runs on the golden model and on every backend; every backend is compared with the golden model on aimed
tensors.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fp4ref import api, registry
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families.rules import dequantizing
from fp4ref.conformance.judge.compare import compare
from fp4ref.conformance.judge.result_stages import differing
from fp4ref.conformance.run.machine import require_no_flush
from fp4ref.conformance.selfcheck import others as selfcheck_others
from fp4ref.conformance.selfcheck.report import SelfCheckReport
from fp4ref.conformance.selfcheck.trials import BackendTrial, Expected, PlacedTrial, calls, trials
from fp4ref.conformance.subjects.subject import golden
from fp4ref.conformance.vectors import files as vectors
from fp4ref.conformance.vectors import vector_runs
from fp4ref.conformance.vectors.files import VectorFile
from fp4ref.conformance.vectors.placing import fetched, placed, placed_result
from fp4ref.conformance.vectors.subjects import ApiSubject, GoldenSubject
from fp4ref.conformance.vectors.text import Mismatch, mismatched_words, pattern_words
from fp4ref.model import dequantize as model_dequantize
from fp4ref.quantized import Quantized
from fp4ref.registry import Call
from fp4ref.rules import is_of

POISON = 0x7F  # NaN as an E4M3 scale: what padding holds when bytes are dequantized
THREADED = 1 << 20  # elements of the trials that a backend may divide among threads, as its users' tensors are
GOLDEN = GoldenSubject().name
BEFORE_ELEMENTS = {"LAY", "GLB", "MXS", "E8M0", "BLK-3"}  # rules and prefixes that no code of an element breaks


def run(
    backends: list[str] | None = None,
    progress: Callable[[str], None] | None = None,
    directory: Path | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> SelfCheckReport:
    """Check the golden model with the vectors, and backends with the vectors and with the golden model.

    backends: names; None is every one that can run. progress: is told what comes next. directory: of other vectors.
    note: is told in a line what takes a while before the first result.

    Errors: BackendError for a named backend that cannot run; DomainError if this machine flushes subnormals.

    Rules: CNF-1, CNF-3, CNF-4, CNF-5.
    """
    tell = progress or (lambda name: None)
    tell("vectors")
    require_no_flush("verify")
    report = SelfCheckReport()
    names = _chosen(backends, report)
    files = vectors.load(directory)
    for name in names:
        _prefetch(name, files, note)
    for subject in (GoldenSubject(), *map(ApiSubject, names)):
        report.subjects.append(subject.name)
        for file in files:
            tell(f"{subject.name}: {file.name}")
            with _one_thread(subject.name):
                _run_vectors(report, subject, file)
    for trial, expected in _with_golden(tell, wanted=bool(names)):
        report.extent.add(trial.case.x.dtype.name, *trial.case.matrix)
        report.families[trial.case.family] += 1
        for name in names:
            with nullcontext() if trial.case.x.size >= THREADED else _one_thread(name):
                _run_trial(report, name, trial, expected)
    for name in names:
        tell(f"{name}: random bytes and products")
        with _one_thread(name):
            for check in selfcheck_others.checks(name):
                report.add(name, check.id, check.rules, _guarded(check.run))
    return report


def _prefetch(name: str, files: Sequence[VectorFile], note: Callable[[str], None]) -> None:
    """Tell a backend that compiles what it will be asked for, by name or in a rehearsal."""
    backend = registry.backends()[name]
    rehearse = getattr(registry.get(name), "rehearse", None)
    if rehearse is not None:
        rehearse(partial(_run_without_looking, name, files), note)
    prefetch = getattr(registry.get(name), "prefetch", None)
    if prefetch is not None:
        subject = ApiSubject(name)
        of_vectors = (subject.calls(test) for file in files for test in file.tests)
        told = itertools.chain(*of_vectors, calls(), selfcheck_others.calls())
        known = (call for call in dict.fromkeys(told) if call.operation in backend.operations)
        prefetch([call for call in known if not backend.unserved(call)], note)


def _run_without_looking(name: str, files: Sequence[VectorFile]) -> None:
    """Everything that a backend will be asked for, whatever comes of it."""
    backend = registry.backends()[name]
    for file in files:
        _run_vectors(SelfCheckReport(), ApiSubject(name), file)
    for trial in trials():
        if not backend.unserved(trial.calls[0]):
            given = trial.case.encoded
            with suppress(Exception):
                q = (
                    _result(name, trial)
                    if given is None
                    else placed_result(_stored(trial, PlacedTrial(given, trial.order)), name)
                )
                api.dequantize(q, trial.to, trial.case.direction, backend=name)
    for check in selfcheck_others.checks(name):
        _guarded(check.run)


def _chosen(backends: list[str] | None, report: SelfCheckReport) -> list[str]:
    """Names of the backends to check. Rules: CNF-5."""
    if backends is not None:
        for name in backends:
            registry.get(name)
        return list(dict.fromkeys(backends))
    report.unavailable = {name: reason for name, reason in registry.available() if reason is not None}
    return [name for name, reason in registry.available() if reason is None]


def blamed(rules: Sequence[str], found: Sequence[Mismatch]) -> tuple[str, ...]:
    """Return the rules of a test that are about the parts that differ; empty if any rule may be."""
    elements = tuple(rule for rule in rules if not is_of(rule, BEFORE_ELEMENTS))
    about = {
        "amax": ("GLB-1", "GLB-5", "HAD-4", "NUM-1", "BLK-2"),
        "padding": ("LAY-5",),
        "spare": ("PACK-2", "PACK-5"),
        "code": elements,
        "data": elements,
    }
    named = {rule for what in {mismatch.field for mismatch in found} for rule in about.get(what, rules)}
    return tuple(rule for rule in rules if rule in named)


def _run_vectors(report: SelfCheckReport, subject: ApiSubject, file: VectorFile) -> None:
    for test in file.tests:
        reasons = subject.reasons(test)
        if reasons:
            report.unsupported.setdefault(subject.name, Counter())[reasons[0]] += 1
        else:
            found = _guarded(partial(vector_runs.run, test, subject))
            report.add(subject.name, test.id, test.rules, found, blamed(test.rules, found))


def _one_thread(name: str) -> AbstractContextManager[None]:
    """Return the context in which a backend runs on one thread; an empty one if it has no threads."""
    alone = None if name == GOLDEN else getattr(registry.get(name), "one_thread", None)
    return nullcontext() if alone is None else alone()


def _guarded(check: Callable[[], list[Mismatch]]) -> list[Mismatch]:
    """Run a check; an error of any kind in the code on trial becomes a mismatch."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the code on trial may raise anything
        return [Mismatch("error", (), "", "a result", f"{type(error).__name__}: {error}".splitlines()[0])]


def _with_golden(tell: Callable[[str], None], wanted: bool) -> Iterator[tuple[BackendTrial, Expected]]:
    """Every trial with what the golden model makes of its case."""
    last = ""
    for trial in trials() if wanted else ():
        case = trial.case
        if case.spec.name != last:
            last = case.spec.name
            tell(f"aimed cases: {last}")
        data = golden(case)
        values = model_dequantize.dequantize(data, case.matrix, case.spec, INPUT_DTYPES[trial.to], case.x.dtype)
        yield trial, Expected(PlacedTrial(data, trial.order), values)


def _run_trial(report: SelfCheckReport, name: str, trial: BackendTrial, expected: Expected) -> None:
    backend, case = registry.backends()[name], trial.case
    if "quantize" in backend.operations and case.encoded is None and _served(report, name, trial.calls[0]):
        found = _guarded(lambda: _quantized(name, trial, expected))
        report.add(name, trial.id, trial.rules, found, blamed(trial.rules, found))
    if "dequantize" in backend.operations and _served(report, name, trial.calls[1]):
        rules = dequantizing(case.spec, case.direction)
        report.add(name, f"{trial.id}/{trial.to}", rules, _guarded(lambda: _dequantized(name, trial, expected)))


def _served(report: SelfCheckReport, name: str, call: Call) -> bool:
    """Return True if a backend serves a call; otherwise count its reason."""
    reasons = registry.backends()[name].unserved(call)
    if reasons:
        report.unsupported.setdefault(name, Counter())[reasons[0]] += 1
    return not reasons


def _result(name: str, trial: BackendTrial) -> Quantized:
    """Return a backend's result for a trial's case."""
    case = trial.case
    x, bits = placed(case.x, name), placed(case.random_bits, name)
    return api.quantize(x, case.spec, case.direction, trial.scale_layout, case.amax, bits, name)


def _quantized(name: str, trial: BackendTrial, expected: Expected) -> list[Mismatch]:
    """Return the places at which a backend's bytes differ from the golden model's. Rules: CNF-1, CNF-3."""
    case, q = trial.case, _result(name, trial)
    got = q.direction(case.direction)[0].mapped(fetched)
    if _same(got, expected.placed.stored):
        return []
    found = compare(case.x, case.spec, case.direction, trial.scale_layout, got, expected.placed.data, keep=1)
    if found.equal:  # the same numbers in another type, or NaN of another sign where that is free
        types = [str(np.asarray(part).dtype) for part in got if part is not None]
        wanted = [str(part.dtype) for part in expected.placed.data if part is not None]
        return [] if types == wanted else [Mismatch("type", (), "", " ".join(wanted), " ".join(types))]
    for difference in found.differences:
        place, value = (difference.row, difference.column), f"{difference.bits} ({difference.value:.9g})"
        if difference.got is not None and difference.expected is not None:
            return [Mismatch("code", place, value, f"{difference.expected:02x}", f"{difference.got:02x}")] * found.codes
        scales = f"{difference.expected_scale:02x}", f"{difference.got_scale:02x}"
        return [Mismatch("scale", (difference.row, difference.block), value, *scales)] * found.scales
    others = (("amax", found.first_amax), ("spare", found.first_spare), ("padding", found.first_padding))
    return [
        Mismatch(what, (place.index,), "", place.expected, place.got) for what, place in others if place is not None
    ]


def _same(got: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Return True if all arrays are the same in every byte, so that nothing needs to be explained. Rules: CNF-1."""
    return all(_bytes(a) == _bytes(b) for a, b in zip(got, expected, strict=True))


def _bytes(array: Any) -> tuple[tuple[int, ...], Any, bytes] | None:
    """Shape, type and bytes of an array, if there is one."""
    if array is None:
        return None
    host = np.asarray(array)
    return host.shape, host.dtype, host.tobytes()


def _dequantized(name: str, trial: BackendTrial, expected: Expected) -> list[Mismatch]:
    """Return the places at which a backend decodes the golden bytes differently, with poisoned padding.

    Rules: CNF-1, CNF-47, DEQ-6, LAY-6.
    """
    q = placed_result(_stored(trial, expected.placed), name)
    values = fetched(api.dequantize(q, trial.to, trial.case.direction, backend=name))
    wanted = expected.values.reshape(values.shape)
    right = values.dtype == wanted.dtype and not differing(values, wanted).any()
    return [] if right else mismatched_words("values", values, pattern_words(wanted))


def _stored(trial: BackendTrial, kept: PlacedTrial) -> Quantized:
    """Return bytes with linear scales as a result in the trial's layout, with poisoned padding."""
    case = trial.case
    part = kept.data._replace(scales=np.where(kept.inside, kept.stored.scales, np.uint8(POISON)))
    pair = (part, None) if case.direction == "row" else (None, part)
    return Quantized(case.spec, case.x.shape, case.x.dtype.name, trial.scale_layout, *pair)
