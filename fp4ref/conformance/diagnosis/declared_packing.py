"""Data that a kernel packs in another way than it declares.

A kernel's data are judged in the canonical packing, so a wrong declaration looks like a strange order of codes. Here
they are read as each other packing instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fp4ref.conformance.diagnosis.diagnose import diagnose
from fp4ref.conformance.diagnosis.explanations import Diagnosis, Explanation
from fp4ref.conformance.families import Case
from fp4ref.conformance.judge.cases import compare_direction
from fp4ref.conformance.mistakes.record import Cause, Slot
from fp4ref.conformance.subjects.packed import packing_of
from fp4ref.conformance.subjects.subject import golden
from fp4ref.formats import Codes
from fp4ref.kernels import Declaration
from fp4ref.layout import Layout
from fp4ref.packings import CANONICAL_OF, PACKINGS, packed_shape, repack
from fp4ref.quantized import DirectionData

Evidence = Sequence[tuple[Case, DirectionData]]
SIX = 6  # bits of a code, in which the order of bits within bytes is a choice of its own
HIGH_FIRST = "6-bit codes are stored from the highest bit of each byte down, not from the lowest up"
TRIED = 4  # cases on which a packing is tried before it is tried on all


def diagnose_packed(declared: Declaration, evidence: Evidence, seconds: float) -> Diagnosis:
    """Explain a quantizer's bytes; if another packing than the declared one makes its codes right, that comes first.

    Rules: CNF-26, PACK-7.
    """
    spec = evidence[0][0].spec
    form = packing_of(spec, declared)
    if form.unit == SIX and form in CANONICAL_OF.values() and all(_high_first_right(*item) for item in evidence):
        return _high_first(declared, evidence, seconds)
    other = None if form in CANONICAL_OF.values() else _other_packing(form, evidence)
    if other is None:
        return diagnose(spec, declared.scale_layout, evidence, seconds)
    text = f"data are packed as {other.name} where {form.name} is declared"
    own = Explanation((f"packing-{other.name}",), Slot.PACKING.value, text)
    whole = [(case, got) for case, got in evidence if _fills(form, case) and _fills(other, case)]
    read = [(case, got._replace(data=_read_as(other, form, case, got))) for case, got in whole]
    return _explained(own, read, declared, seconds)


def _explained(own: Explanation, read: Evidence, declared: Declaration, seconds: float) -> Diagnosis:
    """Return a packing as the explanation, with what else is wrong of the bytes that are read by it."""
    if all(_equal(case, got, declared) for case, got in read):
        return Diagnosis(conforms=False, explanations=(own,), first_stage=own.stage)
    found = diagnose(read[0][0].spec, declared.scale_layout, read, seconds)
    more = [
        replace(e, names=(*own.names, *e.names), causes=_with(own, e), text=f"{own.text}; {e.text}")
        for e in found.explanations
    ]
    return replace(found, explanations=tuple(more), partial=found.partial if more else own)


def _with(own: Explanation, other: Explanation) -> tuple[Cause, ...]:
    return (*own.each, *other.each) if other.each else ()


def _high_first(declared: Declaration, evidence: Evidence, seconds: float) -> Diagnosis:
    """Explain the bytes of a kernel whose 6-bit codes are stored from the highest bit of each byte down."""
    own = Explanation(("packing-high-first",), Slot.PACKING.value, HIGH_FIRST)
    read = [(case, got._replace(data=_from_the_high_bits(case, got))) for case, got in evidence]
    return _explained(own, read, declared, seconds)


def _from_the_high_bits(case: Case, got: DirectionData) -> Codes:
    """Return the canonical bytes of codes that fill each row's bytes from the highest bit down. Rules: PACK-6."""
    rows, columns = case.matrix
    bits = np.unpackbits(got.data, axis=1, bitorder="big")[:, : columns * SIX]
    turned = bits.reshape(rows, columns, SIX)[:, :, ::-1].reshape(rows, columns * SIX)
    return np.packbits(turned, axis=1, bitorder="little")


def _high_first_right(case: Case, got: DirectionData) -> bool:
    """Return True if the codes of a case are right, as far as they are numbers, when they are read so."""
    return not case.matrix[0] * case.matrix[1] or np.array_equal(_from_the_high_bits(case, got), golden(case).data)


def _other_packing(form: Layout, evidence: Evidence) -> Layout | None:
    """Return the packing in which the codes of all cases are right, of those that it fills without padding."""
    for other in (each for each in PACKINGS.values() if each.unit == form.unit and each != form):
        whole = [(case, got) for case, got in evidence if _fills(form, case) and _fills(other, case)]
        telling = [item for item in whole if len(np.unique(item[1].data)) > 1]
        if len(telling) >= TRIED and all(_right(other, form, *item) for item in (*telling[:TRIED], *whole)):
            return other
    return None


def _fills(form: Layout, case: Case) -> bool:
    """Return True if a packing stores the codes of a case without padding."""
    rows, columns = case.matrix
    if not rows * columns or form.refuses(rows, columns):
        return False
    return int(np.prod(packed_shape(form, rows, columns))) * 8 == rows * columns * form.unit


def _right(other: Layout, form: Layout, case: Case, got: DirectionData) -> bool:
    return np.array_equal(_read_as(other, form, case, got), golden(case).data)


def _read_as(other: Layout, form: Layout, case: Case, got: DirectionData) -> Codes:
    """Return the canonical bytes if the kernel's own, which were read as one packing, are read as another."""
    canonical = CANONICAL_OF[form.unit]
    own = repack(got.data, *case.matrix, canonical, form)
    return repack(own, *case.matrix, other, canonical)


def _equal(case: Case, got: DirectionData, declared: Declaration) -> bool:
    expected = golden(case)
    given = got if got.amax is not None else got._replace(amax=expected.amax)
    return compare_direction(
        case.x, case.spec, case.direction, declared.scale_layout, given, random_bits=case.random_bits, expected=expected
    ).equal
