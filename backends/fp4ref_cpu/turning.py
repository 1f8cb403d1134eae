"""The transpose of a matrix of bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_longlong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from fp4ref import arrays
from fp4ref.errors import DTypeError, ShapeError
from fp4ref.registry import Call
from fp4ref_cpu import jobs
from fp4ref_cpu.build import functions
from fp4ref_cpu.native import address, exported, starts, writes


class TurnJob(ctypes.Structure):
    """Arguments of `turn`."""

    _fields_ = (
        ("source", c_void_p),
        ("target", c_void_p),
        ("rows", c_longlong),
        ("columns", c_longlong),
        ("next", c_longlong),
    )


SOURCE, TARGET = (jobs.place(TurnJob, name) for name in ("source", "target"))


def turned(call: Call, codes: Any) -> Any:
    """Return the transpose [columns, rows] of a matrix of bytes, of the call's shape.

    Errors: DTypeError, ShapeError.
    """
    if arrays.dtype_name(codes) != "uint8":
        raise DTypeError("turned", f"bytes of {arrays.dtype_name(codes)}", "uint8")
    if tuple(codes.shape) != call.sizes:
        raise ShapeError("turned", f"bytes {list(codes.shape)}", f"{list(call.sizes)}")
    array, made = np.ascontiguousarray(arrays.to_numpy("turned", codes)), np.empty(call.sizes[::-1], np.uint8)
    _turning(call)(address(array) or 0, address(made) or 0)
    return arrays.restorer(codes)(made)


def bind_turned(call: Call, codes: Any, out: Any = None) -> Callable[..., Any] | None:
    """Return a function that turns other matrices of this one's kind; None for those that are copied.

    out: a matrix of bytes, of the transpose's shape, that is filled; the function takes such a one, too.
    """
    if not all(arrays.to_numpy("turned", each).flags.c_contiguous for each in (codes, out) if each is not None):
        return None
    turn, start_of = _turning(call), starts(codes)
    if out is not None:
        place_of = writes(out, "turned")
        return lambda codes, out: turn(start_of(codes), place_of(out))
    make = jobs.maker(codes, call.sizes[::-1], "uint8")
    at = starts(make())

    def again(codes: Any) -> Any:
        made = make()
        turn(start_of(codes), at(made))
        return made

    return again


def _turning(call: Call) -> Callable[[int, int], None]:
    """Return a function of the addresses of a matrix, and of its transpose."""
    rows, columns = call.sizes
    ready = jobs.ready(TurnJob(None, None, rows, columns, 0), None)
    run = jobs.runner(_turn(), rows * columns)

    def turn(source: int, target: int) -> None:
        if rows and columns:
            words = ready.words[:]
            words[SOURCE], words[TARGET] = source, target
            run(words)

    return turn


@lru_cache
def _turn() -> Any:
    return functions(turning_text(), "turn")[0]


def turning_text() -> str:
    """Return the text that exports `turn`."""
    return exported("", "turn.h", "Turned", "turn")
