"""A quantizer on every value of a type under every scale byte."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from fp4ref.conformance.run.ending import STOPPED, Ending
from fp4ref.conformance.run.long_calls import caller
from fp4ref.conformance.run.run_options import DEFAULT, RunOptions
from fp4ref.conformance.run.sweep_call import attempt
from fp4ref.conformance.run.sweep_plan import elements, maxima, require_served, sweeps
from fp4ref.conformance.run.sweep_trial import Sweep
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.sweep_report import SweepReport
from fp4ref.conformance.verdict.sweep_store import Pace, SweepStore
from fp4ref.spec import Spec

PIECES = {"cpu": 1 << 22, "": 1 << 27}  # patterns of a call, by device
BUILDING = 1 << 22  # patterns that may take a second more, to be built and compared
LATE = "the time of the run is over"


def check(
    subject: Subject,
    spec: Spec,
    dtype: str,
    options: RunOptions = DEFAULT,
    tell: Callable[[str], None] = lambda text: None,
    *,
    global_maxima: list[int | None] | None = None,
    store: SweepStore | None = None,
) -> SweepReport:
    """Call a quantizer on every value of a type under every scale byte, and compare codes, scales and amax.

    global_maxima: patterns, by default those of the type. store: where an earlier run left how far it came, and this
    one will. The sweep ends at the first call in which the kernel breaks down, and at an interrupt.

    Errors: DomainError for a kernel or a specification that this does not apply to. FileError for a store of another
    sweep.

    Rules: CNF-46, CNF-48, CNF-57, CNF-114.
    """
    require_served(spec, subject.declaration, dtype)
    chosen = maxima(spec, dtype) if global_maxima is None else global_maxima
    report = SweepReport(subject.name, spec, subject.declaration, dtype, len(chosen))
    piece = PIECES.get(subject.declaration.device, PIECES[""])
    done: dict[str, Any] = {}
    if store is not None:
        settings = {
            "declaration": subject.declaration.to_json(),
            "global_maxima": chosen,
            "piece": piece,
            "order": "spread",
        }
        done = store.read(subject.name, spec=spec.to_json(), dtype=dtype, **json.loads(json.dumps(settings)))
        report.restore(done.get("report", {}))
    ends: tuple[type[BaseException], ...] = (*options.ends, KeyboardInterrupt)
    try:
        with contextlib.ExitStack() as stack:
            if store is not None:
                stack.callback(store.write)
            call = caller(subject, options, stack, attempt, {"stopped": LATE})
            _sweep(report, call, chosen, piece, options, tell, store, done.get("calls_of_pass", 0))
    except ends as ending:
        report.stopped, report.cut = STOPPED, Ending.of(ending)
    return report


def _sweep(
    report: SweepReport,
    call: Callable[[Sweep, float], dict[str, Any]],
    chosen: list[int | None],
    piece: int,
    options: RunOptions,
    tell: Callable[[str], None],
    store: SweepStore | None,
    skipped: int,
) -> None:
    """Make the calls that are left, from the pass and, in it, the call at which the last run ended."""
    spec, declared, dtype = report.spec, report.declaration, report.dtype
    pace = Pace(report.patterns)
    for number, largest in enumerate(chosen[report.maxima :], report.maxima):
        tell(f"pass {number + 1} of {len(chosen)}")
        passed = report.patterns
        for made, sweep in enumerate(sweeps(spec, declared, dtype, largest, piece, number)):
            if made < skipped:
                passed -= sweep.patterns
                continue
            if options.left <= 0:
                report.stopped = LATE
                return
            total = passed + elements(spec, dtype, largest) * (len(chosen) - number)
            tell(f"pass {number + 1} of {len(chosen)}: {pace.text(report.patterns, total)}")
            report.add(sweep, call(sweep, sweep.patterns / BUILDING))
            if report.finding is not None or report.stopped:
                return
            if store is not None:
                store.keep({"calls_of_pass": made + 1, "report": report.kept()})
        report.maxima += 1
        skipped = 0
        if store is not None:
            store.keep({"calls_of_pass": 0, "report": report.kept()})
