"""The rules that are broken: of those that fail, the ones that decide the stage at which the mistake is made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

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
    format_rules,
    spec_rules,
)
from fp4ref.conformance.judge.blame import failed
from fp4ref.conformance.mistakes.record import Cause, Slot
from fp4ref.conformance.mistakes.tensor_maxima import OF_NAN
from fp4ref.conformance.verdict.dump_report import Cell, DumpReport, Result, count_test
from fp4ref.layout import layout
from fp4ref.quantized import Direction
from fp4ref.rules import is_of
from fp4ref.spec import Spec

DIRECTIONS: tuple[Direction, ...] = ("row", "column")
BROKEN = "broken"  # said of rules
NAMED = 3  # rules that are named where nothing tells which of them is broken
ELEMENT, SCALE, MAXIMA = "the element's format", "the scale's format", "the maximum of a block"
OF_STAGE: dict[str, tuple[str, ...]] = {  # rules and chapters that decide what a stage of the quantizer does
    Slot.DIRECTION: ("BLK-8", "DEQ-4"),
    Slot.INPUT: ("NUM",),
    Slot.HADAMARD: ("HAD",),
    Slot.AMAX: ("GLB-1", "GLB-5"),
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
OF_FIELD: dict[str, tuple[str, ...]] = {  # of a specification; rules and chapters that decide what it is about
    "block": OF_STAGE[Slot.BLOCK],
    "global_scale": OF_STAGE[Slot.GLOBAL],
    "element_max": ("GLB-2", "BLK-3"),
    "amax": OF_NAN,
    "subnormals": ("NUM-5",),
    "hadamard": OF_STAGE[Slot.HADAMARD],
    "four_over_six": OF_STAGE[Slot.SEARCH],
}
OPERATIONS = ("global_scale", "block_scale", "scaled", "working_scale")  # of an arithmetic, that quantization performs
OF_REMAINDERS = frozenset({*SPARE.values(), "LAY-5"})  # at stake where a row or a tile is not full
FEW = 2  # mistakes that are believed together; more make the bytes of others by accident
SURE = 2  # of the lists of rules in which those of a mistake are looked for, the ones that tell
HIDDEN = {"PACK", "LAY", "GLB-1", "GLB-5"}  # on places, and on a maximum that is not returned: told by a cause alone
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
    always |= {format_rules(spec.element.format), format_rules(spec.scale.format), "PACK", "LAY"}

    alike = [PROFILES[name] for name in profiles or (diagnosis.profiles if diagnosis is not None else ())]
    departing = [set(_departures(spec, profile)) for profile in alike]

    def unlikely(rule: str) -> tuple[bool, float, int, int, str]:
        cell = cells[rule]
        failing = cell.total - cell.passed
        everywhere = rule not in OF_REMAINDERS and is_of(rule, always)
        elsewhere = not everywhere and 2 * failing < count
        departed = sum(is_of(rule, rules) for rules in departing)
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
            yield format_rules(own.format)
        elif own.rounding != other.rounding:
            yield NEAREST.get(own.format.name, format_rules(own.format))
    for name in OPERATIONS:
        operation, instead = getattr(spec.arithmetic, name), getattr(profile.arithmetic, name)
        yield from (rule for rule in cited(operation) if operation is not instead and rule not in cited(instead))


class Blame(NamedTuple):
    """The rules that fail, as far as a diagnosis tells of them.

    broken: those that every explanation of the bytes breaks. undecided: those of which some explanations break one and
    some another, or that an explanation of more than a few mistakes breaks. stages: those that differ, if nothing
    explains their bytes: no rule is blamed, for causes may overlap there, or come before them. All empty: nothing was
    diagnosed.
    """

    broken: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()


def blame(diagnosis: Diagnosis | None, spec: Spec, failing: Iterable[str], checked: Iterable[str] = ()) -> Blame:
    """Return the failing rules that a diagnosis tells are broken, and those between which it does not decide.

    If mistakes explain every byte together, the rules of each are broken. Groups of tensors have broken rules if each
    group has. Nothing is told about tensors that were not diagnosed. checked: all rules of the cases; a mistake breaks
    one of these if no rule of it fails, because bytes at an earlier stage differ as well.

    Rules: CNF-2, CNF-24.
    """
    failing = list(failing)
    every = list(dict.fromkeys([*failing, *_by_other_bytes(checked)]))
    if diagnosis is None or diagnosis.conforms or diagnosis.undiagnosed:
        return Blame()
    if diagnosis.groups and not diagnosis.explained:
        return Blame()
    if diagnosis.groups:
        return _of_groups([blame(group.found, group.spec, failing, checked) for group in diagnosis.groups], every)
    plain = [one for one in diagnosis.explanations if one.profile is None] or list(diagnosis.explanations)
    if not plain:
        return _unexplained(diagnosis, spec, failing)
    rest = [rule for rule in checked if rule not in OF_REMAINDERS]
    by_cause = [_of_explanation(one, spec, (failing, every, rest)) for one in plain]
    either = {rule for told, left in by_cause for rule in told | left} if all(map(any, by_cause)) else set[str]()
    every = list(dict.fromkeys([*every, *rest]))
    decided = any(one.profile is None and len(one.names) <= FEW for one in plain)  # none has fewer than another
    told = either.intersection(*(told for told, _ in by_cause)) if decided else set[str]()
    return Blame(_in_order(every, told), _in_order(every, either - told))  # a profile's bytes need not show it all


def _of_groups(parts: Sequence[Blame], every: Sequence[str]) -> Blame:
    """Return the blame of groups of tensors together; nothing if nothing is told of one."""
    if not all(part.broken or part.undecided for part in parts):
        return Blame()
    told = {rule for part in parts for rule in part.broken}
    left = {rule for part in parts for rule in part.undecided} - told
    return Blame(_in_order(every, told), _in_order(every, left))


def said_of(told: Blame, failing: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what is said of rules, and the rules, which may be none. failing: the rules to name if nothing is told."""
    if told.broken:
        yield BROKEN, told.broken
    if told.undecided:
        also = "also " if told.broken else ""
        yield f"likely {also}broken{', one of' if len(told.undecided) > 1 else ''}", told.undecided
    if told.stages:
        *others, last = told.stages
        at = f"the {', the '.join(others)} and the {last}" if others else f"the {last}"
        how = "two causes overlap, or one comes before them" if others else "its cause may come before it"
        yield f"no rule is blamed, for nothing explains the bytes of {at}: {how}", ()
        yield "rules that decide a wrong byte", failing
    if not any(told) and failing:
        yield "rules that decide a wrong byte, the likeliest first", failing


def _unexplained(diagnosis: Diagnosis, spec: Spec, failing: Sequence[str]) -> Blame:
    """Return the rules of what explains a part, or the stages that differ."""
    if diagnosis.partial is not None and (rules := _of_explanation(diagnosis.partial, spec, (failing,))[0]):
        return Blame(undecided=_in_order(failing, rules))
    wrong = [finding.stage for finding in diagnosis.findings if not finding.right]
    first = [diagnosis.first_stage] if diagnosis.first_stage in OF_STAGE else []
    return Blame(stages=tuple(dict.fromkeys(wrong if len(wrong) > 1 else first)))


def _by_other_bytes(checked: Iterable[str]) -> Iterator[str]:
    """Yield the rules whose bytes other wrong bytes hide, but for those on what is left over."""
    for rule in checked:
        if is_of(rule, HIDDEN) and rule not in OF_REMAINDERS:
            yield rule


def _in_order(failing: Sequence[str], rules: Collection[str]) -> tuple[str, ...]:
    return tuple(rule for rule in failing if rule in rules)


def _of_explanation(explanation: Explanation, spec: Spec, among: Sequence[Sequence[str]]) -> tuple[set[str], set[str]]:
    """Return the rules that its mistakes break, and those of which they may break any.

    among: the rules that fail; these and those that other wrong bytes hide; all that are checked, of which only the
    stage is told. The first in which a mistake has a rule counts.
    """
    causes = explanation.each
    padding = any(one.stage == Slot.PADDING for one in causes)
    told, left = set[str](), set[str]()
    for cause in causes:
        for number, rules in enumerate(among):
            kept = [rule for rule in rules if rule != "LAY-5" or padding]
            if found := {*_of_cause(cause, spec, kept)} & {*kept}:
                (told if number < SURE else left).update(found)
                break
    return told, left - told


def _of_cause(cause: Cause, spec: Spec, failing: Sequence[str]) -> Sequence[str]:
    """Return the failing rules that one mistake breaks."""
    if cause.breaks:
        return cause.breaks
    if cause.profile is not None:
        departures = set(_departures(spec, PROFILES[cause.profile]))
        return [rule for rule in failing if is_of(rule, departures)]
    if cause.stage not in OF_STAGE:
        return ()
    stage = MAXIMA if cause.stage == Slot.BLOCK else cause.stage
    return _of([stage], spec, failing) or _of([OR_ELSE.get(stage, stage)], spec, failing)


def rules_of(cause: Cause, spec: Spec) -> tuple[str, ...]:
    """Return the rules that a mistake of a quantizer may break, or the prefixes of such rules. Rules: CNF-2, CNF-24."""
    if cause.breaks or cause.stage not in OF_STAGE:
        return cause.breaks
    stages = (MAXIMA, Slot.BLOCK) if cause.stage == Slot.BLOCK else (cause.stage,)
    return tuple(dict.fromkeys(_decide(stages, spec)))


def _of(stages: Collection[str], spec: Spec, failing: Sequence[str]) -> list[str]:
    """Return the failing rules of some stages; those on the code of NaN only if it is what the mistake changes."""
    named = {*_decide(stages, spec)}
    of_nan = frozenset() if Slot.SIGN in stages else frozenset(NOT_A_NUMBER.values())
    return [rule for rule in failing if is_of(rule, named) and rule not in of_nan]


def _decide(stages: Collection[str], spec: Spec) -> Iterator[str]:
    """Yield the rules, and prefixes of rules, that decide what some stages do."""
    formats = {ELEMENT: format_rules(spec.element.format), SCALE: format_rules(spec.scale.format)}
    yield from (formats.get(name, name) for stage in stages for name in OF_STAGE[stage])


def dump_cells(report: DumpReport) -> dict[str, Cell]:
    """Count the tensors of a dump for the rules that their bytes obey or not. Rules: CNF-24."""
    cells: dict[str, Cell] = {}
    for result in report.results:
        checked, wrong = _judged(result)
        for rule in checked:
            count_test(cells, rule, passed=rule not in wrong)
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
