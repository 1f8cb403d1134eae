"""The rules that are broken: of those that fail, the ones that decide the stage at which the mistake is made."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from fp4ref.catalogue import PROFILES
from fp4ref.conformance.diagnosis.explanations import Diagnosis, Explanation
from fp4ref.conformance.explain.formulas import cited
from fp4ref.conformance.families.rules import (
    KEEPS_SIGN,
    NEAREST,
    NOT_A_NUMBER,
    PACKED,
    SATURATES,
    SPARE,
    spec_rules,
)
from fp4ref.conformance.judge.blame import failed
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.conformance.verdict.dump_report import Cell, DumpReport, Result
from fp4ref.layout import layout
from fp4ref.quantized import Direction
from fp4ref.spec import Spec

DIRECTIONS: tuple[Direction, ...] = ("row", "column")
NAMED = 3  # rules that are named where nothing tells which of them is broken
ELEMENT, SCALE, MAXIMA = "the element's format", "the scale's format", "the maximum of a block"
WIDER = re.compile(r"block-\d+-(across|down)")  # blocks that are cut otherwise; other mistakes of blocks are of maxima
OF_STAGE: dict[str, tuple[str, ...]] = {  # rules and chapters that decide what a stage of the quantizer does
    Slot.DIRECTION: ("BLK-8", "DEQ-4"),
    Slot.INPUT: ("NUM",),
    Slot.HADAMARD: ("HAD",),
    Slot.AMAX: ("BLK-2", "GLB-1", "GLB-5"),
    Slot.GLOBAL: ("GLB",),
    Slot.BLOCK: ("BLK-1", "BLK-7"),
    MAXIMA: ("BLK-2",),
    Slot.SCALE: ("BLK-3", "MXS"),
    Slot.SCALE_CODEC: (SCALE,),
    Slot.SEARCH: ("FOS",),
    Slot.ENCODE: ("BLK-4", "BLK-10"),
    Slot.CODE: (ELEMENT, "SR"),
    Slot.SIGN: (ELEMENT,),
    Slot.PACKING: ("PACK",),
    Slot.LAYOUT: ("LAY",),  # not LAY-5: what is not where it belongs is no padding
    Slot.PADDING: ("LAY-5",),
}
OF_MISTAKES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (  # of some mistakes of a stage, by their names
    (re.compile("hadamard-(row|both|axis)$"), ("HAD-4",)),
    (re.compile("hadamard-(cut|elements-fp32|amax-fp32|signed-zeros|unrounded|float32|fp32)"), ("HAD-3",)),
    (re.compile("hadamard-(missing|twice|signs-|inferred)"), ("HAD-1",)),
    (re.compile("amax-(?!.*nan)"), ("GLB-1", "GLB-5")),
    (re.compile("encode-result-"), ("BLK-5",)),
    (re.compile("bits-"), ("SR-1", "SR-2")),
    (re.compile("random-"), ("SR-1", "SR-2", "SR-3")),
    (re.compile("(input|encode)-flush"), ("NUM-5",)),
    (re.compile("input-(strides|exchanged|leading|pitch|aligned|columns|rows|last|clamped|of-row|zeros)"), ("NUM-4",)),
    (re.compile("input-(bf16|fp16|tf32|limited|nan|inf|special)"), ("NUM-1", "NUM-3")),
)
OF_FIELD: dict[str, tuple[str, ...]] = {  # of a specification; rules and chapters that decide what it is about
    "block": OF_STAGE[Slot.BLOCK],
    "global_scale": OF_STAGE[Slot.GLOBAL],
    "element_max": ("GLB-2", "BLK-3"),
    "amax": OF_STAGE[Slot.AMAX],
    "subnormals": ("NUM-5",),
    "hadamard": OF_STAGE[Slot.HADAMARD],
    "four_over_six": OF_STAGE[Slot.SEARCH],
}
OPERATIONS = ("global_scale", "block_scale", "scaled", "working_scale")  # of an arithmetic, that quantization performs
OF_REMAINDERS = frozenset({*SPARE.values(), "LAY-5"})  # at stake where a row or a tile is not full
OR_ELSE: dict[str, str] = {Slot.SCALE_CODEC: Slot.SCALE, MAXIMA: Slot.BLOCK}  # where no case tests the first alone


def worst(
    spec: Spec,
    cells: Mapping[str, Cell],
    count: int,
    diagnosis: Diagnosis | None = None,
    profiles: Sequence[str] = (),
) -> list[str]:
    """Return the rules that fail in a case, the likeliest cause first.

    The rules of the first stage that the diagnosis finds wrong come before all others. count: how many cases fail.
    A rule is likelier the more of its own cases fail, and the more of all that fail are its own. A rule that is at
    stake in some inputs only comes last if most of the cases that fail are others. Rules that fail equally have the
    order of their names; those from which the records of most profiles depart come before, in the order of the stages.
    profiles: those that make every byte.

    Rules: CNF-2.
    """
    always = {rule for direction in DIRECTIONS for rule in spec_rules(spec, direction)}
    always |= {spec.element.format.name.upper(), spec.scale.format.name.upper(), "PACK", "LAY"}

    alike = [PROFILES[name] for name in profiles or (diagnosis.profiles if diagnosis is not None else ())]
    departing = [set(_departures(spec, profile)) for profile in alike]

    def unlikely(rule: str) -> tuple[bool, float, int, int, str]:
        cell = cells[rule]
        failing = cell.total - cell.passed
        everywhere = rule not in OF_REMAINDERS and {rule, rule.rpartition("-")[0]} & always
        elsewhere = not everywhere and 2 * failing < count
        departed = sum(bool({rule, rule.rpartition("-")[0]} & rules) for rules in departing)
        stages = (place for place, stage in enumerate(OF_STAGE) if departed and _of([stage], spec, [rule]))
        return elsewhere, -(failing**2) / cell.total, -departed, next(stages, len(OF_STAGE)), rule

    failing = sorted((rule for rule, cell in cells.items() if cell.passed < cell.total), key=unlikely)
    stage = diagnosis.first_stage if diagnosis is not None and diagnosis.first_stage in OF_STAGE else None
    first = _of([stage], spec, failing) if stage else []
    return [*first, *(rule for rule in failing if rule not in first)]


def _departures(spec: Spec, profile: Spec) -> Iterator[str]:
    """Yield the rules and chapters of a specification that decide what the record of a profile has otherwise."""
    for name, decides in OF_FIELD.items():
        if getattr(spec, name) != getattr(profile, name):
            yield from decides
    for own, other in ((spec.element, profile.element), (spec.scale, profile.scale)):
        if own.format != other.format:
            yield own.format.name.upper()
        elif own.rounding != other.rounding:
            yield NEAREST.get(own.format.name, own.format.name.upper())
    for name in OPERATIONS:
        operation, instead = getattr(spec.arithmetic, name), getattr(profile.arithmetic, name)
        yield from (rule for rule in cited(operation) if operation is not instead and rule not in cited(instead))


def broken(diagnosis: Diagnosis | None, spec: Spec, failing: Iterable[str]) -> list[str]:
    """Return the failing rules of the stages that the diagnosis names; none if it does not tell.

    It tells if it explains every byte by one mistake; if several are equally good, the rules of each count. Groups of
    tensors have broken rules if each group has. Nothing is told about tensors that were not diagnosed.

    Rules: CNF-2, CNF-24.
    """
    if diagnosis is not None and diagnosis.undiagnosed:
        return []
    if diagnosis is not None and diagnosis.groups:
        every = list(failing)
        named = [broken(group.found, group.spec, every) for group in diagnosis.groups]
        return [rule for rule in every if any(rule in part for part in named)] if all(named) else []
    plain = [one for one in diagnosis.explanations if one.profile is None] if diagnosis is not None else []
    if not plain or any(len(one.names) != 1 or one.stage not in OF_STAGE for one in plain):
        return []
    every = [rule for rule in failing if rule != "LAY-5" or any(one.stage == Slot.PADDING for one in plain)]
    by_cause = [_of_cause(one, spec, every) for one in plain]
    return [rule for rule in every if any(rule in rules for rules in by_cause)]


def _of_cause(cause: Explanation, spec: Spec, failing: Sequence[str]) -> Sequence[str]:
    """Return the failing rules that one mistake breaks."""
    known = next((rules for name, rules in OF_MISTAKES if name.match(cause.names[0])), ())
    if known:
        return known
    stage = MAXIMA if cause.stage == Slot.BLOCK and not WIDER.match(cause.names[0]) else cause.stage
    return _of([stage], spec, failing) or _of([OR_ELSE.get(stage, stage)], spec, failing)


def _of(stages: Collection[str], spec: Spec, failing: Sequence[str]) -> list[str]:
    """Return the failing rules of some stages; those on the code of NaN only if it is what the mistake changes."""
    formats = {ELEMENT: spec.element.format.name.upper(), SCALE: spec.scale.format.name.upper()}
    named = {formats.get(name, name) for stage in stages for name in OF_STAGE[stage]}
    of_nan = frozenset() if Slot.SIGN in stages else frozenset(NOT_A_NUMBER.values())
    return [rule for rule in failing if {rule, rule.rpartition("-")[0]} & named and rule not in of_nan]


def dump_cells(report: DumpReport) -> dict[str, Cell]:
    """Count the tensors of a dump for the rules that their bytes obey or not. Rules: CNF-24."""
    cells: dict[str, Cell] = {}
    for result in report.results:
        checked, wrong = _judged(result)
        for rule in checked:
            cell = cells.setdefault(rule, Cell())
            cell.total += 1
            cell.passed += rule not in wrong
    return cells


def differing(report: DumpReport) -> int:
    """Return the number of tensors that differ."""
    return sum(not result.compared.equal for result in report.results)


def _judged(result: Result) -> tuple[list[str], frozenset[str]]:
    """Return the rules that a tensor's bytes are held to, and those that decide a byte at fault.

    Every code has a sign; whether one is of a NaN, or past the range, is known of those at fault.
    """
    compared, element = result.compared, result.spec.element.format
    spare = (SPARE[element.bits],) if compared.shape[1] * element.bits % 8 else ()
    codecs = [result.spec.scale.format, *([] if result.spec.stochastic else [element])]
    rounding = [NEAREST[form.name] for form in codecs if form.name in NEAREST]
    signs = [KEEPS_SIGN[element.name]] if element.name in KEEPS_SIGN else []
    stored = *layout(result.scale_layout).rules, PACKED[element.bits], *spare
    special = [rules[element.name] for rules in (SATURATES, NOT_A_NUMBER) if element.name in rules]
    wrong = failed(special, result.spec, compared.at_fault)
    checked = *spec_rules(result.spec, compared.direction), *rounding, *signs, *stored, *wrong
    return list(dict.fromkeys(checked)), failed(checked, result.spec, compared.at_fault)
