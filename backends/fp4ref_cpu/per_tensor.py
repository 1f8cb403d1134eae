"""8-bit floats under one scale of the whole tensor: codes by a scale, given or the tensor's own, and their values."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from ctypes import c_float, c_longlong, c_void_p
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.errors import DTypeError, ShapeError
from fp4ref.registry import Call
from fp4ref.specs import NVFP4
from fp4ref_cpu import jobs
from fp4ref_cpu.build import functions
from fp4ref_cpu.compiled import bounder, maximum
from fp4ref_cpu.native import address, buffer_of, exported, starts, text, writes
from fp4ref_cpu.quantizing import AmaxJob, Input, InputAxis

FUNCTIONS = ("scale", "codes", "values")
LARGEST = {
    name: float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    for name, kind in arrays.INPUT_DTYPES.items()
}
FLOAT = 4  # bytes
Pair = c_float * 2


class ScaleJob(ctypes.Structure):
    """Arguments of `scale`."""

    _fields_ = (
        ("amax", c_void_p),
        ("scale", c_void_p),
        ("inverse", c_void_p),
        ("least", c_float),
        ("most", c_float),
        ("power_of_two", c_longlong),
    )


class ElementsJob(ctypes.Structure):
    """Arguments of `codes` and `values`."""

    _fields_ = (
        ("source", c_void_p),
        ("scale", c_void_p),
        ("out", c_void_p),
        ("count", c_longlong),
        ("next", c_longlong),
    )


AMAX, SCALE, INVERSE = (jobs.place(ScaleJob, name) for name in ("amax", "scale", "inverse"))
SOURCE, FACTOR, OUT = (jobs.place(ElementsJob, name) for name in ("source", "scale", "out"))
X, FOUND = jobs.place(AmaxJob, "input"), jobs.place(AmaxJob, "amax")


def tensor_quantize(call: Call, x: Any, least: float, power_of_two: bool) -> tuple[Any, Any]:
    """Return the codes of a tensor, uint8 of its matrix, and 1 over its scale, float32 [1].

    call: its specification's element is that of the codes. x: contiguous, with elements. least: the least amax.
    power_of_two: drop the scale's mantissa.

    Errors: DTypeError, ShapeError.

    Rules: TEL-21.
    """
    array = _required("tensor_quantize", "x", x, call.source, call.sizes)
    codes, inverse = np.empty(call.sizes, np.uint8), np.empty(1, np.float32)
    _quantizing(call, least, power_of_two)(*(address(part) or 0 for part in (array, codes, inverse)))
    restore = arrays.restorer(x)
    return restore(codes), restore(inverse)


def bind_tensor_quantize(
    call: Call, x: Any, least: float, power_of_two: bool
) -> Callable[[Any], tuple[Any, Any]] | None:
    """Return a function that makes codes of other tensors of this one's kind; None for what is copied."""
    if not arrays.to_numpy("tensor_quantize", x).flags.c_contiguous:
        return None
    quantize, start_of, unit = (
        _quantizing(call, least, power_of_two),
        starts(x),
        arrays.INPUT_DTYPES[call.source].itemsize,
    )
    codes_of, inverse_of = jobs.maker(x, call.sizes, "uint8"), jobs.maker(x, (1,), "float32")
    at = starts(codes_of())

    def again(x: Any) -> tuple[Any, Any]:
        start = start_of(x)
        if start % unit:
            return tensor_quantize(call, x, least, power_of_two)
        codes, inverse = codes_of(), inverse_of()
        quantize(start, at(codes), at(inverse))
        return codes, inverse

    return again


def _quantizing(call: Call, least: float, power_of_two: bool) -> Callable[[int, int, int], None]:
    """Return a function of the addresses of a tensor, its codes, and 1 over its scale."""
    rows, columns = call.sizes
    count, of = rows * columns, _functions(text(call.required), call.source)
    search, to_search = _searching(call)
    encode, scale = jobs.runner(of["codes"], count), of["scale"]
    to_scale = jobs.ready(ScaleJob(None, None, None, least, LARGEST[call.source], power_of_two), None)
    to_encode = jobs.ready(ElementsJob(None, None, None, count, 0), None)

    def quantize(start: int, codes: int, inverse: int) -> None:
        numbers = Pair()  # the largest magnitude, and the scale
        amax = ctypes.addressof(numbers)
        words = to_search.words[:]
        words[X], words[FOUND] = start, amax
        search(words)
        words = to_scale.words[:]
        words[AMAX], words[SCALE], words[INVERSE] = amax, amax + 4, inverse
        scale(words.buffer_info()[0])
        words = to_encode.words[:]
        words[SOURCE], words[FACTOR], words[OUT] = start, amax + 4, codes
        encode(words)

    return quantize


def tensor_given(call: Call, x: Any, scale: Any, amax: Any) -> tuple[Any, Any]:
    """Return the codes of x * scale, and 1 over the scale, float32 [1]; raise the amax to x's largest magnitude.

    x: contiguous, with elements. scale, amax: float32 [1]; the amax stays where it is, NaN if it is.

    Errors: DTypeError, ShapeError.

    Rules: TEL-21, TEL-44.
    """
    array = _required("tensor_given", "x", x, call.source, call.sizes)
    factor = _required("tensor_given", "scale", scale, "float32", (1,))
    largest = _required("tensor_given", "amax", amax, "float32", (1,))
    codes, inverse = np.empty(call.sizes, np.uint8), np.empty(1, np.float32)
    _raising(call)(*(address(part) or 0 for part in (array, factor, largest, codes, inverse)))
    buffer_of(amax, "tensor_given")[...] = largest
    restore = arrays.restorer(x)
    return restore(codes), restore(inverse)


def bind_tensor_given(call: Call, x: Any, scale: Any, amax: Any) -> Callable[[Any, Any, Any], tuple[Any, Any]] | None:
    """Return a function that does the same for other tensors of these ones' kinds; None for what is copied."""
    if not arrays.to_numpy("tensor_given", x).flags.c_contiguous:
        return None
    act, unit = _raising(call), arrays.INPUT_DTYPES[call.source].itemsize
    start_of, scale_of, amax_of = starts(x), starts(scale), writes(amax, "tensor_given")
    codes_of, inverse_of = jobs.maker(x, call.sizes, "uint8"), jobs.maker(x, (1,), "float32")
    at = starts(codes_of())

    def again(x: Any, scale: Any, amax: Any) -> tuple[Any, Any]:
        start, factor, largest = start_of(x), scale_of(scale), amax_of(amax)
        if start % unit or (factor | largest) % FLOAT:
            return tensor_given(call, x, scale.reshape(1), amax.reshape(1))
        codes, inverse = codes_of(), inverse_of()
        act(start, factor, largest, at(codes), at(inverse))
        return codes, inverse

    return again


def _raising(call: Call) -> Callable[[int, int, int, int, int], None]:
    """Return a function of the addresses of a tensor, its scale, an amax to raise, codes, and 1 over the scale."""
    search, to_search = _searching(call)
    encode, number = _each(call, "codes", call.source), c_float.from_address

    def act(start: int, scale: int, amax: int, codes: int, inverse: int) -> None:
        found = c_float()
        words = to_search.words[:]
        words[X], words[FOUND] = start, ctypes.addressof(found)
        search(words)
        largest = number(amax)
        largest.value = max(largest.value, found.value)
        factor = number(scale).value
        number(inverse).value = 1.0 / factor if factor else math.copysign(math.inf, factor)
        encode(start, scale, codes)

    return act


def _searching(call: Call) -> tuple[Callable[[Any], None], jobs.Ready]:
    """Return the search for a tensor's largest magnitude, and its job."""
    count = call.sizes[0] * call.sizes[1]
    job = AmaxJob(Input(None, InputAxis(0, None), InputAxis(1, None), 1, count), None, 0)
    return jobs.runner(bounder(text(maximum(NVFP4)), call.source), count), jobs.ready(job, None)


def tensor_codes(call: Call, x: Any, scale: Any) -> Any:
    """Return the codes of x * scale, computed in float32 and saturating: uint8 of x's matrix [rows, columns].

    call: its specification's element is that of the codes. x: contiguous. scale: float32 [1].

    Errors: DTypeError, ShapeError.

    Rules: TEL-21.
    """
    array = _required("tensor_codes", "x", x, call.source, call.sizes)
    factor = _required("tensor_codes", "scale", scale, "float32", (1,))
    codes = np.empty(call.sizes, np.uint8)
    _each(call, "codes", call.source)(*(address(part) or 0 for part in (array, factor, codes)))
    return arrays.restorer(x)(codes)


def tensor_decode(call: Call, codes: Any, scale: Any) -> Any:
    """Return the values of codes times a scale, computed in float32, rounded to the call's output type.

    Shape: [rows, columns]. scale: float32 [1].

    Errors: DTypeError, ShapeError.

    Rules: DEQ-2, DEQ-3.
    """
    array = _required("tensor_decode", "codes", codes, "uint8", call.sizes)
    factor = _required("tensor_decode", "scale", scale, "float32", (1,))
    values = np.empty(call.sizes, arrays.output_dtype("tensor_decode", call.to))
    _each(call, "values", call.to)(*(address(part) or 0 for part in (array, factor, values)))
    return arrays.restorer(codes)(values)


def bind_tensor_decode(call: Call, codes: Any, scale: Any) -> Callable[[Any, Any], Any] | None:
    """Return a function that decodes other codes of these ones' kind; None for what is copied."""
    if not all(arrays.to_numpy("tensor_decode", each).flags.c_contiguous for each in (codes, scale)):
        return None
    decode, make = _each(call, "values", call.to), jobs.maker(codes, call.sizes, call.to)
    codes_of, scale_of, at = starts(codes), starts(scale), starts(make())

    def again(codes: Any, scale: Any) -> Any:
        factor = scale_of(scale)
        if factor % FLOAT:  # it is copied
            return tensor_decode(call, codes, scale)
        values = make()
        decode(codes_of(codes), factor, at(values))
        return values

    return again


def _each(call: Call, function: str, kind: str) -> Callable[[int, int, int], None]:
    """Return a function of addresses, of what is read, a scale, and what is written, for every element."""
    rows, columns = call.sizes
    run = jobs.runner(_functions(text(call.required), kind)[function], rows * columns)
    ready = jobs.ready(ElementsJob(None, None, None, rows * columns, 0), None)
    return jobs.at_three(run, ready, (SOURCE, FACTOR, OUT), rows * columns)


def _required(operation: str, name: str, value: Any, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of a type and shape, whose elements follow each other."""
    rule = "TEL-8" if operation == "tensor_decode" else "TEL-21"
    array = arrays.to_numpy(operation, value)
    if arrays.dtype_name(value) != dtype:
        raise DTypeError(operation, f"{name} of {arrays.dtype_name(value)}", dtype, rule)
    if array.shape != shape:
        raise ShapeError(operation, f"{name} {list(array.shape)}", f"{list(shape)}", rule)
    array = np.ascontiguousarray(array)
    return array if array.flags.aligned else array.copy()


@lru_cache
def _functions(prelude: str, kind: str) -> dict[str, Any]:
    return dict(zip(FUNCTIONS, functions(tensor_text(prelude, kind), *FUNCTIONS), strict=True))


def tensor_text(prelude: str, kind: str) -> str:
    """Return the text that exports the functions of a tensor under one scale; kind: the type of the wide side."""
    return exported(prelude, "tensor.h", f"Tensor<Specification, fp4ref::{kind}>", *FUNCTIONS)
