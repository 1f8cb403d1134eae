"""Formulas of the chapters, computed: the notation of chapter 01, one float32 operation for each sign.

A formula is the text of a code span, such as `min(a * (g * fp32(1/6)), FLT_MAX)`. It is read as a syntax tree of a few
kinds of nodes, and nothing in it is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from fp4ref.conformance.oracle import rationals
from fp4ref.errors import DomainError
from fp4ref.formats import F, Floats, ignoring_float_warnings

CONSTANTS = {
    "FLT_MAX": np.finfo(F).max,
    "largest_bfloat16": np.array(0x7F7F, np.uint16).view(ml_dtypes.bfloat16).astype(F),
    "Inf": F(np.inf),
    "NaN": F(np.nan),
}
SIGNS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
}


def _fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """Compute a * b + c, rounded once: as a product if c is zero, else as a rational number. Rules: NUM-1."""
    if np.all(np.asarray(c) == 0):
        product = a * b
        return np.where((product == 0) & ((a == 0) | (b == 0)), c + F(0), product)
    sums = (Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in np.broadcast(a, b, c))
    return np.array([rationals.rounded(each) for each in sums], F)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": np.fmin,
    "max": np.fmax,
    "min_nan": np.minimum,
    "max_nan": np.maximum,
    "abs": np.abs,
    "fma": _fma,
    "fp32": F,
    "bf16": lambda v: np.asarray(v, F).astype(ml_dtypes.bfloat16).astype(F),
    "fp16": lambda v: np.asarray(v, F).astype(np.float16).astype(F),
}


@ignoring_float_warnings
def value(formula: str, names: Mapping[str, Any] | None = None) -> Any:
    """Compute a formula in float32; `names` gives values of its letters.

    A word as `0x3E2AAAAB` is the float32 of these bits.

    Errors: DomainError for text that is not a formula.

    Rules: NUM-1.
    """
    text = formula.strip().replace("largest bfloat16", "largest_bfloat16").replace("^", "**")
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise DomainError("formula", repr(formula), "the notation of chapter 01", "NUM-1") from None
    return _computed(tree, {**CONSTANTS, **(names or {})}, formula)


def _computed(node: ast.expr, names: Mapping[str, Any], formula: str) -> Any:
    inner = partial(_computed, names=names, formula=formula)
    match node:
        case ast.Constant(value=int() | float() as number):
            word = ast.get_source_segment(formula, node) or ""
            result = np.uint32(number).view(F) if re.fullmatch("0x[0-9A-F]{8}", word) else F(number)
        case ast.Name(id=name) if name in names:
            result = names[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            result = -inner(operand) if isinstance(sign, ast.USub) else inner(operand)
        case ast.BinOp(left=ast.Constant(value=2), op=ast.Pow(), right=exponent):
            result = F(np.ldexp(1.0, int(inner(exponent))))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in SIGNS:
            result = SIGNS[type(sign)](inner(left), inner(right))
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in FUNCTIONS:
            result = FUNCTIONS[name](*map(inner, arguments))
        case _:
            raise DomainError("formula", repr(formula), "the notation of chapter 01", "NUM-1")
    return result
