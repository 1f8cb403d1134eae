"""Cases that are run again: in reversed order, in a fresh process, and at once on streams of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.subjects.agreement import Results, difference
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind, Outcome
from fp4ref.conformance.subjects.subject import Declaration, Job

WINDOW = 1 << 27  # bytes of arguments that are kept, to be given again
OF_THE_RUN = frozenset({FindingKind.NOT_TRIED, FindingKind.INTERNAL})  # nothing is wrong with the kernel
TOGETHER = 4  # calls that run at once
BREAKDOWNS = frozenset(
    {FindingKind.CRASHED, FindingKind.HUNG, FindingKind.CUDA, FindingKind.NOT_RUN, FindingKind.NOT_TRIED}
)
SAID_ALONE = frozenset({FindingKind.OVERWRITTEN, FindingKind.UNSTABLE, FindingKind.UNWRITTEN})  # whatever the order


class Calls(Protocol):
    """A subject that is called again and again.

    separate: whether it has a process of its own, so that `close` forgets all that it remembers.
    """

    separate: bool

    def outcome(self, make: Callable[[], Job], *, remember: bool) -> Outcome:
        """Call it once; the arrays that earlier calls returned are looked at, too, if `remember` is set."""

    def together(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Make several calls at once."""

    def close(self) -> None:
        """End its process."""


@dataclass
class _Try:
    """A call, its first result, and its outcomes when repeated: in this order, in reversed order."""

    make: Callable[[], Job]
    job: Job | None = None
    first: Outcome = field(default_factory=Outcome)
    same: list[Outcome] = field(default_factory=list)
    other: list[Outcome] = field(default_factory=list)
    together: list[Outcome] = field(default_factory=list)

    def made(self) -> Job:
        """Return the call, which is made once."""
        self.job = self.make() if self.job is None else self.job
        return self.job

    @property
    def size(self) -> int:
        """The bytes of the arguments."""
        arguments = () if self.job is None else self.job.arguments.values()
        return sum(value.nbytes for value in arguments if isinstance(value, np.ndarray))


def repeated(
    calls: Calls, makers: Iterable[Callable[[], Job]], declared: Declaration, options: RunOptions
) -> Iterator[Outcome]:
    """Yield the outcome of each call and of its repetitions; the window limits how many calls are held.

    A signal that ends the run costs the repetitions: of the calls that were made, the first outcomes are yielded.

    Rules: CNF-14, CNF-67, CNF-96.
    """
    tries: list[_Try] = []
    size = 0
    try:
        for make in makers:
            tried = _Try(make)
            tried.first = calls.outcome(tried.made, remember=True)
            tries.append(tried)
            size += tried.size
            if size >= WINDOW:
                yield from _again(calls, tries, declared, options)
                tries, size = [], 0
                calls.close()
        yield from _again(calls, tries, declared, options)
    except options.ends:
        yield from (tried.first for tried in tries)
        raise


def _again(calls: Calls, tries: Sequence[_Try], declared: Declaration, options: RunOptions) -> list[Outcome]:
    """Run calls again, unless one of them ended the process, after which the others had another past.

    Rules: CNF-14, CNF-131.
    """
    if not any(each.first.finding is not None and each.first.finding.kind in BREAKDOWNS for each in tries):
        for number in range(1, options.repeat + 1):
            for text, order in (("in reversed order", tries[::-1]), ("in the first order", tries)):
                calls.close()
                for index, each in enumerate(order, 1):
                    options.tell(f"again {text}, {number} of {options.repeat}: case {index} of {len(order)}")
                    found = calls.outcome(each.made, remember=True)
                    (each.same if order is tries else each.other).append(found)
        if declared.on_cuda:
            _together(calls, tries, options)
    return [_with_finding(each, declared, calls.separate) for each in tries]


def _together(calls: Calls, tries: Sequence[_Try], options: RunOptions) -> None:
    made = [each for each in tries if each.job is not None]
    for start in range(0, len(made), TOGETHER):
        group = made[start : start + TOGETHER]
        options.tell(f"on {len(group)} streams at once: case {start + 1} of {len(made)}")
        for each, found in zip(group, calls.together([item.made() for item in group]), strict=True):
            each.together.append(found)


def _with_finding(each: _Try, declared: Declaration, separate: bool) -> Outcome:
    """Return the first outcome, with the first finding that running the call again makes."""
    if each.first.finding is not None:
        return each.first
    runs = [*each.same, *each.other, *each.together]
    alone = (run.finding for run in runs if run.finding is not None and run.finding.kind in SAID_ALONE)
    where = " in a fresh process" if separate else ""
    found = next(alone, None)
    for kind, outcomes, how in (
        (
            FindingKind.UNSTABLE if separate else FindingKind.DEPENDS,
            each.same,
            f"when the same calls were made again{where}",
        ),
        (FindingKind.DEPENDS, each.other, f"when the calls were made in reversed order{where}"),
        (FindingKind.CONCURRENT, each.together, f"when up to {TOGETHER} calls ran at once, each on its own stream"),
    ):
        texts = (_unlike(each.first, again, each.made(), declared, how) for again in outcomes)
        text = next(filter(None, texts), None)
        found = found or (Finding(kind, text) if text else None)
    cut = (run.finding for run in runs if run.finding is not None and run.finding.kind in OF_THE_RUN)
    return replace(each.first, finding=found or next(cut, None))


def _unlike(first: Outcome, again: Outcome, job: Job, declared: Declaration, how: str) -> str:
    """Say how the outcome of a call that was made again differs from the first one; empty if it does not."""
    if again.finding is not None:
        ignored = again.finding.kind in {FindingKind.NOT_RUN, *OF_THE_RUN, *SAID_ALONE}
        return "" if ignored else f"{again.finding.kind} {how}: {again.finding.text}"
    found = difference(_results(first, job), _results(again, job), job, declared)
    return "" if found is None else found.text(how)


def _results(outcome: Outcome, job: Job) -> Results:
    return {next(iter(job.outputs)): outcome.values} if outcome.data is None else outcome.data._asdict()
