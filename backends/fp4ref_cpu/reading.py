"""Dequantize, and convert between layouts of scale bytes. Codes and scales that are not contiguous are copied."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from ctypes import c_longlong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fp4ref_numerics
from fp4ref import arrays
from fp4ref.arithmetic import OCP_FLOOR
from fp4ref.errors import ShapeError
from fp4ref.formats import Codec
from fp4ref.hadamard import POINTS
from fp4ref.layout import LINEAR
from fp4ref.quantized import DirectionData
from fp4ref.registry import Call
from fp4ref.spec import Amax, Block, FourOverSix, Granularity, Spec
from fp4ref_cpu import threads
from fp4ref_cpu.build import functions
from fp4ref_cpu.maps import Map, lowered, write_padding
from fp4ref_cpu.native import address, buffer_of, exported, starts, text, without_hadamard


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


def dequantize(call: Call, data: DirectionData, out: Any) -> Any:
    """Compute the values [rows, columns] of one direction; with `out`, contiguous, into it.

    Rules: DEQ-1, DEQ-2, DEQ-3, HAD-6, LAY-6.
    """
    parts = [None if part is None else np.ascontiguousarray(arrays.to_numpy("dequantize", part)) for part in data]
    decode = _decoder(call)
    dtype = arrays.output_dtype("dequantize", call.to)
    values = np.empty(call.encoded, dtype) if out is None else buffer_of(out, "dequantize")
    decode(*map(address, parts), values)
    return arrays.restorer(data.data)(values) if out is None else out


def bind_dequantize(call: Call, data: DirectionData) -> Callable[[DirectionData], Any] | None:
    """Return a function that dequantizes other buffers of these ones' kind; None for those that are copied."""
    parts = [None if part is None else arrays.to_numpy("dequantize", part) for part in data]
    if not all(part is None or part.flags.c_contiguous for part in parts):
        return None
    decode, restore = _decoder(call), arrays.restorer(data.data)
    shape, dtype = call.encoded, arrays.output_dtype("dequantize", call.to)
    codes_of, scales_of, amax_of = (None if part is None else starts(part) for part in data)
    assert codes_of is not None
    assert scales_of is not None

    def again(data: DirectionData) -> Any:
        values = np.empty(shape, dtype)
        decode(codes_of(data.data), scales_of(data.scales), amax_of and amax_of(data.amax), values)
        return restore(values)

    return again


def _decoder(call: Call) -> Callable[..., None]:
    """Return the function of addresses, of codes, scales and maxima, and of the array to fill."""
    spec, shape = call.required, call.encoded
    if spec.hadamard and not call.inverse_hadamard:
        spec = without_hadamard(spec)
    if spec.hadamard and shape[1] % POINTS:
        raise ShapeError("dequantize", f"hadamard of {shape[1]} rows", f"a multiple of {POINTS}", "HAD-9")
    decoded = decoding(spec)
    read = call.source if fp4ref_numerics.narrows(decoded) else "float32"
    native = _dequantizer(text(decoded), read, call.to)
    order = lowered(call.layout, shape[0], -(-shape[1] // spec.block.columns))

    def decode(codes: int | None, scales: int | None, amax: int | None, values: NDArray[Any]) -> None:
        if values.size:
            threads.run(native, DequantizeJob(codes, scales, amax, *shape, address(values), order, 0), values.size)

    return decode


def to_layout(call: Call, scales: Any) -> Any:
    """Move scale bytes from one layout to another, padding written as zero. Rules: LAY-5, LAY-6."""
    buffer = np.ascontiguousarray(arrays.to_numpy("to_layout", scales))
    return arrays.restorer(scales)(_mover(call)(address(buffer)))


def bind_to_layout(call: Call, scales: Any) -> Callable[[Any], Any] | None:
    """Return a function that moves other scales of these ones' kind; None for those that are copied."""
    if not arrays.to_numpy("to_layout", scales).flags.c_contiguous:
        return None
    move, restore, start_of = _mover(call), arrays.restorer(scales), starts(scales)
    return lambda scales: restore(move(start_of(scales)))


def _mover(call: Call) -> Callable[[int | None], NDArray[np.uint8]]:
    """Return the function from the address of scale bytes to the same bytes in the other layout."""
    target, (rows, columns) = call.target, call.encoded
    assert target is not None
    if target.form.repeated:  # scales that share a place must agree
        read = _mover(dataclasses.replace(call, target=LINEAR))
        return lambda start: target.from_linear(read(start))
    padded = target.padded_shape(rows, columns)
    maps = lowered(call.layout, rows, columns), lowered(target, rows, columns)

    def move(start: int | None) -> NDArray[np.uint8]:
        out = np.empty(padded, np.uint8) if padded == (rows, columns) else np.zeros(padded, np.uint8)
        write_padding(out, target, rows, columns)
        if rows and columns:
            job = RelayoutJob(start, address(out), rows, columns, *maps, 0)
            threads.run(relayout(), job, rows * columns)
        return out

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
    return functions(exported("", "relayout.h", "Bytes", "relayout"), "relayout")[0]
