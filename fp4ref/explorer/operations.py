"""NumPy's operations on symbols, as JavaScript: each rounds to the type that NumPy's result has."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fp4ref.explorer.symbols import (
    BFLOAT16,
    BOOL,
    FLOAT32,
    FLOAT64,
    FUNCTIONS,
    INT64,
    OPERATIONS,
    UINT32,
    Lines,
    Symbol,
    UntracedError,
)


def _typed(*inputs: Any) -> np.dtype[Any]:
    """Return the type of a result, as NumPy promotes: numbers of Python follow the others."""
    return np.result_type(*(one.dtype if isinstance(one, Symbol) else one for one in inputs))


def said(one: Any, dtype: np.dtype[Any]) -> str:
    """Return an operand in the script: its name, or a constant rounded to the type of the operation."""
    if isinstance(one, Symbol):
        return f"Number({one.name})" if one.dtype == BOOL != dtype else one.name
    value = np.asarray(one).astype(dtype)
    if dtype == BOOL:
        return str(bool(value)).lower()
    if dtype.kind in "iu":
        return str(int(value))
    number = float(value)
    if math.isfinite(number):
        return repr(number).removesuffix(".0")
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def minus(one: Any) -> str:
    """Return whether an operand is a NaN with its sign bit set, in the script."""
    return one.minus if isinstance(one, Symbol) else str(bool(np.signbit(np.asarray(one)))).lower()


def _plain(template: str, result: np.dtype[Any] | None = None) -> Callable[..., Symbol]:
    """Return an operation whose operands and result have the promoted type, unless the result's is given."""

    def operation(lines: Lines, *inputs: Any) -> Symbol:
        dtype = _typed(*inputs)
        if dtype == BFLOAT16:
            raise UntracedError("arithmetic in bfloat16")
        return lines.add(template.format(*(said(one, dtype) for one in inputs)), result or dtype, inputs)

    return operation


def _absolute(lines: Lines, x: Symbol) -> Symbol:
    return lines.add(f"Math.abs({x.name})", x.dtype, (x,), "false")


def _negative(lines: Lines, x: Symbol) -> Symbol:
    return lines.add(f"-{x.name}", x.dtype, (x,), f"!({x.minus})")


def _signbit(lines: Lines, x: Symbol) -> Symbol:
    return lines.add(f"minus({x.name}, {x.minus})", BOOL, (x,))


def _copysign(lines: Lines, x: Any, sign: Any) -> Symbol:
    dtype = _typed(x, sign)
    negative = f"minus({said(sign, dtype)}, {minus(sign)})"
    return lines.add(f"({negative} ? -1 : 1) * Math.abs({said(x, dtype)})", dtype, (x, sign), negative)


def _logical(text: str, word: str) -> Callable[..., Symbol]:
    """Return an operation on bits, or on truth values."""

    def operation(lines: Lines, a: Any, b: Any) -> Symbol:
        dtype = _typed(a, b)
        if dtype == INT64:
            raise UntracedError(f"{word} of 64 bits")
        shown = text * (2 if dtype == BOOL else 1)
        return lines.add(f"{said(a, dtype)} {shown} {said(b, dtype)}", dtype, (a, b))

    return operation


def _invert(lines: Lines, x: Symbol) -> Symbol:
    if x.dtype != BOOL:
        raise UntracedError("invert of a number")
    return lines.add(f"!{x.name}", BOOL, (x,))


def _shift(lines: Lines, x: Symbol, count: Any, *, left: bool) -> Symbol:
    if x.dtype == UINT32:
        return lines.add(f"{x.name} {'<<' if left else '>>>'} {said(count, UINT32)}", UINT32, (x, count))
    power = f"2 ** {said(count, INT64)}"
    return lines.add(f"{x.name} * {power}" if left else f"Math.floor({x.name} / {power})", INT64, (x, count))


def _ldexp(lines: Lines, x: Any, exponent: Any) -> Symbol:
    dtype = _typed(x) if isinstance(x, Symbol | np.generic | np.ndarray) else FLOAT64
    return lines.add(f"ldexp({said(x, dtype)}, {said(exponent, INT64)})", dtype, (x, exponent), minus(x))


def _frexp(lines: Lines, x: Symbol) -> tuple[Symbol, Symbol]:
    made = (lines.add(f"frexp({x.name})[{part}]", dtype, (x,)) for part, dtype in ((0, x.dtype), (1, INT64)))
    mantissa, exponent = made
    return mantissa, exponent


def _where(lines: Lines, test: Any, a: Any, b: Any) -> Any:
    if not isinstance(test, Symbol):
        return a if test else b
    dtype = _typed(a, b)
    first, second = said(a, dtype), said(b, dtype)
    signs = minus(a) if minus(a) == minus(b) else f"({test.name} ? {minus(a)} : {minus(b)})"
    return lines.add(f"{test.name} ? {first} : {second}", dtype, (test, a, b), signs)


def _clip(lines: Lines, x: Symbol, low: Any, high: Any) -> Symbol:
    dtype = _typed(x, low, high)
    shown = [said(one, dtype) for one in (x, low, high)]
    return lines.add("Math.min(Math.max({}, {}), {})".format(*shown), dtype, (x, low, high), x.minus)


def _nan_to_num(
    lines: Lines, x: Symbol, nan: float = 0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    most = float(np.finfo(x.dtype).max)
    high, low = most if posinf is None else posinf, -most if neginf is None else neginf
    shown = [said(one, x.dtype) for one in (x, nan, high, low)]
    return lines.add("finiteOr({}, {}, {}, {})".format(*shown), x.dtype, (x,))


def _any(lines: Lines, test: Symbol, axis: Any = None, keepdims: bool = False) -> Symbol:
    """Return True if the test holds for an element of the block; its lines run again for every element, as `x`."""
    inner = lines.text(test)
    if any(word in "".join(inner) for word in ("xm", "some(")):
        raise UntracedError("any of the signs of NaN")
    return lines.add(f"block.some((x) => {{ {' '.join(inner)} return {test.name}; }})", BOOL, ())


OPERATIONS |= {
    "add": _plain("{} + {}"),
    "subtract": _plain("{} - {}"),
    "multiply": _plain("{} * {}"),
    "divide": _plain("{} / {}"),
    "remainder": _plain("modulo({}, {})"),
    "minimum": _plain("Math.min({}, {})"),
    "maximum": _plain("Math.max({}, {})"),
    "fmin": _plain("fmin({}, {})"),
    "fmod": _plain("{} % {}"),
    "floor": _plain("Math.floor({})"),
    "ceil": _plain("Math.ceil({})"),
    "log2": _plain("log2({})"),
    "exp2": _plain("2 ** {}"),
    "sign": _plain("Math.sign({}) + 0"),  # of -0 it is +0
    "isnan": _plain("Number.isNaN({})", BOOL),
    "isfinite": _plain("Number.isFinite({})", BOOL),
    "isinf": _plain("Math.abs({}) === Infinity", BOOL),
    "less": _plain("{} < {}", BOOL),
    "less_equal": _plain("{} <= {}", BOOL),
    "greater": _plain("{} > {}", BOOL),
    "greater_equal": _plain("{} >= {}", BOOL),
    "equal": _plain("{} === {}", BOOL),
    "not_equal": _plain("{} !== {}", BOOL),
    "absolute": _absolute,
    "negative": _negative,
    "signbit": _signbit,
    "copysign": _copysign,
    "bitwise_and": _logical("&", "and"),
    "bitwise_or": _logical("|", "or"),
    "invert": _invert,
    "left_shift": partial(_shift, left=True),
    "right_shift": partial(_shift, left=False),
    "ldexp": _ldexp,
    "frexp": _frexp,
}
FUNCTIONS |= {
    "where": _where,
    "clip": _clip,
    "nan_to_num": _nan_to_num,
    "any": _any,
    "shape": lambda lines, x: (),
    "ones_like": lambda lines, x: np.ones((), x.dtype),
}


def reciprocal(x: Symbol) -> Symbol:
    """Return the approximate reciprocal, which the script has in one piece. Rules: APX-1."""
    return x.lines.add(f"reciprocalApprox({x.name})", FLOAT32, (x,))


def fused_sum(a: Any, b: Any, c: Any) -> Symbol:
    """Return a * b + c rounded once, which the script has in one piece. Rules: PRO-8."""
    inputs = [one for one in (a, b, c) if isinstance(one, Symbol)]
    shown = [said(one, FLOAT32) for one in (a, b, c)]
    return inputs[0].lines.add("fused({}, {}, {})".format(*shown), FLOAT32, (a, b, c))
