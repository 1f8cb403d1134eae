"""Scales that are moved to another layout again, those of both directions at once where a backend can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fp4ref import registry
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData, Quantized
from fp4ref.registry import Call


class Move(NamedTuple):
    """A call that moves scales, the function that serves it, and the scales that it moved."""

    call: Call
    function: Callable[..., Any]
    scales: Any


def moving(moves: dict[Direction, Move], backend: str | None) -> Callable[[Any, Any], tuple[Any, Any]] | None:
    """Return a function that moves other scales of these ones' kinds, None for a direction that there is not.

    moves: of the first result. A backend that repeats several calls as one moves both at once.
    """
    if len(moves) == 2:
        both = _moving_both(moves["row"], moves["column"], backend)
        if both is not None:
            return both
    bound: dict[Direction, Any] = {}
    for name, (call, _, scales) in moves.items():
        bind = registry.binder(call, backend)
        bound[name] = bind(call, scales) if bind else None
    if not all(bound.values()):
        return None
    row, column = (bound.get(name) for name in DIRECTIONS)
    return lambda rows, columns: (row and row(rows), column and column(columns))


def _moving_both(row: Move, column: Move, backend: str | None) -> Callable[[Any, Any], tuple[Any, Any]] | None:
    """Return a function that moves the scales of both directions by one program of a backend that has such."""
    together = Call("steps", device=row.call.device)
    bind = registry.binder(together, backend) if registry.offers(together, backend) else None
    if bind is None:
        return None
    (of_rows, move_rows, rows), (of_columns, move_columns, columns) = row, column

    def act(rows: Any, columns: Any) -> tuple[Any, Any]:
        return move_rows(of_rows, rows), move_columns(of_columns, columns)

    bound: Callable[[Any, Any], tuple[Any, Any]] | None = bind(
        together, ("to_layout", of_rows, of_columns), (rows, columns), act
    )
    return bound


def results_moved(move: Callable[[Any, Any], tuple[Any, Any]], like: Quantized) -> Callable[[Quantized], Quantized]:
    """Return a function that moves the scales of other results of the same kind."""
    make = like.maker()

    def again(q: Quantized) -> Quantized:
        row, column = q.row, q.column
        rows, columns = move(row and row.scales, column and column.scales)
        return make(
            row and DirectionData(row.data, rows, row.amax), column and DirectionData(column.data, columns, column.amax)
        )

    return again
