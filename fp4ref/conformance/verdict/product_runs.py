"""Running a kernel that multiplies: on the cases of one seed, or of one seed after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fp4ref.conformance.diagnosis.budget import OPERATION_SECONDS
from fp4ref.conformance.diagnosis.products import diagnose
from fp4ref.conformance.families import seed_of
from fp4ref.conformance.families.products.cases import cases
from fp4ref.conformance.judge.isolation import DIAGNOSIS, attempted
from fp4ref.conformance.judge.products import judge
from fp4ref.conformance.run.ending import CAUSE, STOPPED, Ending
from fp4ref.conformance.run.run_options import DEFAULT, RunOptions
from fp4ref.conformance.run.runner import outcomes
from fp4ref.conformance.subjects.failures import internal
from fp4ref.conformance.subjects.outcomes import FindingKind
from fp4ref.conformance.subjects.packed import multiples
from fp4ref.conformance.subjects.products import job_of, reasons, require
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.subjects.turned_products import fitted, padded
from fp4ref.conformance.verdict.dump_report import Verdict
from fp4ref.conformance.verdict.products import ProductReport
from fp4ref.operands import AlphaRule
from fp4ref.spec import Spec


def check(
    subject: Subject,
    spec: Spec,
    families: tuple[str, ...] | None = None,
    options: RunOptions = DEFAULT,
    step: Callable[[str], None] = lambda text: None,
    only: str | None = None,
    *,
    first: Sequence[str] = (),
    seconds: float | None = None,
    required: tuple[str, ...] = (),
    seed: int = 0,
    forever: bool = False,
) -> ProductReport:
    """Run a GEMM on the cases of a specification, and explain what is wrong.

    only: the ID of the one case to run. first: IDs of cases that are run before the others. seconds: of processor time
    for the cause of wrong results; None for the usual, 0 for no diagnosis. required: families that must be tried, or
    "all". seed: draws other cases; that in the name of the one case precedes. forever: go on with the next seed until a
    case fails, the time is over or the run is interrupted. A signal of `options.ends` ends the run with the report on
    the cases that were tried.

    Rules: CNF-8, CNF-9, CNF-10, CNF-21, CNF-48, GEM-6, GEM-13, GEM-14.
    """
    require(spec, subject.declaration)
    start = seed if only is None else seed_of(only)

    def tried(number: int) -> ProductReport:
        report = ProductReport(subject.name, spec, subject.declaration, asked=families, required=required)
        report.repeated, report.seed = options.repeat > 0, number
        try:
            _run(report, subject, options, step, only, first if number == start else ())
        except options.ends as ending:
            if not (report.judgements or report.findings or report.unchecked):
                raise
            report.stopped, report.cut = STOPPED, Ending.of(ending, endless=forever)
        _explain(report, 0.0 if report.cut else OPERATION_SECONDS if seconds is None else seconds, options)
        return report

    return _until_wrong(tried, start, (*options.ends, KeyboardInterrupt)) if forever else tried(start)


def _until_wrong(
    tried: Callable[[int], ProductReport], first: int, ends: tuple[type[BaseException], ...]
) -> ProductReport:
    """Return the report on the last seed, which says how many were tried. Rules: CNF-21, CNF-48."""
    found = tried(first)
    while found.kind is not Verdict.WRONG and not found.stopped:
        try:
            following = tried(found.seed + 1)
        except ends as ending:
            found = replace(found, stopped=STOPPED, cut=Ending.of(ending, endless=True))
            continue
        if following.untried and not following.failed and not following.findings:
            found = replace(found, stopped="the time of the run is over")
        elif following.stopped and following.kind is not Verdict.WRONG:  # in a seed of which nothing is wrong so far
            found = replace(found, stopped=following.stopped, cut=following.cut)
        else:
            found = following
    return replace(found, seed=first, seeds=found.seed - first + 1)


def _run(
    report: ProductReport,
    subject: Subject,
    options: RunOptions,
    step: Callable[[str], None],
    only: str | None,
    first: Sequence[str],
) -> None:
    """Run the kernel on the cases of the report's seed, and judge what it gives."""
    declared, chosen = subject.declaration, []
    seeds = sorted({report.seed, *map(seed_of, first)})
    for made in (case for seed in seeds for case in cases(report.spec, report.asked, seed)):
        if made.seed != report.seed and made.id not in first:
            continue
        case = padded(made, multiples(made.a.spec, declared))
        reason = reasons(case, declared)
        if only is not None and case.id != only:
            continue
        if reason:
            report.skipped[reason] += 1
            report.excluded.setdefault(case.family, reason)
        else:
            chosen.append(fitted(case, declared))
    chosen.sort(key=lambda case: case.id not in first)
    found = outcomes(subject, (partial(job_of, case, declared) for case in chosen), options)
    for case, outcome in zip(chosen, found, strict=True):
        step(case.id)
        if outcome.finding is not None and outcome.finding.kind is FindingKind.NOT_TRIED:
            report.untried += 1
        elif outcome.finding is not None and outcome.finding.kind is FindingKind.INTERNAL:
            report.unchecked.add(case.id, case.family, outcome.finding)
        elif outcome.finding is not None:
            report.findings.append((case, outcome.finding))
        if outcome.values is not None:
            try:
                report.judgements.append(judge(case, outcome.values, declared.to))
            except Exception as error:  # noqa: BLE001 - costs this case only
                report.unchecked.add(case.id, case.family, internal(error))


def _explain(report: ProductReport, seconds: float, options: RunOptions) -> None:
    """Find the pick of GEM-6 that suits the kernel, and the cause of what is wrong, unless a signal ends that."""
    if report.failed:
        other = [judge(j.case, j.got, report.declaration.to, AlphaRule.DIVISION) for j in report.judgements]
        if all(judgement.equal for judgement in other):
            report.rule, report.judgements = AlphaRule.DIVISION, other
    if report.failed and seconds and not report.only_zeros:
        evidence = [(j.case, j.got) for j in report.judgements if j.got is not None]
        act = partial(diagnose, evidence, report.declaration, seconds)
        try:
            report.diagnosis = attempted(DIAGNOSIS, act, report.lost)
        except options.ends as ending:
            report.cut = Ending.of(ending, CAUSE)
