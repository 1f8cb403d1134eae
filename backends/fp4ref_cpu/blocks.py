"""Values of 8-bit floats under a float32 scale of every 128 elements, or of every square of 128x128."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_longlong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.errors import DTypeError, ShapeError
from fp4ref.registry import Call
from fp4ref_cpu import jobs
from fp4ref_cpu.build import functions
from fp4ref_cpu.native import address, exported, starts, text

SIDE, FOUR, FLOAT = 128, 4, 4  # of a square; scales of a line are padded to a multiple; bytes of one


class BlockValuesJob(ctypes.Structure):
    """Arguments of `block_values`."""

    _fields_ = (
        *(("codes", c_void_p), ("scales", c_void_p), ("out", c_void_p)),
        *(("rows", c_longlong), ("columns", c_longlong), ("pitch", c_longlong), ("squares", c_longlong)),
        ("next", c_longlong),
    )


CODES, SCALES, VALUES = (jobs.place(BlockValuesJob, name) for name in ("codes", "scales", "out"))


def block_values(call: Call, codes: Any, scales: Any, squares: bool) -> Any:
    """Return codes times their scales, computed in float32, rounded to the call's output type: [rows, columns].

    call: its specification's element is that of the codes. scales: float32 [b(columns), pad4(rows)], of squares
    [b(rows), pad4(b(columns))], with b(n) blocks.

    Errors: DTypeError, ShapeError.

    Rules: DEQ-2, DEQ-3, TEL-49.
    """
    given = (
        _required("codes", codes, "uint8", call.sizes),
        _required("scales", scales, "float32", _sizes(call, squares)),
    )
    values = np.empty(call.sizes, arrays.output_dtype("block_values", call.to))
    _decoding(call, squares)(*(address(part) or 0 for part in (*given, values)))
    return arrays.restorer(codes)(values)


def bind_block_values(call: Call, codes: Any, scales: Any, squares: bool) -> Callable[[Any, Any], Any] | None:
    """Return a function that decodes other codes of these ones' kind; None for what is copied."""
    if not all(arrays.to_numpy("block_values", each).flags.c_contiguous for each in (codes, scales)):
        return None
    decode, make = _decoding(call, squares), jobs.maker(codes, call.sizes, call.to)
    codes_of, scales_of, at = starts(codes), starts(scales), starts(make())

    def again(codes: Any, scales: Any) -> Any:
        factors = scales_of(scales)
        if factors % FLOAT:  # they are copied
            return block_values(call, codes, scales, squares)
        values = make()
        decode(codes_of(codes), factors, at(values))
        return values

    return again


def _sizes(call: Call, squares: bool) -> tuple[int, int]:
    rows, columns = call.sizes
    first, last = (-(-rows // SIDE), -(-columns // SIDE)) if squares else (-(-columns // SIDE), rows)
    return first, -(-last // FOUR) * FOUR


def _decoding(call: Call, squares: bool) -> Callable[[int, int, int], None]:
    """Return a function of the addresses of codes, scales and values."""
    rows, columns = call.sizes
    run = jobs.runner(_function(text(call.required), call.to), rows * columns)
    pitch = _sizes(call, squares)[1]
    ready = jobs.ready(BlockValuesJob(None, None, None, rows, columns, pitch, squares, 0), None)

    def decode(codes: int, scales: int, values: int) -> None:
        if rows and columns:
            words = ready.words[:]
            words[CODES], words[SCALES], words[VALUES] = codes, scales, values
            run(words)

    return decode


def _required(name: str, value: Any, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of a type and shape, whose elements follow each other."""
    array = arrays.to_numpy("block_values", value)
    if arrays.dtype_name(value) != dtype:
        raise DTypeError("block_values", f"{name} of {arrays.dtype_name(value)}", dtype, "TEL-49")
    if array.shape != shape:
        raise ShapeError("block_values", f"{name} {list(array.shape)}", f"{list(shape)}", "TEL-49")
    array = np.ascontiguousarray(array)
    return array if array.flags.aligned else array.copy()


@lru_cache
def _function(prelude: str, kind: str) -> Any:
    return functions(block_text(prelude, kind), "block_values")[0]


def block_text(prelude: str, kind: str) -> str:
    """Return the text that exports `block_values`; kind: the type of the values."""
    return exported(prelude, "blocks.h", f"Blocks<Specification, fp4ref::{kind}>", "block_values", job="BlockValuesJob")
