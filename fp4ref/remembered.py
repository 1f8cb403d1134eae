"""Hashes of records, computed once: a call finds what an earlier call of the same kind worked out in a microsecond."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Record = TypeVar("Record")
Value = TypeVar("Value")
_KEPT = "_hash"


def hashed_once(record: type[Record]) -> type[Record]:
    """Keep the hash of every instance of a frozen dataclass beside its fields; a pickled instance leaves it behind."""
    compute = record.__hash__

    def kept(self: Any) -> int:
        found: int | None = self.__dict__.get(_KEPT)
        if found is None:
            found = self.__dict__[_KEPT] = compute(self)
        return found

    def state(self: Any) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _KEPT}

    record.__hash__ = kept  # type: ignore[method-assign]
    record.__getstate__ = state  # type: ignore[method-assign]
    return record


class Same:
    """A key that is equal to itself alone, for what has no hash; it keeps its value alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class OnlySame(Same):
    """A key that is the only one of its value, so that it is found by its own identity."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def cached_with_torch(function: Callable[[], Value]) -> Callable[[], Value | None]:
    """Have a function compute its result once, when torch is loaded; before, it returns None: there are no tensors."""
    found = cache(function)
    return lambda: found() if "torch" in sys.modules else None
