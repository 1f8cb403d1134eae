"""Dequantize, and convert between layouts of scale bytes. Codes and scales that are not contiguous are copied."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from ctypes import c_longlong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

import fp4ref_numerics
from fp4ref import arrays
from fp4ref.arithmetic import OCP_FLOOR
from fp4ref.errors import ShapeError
from fp4ref.formats import Codec
from fp4ref.hadamard import POINTS
from fp4ref.layout import LINEAR, Layout
from fp4ref.quantized import DirectionData
from fp4ref.registry import Call
from fp4ref.spec import Amax, Block, FourOverSix, Granularity, Spec
from fp4ref_cpu import jobs
from fp4ref_cpu.build import functions
from fp4ref_cpu.maps import Map, lowered, padding
from fp4ref_cpu.native import address, buffer_of, exported, starts, text, without_hadamard, writes


class DequantizeJob(ctypes.Structure):
    """Arguments of `dequantize`."""

    _fields_ = (
        ("data", c_void_p),
        ("scales", c_void_p),
        ("amax", c_void_p),
        ("rows", c_longlong),
        ("columns", c_longlong),
        ("out", c_void_p),
        ("map", Map),
        ("next", c_longlong),
    )


class RelayoutJob(ctypes.Structure):
    """Arguments of `relayout`."""

    _fields_ = (
        ("source", c_void_p),
        ("target", c_void_p),
        ("rows", c_longlong),
        ("columns", c_longlong),
        ("from_map", Map),
        ("to_map", Map),
        ("next", c_longlong),
    )


FLOAT = 4  # bytes of a maximum
CODES, SCALES, AMAX, VALUES = (jobs.place(DequantizeJob, name) for name in ("data", "scales", "amax", "out"))
SOURCE, TARGET = (jobs.place(RelayoutJob, name) for name in ("source", "target"))


def dequantize(call: Call, data: DirectionData, out: Any) -> Any:
    """Compute the values [rows, columns] of one direction; with `out`, contiguous, into it.

    Rules: DEQ-1, DEQ-2, DEQ-3, HAD-6, LAY-6.
    """
    parts = [None if part is None else np.ascontiguousarray(arrays.to_numpy("dequantize", part)) for part in data]
    parts = [part if part is None or part.flags.aligned else part.copy() for part in parts]
    decode = decoder(call)
    dtype = arrays.output_dtype("dequantize", call.to)
    values = np.empty(call.encoded, dtype) if out is None else buffer_of(out, "dequantize")
    codes, scales, amax, made = (address(part) or 0 for part in (*parts, values))
    decode(codes, scales, amax, made)
    return arrays.restorer(data.data)(values) if out is None else out


def bind_dequantize(
    call: Call, data: DirectionData, out: Any = None
) -> Callable[[DirectionData, Any], Any] | Callable[[DirectionData], Any] | None:
    """Return a function that dequantizes other buffers of these ones' kind; None for those that are copied.

    out: an array of the kind that the function fills; without it, the function returns a new one.
    """
    parts = [None if part is None else arrays.to_numpy("dequantize", part) for part in data]
    if not all(part is None or part.flags.c_contiguous for part in parts):
        return None
    decode = decoder(call)
    codes_of, scales_of, amax_of = (None if part is None else starts(part) for part in data)
    assert codes_of is not None
    assert scales_of is not None

    if out is not None:
        place_of = writes(out, "dequantize")

        def into(data: DirectionData, out: Any) -> Any:
            codes, scales, amax = data
            largest = amax_of(amax) if amax_of else 0
            if largest % FLOAT:  # it is copied
                return dequantize(call, data, out)
            decode(codes_of(codes), scales_of(scales), largest, place_of(out))
            return out

        return into
    make = jobs.maker(data.data, call.encoded, call.to)
    at = starts(make())

    def again(data: DirectionData) -> Any:
        codes, scales, amax = data
        largest = amax_of(amax) if amax_of else 0
        if largest % FLOAT:
            return dequantize(call, data, None)
        values = make()
        decode(codes_of(codes), scales_of(scales), largest, at(values))
        return values

    return again


def decoder(call: Call) -> Callable[[int, int, int, int], None]:
    """Return the function of the addresses of codes, scales and maxima, and of the array to fill."""
    spec, shape = call.required, call.encoded
    if spec.hadamard and not call.inverse_hadamard:
        spec = without_hadamard(spec)
    if spec.hadamard and shape[1] % POINTS:
        raise ShapeError("dequantize", f"hadamard of {shape[1]} rows", f"a multiple of {POINTS}", "HAD-9")
    decoded = decoding(spec)
    read = call.source if fp4ref_numerics.narrows(decoded) else "float32"
    native = _dequantizer(text(decoded), read, call.to)
    order, elements = lowered(call.layout, shape[0], -(-shape[1] // spec.block.columns)), shape[0] * shape[1]
    ready = jobs.ready(DequantizeJob(None, None, None, *shape, None, order, 0), order)
    run = jobs.runner(native, elements)

    def decode(codes: int, scales: int, amax: int, values: int) -> None:
        if elements:
            words = ready.words[:]
            words[CODES], words[SCALES], words[AMAX], words[VALUES] = codes, scales, amax, values
            run(words)

    return decode


def to_layout(call: Call, scales: Any) -> Any:
    """Move scale bytes from one layout to another, padding written as zero. Rules: LAY-5, LAY-6."""
    buffer, target = np.ascontiguousarray(arrays.to_numpy("to_layout", scales)), call.target
    assert target is not None
    if target.form.repeated:  # scales that share a place must agree
        moved = target.from_linear(to_layout(dataclasses.replace(call, target=LINEAR), buffer))
    else:
        moved = np.empty(target.padded_shape(*call.encoded), np.uint8)
        _mover(call, target)(address(buffer) or 0, address(moved) or 0)
    return arrays.restorer(scales)(moved)


def bind_to_layout(call: Call, scales: Any) -> Callable[[Any], Any] | None:
    """Return a function that moves other scales of these ones' kind; None for those that are copied, or must agree."""
    target = call.target
    assert target is not None
    if target.form.repeated or not arrays.to_numpy("to_layout", scales).flags.c_contiguous:
        return None
    move, start_of = _mover(call, target), starts(scales)
    make = jobs.maker(scales, target.padded_shape(*call.encoded), "uint8")
    at = starts(make())

    def again(scales: Any) -> Any:
        moved = make()
        move(start_of(scales), at(moved))
        return moved

    return again


def _mover(call: Call, target: Layout) -> Callable[[int, int], None]:
    """Return the function of the addresses of scale bytes, and of those to write in the other layout."""
    rows, columns = call.encoded
    maps = lowered(call.layout, rows, columns), lowered(target, rows, columns)
    pad = padding(target, rows, columns)
    ready = jobs.ready(RelayoutJob(None, None, rows, columns, *maps, 0), maps)
    run = jobs.runner(relayout(), rows * columns)

    def move(source: int, moved: int) -> None:
        if pad:
            pad(moved)
        if rows and columns:
            words = ready.words[:]
            words[SOURCE], words[TARGET] = source, moved
            run(words)

    return move


@lru_cache
def decoding(spec: Spec) -> Spec:
    """Return the specification without what only quantizing reads, so that many share one compiled library."""
    search = spec.four_over_six
    return dataclasses.replace(
        spec,
        arithmetic=OCP_FLOOR if spec.global_scale is Granularity.NONE else spec.arithmetic,  # which then has no part
        element=Codec(format=spec.element.format, nan=(0, 0)),
        scale=Codec(format=spec.scale.format, rounding=spec.scale.rounding, nan=(0, 0)),
        block=Block(1, spec.block.columns),
        amax=Amax.IGNORE_NAN,
        four_over_six=search and FourOverSix(scale_max=search.scale_max),
    )


@lru_cache
def _dequantizer(prelude: str, source: str, dtype: str) -> Any:
    return functions(dequantizing_text(prelude, source, dtype), "dequantize")[0]


def dequantizing_text(prelude: str, source: str, dtype: str) -> str:
    """Return the text that exports `dequantize`, from the type that was quantized to the type of the result."""
    loops = f"Values<Specification, fp4ref::{source}, fp4ref::{dtype}>"
    return exported(prelude, "dequantize.h", loops, "dequantize")


@lru_cache
def relayout() -> Any:
    """Return the compiled conversion of layouts."""
    return jobs.without_specification()["relayout"]
