"""JSON of a stranger: text that two readers could understand differently is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def strict_json(text: str) -> Any:
    """Parse JSON from a stranger: no repeated keys, NaN, -0 or halves of surrogate pairs; ValueError otherwise."""
    try:
        return json.loads(text, object_pairs_hook=_record, parse_constant=_refuse, parse_int=_integer)
    except (RecursionError, MemoryError):
        raise ValueError("nested too deep") from None


def _record(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a repeated key")
    for text in (text for pair in pairs for item in pair for text in _texts(item)):
        text.encode()  # fails for half of a pair
    return record


def _texts(value: Any) -> Iterator[str]:
    """Yield a text, or those of a list."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _integer(text: str) -> int:
    return _refuse(text) if text == "-0" else int(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} for a number")
