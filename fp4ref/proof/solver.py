"""Claims that a solver decides: identities of float32 numbers on which the header and the golden model rely.

Each claim is a formula over bit patterns whose negation has to be unsatisfiable. Its premises alone have to be
satisfiable, so that nothing is proved of an empty domain. Two solvers decide each, z3 and cvc5, which are
the optional extra `prove`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from fp4ref.proof import second_solver
from fp4ref.proof.claims import Method, ProofClaim, Replayed, Tell, formula
from fp4ref.proof.steps import INFINITY, PATTERNS, shown

Formula = Any  # of z3
SIX = 0x40C00000
HALVES, ONES, TWOS = 0x4B000000, 0x4B000002, 0x4B000004  # 2^23, 2^23 + 2, 2^23 + 4
EDGES: tuple[tuple[int, bool], ...] = (
    (0x3E800000, False),
    (0x3F400000, True),
    (0x3FA00000, False),
    (0x3FE00000, True),
    (0x40200000, False),
)
EDGES += ((0x40600000, True), (0x40A00000, False))  # ties of E2M1, and whether the higher code is the even one


def refuted(premise: Formula, goal: Formula, names: tuple[Formula, ...], size: int) -> Replayed:
    """Search a counterexample of a goal under a premise, by both solvers.

    Errors: BackendError if the premise is never true, or if a solver finds no answer or not that of the other.
    """
    model = second_solver.counterexample("QF_BVFP", (premise,), goal)
    if model is None:
        return Replayed(size)
    values = [model.eval(name, model_completion=True).as_long() for name in names]
    return Replayed(size, ", ".join(shown(value) if value > 0xFF else f"byte {value}" for value in values))


def _float(bits: Formula) -> Formula:
    import z3

    return z3.fpBVToFP(bits, z3.Float32())


def _constant(pattern: int) -> Formula:
    import z3

    return _float(z3.BitVecVal(pattern, 32))


def _pattern(name: str, value: Formula) -> tuple[Formula, Formula]:
    """Return fresh bits and the condition that they are those of a float."""
    import z3

    bits = z3.BitVec(name, 32)
    return bits, _float(bits) == value


def sums(tell: Tell, ones: int = ONES) -> Replayed:
    """Compare the smallest of the header's three sums with the number of ties that a magnitude has reached."""
    import z3

    x, even = z3.BitVec("x", 32), z3.RNE()
    a = _float(x)
    results = [
        _pattern("halves", z3.fpFMA(even, a, _constant(0x40000000), _constant(HALVES))),
        _pattern("ones", z3.fpAdd(even, a, _constant(ones))),
        _pattern("twos", z3.fpFMA(even, a, _constant(0x3F000000), _constant(TWOS))),
    ]
    least = z3.BitVecVal(0x4B000007, 32)
    for bits, _ in results:
        least = z3.If(z3.ULT(bits, least), bits, least)
    reached = [z3.UGE(x, edge) if even_above else z3.UGT(x, edge) for edge, even_above in EDGES]
    code = sum((z3.If(one, z3.BitVecVal(1, 32), z3.BitVecVal(0, 32)) for one in reached), z3.BitVecVal(0, 32))
    premise = z3.And(z3.ULE(x, INFINITY), *(equal for _, equal in results))
    return refuted(premise, least & 15 == code, (x,), INFINITY + 1)


def power_of_two(tell: Tell, byte_of_one: int = 127) -> Replayed:
    """Compare x / s with x * (1 / s) for powers of two; a NaN of either equals one of the other."""
    import z3

    x, byte, even = z3.BitVec("x", 32), z3.BitVec("s", 8), z3.RNE()
    field = z3.ZeroExt(24, byte)
    s = _float(z3.If(byte == 0, z3.BitVecVal(0x00400000, 32), field << 23))
    inverse_field = z3.BitVecVal(2 * byte_of_one, 32) - field
    inverse = z3.If(byte == 0, z3.BitVecVal(0x7F000000, 32), inverse_field << 23)
    inverse = _float(z3.If(byte == 254, z3.BitVecVal(0x00400000, 32), inverse))
    quotient, product = z3.fpDiv(even, _float(x), s), z3.fpMul(even, _float(x), inverse)
    return refuted(z3.ULT(byte, 255), quotient == product, (x, byte), PATTERNS * 255)


def drawn(tell: Tell, lowest: int = 0x3F800000) -> Replayed:
    """Compare the header's index by the bits of its sum with the number of values that the sum of SR-2 has reached."""
    import z3

    x, byte, even = z3.BitVec("x", 32), z3.BitVec("b", 8), z3.RNE()
    a, drawn_byte = _float(x), z3.fpUnsignedToFP(even, z3.ZeroExt(24, byte), z3.Float32())
    binade = z3.If(z3.UGT(x & INFINITY, lowest), x & INFINITY, z3.BitVecVal(lowest, 32))
    total, sums_bits = _pattern("sum", z3.fpFMA(even, drawn_byte, _float(binade - (9 << 23)), a))
    quarters = [_constant(pattern) for pattern in (0x3C000000, 0x3B800000, 0x3B000000)]  # 2, 1, 1/2 over 256
    step = z3.If(z3.UGE(x, 0x40800000), quarters[0], z3.If(z3.UGE(x, 0x40000000), quarters[1], quarters[2]))
    right, right_bits = _pattern("right", z3.fpFMA(even, drawn_byte, step, a))
    normal, half = (
        (z3.LShR(total, 22) - 252),
        z3.If(z3.UGE(total, 0x3F000000), z3.BitVecVal(1, 32), z3.BitVecVal(0, 32)),
    )
    index = z3.If(normal > half, normal, half)
    values = (0x3F000000, 0x3F800000, 0x3FC00000, 0x40000000, 0x40400000, 0x40800000, SIX)
    reached = (z3.If(z3.UGE(right, value), z3.BitVecVal(1, 32), z3.BitVecVal(0, 32)) for value in values)
    premise = z3.And(z3.ULT(x, SIX), sums_bits, right_bits)
    return refuted(premise, index == sum(reached, z3.BitVecVal(0, 32)), (x, byte), SIX << 8)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims that a solver decides."""
    decided = partial(formula, method=Method.SMT, needs=second_solver.NAME)
    yield decided(
        "e2m1-sums",
        "E2M1-3",
        sums,
        "The smallest of three rounded sums counts the ties that a magnitude has reached.",
        domain="all float32 magnitudes",
        size=INFINITY + 1,
        covers=("codec.h:Codec::e2m1_pattern",),
    )
    yield decided(
        "power-of-two",
        ("BLK-10", "E8M0-5"),
        power_of_two,
        "Dividing by an E8M0 scale and multiplying by its exact reciprocal give the same float32.",
        domain="all float32 under all 255 scale bytes",
        size=PATTERNS * 255,
        covers=("arithmetic.h:arithmetic::no_global_scale_by::factor", "fp4ref.arithmetic:divided"),
    )
    yield decided(
        "stochastic-index",
        "SR-2",
        drawn,
        "The upper bits of the rounded sum count the values that SR-2's sum has reached.",
        domain="all float32 from 0 to 6 with all random bytes",
        size=SIX << 8,
        covers=("codec.h:Codec::stochastic_index",),
    )
