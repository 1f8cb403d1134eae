"""Matrices whose columns lie one after the other: their rows are columns of the transpose, and are read as these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from fp4ref import arrays
from fp4ref.quantized import DirectionChoice, Directions
from fp4ref.registry import Call

Value = TypeVar("Value")
OTHER: dict[str, DirectionChoice] = {"row": "column", "column": "row", "both": "both"}


def turned(call: Call, x: Any) -> Call | None:
    """Return the call that quantizes the transpose of x to the same bytes; None where x is to be read as it is.

    Each direction quantizes its matrix alike, but for a transform, which columns alone have. Rules: BLK-1, RES-1.
    """
    lies_across = arrays.is_torch(x) and x.dim() == 2 and not x.is_contiguous() and x.t().is_contiguous()
    return _turned(call) if lies_across and call.required.hadamard is None else None


@lru_cache(maxsize=4096)
def _turned(call: Call) -> Call:
    """Return one record for all of a kind, as programs know theirs."""
    return replace(call, direction=OTHER[call.direction], shape=call.sizes[::-1])


def exchanged(named: Mapping[Any, Value]) -> dict[Any, Value]:
    """Return arguments by direction of a matrix as those of its transpose."""
    return {OTHER[name]: value for name, value in named.items()}


def swapped(each: Directions) -> Directions:
    """Return the same of arguments of both directions."""
    return Directions(each.column, each.row)
