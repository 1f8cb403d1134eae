"""A kernel's conformance as one assertion, for any test framework; the pytest plugin gives it command-line options.

    from fp4ref.testing import assert_conforms

    def test_my_kernel():
        assert_conforms("mykernels.nvfp4:quantize", "nvfp4")  # or the function itself

Failures that are known and accepted go into a file outside the suite (`pytest --fp4ref-xfail FILE`), a line each:

    # KERNEL      SPEC   CASE               REASON
    quantize      nvfp4  inf/one/f32/row    saturates, issue 12
    *             mxfp4  subnormals/*       the device flushes them

KERNEL is the name of the function or target, or `*`; CASE is the name of a case as reports print it, or FAMILY/*. The
reason is needed. A listed case that passes fails the assertion, and so does a whole family that does; a name that no
case of the specification has is an error.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fp4ref.catalogue import resolve
from fp4ref.conformance import families as aimed
from fp4ref.conformance.families import Case
from fp4ref.conformance.families.products.cases import FAMILIES
from fp4ref.conformance.judge import coverage
from fp4ref.conformance.judge.cases import Judgement, judge
from fp4ref.conformance.run.machine import require_no_flush
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.runner import run, subject
from fp4ref.conformance.subjects.subject import Subject, cases_of, draws, reasons
from fp4ref.conformance.verdict.expected import ExpectedFailure, ExpectedFailures, read_expected_failures
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.product_runs import check
from fp4ref.conformance.verdict.products import ProductReport
from fp4ref.conformance.verdict.stochastic import StochasticReport
from fp4ref.conformance.verdict.stochastic_kernel import judge_drawing
from fp4ref.conformance.verdict.tally import Settings
from fp4ref.errors import DomainError
from fp4ref.quantized import Direction
from fp4ref.spec import Spec

__all__ = ["ExpectedFailure", "ExpectedFailures", "assert_conforms", "cases", "message", "read_expected_failures"]

WIDTH = 120  # columns of a message
SHOWN = 10  # mismatches of a message


def cases(
    spec: Spec | str,
    *,
    level: int = 1,
    families: Sequence[str] | None = None,
    directions: Sequence[Direction] = ("row",),
    dtypes: Sequence[str] = ("float32", "bfloat16", "float16"),
    multiple: tuple[int, int] = (1, 1),
) -> Iterator[Case]:
    """Return the aimed cases of a specification: x, amax and random bits under a name; the same in every run.

    multiple: rows and columns are multiples of these, in the direction's matrix.

    >>> next(cases("nvfp4", families=["normal"])).id
    'normal/1/f32/row'

    Rules: CNF-7, CNF-19.
    """
    return aimed.cases(resolve(spec), level, directions, dtypes, families, multiple=multiple)


def assert_conforms(
    kernel: Callable[..., Any] | str | Subject,
    spec: Spec | str,
    *,
    level: int = 2,
    families: Sequence[str] | None = None,
    require: Sequence[str] = (),
    timeout: float = 30.0,
    start_timeout: float | None = None,
    time_limit: float | None = None,
    repeat: int = 0,
    expected_failures: ExpectedFailures | None = None,
    **changes: Any,
) -> KernelReport | ProductReport | StochasticReport:
    """Run a kernel on the aimed cases of a specification; AssertionError with the diagnosis unless every byte is right.

    kernel: a function, called in this process, or `package.module:function`, called in one of its own, where a crash or
    a hang is a finding. level: 1 takes a second or two, 2 adds large tensors and every bit pattern. families: names,
    None for all. require: families of which a case must be compared, or "all". timeout: seconds per case, in a process
    of its own; start_timeout: more seconds for the first one, in which it may be compiled, four timeouts by default.
    time_limit: seconds after which no further case is run. repeat: how often the cases are run again in both orders
    (CNF-14); a kernel with a process of its own gets a fresh one each time. changes: fields of the kernel's
    declaration, as in `fp4ref.kernel`. A kernel that draws its own random bits is judged by neighbours and counts,
    whatever the level and the families.

    >>> import fp4ref
    >>> def quantize(x):
    ...     q = fp4ref.quantize(x, "nvfp4")
    ...     return q.row.data, q.row.scales, q.row.amax
    >>> assert_conforms(quantize, "nvfp4", families=["element-ties"]).ok
    True

    Errors: AssertionError; DomainError for an unknown specification, family or case; BackendError for a target that
    cannot be loaded.

    Rules: CNF-1, CNF-2, CNF-8, CNF-9, SR-11, CNF-105.
    """
    __tracebackhide__ = True  # pytest then shows the caller's line and the message
    require_no_flush("assert_conforms")
    options = RunOptions.starting_now(timeout, start_timeout, time_limit, repeat)
    resolved = resolve(spec)
    on_trial = _subject(kernel, changes)
    declared = on_trial.declaration
    if declared.operation == "gemm":
        return _multiplies(on_trial, resolved, families, options, tuple(require))
    names = None if families is None else tuple(families)
    required = coverage.required(tuple(require), aimed.FAMILIES)
    if resolved.stochastic and draws(declared):
        return _draws(on_trial, resolved, options, required)
    report = KernelReport(
        on_trial.name,
        resolved,
        declared,
        Settings(
            reach=aimed.Reach(level=level, multiple=declared.multiple),
            families=names,
            required=required,
            repeated=repeat > 0,
        ),
    )
    chosen = cases_of(declared, resolved, level=level, families=families)
    lines = (expected_failures or ExpectedFailures()).of(on_trial.name, resolved.name)
    accepted = _Accepted(lines)
    for item in run(on_trial, accepted.seen(_applying(chosen, report)), options):
        judgement = judge(item.case, item.outcome, declared, item.expected)
        if not accepted.takes(judgement):
            report.add(judgement)
    accepted.require_known(families)
    unexpected = accepted.passed()
    failed = {line.family for line in accepted.failed}
    right = not report.failures and (report.ok or (bool(failed) and report.missing.keys() <= failed))
    if not right:
        report.explain()
    if not right or unexpected:
        raise AssertionError("\n".join([*unexpected, *([] if right else [message(report)])]))
    return report


def _multiplies(
    on_trial: Subject, spec: Spec, families: Sequence[str] | None, options: RunOptions, require: tuple[str, ...]
) -> ProductReport:
    """Check a GEMM on cases of its own, which have one level and no list of known failures. Rules: GEM-13."""
    __tracebackhide__ = True
    names = None if families is None else tuple(families)
    report = check(on_trial, spec, names, options, required=coverage.required(require, FAMILIES))
    if not report.ok:
        raise AssertionError(
            "\n".join([f"{report.subject}: {report.headline}", *map(str, report.errors), *report.mismatches(SHOWN)])
        )
    return report


def _draws(on_trial: Subject, spec: Spec, options: RunOptions, required: tuple[str, ...]) -> StochasticReport:
    """Judge a kernel with random bits of its own by neighbours and counts. Rules: SR-11, SR-13."""
    __tracebackhide__ = True
    report = judge_drawing(spec, on_trial, options=options, required=required)
    if not report.ok:
        raise AssertionError("\n".join(report.text(SHOWN)))
    return report


def message(report: KernelReport) -> str:
    """Return the report in lines: the verdict, the diagnosis, what fails where, the first mismatches."""
    from rich.console import Console

    from fp4ref.cli.verify_text import print_kernel

    text = io.StringIO()
    # In a notebook rich would show the text and write nothing.
    plain = Console(file=text, width=WIDTH, no_color=True, force_jupyter=False)
    print_kernel(plain, report, SHOWN)
    return text.getvalue().rstrip()


def _subject(kernel: Callable[..., Any] | str | Subject, changes: dict[str, Any]) -> Subject:
    if isinstance(kernel, str):
        return subject(kernel, **changes)
    return kernel if isinstance(kernel, Subject) else Subject.of(kernel, **changes)


def _applying(chosen: Iterable[Case], report: KernelReport) -> Iterator[Case]:
    for case in chosen:
        reason = reasons(case, report.declaration)
        if reason:
            report.skip(case, reason)
        else:
            yield case


class _Accepted:
    """The lines that matched a case, and those of them that matched a failing one."""

    def __init__(self, lines: Sequence[ExpectedFailure]) -> None:
        self.lines = lines
        self.met: set[ExpectedFailure] = set()
        self.failed: set[ExpectedFailure] = set()

    def seen(self, chosen: Iterable[Case]) -> Iterator[Case]:
        """Yield the same cases."""
        for case in chosen:
            self.met |= {line for line in self.lines if line.matches(case.id)}
            yield case

    def takes(self, judgement: Judgement) -> bool:
        """Return True if a case is one that is known to fail, and does."""
        found = set() if judgement.equal else {line for line in self.lines if line.matches(judgement.case.id)}
        self.failed |= found
        return bool(found)

    def require_known(self, families: Sequence[str] | None) -> None:
        """Raise for a name that no case has, as far as its family was run."""
        for line in self.lines:
            run_at_all = families is None or line.family in families
            if run_at_all and line not in self.met:
                raise DomainError(
                    line.place, f"unknown case {line.case!r}", "a case that the kernel is run on", "CNF-7"
                )

    def passed(self) -> list[str]:
        """Return lines whose cases all pass."""
        return [
            f"{line.place}: {line.case} passes, and was expected to fail: {line.reason}"
            for line in self.lines
            if line in self.met - self.failed
        ]
