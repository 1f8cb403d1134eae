"""Running kernels that draw their own random bits, one for each direction, on the aimed inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from fp4ref.conformance.families import FAMILIES, Case, named
from fp4ref.conformance.judge.cases import BROKEN
from fp4ref.conformance.judge.coverage import Coverage, Extent, not_judged
from fp4ref.conformance.judge.unchecked import Unchecked
from fp4ref.conformance.run.ending import INTERRUPTED, STOPPED, Ending
from fp4ref.conformance.run.run_options import DEFAULT, RunOptions
from fp4ref.conformance.run.runner import Run, run
from fp4ref.conformance.subjects.failures import internal
from fp4ref.conformance.subjects.outcomes import FindingKind
from fp4ref.conformance.subjects.subject import OWN_BITS as FAMILY
from fp4ref.conformance.subjects.subject import Declaration, Subject, drawn_from, normalised, reasons
from fp4ref.conformance.verdict.stochastic import (
    FALSE_ALARM,
    Level,
    StochasticReport,
    StochasticTrial,
    aimed_inputs,
    judge_stochastic,
)
from fp4ref.errors import DomainError
from fp4ref.layout import layout
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Spec

ALL_CALLS = "of all calls together"
REASON = "The kernel draws its own random bits."
CUT = "not judged: the time limit was over before all calls were made"


def judge_drawing(
    spec: Spec,
    *subjects: Subject,
    options: RunOptions = DEFAULT,
    step: Callable[[str], None] = lambda name: None,
    required: tuple[str, ...] = (),
    seed: int = 0,
    forever: bool = False,
) -> StochasticReport:
    """Judge a kernel with bits of its own, or two that make the two directions of one call.

    A kernel that declares the inputs seed and offset is held to every map of `fp4ref.random_maps` first. Only two
    subjects can show that both directions use the same bits. required: families that must be tried, or "all"; such a
    kernel is run on its own aimed inputs only. seed: draws other ones. forever: go on with the next seed until one
    fails, the time is over or the run is interrupted; all seeds together share the probability of a false alarm. A
    signal of `options.ends` ends the run with the report on the calls that were made.

    Errors: DomainError for two subjects of one direction.

    Rules: CNF-8, CNF-9, CNF-21, CNF-22, CNF-23, CNF-48, SR-10, SR-11, SR-13.
    """
    extent = Extent()

    def judged(number: int, false_alarm: float) -> StochasticReport:
        return _judged(spec, subjects, options, step, extent, number, false_alarm)

    if forever:
        found, seeds, stopped = _until_wrong(judged, seed, (*options.ends, KeyboardInterrupt))
        usual = found.cut is not None and found.cut.status == INTERRUPTED
        found = replace(found, cut=None) if usual else found
    else:
        found = judged(seed, FALSE_ALARM)
        seeds, stopped = 1, "" if found.cut is None else STOPPED
    name = " and ".join(dict.fromkeys(each.name for each in subjects))
    basis = replace(
        _coverage(found, subjects, extent, repeated=options.repeat > 0 and found.cut is None), stopped=stopped
    )
    return replace(found, subject=name, coverage=basis, required=required, seed=seed, seeds=seeds)


def _until_wrong(
    judged: Callable[[int, float], StochasticReport], first: int, ends: tuple[type[BaseException], ...]
) -> tuple[StochasticReport, int, str]:
    """Return the report on the last seed, the number of seeds, and why the run ended if no seed failed.

    The shares of the false alarm, 1/2, 1/6, 1/12 and so on, add up to the whole.
    """
    found = judged(first, FALSE_ALARM / 2)
    for seeds in count(1):
        if found.cut is not None or not found.ok:
            return found, seeds, "" if found.cut is None else STOPPED
        try:
            following = judged(first + seeds, FALSE_ALARM / ((seeds + 1) * (seeds + 2)))
        except ends as ending:
            return replace(found, cut=Ending.of(ending)), seeds, STOPPED
        if following.wrong == (CUT,):
            return found, seeds, "the time of the run is over"
        if following.cut is not None and following.ok:  # in a seed of which nothing is wrong so far
            return replace(found, cut=following.cut), seeds, STOPPED
        found = following
    raise AssertionError


def _coverage(found: StochasticReport, subjects: Sequence[Subject], extent: Extent, *, repeated: bool) -> Coverage:
    """Return the basis of the verdict. Rules: CNF-22."""
    declared = subjects[0].declaration
    left_out = not_judged(found.spec, declared, amax="amax" in declared.outputs, repeated=repeated)
    left_out |= found.unchecked.not_judged
    if found.level is Level.BRACKET:
        left_out.pop("state between calls", None)  # such a kernel has a state
        left_out["random bits"] = "the kernel's own, judged by counts"
    others = dict.fromkeys(FAMILIES, "a kernel with bits of its own is run on its own aimed inputs")
    return Coverage(extent, "call", {FAMILY: extent.count} if extent.count else {}, others, left_out)


def _judged(
    spec: Spec,
    subjects: Sequence[Subject],
    options: RunOptions,
    step: Callable[[str], None],
    extent: Extent,
    seed: int,
    false_alarm: float,
) -> StochasticReport:
    """Return the report on one seed without its basis. extent: counts the calls that are judged."""
    by_direction = {each.declaration.direction: each for each in subjects}
    if len(by_direction) != len(subjects) or not subjects:
        raise DomainError("judge", f"{len(subjects)} kernels of one direction", "one of each", "SR-11")
    wrong: list[str] = []
    made: list[dict[Direction, DirectionData]] = []
    same: list[set[Direction]] = []
    cut: Ending | None = None
    unchecked = Unchecked()
    calls = list(_cases(spec, next(iter(subjects)).declaration, seed))
    for each in subjects:
        seeded = {"seed", "offset"} & set(each.declaration.inputs)
        for case in calls:
            step(f"{case.id}/{each.declaration.direction}")
        again = options if seeded else replace(options, repeat=0)
        outcomes, cut = _made(each, calls, again, last=each is subjects[-1])
        if options.left <= 0:
            return StochasticReport(spec, Level.BRACKET, None, (CUT,))
        if cut is None and len(outcomes) != len(calls):
            reason = reasons(_in(calls[0], each.declaration), each.declaration)
            return StochasticReport(spec, Level.BRACKET, None, (f"no case applies: {reason}",))
        made += [{} for _ in range(len(calls) - len(made))]
        same += [set() for _ in range(len(calls) - len(same))]
        for number, item in enumerate(outcomes):
            finding = item.outcome.finding
            wrong += _told(item, unchecked, seeded=bool(seeded))
            if not seeded and finding is None:
                same[number].add(item.case.direction)
            if item.outcome.data is not None and (finding is None or finding.kind not in BROKEN):
                made[number][item.case.direction] = _linear(item.case, each.declaration, item.outcome.data)
                extent.add(item.case.x.dtype.name, *item.case.matrix)
    whole = [(StochasticTrial(case.x, parts), twice) for case, parts, twice in zip(calls, made, same, strict=True)]
    whole = [(trial, twice) for trial, twice in whole if len(trial.made) == len(subjects)]
    if wrong:
        found = tuple(dict.fromkeys(wrong))
        return StochasticReport(spec, Level.BRACKET, None, found, cut=cut, unchecked=unchecked)
    all_seeded = all({"seed", "offset"} <= set(each.declaration.inputs) for each in subjects)
    judged_calls = (case for case, parts in zip(calls, made, strict=True) if len(parts) == len(subjects))
    seeds = [drawn_from(case) for case in judged_calls] if all_seeded else None
    trials, again_same = [trial for trial, _ in whole], [twice for _, twice in whole]
    if unchecked and not trials:
        return StochasticReport(spec, Level.BRACKET, cut=cut, unchecked=unchecked)
    try:
        judged = judge_stochastic(spec, trials, seeds, again=again_same, false_alarm=false_alarm)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the judge, the report is written
        unchecked.add(ALL_CALLS, FAMILY, internal(error))
        judged = StochasticReport(spec, Level.BRACKET)
    return replace(judged, cut=cut, unchecked=unchecked)


def _told(item: Run, unchecked: Unchecked, *, seeded: bool) -> list[str]:
    """Return the finding of a call in a line, if it is about the kernel; an error of this program is noted."""
    finding = item.outcome.finding
    if finding is None or (finding.kind is FindingKind.UNSTABLE and not seeded):
        return []
    if finding.kind is FindingKind.INTERNAL:
        unchecked.add(f"{item.case.id}/{item.case.direction}", item.case.family, finding)
        return []
    return [f"{finding.kind} in {item.case.id}: {finding.text}"]


def _made(
    subject: Subject, calls: Sequence[Case], options: RunOptions, *, last: bool
) -> tuple[list[Run], Ending | None]:
    """Return the outcomes of the calls until a signal ended them. last: no other direction has to be called."""
    found: list[Run] = []
    try:
        for item in run(subject, [_in(case, subject.declaration) for case in calls], options):
            found.append(item)  # noqa: PERF402 - what was appended stays
    except options.ends as ending:
        if not (found and last):
            raise
        return found, Ending.of(ending)
    return found, None


def _cases(spec: Spec, declared: Declaration, seed: int) -> Iterator[Case]:
    """Yield the aimed inputs of a seed, in the narrowest type that the kernel takes. Rules: CNF-21, SR-11."""
    dtype = next(name for name in ("bfloat16", "float16", "float32") if name in declared.dtypes)
    for number, x in enumerate(aimed_inputs(dtype, seed)):
        bits = np.zeros(x.shape, np.uint8)  # for the golden bytes, of which only amax and scales are used
        yield Case(named(f"{FAMILY}/{number}", seed), FAMILY, REASON, ("SR-11",), x, spec, "row", None, bits, seed=seed)


def _in(case: Case, declared: Declaration) -> Case:
    """Return the case in the direction of a kernel; seed and offset are those of the input, whatever the direction."""
    direction: Direction = "row" if declared.direction == "row" else "column"
    return Case(**{**vars(case), "direction": direction})


def _linear(case: Case, declared: Declaration, data: DirectionData) -> DirectionData:
    """Return a kernel's bytes with the low nibble first and scales linear."""
    rows, columns = case.matrix
    found = normalised(case, declared, data)
    blocks = -(-columns // case.spec.block.columns)
    return found._replace(scales=layout(declared.scale_layout).to_linear(found.scales, rows, blocks))
