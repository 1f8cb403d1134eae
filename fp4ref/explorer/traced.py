"""The functions of an arithmetic as JavaScript: each is called once, with symbols, and what it does is written down."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from fp4ref.arithmetic import Constants
from fp4ref.arithmetic_xla import fused
from fp4ref.explorer.operations import fused_sum, minus, reciprocal, said
from fp4ref.explorer.symbols import FLOAT32, INT64, Lines, Symbol, UntracedError
from fp4ref.formats import Codec, F
from fp4ref.reciprocal import reciprocal_approx

PRIMITIVES: dict[Any, Callable[..., Any]] = {reciprocal_approx: reciprocal, fused: fused_sum}  # written in the script


class SymbolicNumpy:
    """NumPy, except that `asarray` takes symbols."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def asarray(value: Any, dtype: Any = None) -> Any:
        """Return a symbol of a type, or an array."""
        if isinstance(value, Symbol):
            return value if dtype is None else value.astype(dtype)
        return np.asarray(value, dtype)


class SymbolicCodec:
    """A scale codec that encodes and decodes symbols."""

    def __init__(self, codec: Codec) -> None:
        self.format = codec.format

    def encode(self, values: Symbol) -> Symbol:
        """Return the byte of a symbol."""
        return values.lines.add(f"encode(scale, {values.name}, {values.minus})", INT64, (values,))

    def decode(self, codes: Symbol) -> Symbol:
        """Return the value of a byte."""
        minus = f"negativeNan(scale.format, {codes.name})"
        return codes.lines.add(f"decode(scale.format, {codes.name})", FLOAT32, (codes,), minus)


def on_symbols(function: Callable[..., Any], known: dict[Any, Any] | None = None) -> Callable[..., Any]:
    """Return a function that takes symbols: the same code, with a NumPy and helpers that take them."""
    known = {} if known is None else known
    if isinstance(function, partial):
        return partial(on_symbols(function.func, known), *function.args, **function.keywords)
    if function in PRIMITIVES:
        return PRIMITIVES[function]
    if not isinstance(function, types.FunctionType):
        raise UntracedError(f"{function!r}, not a function of Python")
    if function not in known:
        space = dict(function.__globals__)
        made = types.FunctionType(
            function.__code__, space, function.__name__, function.__defaults__, function.__closure__
        )
        made.__kwdefaults__ = function.__kwdefaults__
        known[function] = made
        for name in _names(function.__code__):
            value = function.__globals__.get(name)
            if value is np:
                space[name] = SymbolicNumpy()
            elif isinstance(value, types.FunctionType):
                space[name] = on_symbols(value, known)
    return known[function]  # type: ignore[no-any-return]


def _names(code: types.CodeType) -> set[str]:
    inner = (found for one in code.co_consts if isinstance(one, types.CodeType) for found in _names(one))
    return {*code.co_names, *inner}


def symbolic(k: Constants, dtype: np.dtype[Any]) -> Constants:
    """Return constants whose codec and rounding take symbols. dtype: of the input."""

    def narrow(v: Any) -> Any:
        if not isinstance(v, Symbol):
            return k.narrow(np.asarray(v, F))
        return v if dtype == F else v.astype(F).astype(dtype).astype(F)

    return k._replace(scale=SymbolicCodec(k.scale), narrow=narrow)  # type: ignore[arg-type]  # it encodes symbols


def javascript(function: Callable[..., Any], names: Sequence[str], *constants: Any) -> str:
    """Return a function of float32 numbers as JavaScript: it returns the result, and whether a NaN is negative.

    names: of the parameters, each of which is followed by the sign of its NaN. A parameter that is not used is unread.

    Errors: UntracedError.
    """
    lines = Lines()
    given = [Symbol(lines, name, FLOAT32, f"{name}m") for name in names]
    result = _called(function, *given, *constants)
    if not isinstance(result, Symbol):
        return _function(names, [], said(result, FLOAT32), minus(result))
    result = result.astype(F)
    return _function(names, lines.text(result), result.name, result.minus)


def total(function: Callable[..., Any], rows: int, columns: int) -> str:
    """Return a sum of the errors of a block, in its order, as JavaScript. Errors: UntracedError."""
    lines = Lines()
    errors = np.empty((rows, columns), object)
    for i in range(rows * columns):
        errors.flat[i] = Symbol(lines, f"e[{i}]", FLOAT32, "false")
    result = _called(function, errors)
    result = result.item() if isinstance(result, np.ndarray) else result
    return f"(e) => {{ {' '.join(lines.text(result))} return {result.name}; }}"


def _called(function: Callable[..., Any], *inputs: Any) -> Any:
    """Call a function with symbols; whatever it cannot do with them is an UntracedError."""
    try:
        return on_symbols(function)(*inputs)
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise UntracedError(str(error)) from error


def _function(names: Sequence[str], lines: Sequence[str], value: str, minus: str) -> str:
    parameters = ", ".join(f"{name}, {name}m" for name in names)
    return f"({parameters}, scale, block) => {{ {' '.join(lines)} return [{value}, {minus}]; }}"
