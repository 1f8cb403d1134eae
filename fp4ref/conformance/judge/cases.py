"""Judging one case: a kernel's bytes against the golden model's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.conformance.families import Case
from fp4ref.conformance.families.rules import NEAREST, PACKED, SPARE, dequantizing, value_rule
from fp4ref.conformance.judge.blame import at_fault, failed
from fp4ref.conformance.judge.compare import Tolerance, compare
from fp4ref.conformance.judge.comparison import Comparison
from fp4ref.conformance.judge.excuses import Tile
from fp4ref.conformance.judge.hadamard_stages import accepts_amax, accepts_block, within_bound
from fp4ref.conformance.judge.result_stages import broken, differing
from fp4ref.conformance.subjects.failures import internal
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind, Outcome
from fp4ref.conformance.subjects.packed import padding_fault
from fp4ref.conformance.subjects.subject import Declaration, expected_values, golden, normalised, signs, transform_input
from fp4ref.conformance.vectors.text import Mismatch, format_words, mismatched
from fp4ref.formats import Codes, F
from fp4ref.hadamard import POINTS
from fp4ref.layout import layout, scale_layouts
from fp4ref.model.tiles import Matrix, widen
from fp4ref.quantized import Direction, DirectionData
from fp4ref.spec import Granularity, Spec

KEPT = 16  # mismatches of an operation other than quantize that are described
BROKEN = frozenset(FindingKind) - {
    FindingKind.PADDING,
    FindingKind.OUTSIDE,
    FindingKind.MUTATED,
    FindingKind.UNWRITTEN,
    FindingKind.UNSTABLE,
    FindingKind.DEPENDS,
    FindingKind.OVERWRITTEN,
    FindingKind.CONCURRENT,
    FindingKind.NOT_TRIED,  # again
    FindingKind.INTERNAL,  # likewise, or of this call
}  # findings that leave nothing to compare


@dataclass(frozen=True)
class Judgement:
    """The findings about a case.

    compared: the bytes of a quantizer. mismatches: of another operation, the first ones. finding: what went wrong
    otherwise. rules: those that the case checks; none where nothing was compared. got: a quantizer's bytes in the
    canonical packing and the declared layout, with the golden amax where the kernel gives none. returned_amax: it gave
    one. values: of another operation; broken: its rules that decide a wrong result.
    """

    case: Case
    compared: Comparison | None
    finding: Finding | None
    rules: tuple[str, ...]
    mismatches: tuple[Mismatch, ...] = ()
    got: DirectionData | None = None
    values: NDArray[Any] | None = None
    returned_amax: bool = False
    broken: frozenset[str] = frozenset()

    @property
    def failed(self) -> frozenset[str]:
        """Return the rules that decide a byte at fault. Rules: CNF-24."""
        if self.compared is None:
            return self.broken
        return failed(self.rules, self.case.spec, self.compared.at_fault)

    @property
    def zero(self) -> bool:
        """True if every byte that the kernel returned is zero."""
        returned = [self.values]
        if self.got is not None:
            returned += [self.got.data, self.got.scales, self.got.amax if self.returned_amax else None]
        parts = [part for part in returned if part is not None]
        return bool(parts) and not any(np.ascontiguousarray(part).view(np.uint8).any() for part in parts)

    @property
    def equal(self) -> bool:
        """True if nothing is wrong with the case."""
        right = self.compared is None or self.compared.equal
        return right and self.finding is None and not self.mismatches


ONLY_ZEROS = "everything that was returned is zero"


@dataclass
class Zeros:
    """Counts of a kernel's results: zeros where other bytes are right, and results that are not zeros."""

    wrong: int = 0
    others: int = 0

    def add(self, judgement: Judgement) -> None:
        """Count one result."""
        self.wrong += judgement.zero and not judgement.equal
        self.others += not judgement.zero

    @property
    def only(self) -> bool:
        """True if the kernel returned nothing but zeros, which then is the diagnosis. Rules: CNF-35."""
        return self.wrong > 0 and not self.others


def judge(case: Case, outcome: Outcome, declared: Declaration, expected: DirectionData | None = None) -> Judgement:
    """Compare what a kernel made of a case with what the specification does; an error in it costs this case only.

    expected: the golden model's bytes, if they are there already.

    Rules: CNF-1, CNF-3, CNF-9, CNF-22, CNF-68.
    """
    try:
        return _judged(case, outcome, declared, expected)
    except Exception as error:  # noqa: BLE001 - the verdict on other cases stands
        return Judgement(case, None, internal(error), ())


def _judged(case: Case, outcome: Outcome, declared: Declaration, expected: DirectionData | None) -> Judgement:
    finding, rules = outcome.finding, checked_rules(case, declared)
    nothing = outcome.data is None and outcome.values is None
    if finding is not None and (finding.kind in BROKEN or nothing):
        return Judgement(case, None, finding, ())
    expected = golden(case) if expected is None else expected
    if declared.operation != "quantize":
        assert outcome.values is not None
        got_values, wanted = outcome.values, expected_values(case, declared, expected)
        wrong = _wrong(case, got_values, declared, wanted)
        failing = broken(rules, case, declared, got_values, wanted, wrong, expected) if wrong.any() else frozenset()
        mismatches = _mismatches(got_values, declared, wanted, wrong)
        return Judgement(case, None, finding, rules, mismatches, values=got_values, broken=failing)
    assert outcome.data is not None
    got = normalised(case, declared, outcome.data)
    fault = padding_fault(np.asarray(outcome.data.data), case.matrix, case.spec, declared)
    if fault and finding is None:
        finding = Finding(FindingKind.PADDING, fault)
    returned_amax = got.amax is not None
    if not returned_amax:
        got = got._replace(amax=expected.amax)
    if declared.told_amax or not returned_amax:
        rules = tuple(rule for rule in rules if rule != "GLB-1")
    compared = compare_direction(
        case.x,
        case.spec,
        case.direction,
        declared.scale_layout,
        got,
        random_bits=case.random_bits,
        expected=expected,
    )
    return Judgement(case, compared, finding, rules, (), got, None, returned_amax)


def checked_rules(case: Case, declared: Declaration) -> tuple[str, ...]:
    """Return the rules that a case checks of an operation: of rules on layouts those of the declared one.

    Rules: CNF-77.
    """
    form = layout(declared.scale_layout)
    layouts, (element, scale) = form.rules, (case.spec.element.format, case.spec.scale.format)
    others = {rule for each in scale_layouts() for rule in each.rules} - {*layouts}
    values = (*dequantizing(case.spec, case.direction), "NUM-1", value_rule(element), value_rule(scale))
    packed, spare = PACKED[element.bits], SPARE.get(element.bits)
    packing = {PACKED[4]: packed, SPARE[4]: spare}  # families name the rules of 4 bits
    if case.spec.stochastic:
        others.add(NEAREST.get(element.name, ""))  # random bits decide, not the nearer code
    rules = {
        "quantize": (*(packing.get(rule, rule) for rule in case.rules if rule not in others), *layouts, packed),
        "dequantize": (*values, form.rule, PACKED[element.bits]),
        "to_layout": (*layouts, "LAY-6", "LAY-7"),
        "hadamard": ("HAD-1", "HAD-2", "HAD-3", "HAD-7"),
    }[declared.operation]
    return tuple(rule for rule in dict.fromkeys(rules) if rule is not None)


def compare_direction(
    x: NDArray[Any],
    spec: Spec,
    direction: Direction,
    scale_layout: str,
    got: DirectionData,
    amax: Any = None,
    random_bits: NDArray[np.uint8] | None = None,
    keep: int = 16,
    expected: DirectionData | None = None,
) -> Comparison:
    """Compare one direction; a transformed one may have been added up in another order.

    amax: by which the bytes are judged; None for that of x. expected: the golden model's bytes, if they are there.

    Rules: CNF-1, HAD-7.
    """

    def wanted(given: Any) -> DirectionData:
        q = api.quantize(x, spec, direction, amax=given, random_bits=random_bits, backend="numpy")
        return q.direction(direction)[0]

    def question(expected: DirectionData) -> tuple[Any, ...]:
        return x, spec, direction, scale_layout, got, expected, random_bits

    expected = wanted(amax) if expected is None else expected
    if spec.hadamard is None or direction == "row":
        return _blamed(compare(x, spec, direction, scale_layout, got, expected, keep), *question(expected))
    tolerated_amax = False
    if got.amax is not None and spec.global_scale is Granularity.TENSOR and got.amax[0] != expected.amax[0]:
        tolerated_amax = accepts_amax(x, spec, float(got.amax[0]))
        expected = wanted(got.amax) if tolerated_amax else expected
    tolerance = _tolerance(x, spec, got, random_bits)
    compared = compare(x, spec, direction, scale_layout, got, expected, keep, tolerance)
    compared.tolerated += tolerated_amax
    return _blamed(compared, *question(expected))


def _blamed(compared: Comparison, *question: Any) -> Comparison:
    """Note which stages are at fault. Rules: CNF-24."""
    if not compared.equal:
        compared.at_fault = at_fault(*question, compared)
    return compared


def _tolerance(x: NDArray[Any], spec: Spec, got: DirectionData, bits: NDArray[np.uint8] | None) -> Tolerance:
    """Return True if a block of the columns is right for some order of the transform's additions. Rules: HAD-7."""
    matrix = Matrix(x, "column")

    def tolerates(block: Tile, scale: int, codes: Codes) -> bool:
        amax = None if got.amax is None else got.amax[block[0] if spec.global_scale is Granularity.ROW else slice(None)]
        drawn = None if bits is None else bits[block]
        return bool(accepts_block(widen(matrix[block]), spec, amax, scale, codes, drawn))

    return tolerates


def _wrong(case: Case, got: NDArray[Any], declared: Declaration, wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where values or moved scales differ; all NaN are one. Rules: CNF-1, LAY-37, HAD-7, NUM-2."""
    if declared.operation == "to_layout":
        rows, columns = case.matrix
        compared = layout(declared.scale_layout).compared(rows, -(-columns // case.spec.block.columns))
        return np.asarray((got != wanted) & compared)
    bad = differing(got, wanted)
    if declared.operation != "hadamard":
        return bad
    inputs, values = (part.reshape(-1, POINTS) for part in (widen(transform_input(case)), got.astype(F)))
    wrong = bad.reshape(-1, POINTS)
    differs = wrong.any(axis=1)
    wrong[differs] &= ~within_bound(inputs[differs], signs(case.spec), values[differs])
    return wrong.reshape(bad.shape)


def _mismatches(
    got: NDArray[Any], declared: Declaration, wanted: NDArray[Any], wrong: NDArray[np.bool_]
) -> tuple[Mismatch, ...]:
    """Return the first wrong values or moved scales."""
    if declared.operation == "to_layout":
        return tuple(mismatched("scales", np.where(wrong, got, 0), np.where(wrong, wanted, 0))[:KEPT])
    return tuple(
        Mismatch(
            "values",
            tuple(map(int, index)),
            "",
            *(f"{format_words(part[tuple(index)][None])} ({float(part[tuple(index)]):.9g})" for part in (wanted, got)),
        )
        for index in np.argwhere(wrong)[:KEPT]
    )
