"""Claims about what follows the sums of a product: amaxes of rows, what is added, casts, and groups.

The steps are the same for every value. So values decide on which each other order of the steps gives other bits, and
each claim computes the other orders too: it is refuted if one of them is not told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import multiply
from fp4ref.catalogue import resolve
from fp4ref.formats import F, Floats
from fp4ref.operands import AlphaRule
from fp4ref.proof import whole
from fp4ref.proof.blocks import TYPES
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import UNIT
from fp4ref.proof.golden_scales import _once
from fp4ref.proof.products import taken
from fp4ref.quantized import DirectionData, Quantized

SIDE = 72  # rows of either operand: more than a tile of the cpu backend
FACTOR = UNIT * UNIT
ALPHAS = (1.0, 1.1, -0.3, 3e-20)
KINDS = tuple(product((False, True), repeat=2))  # whether the operands are row-scaled
ADDED = tuple(product((False, True), repeat=2))  # whether there is something to accumulate, and a bias
MEMBERS = 3
PAIRS = 16  # of amaxes of tensors


@np.errstate(all="ignore")
def times(a: Any, b: Any) -> Any:
    """Return a float32 product, rounded once."""
    return _once(np.asarray(a, np.float64) * np.asarray(b, np.float64))


@np.errstate(all="ignore")
def plus(a: Any, b: Any) -> Any:
    """Return a float32 sum, rounded once."""
    return _once(np.asarray(a, np.float64) + np.asarray(b, np.float64))


def over(a: Any, b: Any) -> Any:
    """Return a float32 quotient, rounded once."""
    return _once(np.asarray(a, np.float64) / np.asarray(b, np.float64))


def factors(seed: int) -> Floats:
    """Return positive float32 of SIDE different significands, within 2^-8 and 2^8."""
    bits = (np.arange(SIDE, dtype=np.uint64) * 0x9E3779B1 + seed * 0x85EBCA6B) % (1 << 23)
    return ((127 - 8 + np.arange(SIDE) % 16 << 23) + bits).astype(np.uint32).view(F)


def operand(spec: str, amax: Any, seed: int) -> tuple[Quantized, NDArray[np.float64]]:
    """Return rows of one value each, and these values without the global scale: some are 0, some negative."""
    row = np.arange(SIDE, dtype=np.uint8)
    code = ((row * 5 + seed) % 16).astype(np.uint8)
    byte = np.full(SIDE, 0x7F, np.uint8) if spec == "mxfp4" else (0x31 + (row * 3 + seed) % 16).astype(np.uint8)
    width = 16 if spec == "mxfp4" else 8
    data = np.zeros((SIDE, width), np.uint8)
    data[:, 3] = code << 4
    scale, element = resolve(spec).scale, resolve(spec).element
    values = whole._decoded(element, code) * whole._decoded(scale, byte)
    parts = DirectionData(data, byte[:, None], None if amax is None else np.asarray(amax, F))
    return Quantized(resolve(spec), (SIDE, 2 * width), "float32", "linear", parts), values


def _product(subject: ClaimSubject, a: Quantized, b: Quantized, **given: Any) -> NDArray[Any]:
    """Return a product by a backend."""
    named = {key: whole._array(part, subject) if isinstance(part, np.ndarray) else part for key, part in given.items()}
    return whole._host_values(
        multiply.gemm(taken(subject, a), taken(subject, b), backend=whole.BACKENDS[subject], **named)
    )


def _sums(left: NDArray[np.float64], right: NDArray[np.float64]) -> Floats:
    sums = np.multiply.outer(left, right)
    return np.where(sums == 0, F(0), _once(sums))


def _differs(got: NDArray[Any], want: NDArray[Any]) -> str:
    """Return the first difference in bits, in words; empty if there is none."""
    bits = f"u{want.itemsize}"
    wrong = np.argwhere(got.view(bits) != want.view(bits))
    if not len(wrong):
        return ""
    m, n = map(int, wrong[0])
    return f"the result [{m}, {n}] is {got[m, n]!s}, needs {want[m, n]!s}"


def amaxes(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Multiply operands of which one or both are row-scaled, with several alphas, by both rules of alpha."""
    cases = [*product([kind for kind in KINDS if any(kind)], ALPHAS, AlphaRule)]
    unlike = {"by amaxes first": False, "from the right": False, "by one product": False, "one after the other": False}
    for count, (rows, alpha, rule) in enumerate(cases):
        by_a, by_b = factors(1) if rows[0] else factors(3)[:1], factors(2) if rows[1] else factors(4)[:1]
        (a, left), (b, right) = (
            operand("nvfp4-row-scaled" if own else "nvfp4", amax, seed)
            for own, amax, seed in zip(rows, (by_a, by_b), (0, 7), strict=True)
        )
        total = over(F(alpha), FACTOR) if rule is AlphaRule.DIVISION else times(F(alpha), over(1.0, FACTOR))
        y, down, across = times(_sums(left, right), total), by_a[:, None], by_b[None, :]
        apart, together = times(times(y, down), across), times(y, times(down, across))
        want = apart if all(rows) else together
        others = {
            "by amaxes first": times(times(_sums(left, right), times(down, across)), total),
            "from the right": times(times(y, across), down),
            "by one product" if all(rows) else "one after the other": together if all(rows) else apart,
        }
        for name, other in others.items():
            unlike[name] |= bool(_differs(other, want))
        witness = _differs(_product(subject, a, b, alpha=alpha, alpha_rule=rule), want)
        if witness:
            return Replayed(count, f"row-scaled {rows}, alpha {alpha} by {rule}: {witness}")
        tell((count + 1) / len(cases))
    same = [name for name, told in unlike.items() if not told]
    return Replayed(len(cases) * SIDE**2, f"not told apart: {', '.join(same)}" if same else None)


def alphas(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Multiply operands of several amaxes, with several alphas, by both rules of alpha."""
    pairs = [*zip(factors(1)[:PAIRS], factors(2)[:PAIRS], strict=True)]
    cases = [*product(pairs, ALPHAS, AlphaRule)]
    unlike = {"amaxes first": False, "from the right": False, "divided first": False, "by the other rule": False}
    for count, ((by_a, by_b), alpha, rule) in enumerate(cases):
        (a, left), (b, right) = operand("nvfp4", [by_a], 0), operand("nvfp4", [by_b], 7)
        sums, amaxes_of = _sums(left, right), times(times(F(alpha), by_a), by_b)
        by_product, by_quotient = times(amaxes_of, over(1.0, FACTOR)), over(amaxes_of, FACTOR)
        first, second = (by_quotient, by_product) if rule is AlphaRule.DIVISION else (by_product, by_quotient)
        want = times(sums, first)
        others = {
            "amaxes first": times(times(F(alpha), times(by_a, by_b)), over(1.0, FACTOR)),
            "from the right": times(times(times(F(alpha), by_b), by_a), over(1.0, FACTOR)),
            "divided first": times(times(times(F(alpha), over(1.0, FACTOR)), by_a), by_b),
            "by the other rule": second,
        }
        for name, other in others.items():
            unlike[name] |= bool(_differs(times(sums, other), want))
        witness = _differs(_product(subject, a, b, alpha=alpha, alpha_rule=rule), want)
        if witness:
            return Replayed(count, f"amaxes {by_a!s} and {by_b!s}, alpha {alpha} by {rule}: {witness}")
        tell((count + 1) / len(cases))
    same = [name for name, told in unlike.items() if not told]
    return Replayed(len(cases) * SIDE**2, f"not told apart: {', '.join(same)}" if same else None)


def additions(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Multiply with and without something to accumulate and a bias, to all types, with and without row scaling."""
    cases = [*product((False, True), ADDED, TYPES, ALPHAS)]
    unlike = {False: False, True: False}
    for count, (by_row, (with_c, with_bias), to, alpha) in enumerate(cases):
        kind = TYPES[to]
        spec, amax = ("nvfp4-row-scaled", np.full(SIDE, UNIT, F)) if by_row else ("mxfp4", None)
        (a, left), (b, right) = operand(spec, amax, 0), operand(spec, amax, 7)
        sums = _sums(left, right)
        y = times(sums, F(alpha))
        if by_row:
            y = times(times(times(sums, times(F(alpha), over(1.0, FACTOR))), UNIT), UNIT)
        bias = factors(5) * F(3) if with_bias else None
        c = np.multiply.outer(factors(6), factors(8)).astype(F).astype(kind) if with_c else None
        wide = None if c is None else c.astype(F)
        first = _added(_added(y, wide), bias).astype(kind)
        last = _added(_added(y, bias).astype(kind).astype(F), wide).astype(kind)
        if with_c and with_bias:
            unlike[by_row] |= bool(_differs(first, last))
        want = np.ascontiguousarray(last if by_row else first)
        named: dict[str, Any] = {"bias": bias, "accumulate": c}
        witness = _differs(_product(subject, a, b, alpha=alpha, dtype=to, **named), want)
        if witness:
            return Replayed(count, f"{spec} to {to}, alpha {alpha}, C {with_c}, bias {with_bias}: {witness}")
        tell((count + 1) / len(cases))
    same = [str(by_row) for by_row, told in unlike.items() if not told]
    return Replayed(len(cases) * SIDE**2, f"orders are not told apart, row-scaled: {', '.join(same)}" if same else None)


def _added(y: Any, more: Any) -> Any:
    """Return a sum; y itself where there is nothing to add, so that -0 stays."""
    return y if more is None else plus(y, more)


def groups(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Multiply every list of three members, and compare with the products of each pair alone."""
    kinds = [(spec, rows) for spec in ("nvfp4", "mxfp4") for rows in (0, 3)]
    several = [*product(kinds, repeat=MEMBERS)]
    weights = {spec: operand(spec, [UNIT] if spec == "nvfp4" else None, 9)[0] for spec in ("nvfp4", "mxfp4")}
    for count, members in enumerate(several):
        a = []
        for place, (spec, rows) in enumerate(members):
            q, _ = operand(spec, [UNIT] if spec == "nvfp4" else None, place)
            data, scales, amax = q.direction("row")[0]
            parts = DirectionData(data[:rows], scales[:rows], amax)
            a.append(Quantized(q.spec, (rows, q.shape[1]), q.dtype, "linear", parts))
        b = [weights[spec] for spec, _ in members]
        alone = [_product(subject, *pair) for pair in zip(a, b, strict=True)]
        left, right = ([taken(subject, q) for q in side] for side in (a, b))
        made = multiply.gemm_grouped(left, right, backend=whole.BACKENDS[subject])
        got = [whole._host_values(each) for each in made]
        for place, (mine, own) in enumerate(zip(got, alone, strict=True)):
            if mine.shape != (members[place][1], SIDE) or mine.tobytes() != own.tobytes():
                return Replayed(count, f"member {place} of {members}: {list(mine.shape)}")
        tell((count + 1) / len(several))
    return Replayed(len(several))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about the ends of products."""
    code = {
        ClaimSubject.GOLDEN: ("fp4ref.model.epilogue:finish", "fp4ref.model.backend:gemm_exact", whole.LAYOUTS[0]),
        ClaimSubject.CPU: (f"{whole.CPU}/gemm.h", *whole.FLAGS),
        ClaimSubject.TORCH: (
            "fp4ref_torch.gemm:finish",
            "fp4ref_torch.gemm:exact_sums",
            "fp4ref_torch.operations:gemm_exact",
        ),
    }
    table: tuple[tuple[str, str, Callable[[ClaimSubject, Tell], Replayed], str, str, int, str], ...] = (
        (
            "product-amaxes",
            "GEM-7",
            amaxes,
            "Amaxes of rows multiply the scaled sum: their product if one operand has them, else one after the other.",
            f"all products of {SIDE} values and amaxes a side, for {len(ALPHAS)} alphas and both rules of alpha",
            3 * len(ALPHAS) * len(AlphaRule) * SIDE**2,
            "the steps are the same for all values, so values on which each other order gives other bits decide",
        ),
        (
            "product-alpha",
            "GEM-5",
            alphas,
            "alpha is multiplied by the amax of A, then by that of B, then by 1 over the factor, or divided by it.",
            f"all products of {SIDE} values a side, for {PAIRS} pairs of amaxes, {len(ALPHAS)} alphas and both rules",
            PAIRS * len(ALPHAS) * len(AlphaRule) * SIDE**2,
            "the steps are the same for all values, so values on which each other order gives other bits decide",
        ),
        (
            "product-additions",
            "GEM-8",
            additions,
            "What is accumulated and the bias are added in the order of the rule, each sum and each cast rounded once.",
            f"all products of {SIDE} values a side, with and without either, to three types, for {len(ALPHAS)} alphas",
            2 * len(ADDED) * len(TYPES) * len(ALPHAS) * SIDE**2,
            "the steps are the same for all values, so values on which the other order gives other bits decide",
        ),
        (
            "product-groups",
            "GEM-12",
            groups,
            "A member of a group has the product that it has alone.",
            "all lists of three members of 0 and 3 rows, of two specifications",
            4**MEMBERS,
            "a group is a loop over its members, so three of them have a first, a next and a last one of every kind",
        ),
    )
    for name, rule, decide, statement, domain, size, reduction in table:
        for subject, covers in code.items():
            yield ProofClaim(
                name=f"{name}/{subject}",
                rules=(rule,),
                method=Method.ARGUMENT,
                subject=subject,
                statement=statement,
                domain=domain,
                size=size,
                decide=partial(decide, subject),
                covers=(*covers, *(("fp4ref.multiply:gemm_grouped",) if rule == "GEM-12" else ())),
                reduction=reduction,
            )
