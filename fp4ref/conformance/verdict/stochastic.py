"""Judging a kernel that draws its own random bits: by a named map, or by neighbours and counts.

Three levels. Exact: the bits are given, and bytes are compared as everywhere. Exact up to a map: with seed and offset,
the bytes are those of a named map. Bracket: every code is one of the two neighbours of its value, and how often the
farther one is taken, and by which elements together, are plausible counts. All tests of a report together fail a right
kernel with a probability below 1e-9.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.judge.coverage import Coverage, Extent
from fp4ref.conformance.judge.isolation import DIAGNOSIS, InternalError, attempted, unexplained
from fp4ref.conformance.judge.stochastic import (
    FALSE_ALARM,
    ChanceCount,
    Rounded,
    StochasticTrial,
    alike,
    bins,
    frequency,
    repeated,
    rounded,
)
from fp4ref.conformance.judge.unchecked import Unchecked
from fp4ref.conformance.run.ending import Ending, words
from fp4ref.conformance.verdict.dump_report import KernelVerdict, Verdict, incomplete
from fp4ref.conformance.verdict.stochastic_causes import biased, constant, constant_in_some, known_mistakes
from fp4ref.errors import DomainError, ShapeError
from fp4ref.formats import E2M1, Codes, F, grid
from fp4ref.generators import MAPS
from fp4ref.model import quantize as model
from fp4ref.quantized import Direction, DirectionChoice
from fp4ref.spec import Spec

__all__ = [
    "FALSE_ALARM",
    "ChanceCount",
    "Level",
    "StochasticReport",
    "StochasticTrial",
    "aimed_inputs",
    "judge_stochastic",
]

NOTHING = Coverage(Extent())
SIDE = 256  # rows and columns of an aimed input


class Level(StrEnum):
    """The level at which a kernel was judged. Rules: SR-18."""

    EXACT = "exact"
    MAP = "exact up to a map"
    BRACKET = "bracket"


@dataclass(frozen=True)
class StochasticReport(KernelVerdict):
    """The findings.

    level: the sharpest one that the kernel reached, or on which it failed. map: what makes every byte. wrong: what no
    bits explain, in lines. tests: of the bracket level. mistakes: known ones that explain what failed. lost: parts of
    the judge that failed. subject: the name of the kernel. coverage: the basis of the verdict. required: families that
    must be tried, or "all". seed: of the first aimed inputs; seeds: how many sets of these were tried. cut: the signal
    that ended the run. unchecked: calls, or all of them together, whose check failed.
    """

    spec: Spec
    level: Level
    map: str | None = None
    wrong: tuple[str, ...] = ()
    tests: tuple[ChanceCount, ...] = ()
    mistakes: tuple[str, ...] = ()
    lost: tuple[InternalError, ...] = ()
    subject: str = ""
    coverage: Coverage = NOTHING
    required: tuple[str, ...] = ()
    seed: int = 0
    seeds: int = 1
    cut: Ending | None = None
    unchecked: Unchecked = field(default_factory=Unchecked)

    @property
    def kind(self) -> Verdict:
        """The verdict. Rules: CNF-2, CNF-23."""
        if self.wrong or not all(test.passed for test in self.tests):
            return Verdict.WRONG
        if self.unchecked:
            return Verdict.UNCHECKED
        return Verdict.INCOMPLETE if self.missing else Verdict.CONFORMS

    @property
    def missing(self) -> dict[str, str]:
        """Required families of which no case was compared, with the reasons. Rules: CNF-23."""
        return self.coverage.missing(self.required) if self.required else {}

    @property
    def lines(self) -> list[str]:
        """The failures, a line each."""
        failed = [test for test in self.tests if not test.passed]
        return [*map(str, self.errors), *self.wrong, *map(str, failed)]

    @property
    def headline(self) -> str:
        """The verdict in a line, with the level, and whether the run was cut. Rules: CNF-2, CNF-48."""
        return self._verdict + self.unchecked.words + words(self.cut)

    @property
    def _verdict(self) -> str:
        if self.kind is Verdict.UNCHECKED:
            return f"{self.kind}: nothing is wrong at the level {self.level}"
        if self.kind is Verdict.INCOMPLETE:
            return incomplete(f"nothing is wrong at the level {self.level}", self.missing)
        if self.map is not None:
            return f"conforms to {self.spec.name}, {self.level} ({self.map})"
        if self.ok:
            return (
                f"conforms to {self.spec.name} at the level {self.level}: every code is a neighbour, and "
                f"{len(self.tests)} counts are in exact intervals (false alarm below {FALSE_ALARM:g})"
            )
        failed = [test for test in self.tests if not test.passed]
        counts = map(str, failed[:1])
        found = "; ".join(self.mistakes) or unexplained(self.errors) or "not explained"
        return f"wrong at the level {self.level}: {found}; {'; '.join([*self.wrong[:1], *counts])} [SR-11]"

    def text(self, limit: int) -> list[str]:
        """Return the verdict, its basis, and the first lines on what failed."""
        more = [f"  and {len(self.lines) - limit} more"] if len(self.lines) > limit else []
        shown = [f"  {line}" for line in self.lines[:limit]]
        last = self.seed + self.seeds - 1
        tried = [f"seeds {self.seed} to {last}" if self.seeds > 1 else f"seed {last}"] if last else []
        return [f"{self.subject}: {self.headline}", *self.coverage.lines, *tried, *shown, *more]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "subject": self.subject,
            "spec": self.spec.name,
            "verdict": self.kind.value,
            "coverage": self.coverage.to_json(),
            "required_but_not_tried": self.missing,
            "ok": self.ok,
            "level": self.level.value,
            "map": self.map,
            "headline": self.headline,
            "wrong": list(self.wrong),
            "mistakes": list(self.mistakes),
            "false_alarm": FALSE_ALARM,
            "seed": self.seed,
            "seeds": self.seeds,
            "tests": [{**test._asdict(), "passed": test.passed} for test in self.tests],
            "internal_errors": [error.to_json() for error in self.errors],
        }


def aimed_inputs(dtype: str = "bfloat16", seed: int = 0) -> list[NDArray[Any]]:
    """Tensors [256, 256] for the bracket level; every row and column of a 16x16 tile has one 6, so scales are alike.

    Else the first has quarters, halfway between two codes. The others have all 512ths up to 1/2, and all 16ths of the
    steps above; of both signs. All are exact in every input type. Two more are normally distributed, with NaN and -0,
    and with an infinity. seed: draws other random numbers.

    Rules: SR-11, CNF-21.
    """
    rng = np.random.default_rng([0x5EED, seed] if seed else 0x5EED)
    values = grid(E2M1)[: E2M1.codes]
    fine = np.arange(256) / 512
    coarse = (values[1:-1, None] + np.diff(values)[1:, None] * np.arange(16) / 16).ravel()
    shape, found = (SIDE, SIDE), [np.full((SIDE, SIDE), 0.25)]
    found += [np.where(rng.random(shape) < 0.7, rng.choice(fine, shape), rng.choice(coarse, shape)) for _ in range(3)]
    row, column = np.ogrid[:SIDE, :SIDE]
    sixes = row % 16 == column % 16
    found = [np.where(sixes, 6, x * rng.choice([-1, 1], shape)) for x in found]
    for special in ([np.nan, -np.nan, -0.0], [np.inf]):
        normal = rng.standard_normal(shape)
        normal[::37, : len(special)] = special
        found.append(normal)
    return [x.astype(F).astype(INPUT_DTYPES[dtype]) for x in found]


def judge_stochastic(
    spec: Spec,
    trials: Iterable[StochasticTrial],
    seeds: Sequence[tuple[int, int]] | None = None,
    maps: Sequence[str] | None = None,
    again: Sequence[Collection[Direction]] | None = None,
    false_alarm: float = FALSE_ALARM,
) -> StochasticReport:
    """Judge what a kernel made with bits of its own.

    trials: its calls, best on `aimed_inputs`, with both directions where it makes both. seeds: seed and offset of each
    call's generator, if they are declared; then all maps are tried, or those that are named. again: directions in
    which a second call with the same tensor, without a seed, gave the same bytes; None if no second call was made.
    false_alarm: the probability with which a right kernel may fail.

    Errors: DomainError for a spec without stochastic rounding, ShapeError for bytes that do not fit.

    Rules: SR-10, SR-11, SR-13, SR-16, SR-18.
    """
    if not spec.stochastic:
        raise DomainError("judge", spec.name, "a stochastic specification", "SR-11")
    calls = list(trials)
    if seeds is not None and len(seeds) != len(calls):
        raise ShapeError("judge", f"{len(seeds)} seeds for {len(calls)} calls", "one for each", "SR-10")
    for name in (maps or MAPS) if seeds is not None and calls else ():
        if all(_is_of_map(spec, call, name, *seed) for call, seed in zip(calls, seeds or (), strict=True)):
            return StochasticReport(spec, Level.MAP, name)
    return _bracket(spec, calls, again or [()] * len(calls), false_alarm)


def _is_of_map(spec: Spec, call: StochasticTrial, name: str, seed: int, offset: int) -> bool:
    """Return True if a map makes every byte of a call, whose directions may come from one call. Rules: SR-10."""
    produced: tuple[DirectionChoice, ...] = ("both",) if len(call.made) == 2 else (*call.made, "both")
    for directions in produced:
        try:
            drawn = MAPS[name](call.x.shape, seed, offset, directions)
        except (ShapeError, DomainError):  # the kernel of this map does not take the shape or the directions
            continue
        if all(_is_drawn(spec, call, direction, getattr(drawn, direction)) for direction in call.made):
            return True
    return False


def _is_drawn(spec: Spec, call: StochasticTrial, direction: Direction, bits: Codes) -> bool:
    expected, got = model.quantize(call.x, spec, direction, random_bits=bits), call.made[direction]
    return np.array_equal(expected.data, got.data) and np.array_equal(expected.scales, got.scales)


def _bracket(
    spec: Spec, calls: Sequence[StochasticTrial], again: Sequence[Collection[Direction]], false_alarm: float
) -> StochasticReport:
    """Judge neighbours, then all counts, which share the false alarm evenly. Rules: SR-3, SR-11, SR-13."""
    wrong: list[str] = []
    read: list[dict[Direction, Rounded]] = []
    for call in calls:
        read.append({})
        for direction, got in call.made.items():
            read[-1][direction], lines = rounded(spec, call.x, direction, got)
            wrong += lines
    parts = [part for each in read for part in each.values()]
    found = bins(parts) if parts else []
    together = alike(read)
    alpha = false_alarm / max(len(found) + len(together) + len(parts), 1)
    tests = [frequency(each, alpha) for each in found]
    independence = {kind: counts.test(kind.text, alpha) for kind, counts in together.items()}
    tests += independence.values()
    twice = [test for call, same in zip(read, again, strict=True) for test in repeated(call, same, alpha)]
    tests += twice
    if not tests:
        wrong.append("no element is between two values: no count can be judged")
    shared = {kind.pair for kind, test in independence.items() if not test.passed and test.found == test.n}
    mistakes, errors = list[str](), list[InternalError]()
    if not all(test.passed for test in tests):
        mistakes = attempted(DIAGNOSIS, partial(known_mistakes, parts, found, shared, alpha), errors) or []
    if not all(test.passed for test in twice) and not constant(parts):
        mistakes = [*mistakes, "the random bits are the same in every call"]
    if not mistakes and not errors and not all(test.passed for test in tests):
        mistakes = attempted(DIAGNOSIS, partial(constant_in_some, read), errors) or []
    if not mistakes and not errors and tests and all(test.passed for test in independence.values()):
        mistakes = biased(parts, found, alpha)
    return StochasticReport(spec, Level.BRACKET, None, tuple(wrong), tuple(tests), tuple(mistakes), tuple(errors))
