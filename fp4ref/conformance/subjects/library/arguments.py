"""Arguments of a signature: their kinds, and the checks of each kind's declaration in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from fp4ref.conformance.subjects.library.expression import FORM, ExpressionError, parsed
from fp4ref.errors import FileError
from fp4ref.kernels import INPUTS, OUTPUTS, SCALES_OF
from fp4ref.quantized import DIRECTIONS

RULE = "CNF-16"
INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "size_t")
FLOATS = ("float", "double")
SHAPE = ("rows", "columns", "depth")  # integers that a declaration may ask for
COUNTS = ("seed", "offset")  # inputs that are integers
SIZES = ("rows", "columns", "blocks", "elements", "data_columns", "multiprocessors")
MORE_SIZES = {
    "quantize": ("x_rows", "x_columns", "x_stride", "scale_rows", "scale_columns"),
    "dequantize": ("scale_rows", "scale_columns"),
    "to_layout": ("scale_rows", "scale_columns"),
    "hadamard": ("x_stride",),
    "gemm": ("depth",),
}
RECORDS = "records"
HANDLES = ("stream", "null")


class Field(NamedTuple):
    """A field of a signature, for messages."""

    origin: str
    field: str = ""

    def at(self, name: str) -> Field:
        """Return a field below this one."""
        return Field(self.origin, f"{self.field}.{name}".lstrip("."))

    def fail(self, got: str, needed: str) -> NoReturn:
        """Refuse the signature in one line: file, field, got, needed. Rules: CNF-101."""
        raise FileError(f"signature {self.origin}" + (f": {self.field}" if self.field else ""), got, needed, RULE)

    def require_table(self, record: Any, known: Iterable[str]) -> None:
        """Refuse what is no table, and a table with unknown fields."""
        if not isinstance(record, dict):
            self.fail(type(record).__name__, "a table")
        names = [*known]
        for name in record:
            if name not in names:
                self.at(name).fail("an unknown field", f"one of {', '.join(names)}")


@dataclass(frozen=True)
class Argument:
    """An argument of the function.

    kind: the key that says what is passed. value: what follows it: a name, an expression, a number, or numbers by
    dtype. type: the C type of what is passed by value. direction: of an output, empty for the one that is judged.
    """

    kind: str
    value: Any
    type: str = ""
    direction: str = ""


def argument(place: Field, record: Any, operation: str) -> Argument:
    """Check one argument of a signature. Rules: CNF-16."""
    found = [kind for kind in KINDS if kind in record] if isinstance(record, dict) else []
    if len(found) != 1:
        got = " and ".join(found) or json.dumps(record, default=str)[:80]
        place.fail(got, f"a table with one of {', '.join(KINDS)}")
    kind = found[0]
    types, check = KINDS[kind]
    place.require_table(record, (kind, "name", *(["type"] if types else []), *(["direction"] * (kind == "output"))))
    typed, direction = record.get("type", ""), record.get("direction", "")
    if types and typed not in types:
        place.at("type").fail(repr(typed), f"one of {', '.join(types)}")
    if direction not in {"", *DIRECTIONS}:
        place.at("direction").fail(repr(direction), " or ".join(DIRECTIONS))
    if problem := check(record[kind], operation, typed):
        place.at(kind).fail(*problem)
    return Argument(kind, record[kind], typed, direction)


Problem = tuple[str, str] | None


def _one_of(name: Any, known: Iterable[str]) -> Problem:
    allowed = list(known)
    needed = f"one of {', '.join(allowed)}" if allowed else "another kind of argument"
    return None if isinstance(name, str) and name in allowed else (repr(name), needed)


def _input(name: Any, operation: str, typed: str) -> Problem:
    arrays = [each for each in INPUTS[operation] if each not in {*COUNTS, *SHAPE}]
    return _one_of(name, [*arrays, *([RECORDS] if operation == "dequantize" else [])])


def _output(name: Any, operation: str, typed: str) -> Problem:
    return _one_of(name, [*OUTPUTS[operation], *([RECORDS] if operation == "quantize" else [])])


def _number(name: Any, operation: str, typed: str) -> Problem:
    allowed = COUNTS if typed in INTEGERS else (*SCALES_OF, "alpha")
    return _one_of(name, [each for each in INPUTS[operation] if each in allowed])


def _expression(text: Any, operation: str, typed: str) -> Problem:
    known = (*SIZES, *MORE_SIZES[operation])
    if not isinstance(text, str):
        return repr(text), f"text: {FORM}"
    try:
        parsed(text, known)
    except ExpressionError as error:
        return str(error), f"{FORM}; sizes are {', '.join(known)}"
    return None


def _constant(value: Any, operation: str, typed: str) -> Problem:
    right = isinstance(value, int) or (isinstance(value, float) and typed in FLOATS)
    return None if right else (repr(value), f"a number of type {typed}")


def _by_dtype(value: Any, operation: str, typed: str) -> Problem:
    right = isinstance(value, dict) and value and all(type(number) is int for number in value.values())
    return None if right else (repr(value), "a number for every dtype, such as {float32 = 0}")


def _handle(name: Any, operation: str, typed: str) -> Problem:
    return _one_of(name, HANDLES)


# Kinds of arguments: the C types of what is passed by value, none for a pointer; and the check of the value.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[Any, str, str], Problem]]] = {
    "input": ((), _input),
    "output": ((), _output),
    "number": ((*INTEGERS, *FLOATS), _number),
    "size": (INTEGERS, _expression),
    "constant": ((*INTEGERS, *FLOATS), _constant),
    "dtype": (INTEGERS, _by_dtype),
    "workspace": ((), _expression),
    "handle": ((), _handle),
}
