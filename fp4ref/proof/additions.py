"""Claims about the order of additions: the Hadamard transform's, and the bounds for sums in any order.

A sum of floats is a binary tree. Put a number M at one leaf, -M at another and 1 at all others, M so large that M + 1
is M: the result counts the leaves outside the smallest subtree with both. These counts, for all pairs of leaves,
determine the tree up to the order of operands, which addition does not depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import accumulate, combinations, product
from typing import Any

import numpy as np

from fp4ref import hadamard
from fp4ref.catalogue import resolve
from fp4ref.conformance.judge import products as judged
from fp4ref.conformance.oracle import hadamard as bounds
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, F, Floats
from fp4ref.layout import layout
from fp4ref.operands import Operand
from fp4ref.proof import native, whole
from fp4ref.proof.claims import ClaimSubject, Decide, Method, ProofClaim, Replayed, Tell, formula
from fp4ref.proof.transforms import MASK
from fp4ref.quantized import DirectionData

POINTS = 16
HUGE = 2.0**40  # which absorbs 15, a quarter of it too
LARGEST, SMALLEST = 255 * 2.0**120, 2.0**-133  # of bfloat16
PAIRS = tuple(combinations(range(POINTS), 2))
TREES = POINTS * len(PAIRS)  # outputs and pairs of leaves
VECTORS = 2 * TREES + POINTS + 2
NEAREST, TRUNCATED = Fraction(1, 1 << 24), Fraction(1, 1 << 23)  # the relative error of one float32 addition, at most
DEEPEST = 1 << 22  # terms of a sum
DEPTHS, SIDE = (16, 48, 512), 8  # sums that are computed: their terms, and how many a side
EXACT_SPREAD = 12  # exponents over which every order of additions is exact
STATED = Fraction(15, 1 << 23)  # of the sum of magnitudes
GROUP = (  # the group of the rule, whose results depend on the order
    *(-18944, 4.696846008300781e-05, -6.914138793945312e-05, 0.0002288818359375, 1.8998980522155762e-06),
    *(-0.0002689361572265625, -0.00347900390625, -0.0167236328125, -19968, -876, -0.0194091796875),
    *(-0.00019550323486328125, -1.1641532182693481e-07, 0.00029754638671875, 6.556510925292969e-06),
    -4.315376281738281e-05,
)

# The vectors of `probes`, and what `wanted` says of them: the same numbers, made again.
HEADER = f"""
    const unsigned trees = {TREES}u, k = (unsigned)i % 16u;
    unsigned n = (unsigned)i / 16u % {len(PAIRS)}u, p = 0;
    for (; n >= 15u - p; ++p) n -= 15u - p;
    const unsigned q = p + 1u + n;
    const bool counts = i < trees, two = !counts && i < 2u * trees, all = !counts && !two && i < 2u * trees + 16u;
    float y[16][1];
    for (unsigned j = 0; j < 16u; ++j) {{
        const bool negative = ((INVERSE ? 0u : 0x{MASK:X}u >> j) ^ (unsigned)__builtin_popcount(j & k)) & 1u;
        float x = counts ? j == p ? 0x1p40f : j == q ? -0x1p40f : 1.0f
                : two ? (j == p || j == q ? 0x1.fep127f : 0.0f) : all ? 0x1p-133f : i & 1u ? -0.0f : 0.0f;
        y[j][0] = (counts || two || all) && negative ? -x : x;
    }}
    unsigned below = (p ^ q) | (p ^ q) >> 1;  // one less than the size of the smallest subtree with both
    below |= below >> 2;
    float want = counts ? (float)(15u - below) / 4.0f
               : two ? 0x1.fep126f : all ? 0x1p-131f : 0.0f;
    if (INVERSE && (0x{MASK:X}u >> k & 1u)) want = -want;
    TRANSFORM<0x{MASK:X}u>(y);
    return bits_of(y[k][0]) != bits_of(want);
"""


def probes(inverse: bool) -> tuple[Floats, Floats]:
    """Return vectors [n, 16] and the output [n] that each of them decides, n counted over the outputs fastest.

    First those that count leaves outside a subtree; then two largest bfloat16, whose quarters have a finite sum; then
    the smallest ones, whose quarters are floats; then zeros of both signs.
    """
    j = np.arange(POINTS)
    parity = np.array([[int(a & b).bit_count() & 1 for a in j] for b in j])
    signs = np.where(parity ^ (0 if inverse else MASK >> j & 1), -1.0, 1.0)
    counting, largest = np.ones((len(PAIRS), POINTS)), np.zeros((len(PAIRS), POINTS))
    for row, (p, q) in enumerate(PAIRS):
        counting[row, p], counting[row, q] = HUGE, -HUGE
        largest[row, [p, q]] = LARGEST
    parts = [np.concatenate([counting, largest, np.full((1, POINTS), SMALLEST)])[:, None, :] * signs]
    x = np.concatenate([part.reshape(-1, POINTS) for part in parts] + [np.zeros((1, POINTS)), -np.zeros((1, POINTS))])
    return x.astype(F), wanted(inverse)


def wanted(inverse: bool) -> Floats:
    """Return the sums of the probes, float32: a quarter for each leaf outside the subtrees of strides 1, 2, 4 and 8.

    Rules: HAD-2, HAD-6.
    """
    outside = [(POINTS - (1 << (p ^ q).bit_length())) / 4 for p, q in PAIRS]
    each = np.repeat([*outside, *[LARGEST / 2] * len(PAIRS), 4 * SMALLEST], POINTS)
    want = np.append(each, [0.0, 0.0])
    output = np.arange(len(want)) % POINTS
    return np.where(MASK >> output & inverse, -want, want).astype(F)


Transform = Callable[[Floats], Floats]


def _golden(inverse: bool) -> Transform:
    return lambda x: (hadamard.inverse if inverse else hadamard.transform)(x, MASK)


def _torch(inverse: bool) -> Transform:
    import torch

    from fp4ref_torch import hadamard as in_torch

    function = in_torch.inverse if inverse else in_torch.transform
    return lambda x: np.asarray(function(torch.from_numpy(x), MASK).to(torch.float32).numpy())


def order(subject: ClaimSubject, inverse: bool, tell: Tell) -> Replayed:
    """Transform the probes, and compare the outputs that they decide."""
    x, want = probes(inverse)
    results = (_golden if subject is ClaimSubject.GOLDEN else _torch)(inverse)(x)
    place = np.arange(len(x))
    got = results[place, place % POINTS]
    (wrong,) = np.nonzero(got.view(np.uint32) != want.view(np.uint32))
    if not len(wrong):
        return Replayed(len(x))
    at = int(wrong[0])
    return Replayed(at, f"output {at % POINTS} of {x[at].tolist()} is {got[at]}, needs {want[at]}")


def header_order(inverse: bool, tell: Tell) -> Replayed:
    """Transform the probes in the header, and compare the outputs that they decide."""
    name, function = ("inverse", "inverse_hadamard") if inverse else ("order", "hadamard")
    body = HEADER.replace("INVERSE", str(inverse).lower()).replace("TRANSFORM", function)
    wrong, first = native.sweep(native.text({name: body}), name, VECTORS, tell)
    return Replayed(VECTORS, None if first is None else f"probe {first}; {wrong} probes are wrong")


def any_order(tell: Tell) -> Replayed:
    """Bound sums of 16 quarters in any order, and find results of 18 orders of many groups within the interval.

    A leaf is below 15 additions at most, each of which multiplies by a factor within 1 - 2^-23 and 1 + 2^-24.
    """
    most = 16 * 255 << EXACT_SPREAD  # steps of the smallest element, in the sum of all magnitudes
    if most >= 1 << 24:
        return Replayed(0, f"sums of exponents {EXACT_SPREAD} apart take {most.bit_length()} bits")
    error = max((1 + NEAREST) ** 15 - 1, 1 - (1 - TRUNCATED) ** 15)
    if error > STATED:
        return Replayed(1, f"15 additions can err by {float(error):.9g} of the sum of magnitudes")
    count = 2
    groups = _groups()
    for number, group in enumerate(groups):
        accepted = bounds.interval(group, MASK)
        alike = _spread(group) <= EXACT_SPREAD
        for output in range(POINTS):
            terms = [F(-x / 4 if (MASK >> i ^ (i & output).bit_count()) & 1 else x / 4) for i, x in enumerate(group)]
            low, high = accepted[output]
            for found in _orders(terms):
                count += 1
                if not low <= found <= high:
                    return Replayed(count, f"output {output} of {group} is {found} in some order, not {low} to {high}")
            if alike and low != high:
                return Replayed(count, f"output {output} of {group} may be {low} and {high}")
        tell((number + 1) / len(groups))
    return Replayed(count)


def _spread(group: Any) -> int:
    exponents = [np.frexp(abs(x))[1] for x in group if x]
    return int(max(exponents) - min(exponents))


def _groups() -> list[tuple[float, ...]]:
    """Return the rule's group, turned, and groups whose exponents spread over 0 to 24."""
    turned = [(*GROUP[n:], *GROUP[:n]) for n in range(POINTS)]
    made = []
    for spread in range(25):
        power = [(7 * i + spread) % (spread + 1) for i in range(POINTS)]
        power[3], power[12] = 0, spread
        made.append(tuple((-1.0) ** (i * i // 3) * (129 + 37 * i % 127) * 2.0**p for i, p in enumerate(power)))
    return [*turned, *made]


def _orders(terms: list[Any]) -> Iterator[float]:
    """Yield sums in float32, rounded to bfloat16: from each term on to the next, and back, and by halves."""
    import ml_dtypes

    def chain(parts: list[Any]) -> Any:
        return [*accumulate(parts, lambda total, x: F(total + x))][-1]

    found = [chain([*terms[n:], *terms[:n]]) for n in range(POINTS)] + [chain(terms[::-1])]
    parts = terms
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [F(a + b) for a, b in zip(parts[:half], parts[half:], strict=True)]
    yield from (float(F(x).astype(ml_dtypes.bfloat16)) for x in (*found, parts[0]))


def any_depth(tell: Tell) -> Replayed:
    """Bound K roundings by gamma, and compare a judge's interval of sums with that of the rule, in fractions.

    (1 + u)^K is at most 1 / (1 - K u) by induction, if (1 + u) (1 - (K + 1) u) is at most 1 - K u; both sides are
    linear in K, so two of them decide.
    """
    for k in (0, DEEPEST):
        if (1 + TRUNCATED) * (1 - (k + 1) * TRUNCATED) > 1 - k * TRUNCATED:
            return Replayed(0, f"K = {k}: gamma is too small")
    count = 2
    for columns in DEPTHS:
        (a, left), (b, right) = _rows(columns, 3), _rows(columns, 5)
        low, high = judged.interval(a, b)
        gamma = columns * TRUNCATED / (1 - columns * TRUNCATED)
        for m, n in product(range(SIDE), repeat=2):
            terms = [x * y for x, y in zip(left[m], right[n], strict=True)]
            exact, size = sum(terms, Fraction(0)), sum((abs(term) for term in terms), Fraction(0))
            slack = gamma * size + columns * Fraction(1, 1 << 126)
            ends = Fraction(float(low[m, n])), Fraction(float(high[m, n]))
            count += 1
            if not ends[0] <= exact - slack <= exact + slack <= ends[1]:
                return Replayed(count, f"K = {columns}: the sum {float(exact)} may be off by {float(slack)}: {ends}")
            wide = slack * Fraction(1001, 1000) + abs(exact) * NEAREST * 2
            if not exact - wide <= ends[0] <= ends[1] <= exact + wide:
                return Replayed(count, f"K = {columns}: the interval of the sum {float(exact)} is too wide")
        tell(count / (2 + len(DEPTHS) * SIDE**2))
    return Replayed(count)


def _rows(columns: int, step: int) -> tuple[Operand, list[list[Fraction]]]:
    """Return an operand of NVFP4, all codes under many scales, and its values."""
    place = np.arange(SIDE * columns).reshape(SIDE, columns)
    codes = (place * step + place // 16).astype(np.uint8) % 16
    scales = (0x20 + place[:, ::16] * step // 16 % 0x5E).astype(np.uint8)
    data = DirectionData((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), scales, np.array([2688], F))
    values = whole._decoded(CUDA_E2M1, codes) * np.repeat(whole._decoded(CUDA_E4M3, scales), 16, axis=1)
    exact = [[Fraction(value) for value in row] for row in values.tolist()]
    return Operand(data, (SIDE, columns), resolve("nvfp4"), layout("linear")), exact


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about the order of additions."""
    golden, torch = "fp4ref.hadamard", "fp4ref_torch.hadamard"
    for inverse, rule, name in ((False, "HAD-2", "transform"), (True, "HAD-6", "inverse")):
        in_header = "hadamard.h:inverse_hadamard" if inverse else "hadamard.h:hadamard"
        table: tuple[tuple[ClaimSubject, Decide, str], ...] = (
            (ClaimSubject.GOLDEN, partial(order, ClaimSubject.GOLDEN, inverse), f"{golden}:{name}"),
            (ClaimSubject.TORCH, partial(order, ClaimSubject.TORCH, inverse), f"{torch}:{name}"),
            (ClaimSubject.HEADER, partial(header_order, inverse), in_header),
        )
        for subject, decide, covers in table:
            what = "inverse of the transform" if inverse else "transform"
            yield ProofClaim(
                name=f"hadamard-{'inverse' if inverse else 'order'}/{subject}",
                rules=(rule,),
                method=Method.ARGUMENT,
                subject=subject,
                statement=f"The {what} adds quarters, 1, 2, 4 and 8 elements apart in this order.",
                domain="all pairs of leaves of the sums of all outputs, and the ends of bfloat16",
                size=VECTORS,
                decide=decide,
                covers=(covers,),
                reduction="a sum of floats is a binary tree; M at one leaf, -M at another and 1 at all others, where "
                "M + 1 is M, count the leaves outside the smallest subtree with both, and these determine the tree",
                rests_on=() if inverse else (f"hadamard-signs/{subject}",),
            )
    yield formula(
        "hadamard-interval",
        "HAD-7",
        any_order,
        "Float32 additions of a transform in any order, also truncating ones, stay in the interval of the rule; if the "
        "exponents spread over at most 12, all orders have one result.",
        domain="the bounds of all orders as fractions; and 18 orders of 41 groups",
        size=2 + 41 * POINTS * 18,
        covers=("fp4ref.conformance.oracle.hadamard:interval",),
        method=Method.ARGUMENT,
    )
    yield formula(
        "sum-interval",
        "GEM-14",
        any_depth,
        "Float32 additions of K exact products in any order, also truncating ones, stay in the interval of a judge, "
        "which is that of the rule.",
        domain="the bounds of all orders as fractions; and sums of 16, 48 and 512 products",
        size=2 + len(DEPTHS) * SIDE**2,
        covers=("fp4ref.conformance.judge.products:interval",),
        method=Method.ARGUMENT,
    )
