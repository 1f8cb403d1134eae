"""Records as JSON data: values by field, enums by value, and by name what is registered. Nothing is evaluated."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from fp4ref.arithmetic import ARITHMETIC, Arithmetic
from fp4ref.errors import DomainError, UnknownNameError
from fp4ref.formats import FORMATS, OPTIONAL, Format
from fp4ref.four_over_six import RULES


def encode(value: Any) -> Any:
    """Return a field's value as JSON data; functions and formats by name. Rules: SPC-3, SPC-4."""
    if isinstance(value, (Arithmetic, Format)):
        return value.name
    if dataclasses.is_dataclass(value):
        fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {field.name: encode(of) for field, of in fields if of is not None or OPTIONAL not in field.metadata}
    if isinstance(value, Enum):
        return value.value
    if callable(value):
        return next((name for name, function in RULES.items() if function is value), None) or _unregistered(value)
    return list(value) if isinstance(value, tuple) else value


def _unregistered(function: Callable[..., Any]) -> str:
    raise DomainError("spec", f"function {function.__qualname__}", "a registered one, to be named", "SPC-4")


def decode(kind: Any, value: Any, field: str) -> Any:
    """Return the value that `encode` wrote, guided by the declared type; `field` is its name in messages.

    Rules: SPC-3, SPC-4, SPC-11, SPC-13, SPC-16, SPC-17.
    """
    kinds = [part for part in typing.get_args(kind) if part is not type(None)]
    if type(None) in typing.get_args(kind):
        return None if value is None else decode(kinds[0], value, field)
    if kind is Arithmetic or kind is Format or typing.get_origin(kind) is Callable:
        return _named(kind, value, field)
    if typing.get_origin(kind) is tuple or (isinstance(kind, type) and issubclass(kind, tuple)):
        if not (isinstance(value, list) and len(value) == 2 and all(type(item) is int for item in value)):
            raise DomainError("spec", f"{field} {value!r}", "two integers", "SPC-11")
        return tuple(value)
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, value, field)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value  # coerced, with an error that lists the members, when the record is made
    if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
        raise DomainError("spec", f"{field} {value!r}", f"a {kind.__name__}", "SPC-11")
    try:
        return kind(value)
    except OverflowError:
        raise DomainError("spec", f"{field} past the largest float", "a float", "SPC-11") from None


def _named(kind: Any, value: Any, field: str) -> Any:
    names: Mapping[str, Any] = ARITHMETIC if kind is Arithmetic else FORMATS if kind is Format else RULES
    if not isinstance(value, str) or value not in names:
        raise UnknownNameError("spec", f"{field} {value!r}", f"a registered name ({', '.join(sorted(names))})", "SPC-4")
    return names[value]


def _decode_record(kind: Any, value: Any, field: str) -> Any:
    hints = typing.get_type_hints(kind)
    if not isinstance(value, dict) or set(value) - set(hints):
        unknown = f"unknown {', '.join(sorted(set(value) - set(hints)))}" if isinstance(value, dict) else repr(value)
        raise DomainError("spec", f"{field}: {unknown}", f"fields {', '.join(hints)}", "SPC-11")
    required = {
        item.name
        for item in dataclasses.fields(kind)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    }
    if required - set(value):
        raise DomainError("spec", f"{field} without {', '.join(sorted(required - set(value)))}", "them", "SPC-11")
    return kind(**{name: decode(hints[name], item, f"{field}.{name}") for name, item in value.items()})


def differences(a: Any, b: Any) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two specs differ, nested ones dotted, with both values; names do not count."""
    return _differences(encode(a), encode(b), "")


def _differences(a: Any, b: Any, prefix: str) -> dict[str, tuple[Any, Any]]:
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return {} if a == b else {prefix: (a, b)}
    found: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys((*a, *b)):
        if prefix or name != "name":
            found |= _differences(a.get(name), b.get(name), f"{prefix}.{name}" if prefix else name)
    return found
