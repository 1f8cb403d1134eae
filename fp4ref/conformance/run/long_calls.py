"""Calls of a kernel that each take long: in this process, or in the kernel's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from fp4ref.conformance.run.huge_trial import HugeTrial
from fp4ref.conformance.run.process import LOADING, KernelProcess
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.sweep_trial import Sweep
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind
from fp4ref.conformance.subjects.subject import Declaration, Subject
from fp4ref.errors import BackendError

Trial = TypeVar("Trial", HugeTrial, Sweep)


def caller(
    subject: Subject,
    options: RunOptions,
    stack: contextlib.ExitStack,
    attempt: Callable[[Callable[..., Any], Declaration, Trial], dict[str, Any]],
    late: dict[str, Any],
) -> Callable[[Trial, float], dict[str, Any]]:
    """Return the function that makes a call, given the seconds that it may take more than others.

    attempt: makes it in this process. late: what is found if the time of the run ends in it.
    """
    function, target = subject.function, subject.target
    if function is not None:
        return lambda trial, more: attempt(function, subject.declaration, trial)
    assert target is not None
    changes, limit = subject.declaration.to_json(), min(LOADING, options.left)
    try:
        process = stack.enter_context(contextlib.closing(KernelProcess(target, changes, subject.library, limit)))
    except BackendError as error:  # it could be loaded before
        said = str(error)
        return lambda trial, more: {"finding": Finding(FindingKind.CRASHED, said)}

    def call(trial: Trial, more: float) -> dict[str, Any]:
        found = process.answer({"trial": trial}, options.timeout + options.allowance + more, options.left)
        if not isinstance(found, Finding):
            return found
        ended = found.kind is FindingKind.HUNG and options.left <= 0
        return late if ended else {"finding": found}

    return call
