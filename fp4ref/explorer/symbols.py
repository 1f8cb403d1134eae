"""A number that only the page will know, and the lines of JavaScript that compute with it.

A symbol has the type that NumPy would give it, so that each line of the script rounds where the model rounds. The sign
of a NaN is kept beside the number, because a script cannot read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from fp4ref.formats import F

Operation = Callable[..., Any]
OPERATIONS: dict[str, Operation] = {}  # by the names of NumPy's ufuncs: (lines, operands) -> symbol
FUNCTIONS: dict[str, Operation] = {}  # by the names of NumPy's other functions
BOOL, UINT32, INT64 = np.dtype(bool), np.dtype(np.uint32), np.dtype(np.int64)
FLOAT16, FLOAT32, FLOAT64 = np.dtype(np.float16), np.dtype(F), np.dtype(np.float64)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ROUNDED = {
    BOOL: "{}",
    UINT32: "({}) >>> 0",
    INT64: "{}",
    FLOAT16: "float16({})",
    BFLOAT16: "bfloat16({})",
    FLOAT32: "f({})",
    FLOAT64: "{}",
}


class UntracedError(Exception):
    """A function uses an operation that the page does not have."""


class Lines:
    """The lines of one function, in order; equal operations are written once."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, np.dtype[Any]], Symbol] = {}

    def add(self, text: str, dtype: np.dtype[Any], needs: Sequence[Any], minus: str = "true") -> Symbol:
        """Return the symbol of an operation; minus: whether it is a NaN with its sign bit set, as a script says it."""
        if dtype not in ROUNDED:
            raise UntracedError(f"a result of type {dtype}")
        found = ROUNDED[dtype].format(text)
        if (found, dtype) not in self.made:
            used = tuple(one for one in needs if isinstance(one, Symbol))
            self.made[found, dtype] = Symbol(self, f"v{len(self.made)}", dtype, minus, found, used)
        return self.made[found, dtype]

    def text(self, result: Symbol) -> list[str]:
        """Return the lines that a result needs."""
        needed, waiting = {result.name}, [result]
        while waiting:
            new = [one for one in waiting.pop().needs if one.name not in needed]
            needed.update(one.name for one in new)
            waiting += new
        return [f"const {one.name} = {one.text};" for one in self.made.values() if one.name in needed]


class Symbol:
    """A number without a value: its name in the script, its type, and the operation that makes it."""

    shape: tuple[int, ...] = ()

    def __init__(
        self, lines: Lines, name: str, dtype: np.dtype[Any], minus: str, text: str = "", needs: Sequence[Symbol] = ()
    ) -> None:
        self.lines, self.name, self.dtype, self.minus, self.text, self.needs = lines, name, dtype, minus, text, needs

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc.__name__ not in OPERATIONS:
            raise UntracedError(f"numpy.{ufunc.__name__}")
        return OPERATIONS[ufunc.__name__](self.lines, *inputs)

    def __array_function__(self, function: Any, _: Any, inputs: Any, options: Any) -> Any:
        if function.__name__ not in FUNCTIONS:
            raise UntracedError(f"numpy.{function.__name__}")
        return FUNCTIONS[function.__name__](self.lines, *inputs, **options)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise UntracedError("a conversion to an array")

    def __bool__(self) -> bool:
        raise UntracedError("a branch on a number")

    def astype(self, given: Any) -> Symbol:
        """Round to another type."""
        dtype = np.dtype(given)
        if dtype == self.dtype:
            return self
        whole = dtype == INT64 and self.dtype.kind == "f"
        text = f"toInteger({self.name})" if whole else f"Number({self.name})" if self.dtype == BOOL else self.name
        return self.lines.add(text, dtype, (self,), self.minus)

    def view(self, given: Any) -> Symbol:
        """Read the bits of a float32 as an integer, or back."""
        dtype = np.dtype(given)
        if (self.dtype, dtype) == (FLOAT32, UINT32):
            return self.lines.add(f"bits({self.name})", dtype, (self,))
        if (self.dtype, dtype) == (UINT32, FLOAT32):
            return self.lines.add(f"fromBits({self.name})", dtype, (self,), f"{self.name} >>> 31 === 1")
        raise UntracedError(f"a view of {self.dtype} as {dtype}")


def _operator(name: str, *, swapped: bool = False) -> Callable[..., Any]:
    def apply(self: Symbol, *given: Any) -> Any:
        others = (one.item() if isinstance(one, np.ndarray) and one.dtype == object else one for one in given)
        inputs = (*others, self) if swapped else (self, *others)
        return OPERATIONS[name](self.lines, *inputs)

    return apply


for _name, _method in {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "truediv",
    "remainder": "mod",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "left_shift": "lshift",
    "right_shift": "rshift",
}.items():
    setattr(Symbol, f"__{_method}__", _operator(_name))
    setattr(Symbol, f"__r{_method}__", _operator(_name, swapped=True))
for _name, _method in {
    "negative": "neg",
    "absolute": "abs",
    "invert": "invert",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "equal": "eq",
    "not_equal": "ne",
}.items():
    setattr(Symbol, f"__{_method}__", _operator(_name))
Symbol.__hash__ = object.__hash__  # type: ignore[method-assign]  # equality is an operation
