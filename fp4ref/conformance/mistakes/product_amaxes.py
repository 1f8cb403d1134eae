"""Known mistakes with global amaxes: of a tensor a number, of rows [M, 1] or [1, N]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from fp4ref.conformance.mistakes.gathered_rows import GATHERS, Gather
from fp4ref.formats import F, Floats

Apply = Callable[[Floats, Floats, Floats, np.float32], Floats]  # sums, amax_A, amax_B, factor


@dataclass(frozen=True)
class Scaling:
    """A mistake between sums and results, in float32."""

    name: str
    text: str
    apply: Apply


def chain(y: Floats, a: Floats, b: Floats, factor: np.float32) -> Floats:
    """By one alpha, or by rows, as the standard does. Rules: GEM-5, GEM-7."""
    if a.ndim == b.ndim == 0:
        return np.asarray(y * (a * b * (F(1) / factor)), F)
    y = y * (F(1) / factor)
    return np.asarray(y * a * b if a.ndim == b.ndim else y * (a * b), F)


def _number(amax: Floats) -> Floats:
    return np.asarray(amax.ravel()[0])


def scalings() -> Iterator[Scaling]:
    """Every known mistake with global amaxes, the right way first."""
    one = F(1)
    known: tuple[tuple[str, str, Apply], ...] = (
        ("right", "", chain),
        ("none", "the global amaxes and the factor are left out", lambda y, a, b, f: y),
        ("no-amax-a", "the amax of A is left out", lambda y, a, b, f: chain(y, np.ones_like(a), b, f)),
        ("no-amax-b", "the amax of B is left out", lambda y, a, b, f: chain(y, a, np.ones_like(b), f)),
        ("no-amaxes", "both amaxes are left out", lambda y, a, b, f: y * (one / f)),
        ("no-factor", "the factor is left out", lambda y, a, b, f: chain(y, a, b, one)),
        ("factor-once", "the factor is 6 * 448, not its square", lambda y, a, b, f: chain(y, a, b, np.sqrt(f))),
        ("factor-scales", "the factor lacks the element maxima, 6 * 6", lambda y, a, b, f: chain(y, a, b, f / F(36))),
        ("factor-elements", "the factor lacks the scale maxima", lambda y, a, b, f: chain(y, a, b, F(36))),
        ("factor-256", "the factor is that of scale maxima of 256", lambda y, a, b, f: chain(y, a, b, F(1536 * 1536))),
        ("amax-a-twice", "A's amax is used for B too", lambda y, a, b, f: chain(y, a, _number(a), f)),
        ("amax-b-twice", "B's amax is used for A too", lambda y, a, b, f: chain(y, _number(b), b, f)),
        ("squared", "alpha is applied twice", lambda y, a, b, f: chain(chain(y, a, b, f), a, b, f)),
        ("inverse", "sums are divided by alpha", lambda y, a, b, f: y / (a * b * (one / f))),
        (
            "first-row",
            "the first row's amax serves every row",
            lambda y, a, b, f: y * (one / f) * (_number(a) * _number(b)),
        ),
        ("one-alpha", "amaxes of rows are multiplied into alpha first", lambda y, a, b, f: y * (a * b * (one / f))),
        ("one-by-one", "each amax multiplies the sum by itself", lambda y, a, b, f: y * (one / f) * a * b),
        ("divided", "the amaxes multiply first, the factor divides last", lambda y, a, b, f: np.divide(y * (a * b), f)),
        ("each", "each operand has its own factor, amax / (6 * 448)", _each),
    )
    return (Scaling(*parts) for parts in known)


def orders() -> Iterator[Scaling]:
    """Yield other orders of the amaxes and the factor, each rounded after every operation, or once."""
    one = F(1)
    known: tuple[tuple[str, str, Callable[[Floats, Floats, np.float32], Floats]], ...] = (
        ("order-a", "the factor multiplies the amax of A before that of B", lambda a, b, f: a * (one / f) * b),
        ("order-b", "the factor multiplies the amax of B before that of A", lambda a, b, f: b * (one / f) * a),
        ("order-a-divided", "the factor divides the amax of A before that of B multiplies", lambda a, b, f: a / f * b),
        ("order-b-divided", "the factor divides the amax of B before that of A multiplies", lambda a, b, f: b / f * a),
        ("order-each", "each amax is multiplied by 1 / (6 * 448), as float32, before they multiply", _each_multiplied),
        ("order-inverse", "alpha is the reciprocal of factor / (amax_A * amax_B)", lambda a, b, f: one / (f / (a * b))),
        ("order-inverses", "alpha is the reciprocal of the two encode scales' product", _inverse_of_both),
        ("order-each-inverse", "alpha is the product of the reciprocals of the two encode scales", _inverse_of_each),
        ("order-once", "alpha is rounded once, instead of after each operation", _once),
    )
    for name, text, made in known:
        yield Scaling(name, text, partial(lambda made, y, a, b, f: np.asarray(y * made(a, b, f), F), made))


def _each_multiplied(a: Floats, b: Floats, factor: np.float32) -> Floats:
    own = F(1) / F(np.sqrt(factor))
    return np.asarray((a * own) * (b * own))


def _inverse_of_both(a: Floats, b: Floats, factor: np.float32) -> Floats:
    root = F(np.sqrt(factor))
    return np.asarray(F(1) / ((root / a) * (root / b)))


def _inverse_of_each(a: Floats, b: Floats, factor: np.float32) -> Floats:
    root = F(np.sqrt(factor))
    return np.asarray((F(1) / (root / a)) * (F(1) / (root / b)))


def _once(a: Floats, b: Floats, factor: np.float32) -> Floats:
    return np.asarray(np.asarray(a, np.float64) * b / np.float64(factor)).astype(F)


def of_other_rows() -> Iterator[Scaling]:
    """Yield amaxes of rows that are those of other rows."""
    for gather in GATHERS:
        for of_a, said in ((True, "A"), (False, "B")):
            name, text = f"amax-{said.lower()}-{gather.name}", gather.text(f"amax of {said}")
            yield Scaling(name, text, partial(_gathered, gather, of_a))


def _gathered(gather: Gather, of_a: bool, y: Floats, a: Floats, b: Floats, factor: np.float32) -> Floats:
    if of_a:
        return chain(y, gather(a) if a.ndim else a, b, factor)
    return chain(y, a, gather(b, 1) if b.ndim else b, factor)


def _each(y: Floats, a: Floats, b: Floats, factor: np.float32) -> Floats:
    root = F(np.sqrt(factor))
    return np.asarray(y * ((a / root) * (b / root)), F)
