"""Quantizers with two planted mistakes: drawn by a seed, of two stages, of which neither hides the other."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

import fp4ref
from fp4ref.conformance import families
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.mistakes import MISTAKES, kernel_of
from fp4ref.conformance.mistakes.exhibit import EVERY, Exhibit
from fp4ref.conformance.mistakes.kernel import Kernel
from fp4ref.conformance.mistakes.record import Mistake, Slot
from fp4ref.conformance.mistakes.sides import code_side, scale_side
from fp4ref.conformance.run import runner
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.kernel_report import KernelReport
from fp4ref.layout import layout
from fp4ref.packing import pack
from fp4ref.quantized import DirectionData
from fp4ref.specs import MXFP4, MXFP8_E4M3, NVFP4, NVFP4_RHT

SPECS = {spec.name: spec for spec in (NVFP4, MXFP4, MXFP8_E4M3, NVFP4_RHT)}
DIRECTIONS = {NVFP4_RHT.name: "column"}
LAYOUT = "tiled_128x4"
LARGEST = 1 << 16  # elements of a case
ORDER = list(Slot)


@dataclass(frozen=True)
class Stored:
    """A mistake in how bytes are stored, written as a change of the right buffers."""

    name: str
    stage: Slot
    data: Any = None
    scales: Any = None


def _halves(data):
    """Codes j and j + 8 of 16 in a byte."""
    if data.shape[1] % 8:
        return data
    codes = np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:1], -1, 2, 8)
    return (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(data.shape)


def _linear(scales):
    """Return scales stored in tiles of 128x4, row by row in a buffer of the same size."""
    return scales.reshape(-1, 32, 4, 4).transpose(0, 2, 1, 3).reshape(scales.shape)


STORED = (
    Stored("nibbles", Slot.PACKING, data=lambda data: data << 4 | data >> 4),
    Stored("data-halves-16", Slot.PACKING, data=_halves),
    Stored("layout-linear", Slot.LAYOUT, scales=_linear),
    Stored(
        "scale-bytes-reversed-4",
        Slot.LAYOUT,
        scales=lambda scales: scales.reshape(-1, 4)[:, ::-1].reshape(scales.shape),
    ),
)


@dataclass(frozen=True)
class Planted:
    """A quantizer with two mistakes."""

    spec: Any
    first: Mistake | Stored
    second: Mistake | Stored

    @property
    def id(self) -> str:
        """The name of a test."""
        return f"{self.spec.name}-{self.first.name}-{self.second.name}"


def made(spec: Any, mistakes: Any, x: Any) -> DirectionData | None:
    """Return what a quantizer with some mistakes makes of a tensor; None where they mean nothing."""
    kernel: Kernel | None = kernel_of(spec)
    for mistake in mistakes:
        if isinstance(mistake, Mistake):
            kernel = None if kernel is None else mistake.apply(kernel)
    if kernel is None:
        return None
    direction = DIRECTIONS.get(spec.name, "row")
    case = SimpleNamespace(x=x, direction=direction, amax=None, random_bits=None)
    with np.errstate(all="ignore"):
        side = scale_side(kernel, Exhibit(case), EVERY)
        codes = code_side(kernel, side)
    data = pack(codes, spec.element.format)
    scales = layout(LAYOUT).from_linear(np.ascontiguousarray(side.scales))
    for mistake in mistakes:
        if isinstance(mistake, Stored):
            data = data if mistake.data is None else mistake.data(data)
            scales = scales if mistake.scales is None else mistake.scales(scales)
    amax = None if side.amax is None else np.asarray(side.amax, np.float32).reshape(-1)
    return DirectionData(np.ascontiguousarray(data), np.ascontiguousarray(scales), amax)


@cache
def cases(name: str) -> list[Any]:
    """Return the cases of a specification, all but the large ones."""
    spec = SPECS[name]
    dtype = "bfloat16" if spec.hadamard else "float32"
    found = families.cases(spec, directions=(DIRECTIONS.get(name, "row"),), dtypes=(dtype,))
    return [case for case in found if case.x.size <= LARGEST and case.amax is None]


@cache
def probes(name: str) -> list[Any]:
    """Return some tensors on which a mistake is seen."""
    seen: dict[str, Any] = {}
    for case in cases(name):
        if case.x.size >= 1 << 8:
            seen.setdefault(case.family, case.x)
    return list(seen.values())


def _bytes(spec: Any, mistakes: Any) -> list[Any] | None:
    try:
        found = [made(spec, mistakes, x) for x in probes(spec.name)]
    except (ValueError, IndexError, ZeroDivisionError, FloatingPointError, fp4ref.DomainError):
        return None
    if any(one is None for one in found):
        return None
    return [
        (one.data.tobytes(), one.scales.tobytes(), None if one.amax is None else one.amax.tobytes()) for one in found
    ]


def drawn(number: int, seed: int) -> Planted:
    """Return a pair of mistakes of different stages, of which neither hides the other."""
    source = random.Random(f"{seed}/{number}")
    spec = list(SPECS.values())[number % len(SPECS)]
    right, by_stage = _bytes(spec, ()), _by_stage(spec.name)
    while True:
        stages = sorted(source.sample(sorted(by_stage, key=ORDER.index), 2), key=ORDER.index)
        pair = [source.choice(by_stage[stage]) for stage in stages]
        one, other = (_bytes(spec, part) for part in (pair[:1], pair[1:]))
        both = None if one is None or other is None or right in (one, other) else _bytes(spec, pair)
        if both is None or one is None or other is None:
            continue
        # each is seen in a good part of the tensors, beside the other
        seen = (sum(a != b for a, b in zip(both, part, strict=True)) for part in (one, other))
        if min(seen) * 4 >= len(both):
            return Planted(spec, *pair)


@cache
def _by_stage(name: str) -> dict[Slot, list[Any]]:
    found: dict[Slot, list[Any]] = {}
    for mistake in STORED:
        if mistake.data is None or SPECS[name].element.format.bits == 4:
            found.setdefault(mistake.stage, []).append(mistake)
    for mistake in MISTAKES:
        if not mistake.special and not mistake.alone and mistake.stage is not Slot.DIRECTION:
            found.setdefault(mistake.stage, []).append(mistake)
    return found


def verified(planted: Planted, seconds: float | None = None, families: Collection[str] = ()) -> KernelReport:
    """Return the report on a quantizer with two mistakes. families: of cases, empty for all."""
    spec, pair = planted.spec, (planted.first, planted.second)
    amax = ("amax",) if spec.global_scale != "none" else ()

    @fp4ref.kernel(
        inputs=("x",),
        outputs=("data", "scales", *amax),
        scale_layout=LAYOUT,
        direction=DIRECTIONS.get(spec.name, "row"),
    )
    def called(x):
        found = made(spec, pair, x)
        return found.data, found.scales, *([found.amax] if amax else [])

    subject = Subject.of(called)
    report = KernelReport("two", spec, subject.declaration)
    chosen = [case for case in cases(spec.name) if not families or case.family in families]
    for run in runner.run(subject, chosen):
        report.add(judge(run.case, run.outcome, subject.declaration, run.expected))
    report.explain(seconds)
    return report
