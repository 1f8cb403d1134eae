"""Claims about the estimates of 4over6: where they decide between two scales, the errors decide alike.

The argument has four parts, one claim each. Under a scale s and a maximum A, q = 1 dequantizes to the unit U.
1. 1.5 dequantizes to 1.5 U, and the encode scale is 1 / U, up to few units in the last place: the significands of s
   and A decide that, since powers of two pass through every operation. Other values of E2M1 are 1 or 1.5 times those.
2. The sums by which an estimate rounds give the code's value, for every float below the limit.
3. Where products are not rounded before, the value is that of the code, or its neighbour where the product is a tie.
4. Real numbers that are bounded by 1 to 3, and by the relative error u = 2^-24 of each rounding, cannot differ so much
   that the estimates decide and the errors decide otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

from fp4ref.errors import BackendError
from fp4ref.proof import native, second_solver
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.header_scales import HELPERS, SIGNIFICANDS
from fp4ref.proof.steps import INFINITY, shown

U = Fraction(1, 1 << 24)
VALUES = (*map(Fraction, ("0", "1/2", "1", "3/2", "2", "3", "4", "6")),)
OFF_UNIT, OFF_FACTOR = Fraction(11, 4), Fraction(5)  # in u: of the value of 1.5, and of the product of factor and unit
ELEMENT = 82  # in u U: the most by which an estimate of an element's error differs from the error
SMALLEST_UNIT = Fraction(1, 1 << 51)  # s is at least 2^-9, A at least 2^-30, and the divisor below 2^12
TINY = Fraction(1, 1 << 148)  # more than what sums of subnormal products lose
Margins = dict[str, tuple[Fraction, Fraction]]
PART = 256 * U  # of a square's bound: the part of the square itself

SEARCHING = """
template <int Top> struct Searching : Plain<Top> {
    using Arithmetic = arithmetic::te_division;
    using Search = four_over_six<Metric::mae, difference::dequantized, total::sequential>;
};
template <int Top> static bool is_off(float s, float A)
{
    using S = Searching<Top>;
    const float g = global_scale<S, float32>(A), f = arithmetic::te_division::factor<S, float32>(s, g);
    const float unit = estimate_unit<S>(s, g, A);
    const double value = difference::dequantized::of<S, true>(1.5f, s, g, A, 0.0f), estimate = 1.5 * unit;
    const double off = value > estimate ? value - estimate : estimate - value, one = (double)f * unit - 1.0;
    return off > 2.75 * 0x1p-24 * estimate || (one < 0.0 ? -one : one) > 5.0 * 0x1p-24;
}
template <int Top> static bool is_neither(float s, float A)
{
    using S = Searching<Top>;
    const float g = global_scale<S, bfloat16>(A), f = arithmetic::te_division::factor<S, bfloat16>(s, g);
    const float unit = estimate_unit<S>(s, g, A);
    const unsigned up = hardware_e2m1::binades_up(unit);
    for (unsigned n = 0, word = (bits_of(unit) >> 16) - 512u; n < 1024u; ++n, ++word) {
        const float x = float_of(word << 16), y = x * f;
        if (!(y < hardware_e2m1::narrow_limit)) break;
        const float right = hardware_e2m1::decode(nearest_code(y)), q = hardware_e2m1::nearest_or_tied(x, f, up);
        if (q != right && (magnitude(q - y) != magnitude(right - y) || magnitude(q - right) > 2.0f)) return true;
    }
    return false;
}
"""
OPERANDS = "const float s = (float)(8 + (i >> 23 & 7)), A = float_of(0x3f800000u | ((unsigned)i & 0x7fffffu));"
CHECKS = {
    "units": f"{OPERANDS} return i >> 26 ? is_off<256>(s, A) : is_off<448>(s, A);",
    "ties": f"{OPERANDS} return i >> 26 ? is_neither<256>(s, A) : is_neither<448>(s, A);",
    "narrow": """
        const float a = float_of((unsigned)i), right = hardware_e2m1::decode(nearest_code(a));
        if (a < hardware_e2m1::narrow_limit && hardware_e2m1::nearest_narrow(a) != right) return true;
        return hardware_e2m1::nearest_magnitude(a) != right;
    """,
}


def header(name: str, size: int, each: int, tell: Tell) -> Replayed:
    """Run a check of CHECKS, of which an input stands for `each` inputs."""
    source = native.text({name: CHECKS[name]}, HELPERS + SEARCHING)
    wrong, first = native.sweep(source, name, size, tell)
    if first is None:
        return Replayed(size * each)
    of = f"the scale {8 + (first >> 23 & 7)} under the maximum {shown(0x3F800000 | first & 0x7FFFFF)}"
    where = shown(first) if name == "narrow" else f"{of}, scale_max {256 if first >> 26 else 448}"
    return Replayed(size * each, f"{where}; {wrong} inputs are wrong")


# The margin, over the real numbers


def margins() -> Margins:
    """Return the header's margins by metric, in u: for each element and unit (or its square), and of the sums.

    Errors: BackendError if the header does not state them as it did.
    """
    from fp4ref.proof.cpp_sources import definitions

    text = definitions()["estimates_decide"]
    found = [re.search(rf"{name} = [^;]*?squares \? ([\d.]+)f : ([\d.]+)f", text) for name in ("of_units", "of_sums")]
    if None in found:
        raise BackendError("prove", "other margins in estimates_decide", "`squares ? A : B` for units and for sums")
    squares, plain = (tuple(Fraction(match[group]) for match in found if match) for group in (1, 2))
    return {"mae": (plain[0], plain[1]), "mse": (squares[0], squares[1])}


def margin(tell: Tell, stated: Margins | None = None) -> Replayed:
    """Prove the bounds of an element's estimate, then that no sums within them are decided otherwise."""
    witness = _elements() or _squares()
    shapes = sorted({(rows * columns, rows + columns - 2) for rows in range(1, 17) for columns in range(1, 17)})
    for place, (metric, (of_units, of_sums)) in enumerate((stated or margins()).items()):
        for count, additions in shapes:
            if witness:
                return Replayed(place, witness)
            witness = _sums(metric, count, additions, of_units * count * U, of_sums * U)
        tell((place + 1) / 2)
    return Replayed(2 * len(shapes), witness)


def _real(value: Fraction | int) -> Any:
    import z3

    return z3.RealVal(f"{Fraction(value).numerator}/{Fraction(value).denominator}")


def _counterexample(premise: list[Any], goal: Any, told: str) -> str | None:
    """Return a model of the premise in which the goal is false, in words.

    Errors: BackendError if the premise is never true, or if a solver finds no answer or not that of the other.
    """
    model = second_solver.counterexample("QF_NRA", premise, goal, told)
    if model is None:
        return None
    values = ", ".join(f"{name} = {float(model[name].as_fraction()):.9g}" for name in model.decls())
    return f"{told}: {values}"


def _elements() -> str | None:
    """Bound the distance of an element's error and its estimate, for a unit of 1. v is its value, w the estimate's."""
    import z3

    v, w, x = z3.Reals("v w x")
    pairs = [(q, q) for q in VALUES]
    pairs += [pair for low, high in pairwise(VALUES) for pair in ((low, high), (high, low))]
    for q, estimated in pairs:
        premise = [
            *(v >= _real(q * (1 - OFF_UNIT * U)), v <= _real(q * (1 + OFF_UNIT * U))),
            *(w >= _real(estimated * (1 - U)), w <= _real(estimated * (1 + U)), x >= 0),
        ]
        if q != estimated:  # x times the factor is the tie between them, up to a rounding
            tie = (q + estimated) / 2
            premise += [x >= _real(tie * (1 - U) / (1 + OFF_FACTOR * U))]
            premise += [x <= _real(tie * (1 + U) / (1 - OFF_FACTOR * U))]
        apart = z3.Abs(v - x) - z3.Abs(w - x)
        goal = z3.And(apart <= _real(ELEMENT * U), apart >= _real(-ELEMENT * U))
        witness = _counterexample(premise, goal, f"an element of {float(q)} estimated as {float(estimated)}")
        if witness:
            return witness
    return None


def _squares() -> str | None:
    """Bound the distance of two squares by the distance of the numbers, and a part of one square."""
    import z3

    a, b, e = z3.Reals("a b e")
    bound = _real(PART) * b * b + _real(1 + 1 / PART) * e * e
    goal = z3.And(a * a - b * b <= bound, b * b - a * a <= bound)
    return _counterexample([a >= 0, b >= 0, a - b <= e, b - a <= e], goal, "squares")


def _sums(metric: str, count: int, additions: int, of_units: Fraction, of_sums: Fraction) -> str | None:
    """Decide whether two pairs of sums can be decided otherwise than their estimates, which decide.

    Per candidate: the unit or its square, the sum of exact errors, that of exact estimates, and both as computed.
    """
    import z3

    squares = metric == "mse"
    steps = additions + (3 if squares else 1)
    low, high = (1 - U) ** steps, (1 + U) ** steps
    lost = TINY if squares else Fraction(0)
    premise, candidates = [], []
    for which in ("first", "second"):
        unit, exact, near, error, estimate = (
            z3.Real(f"{which} {part}") for part in ("unit", "exact", "near", "error", "estimate")
        )
        if squares:
            apart = _real(PART) * near + _real((1 + 1 / PART) * count * (ELEMENT * U) ** 2) * unit
        else:
            apart = _real(count * ELEMENT * U) * unit
        smallest = _real(SMALLEST_UNIT**2 if squares else SMALLEST_UNIT)
        premise += [z3.Or(unit == 0, unit >= smallest), exact >= 0, near >= 0, estimate >= 0, error >= 0]
        premise += [exact - near <= apart, near - exact <= apart]
        for computed, real in ((error, exact), (estimate, near)):
            premise += [computed >= _real(low) * real - _real(lost), computed <= _real(high) * real + _real(lost)]
        candidates.append((unit, error, estimate))
    (first_unit, first, first_estimate), (second_unit, second, second_estimate) = candidates
    premise.append(z3.Or(first_unit > 0, second_unit > 0))  # else both scales are zero, and one
    sums = _real(of_units) * (first_unit + second_unit) + _real(of_sums) * (first_estimate + second_estimate)
    least = _real((1 - U) ** 6) * sums - _real(TINY)
    difference = z3.Abs(second_estimate - first_estimate)
    premise.append(_real(1 + U) * difference > least)
    goal = (second < first) == (second_estimate < first_estimate)
    return _counterexample(premise, goal, f"{metric} of {count} elements after {additions} additions")


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about the estimates."""
    table: tuple[tuple[str, str, str, int, int, tuple[str, ...]], ...] = (
        (
            "units",
            "1.5 dequantizes to 1.5 units but for 2.75 u of that, and factor and unit are inverse but for 5 u.",
            "all significands of a scale and of a float32 maximum, for both values of scale_max",
            2 * SIGNIFICANDS,
            1,
            ("block.h:estimate_unit", "arithmetic.h:arithmetic::te::factor"),
        ),
        (
            "narrow",
            "The value to which a search rounds is that of the nearest code, ties to even.",
            "all float32 magnitudes",
            INFINITY + 1,
            1,
            ("codec.h:Codec::nearest_narrow", "codec.h:Codec::nearest_magnitude"),
        ),
        (
            "ties",
            "A product that is not rounded has the value of its code, or its neighbour's where it rounds to a tie.",
            "all bfloat16 from 1/16 of a unit on, under all significands of a scale and a maximum",
            2 * SIGNIFICANDS,
            1024,
            ("codec.h:Codec::nearest_or_tied", "codec.h:Codec::binades_up"),
        ),
    )
    for name, statement, domain, size, each, covers in table:
        yield ProofClaim(
            name=f"estimate-{name}/header",
            rules=("FOS-3", "FOS-6"),
            method=Method.EXHAUSTIVE,
            subject=ClaimSubject.HEADER,
            statement=statement,
            domain=domain,
            size=size * each,
            decide=partial(header, name, size, each),
            covers=covers,
            long=name == "ties",
        )
    yield ProofClaim(
        name="estimate-margin/formula",
        rules=("FOS-3", "FOS-5", "FOS-6"),
        method=Method.SMT,
        subject=ClaimSubject.FORMULA,
        statement="Where two estimates differ by more than the margin, the errors have their order.",
        domain="all real errors and units, for both metrics and all sizes of blocks up to 16 x 16",
        size=2 * len({(rows * columns, rows + columns) for rows in range(1, 17) for columns in range(1, 17)}),
        decide=margin,
        covers=("block.h:estimates_decide", "block.h:row_estimates", "block.h:row_errors"),
        reduction="a rounding changes a number by at most 2^-24 of it, as IEEE 754 says; the other bounds are those of "
        "the certificates named",
        rests_on=("estimate-units/header", "estimate-narrow/header", "estimate-ties/header"),
        needs=second_solver.NAME,
    )
