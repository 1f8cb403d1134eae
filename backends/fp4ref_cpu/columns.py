"""Values of a matrix whose blocks are pieces of its columns, as Transformer Engine stores MXFP8's columns."""

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
from fp4ref_cpu.native import address, exported, starts, text


class ColumnValuesJob(ctypes.Structure):
    """Arguments of `column_values`."""

    _fields_ = (
        *(("codes", c_void_p), ("scales", c_void_p), ("out", c_void_p)),
        *(("rows", c_longlong), ("columns", c_longlong), ("pitch", c_longlong), ("next", c_longlong)),
    )


CODES, SCALES, VALUES = (jobs.place(ColumnValuesJob, name) for name in ("codes", "scales", "out"))


def column_values(call: Call, codes: Any, scales: Any, across: bool) -> Any:
    """Return the values [rows, columns] of codes of the same shape in the call's output type.

    call: its specification is that of the transpose, of 8-bit elements without a global scale. scales: those of the
    transpose [columns, blocks of rows] in the call's layout; across: as a matrix [blocks of rows, columns], the
    transpose of a layout that only pads.

    Errors: DTypeError, ShapeError.

    Rules: DEQ-2, DEQ-3.
    """
    (rows, columns), padded = call.sizes, _padded(call)
    shapes = (("codes", codes, call.sizes), ("scales", scales, padded[::-1] if across else padded))
    for name, part, shape in shapes:
        if arrays.dtype_name(part) != "uint8":
            raise DTypeError("column_values", f"{name} of {arrays.dtype_name(part)}", "uint8", "TEL-8")
        if tuple(part.shape) != shape:
            raise ShapeError("column_values", f"{name} {list(part.shape)}", f"{list(shape)}", "TEL-8")
    given, beside = (arrays.to_numpy("column_values", part) for part in (codes, scales))
    if not across:
        beside = call.layout.to_linear(beside, columns, -(-rows // call.required.block.columns)).T
    values = np.empty(call.sizes, arrays.output_dtype("column_values", call.to))
    read = np.ascontiguousarray(given), np.ascontiguousarray(beside)
    _decoding(call, read[1].shape[1])(*(address(part) or 0 for part in (*read, values)))
    return arrays.restorer(codes)(values)


def bind_column_values(call: Call, codes: Any, scales: Any, across: bool) -> Callable[[Any, Any], Any] | None:
    """Return a function that decodes other bytes of these ones' kinds; None for what is copied, or moved."""
    dense = all(arrays.to_numpy("column_values", each).flags.c_contiguous for each in (codes, scales))
    if not across or not dense:
        return None
    decode, make = _decoding(call, scales.shape[1]), jobs.maker(codes, call.sizes, call.to)
    codes_of, scales_of, at = starts(codes), starts(scales), starts(make())

    def again(codes: Any, scales: Any) -> Any:
        values = make()
        decode(codes_of(codes), scales_of(scales), at(values))
        return values

    return again


def _padded(call: Call) -> tuple[int, int]:
    """Return the shape of the scales of the transpose."""
    rows, columns = call.sizes
    return call.layout.padded_shape(columns, -(-rows // call.required.block.columns))


def _decoding(call: Call, pitch: int) -> Callable[[int, int, int], None]:
    """Return a function of the addresses of codes, scales and values."""
    rows, columns = call.sizes
    run = jobs.runner(_function(text(call.required), call.to), rows * columns)
    ready = jobs.ready(ColumnValuesJob(None, None, None, rows, columns, pitch, 0), None)
    return jobs.at_three(run, ready, (CODES, SCALES, VALUES), rows * columns)


@lru_cache
def _function(prelude: str, kind: str) -> Any:
    return functions(column_text(prelude, kind), "column_values")[0]


def column_text(prelude: str, kind: str) -> str:
    """Return the text that exports `column_values`; kind: the type of the values."""
    loops = f"Columns<Specification, fp4ref::float32, fp4ref::{kind}>"
    return exported(prelude, "columns.h", loops, "column_values", job="ColumnValuesJob")
