"""Claims about the operands that a GEMM on trial is given: sums that are exact in every order, and special values."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import multiply, packing
from fp4ref.catalogue import resolve
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.conformance.families.products.cases import cases
from fp4ref.operands import Operand
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell, formula
from fp4ref.proof.code_values import ANY_NAN, patterns_of
from fp4ref.proof.products import BACKENDS, CODE
from fp4ref.spec import Granularity

SPECS = ("nvfp4", "nvfp4-2d", "nvfp4-4over6", "nvfp4-row-scaled", "mxfp4", "mxfp6-e2m3", "mxfp8-e4m3", "mxfp8-e5m2")
AIMED = ("powers", "width", "dense", "extremes", "deep", "ragged", "alpha")
ADDED = ("bias", "accumulate", "bias-accumulate")
AIMED_CASES, ADDED_CASES, SPECIAL_CASES = 347, 266, 27
LIMIT = 1 << 24
NOTHING = 1 << 20  # the exponent of a zero's last bit


class FactorTable(NamedTuple):
    """The values of all codes of a format, and the exponents of their last bits."""

    values: NDArray[np.float64]
    last_bits: NDArray[np.int64]


def _table(name: str) -> FactorTable:
    patterns = patterns_of(name)
    with np.errstate(invalid="ignore"):
        values = np.where(patterns == ANY_NAN, np.nan, patterns.view(np.float32)).astype(np.float64)
    finite = np.where(np.isfinite(values), values, 0)
    mantissa, exponent = np.frexp(finite)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    last = np.log2(np.maximum(whole & -whole, 1)).astype(np.int64) + exponent - 53
    return FactorTable(values, np.where(whole == 0, NOTHING, last))


def _decoded(operand: Operand) -> FactorTable:
    """Return the matrix of an operand before its global scale, in both forms."""
    spec, (rows, depth) = operand.spec, operand.shape
    codes = packing.unpack(operand.data.data, depth, spec.element.format)
    element, scale = (_table(codec.format.name) for codec in (spec.element, spec.scale))
    scales = np.repeat(np.asarray(operand.data.scales), spec.block.columns, axis=1)[:rows, :depth]
    with np.errstate(invalid="ignore"):
        return FactorTable(
            element.values[codes] * scale.values[scales], element.last_bits[codes] + scale.last_bits[scales]
        )


def _told(name: str, case: GemmCase) -> str:
    return f"{name}, {case.id}"


def _made(families: tuple[str, ...]) -> Iterator[tuple[str, GemmCase]]:
    for name in SPECS:
        for case in cases(resolve(name), families):
            yield name, case


def aimed(tell: Tell) -> Replayed:
    """Count every result's positive and negative products in units of their last bits. Rules: GEM-13."""
    count = 0
    for name, case in _made(AIMED):
        count += 1
        a, b = (_decoded(operand) for operand in case.operands)
        sums, magnitudes = a.values @ b.values.T, np.abs(a.values) @ np.abs(b.values).T
        most = (magnitudes + np.abs(sums)) / 2  # the sum of the positive products, or of the negative ones
        units = np.array([(row + b.last_bits).min(axis=1) for row in a.last_bits])
        counted = np.where(units < NOTHING // 2, np.ldexp(most, -np.minimum(units, NOTHING // 2)), 0)
        if not case.aimed or not (counted < LIMIT).all():
            return Replayed(count, f"{_told(name, case)}: {counted.max():g} units")
        tell(count / AIMED_CASES)
    return Replayed(count, None if count == AIMED_CASES else f"there are {count} cases")


def added(tell: Tell) -> Replayed:
    """Add what cases add to the exact product, as whole numbers.

    Rules: GEM-15.
    """
    count = 0
    for name, case in _made(ADDED):
        if not case.aimed or (case.bias is None and case.accumulate is None) or name == "nvfp4-row-scaled":
            continue
        count += 1
        a, b = (_decoded(operand) for operand in case.operands)
        factor = _alpha(case)
        if factor.numerator & (factor.numerator - 1) or factor.denominator & (factor.denominator - 1):
            return Replayed(count, f"{_told(name, case)}: alpha is {factor}")
        product, magnitude = (
            a.values @ b.values.T * float(factor),
            np.abs(a.values) @ np.abs(b.values).T * float(factor),
        )
        parts = [product, *(np.asarray(part, np.float64) for part in (case.bias, case.accumulate) if part is not None)]
        result, most = product, magnitude
        for part in parts[1:]:
            result, most = result + part, most + np.abs(part)
        whole = np.abs(result).astype(np.int64)
        significant = whole // np.maximum(whole & -whole, 1)
        if any((part != np.floor(part)).any() for part in parts) or (most >= LIMIT).any() or (significant > 255).any():
            return Replayed(count, f"{_told(name, case)}: up to {most.max():g}, results up to {significant.max()}")
        tell(count / ADDED_CASES)
    return Replayed(count, None if count == ADDED_CASES else f"there are {count} cases")


def _alpha(case: GemmCase) -> Fraction:
    """Return the exact factor of the sums. Rules: GEM-5."""
    if case.a.spec.global_scale is Granularity.NONE:
        return Fraction(1)
    factor = Fraction(1)
    for operand in case.operands:
        amax = operand.data.amax
        assert amax is not None
        factor *= Fraction(float(amax.ravel()[0])) / (6 * 448)
    return factor


def _is(results: NDArray[np.floating[Any]], value: float) -> NDArray[np.bool_]:
    return np.asarray(np.isnan(results) if np.isnan(value) else results == value)


def special(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Multiply operands with NaN and infinities, and compare which results are none and which infinite."""
    count = 0
    for name, case in _made(("special",)):
        count += 1
        a, b = (_decoded(operand).values for operand in case.operands)
        rows, columns = (np.asarray(~np.isfinite(side).all(axis=1)) for side in (a, b))
        if not (0 < rows.sum() < len(a) // 2 and 0 < columns.sum() < len(b) // 2):
            return Replayed(count, f"{_told(name, case)}: {rows.sum()} and {columns.sum()} rows are special")
        with np.errstate(invalid="ignore"):
            want = (a[:, None, :] * b[None, :, :]).sum(axis=2)
        got = np.asarray(multiply.gemm(case.a, case.b, backend=BACKENDS[subject]))
        for kind, value in (("NaN", np.nan), ("infinity", np.inf), ("minus infinity", -np.inf)):
            wrong = np.argwhere(_is(got, value) ^ _is(want, value))
            if len(wrong):
                m, n = map(int, wrong[0])
                return Replayed(count, f"{_told(name, case)}: result {m}, {n} is {got[m, n]!s}: {kind} or not?")
        numbers = np.isfinite(got) == ~(rows[:, None] | columns)
        if case.specials == ("nan",) and not numbers.all():
            return Replayed(count, f"{_told(name, case)}: a NaN is lost, or spreads")
        tell(count / SPECIAL_CASES)
    return Replayed(count, None if count == SPECIAL_CASES else f"there are {count} cases")


CALLED = {ClaimSubject.TORCH: (whole.LAYOUTS[0], "fp4ref_torch.operations:gemm_exact")}
CASES = "fp4ref.conformance.families.products.cases:cases"


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about operands on trial."""
    made = f"the cases of {len(SPECS)} specifications"
    yield formula(
        "aimed-operands",
        "GEM-13",
        aimed,
        "In every result of aimed operands, the positive products, and the negative ones, sum to less than 2^24 units.",
        domain=f"{made} in {len(AIMED)} families",
        size=AIMED_CASES,
        covers=(CASES,),
    )
    yield formula(
        "added-operands",
        "GEM-15",
        added,
        "Sums times alpha, what is added and all partial sums are whole numbers below 2^24, alpha is a power of two, "
        "and results have eight significant bits.",
        domain=f"{made} that add, without amaxes of rows and without real numbers",
        size=ADDED_CASES,
        covers=(CASES,),
    )
    for subject in BACKENDS:
        yield ProofClaim(
            name=f"special-operands/{subject}",
            rules=("GEM-17", "GEM-3"),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement="Of operands on trial that hold NaN or infinities, the rows and columns of these, and no others, "
            "become NaN or infinite.",
            domain=f"{made} in the family special",
            size=SPECIAL_CASES,
            decide=partial(special, subject),
            covers=(*CODE[subject], *CALLED.get(subject, ())),
        )
