"""A profile against someone's implementation: the share of equal cases, the smallest difference, and its field."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from fp4ref.conformance.diagnosis.fields import FieldChange, explaining_fields
from fp4ref.conformance.explain.notation import write_values
from fp4ref.conformance.explain.probes import InputKind, Probe, kind_of
from fp4ref.conformance.explain.shrink import shrunk
from fp4ref.conformance.families import Case
from fp4ref.conformance.judge.cases import Judgement, compare_direction, judge
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.runner import Runner, run
from fp4ref.conformance.subjects.subject import Subject, golden, job_of, reasons
from fp4ref.conformance.verdict.dump_report import Cell, count_test
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.conformance.verdict.tally import Settings
from fp4ref.formats import F
from fp4ref.layout import LAYOUTS
from fp4ref.quantized import DirectionData
from fp4ref.spec import Spec

EVIDENCE = 1 << 20  # elements of the cases that a changed field has to explain


@dataclass(frozen=True)
class SmallestDifference:
    """The smallest input found on which the two differ, and both results, scales in the subject's layout."""

    x: Any
    amax: float | None
    kind: InputKind
    ours: DirectionData
    theirs: DirectionData

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON data; bytes in hex."""
        sides = {"profile": self.ours, "implementation": self.theirs}
        return {
            "values": write_values(self.x),
            "dtype": self.x.dtype.name,
            "amax": self.amax,
            "kind": self.kind.value,
            **{name: {"data": _hex(side.data), "scales": _hex(side.scales)} for name, side in sides.items()},
        }


@dataclass
class ProfileCheck:
    """The findings about a profile and an implementation.

    report: the verdict and the diagnosis. shares: equal and all cases, by family and type. smallest: None if all cases
    are equal, or no case of one matrix differs. fields: changes of one field that explain all bytes.

    Rules: PRO-5, PRO-6, PRO-7.
    """

    report: KernelReport
    shares: dict[tuple[str, str], Cell] = field(default_factory=dict)
    smallest: SmallestDifference | None = None
    fields: list[FieldChange] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """True if no case differs. Rules: PRO-10."""
        return self.report.ok

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON data."""
        shares = [
            {"family": family, "dtype": dtype, "equal": cell.passed, "cases": cell.total}
            for (family, dtype), cell in self.shares.items()
        ]
        return {
            "profile": self.report.spec.name,
            "implementation": self.report.subject,
            "equal": self.equal,
            "headline": self.report.headline,
            "shares": shares,
            "smallest": None if self.smallest is None else self.smallest.to_json(),
            "fields": [change._asdict() for change in self.fields],
        }


def check_profile(
    on_trial: Subject,
    spec: Spec,
    cases: Iterable[Case],
    options: RunOptions,
    settings: Settings,
    step: Callable[[str], None] = lambda text: None,
) -> ProfileCheck:
    """Run an implementation on the cases of a profile, and look for what distinguishes the two.

    Rules: PRO-5, PRO-6, PRO-7.
    """
    declared = on_trial.declaration
    report = KernelReport(on_trial.name, spec, declared, settings)
    found = ProfileCheck(report)
    wrong: list[Judgement] = []
    for item in run(on_trial, _counted(cases, report, step), options):
        judgement = judge(item.case, item.outcome, declared, item.expected)
        report.add(judgement)
        if judgement.case.id in report.unchecked.cases:
            continue
        count_test(found.shares, (item.case.family, item.case.x.dtype.name), passed=judgement.equal)
        if judgement.compared is not None and not judgement.equal:
            wrong.append(judgement)
    if wrong:
        step("the smallest difference")
        found.smallest = _smallest(on_trial, spec, wrong, options)
        step("the fields that explain it")
        makes = partial(_makes, layout=declared.scale_layout)
        found.fields = explaining_fields(spec, _evidence(report, wrong), makes)
        report.explain()
    return found


def _counted(cases: Iterable[Case], report: KernelReport, step: Callable[[str], None]) -> Iterator[Case]:
    for case in cases:
        reason = reasons(case, report.declaration)
        if reason:
            report.skip(case, reason)
        else:
            step(case.id)
            yield case


def _evidence(report: KernelReport, wrong: list[Judgement]) -> list[tuple[Case, DirectionData]]:
    """Return the cases that differ, the small ones first, then those that do not; bounded in size."""
    differing = {judgement.case.id for judgement in wrong}
    ordered = sorted(report.evidence, key=lambda pair: (pair[0].id not in differing, pair[0].x.size))
    sizes = np.cumsum([case.x.size for case, _ in ordered])
    return [pair for pair, size in zip(ordered, sizes, strict=True) if size <= EVIDENCE]


def _makes(spec: Spec, pair: tuple[Case, DirectionData], layout: str) -> bool:
    """Return True if a specification makes the bytes of a case."""
    case, got = pair
    of_spec = dataclasses.replace(case, spec=spec)
    expected = golden(of_spec)
    if got.amax is None:
        got = got._replace(amax=expected.amax)
    stored = LAYOUTS[layout].padded_shape(*expected.scales.shape)
    if np.shape(expected.data) != np.shape(got.data) or stored != np.shape(got.scales):
        return False  # other blocks
    return compare_direction(case.x, spec, case.direction, layout, got, expected=expected).equal


class _Trial:
    """The question whether an implementation and a profile differ on an input."""

    def __init__(self, runner: Runner, on_trial: Subject, like: Case) -> None:
        self._runner, self._declared, self._like = runner, on_trial.declaration, like

    def judged(self, probe: Probe) -> Judgement | None:
        """Return the judgement of an input, or None if the implementation does not take it."""
        amax = None if probe.amax is None else np.array([probe.amax], F)
        case = dataclasses.replace(self._like, id="smaller", x=probe.x, amax=amax)
        if reasons(case, self._declared):
            return None
        outcome = self._runner.outcome(lambda: job_of(case, self._declared, golden(case)))
        return judge(case, outcome, self._declared)

    def tells(self, probe: Probe, kind: InputKind) -> bool:
        """Return True if the two differ on an input of this kind."""
        found = self.judged(probe) if kind_of(probe) is kind else None
        return found is not None and found.compared is not None and not found.compared.equal


def _smallest(on_trial: Subject, spec: Spec, wrong: list[Judgement], options: RunOptions) -> SmallestDifference | None:
    """Return the first difference of the plainest kind, shrunk."""
    fit = [j.case for j in wrong if j.case.x.ndim == 2 and (j.case.amax is None or j.case.amax.size == 1)]
    kinds = list(InputKind)
    probes = [(case, _probe(case)) for case in fit if case.random_bits is None]
    if not probes:
        return None
    case, probe = min(probes, key=lambda pair: (kinds.index(kind_of(pair[1])), pair[1].x.size))
    kind = kind_of(probe)
    with contextlib.closing(Runner(on_trial, options)) as runner:
        trial = _Trial(runner, on_trial, case)
        small = shrunk(trial, probe, kind)
        judged = trial.judged(small)
    if judged is None or judged.got is None:
        return None
    return SmallestDifference(small.x, small.amax, kind, golden(judged.case), judged.got)


def _probe(case: Case) -> Probe:
    return Probe(case.x, case.direction, None if case.amax is None else float(case.amax[0]))


def _hex(data: Any) -> list[str]:
    return [bytes(row).hex() for row in np.atleast_2d(np.asarray(data, np.uint8))]
