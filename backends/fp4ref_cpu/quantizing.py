"""Quantize: any strided input as a matrix for the compiled loops, maxima first.

Inputs are read where they are, whatever their strides. Copied are: an input that is not aligned, random bits that are
not contiguous, and results for an `out` that is not contiguous.
"""

from __future__ import annotations

import ctypes
import dataclasses
from ctypes import c_longlong, c_void_p
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays, packing
from fp4ref.layout import LINEAR, Layout
from fp4ref.quantized import DirectionChoice, DirectionData
from fp4ref.registry import Call
from fp4ref.spec import Granularity, Spec
from fp4ref_cpu import threads
from fp4ref_cpu.compiled import bounder, maximum, of_direction, quantizer, strip_of
from fp4ref_cpu.maps import Map, lowered, write_padding
from fp4ref_cpu.native import address, buffer_of, result_in, text


class InputAxis(ctypes.Structure):
    """The dependence of an element's offset, counted in elements, on one index."""

    _fields_ = (("stride", c_longlong), ("offsets", c_void_p))


class Input(ctypes.Structure):
    """A matrix [rows, columns] as the quantizer walks it."""

    _fields_ = (
        ("x", c_void_p),
        ("down", InputAxis),
        ("along", InputAxis),
        ("rows", c_longlong),
        ("columns", c_longlong),
    )


class QuantizeJob(ctypes.Structure):
    """Arguments of `quantize`; `next` counts the units that threads have taken."""

    _fields_ = (
        ("input", Input),
        ("amax", c_void_p),
        ("random", c_void_p),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("map", Map),
        ("next", c_longlong),
    )


class AmaxJob(ctypes.Structure):
    """Arguments of `amax`."""

    _fields_ = (("input", Input), ("amax", c_void_p), ("next", c_longlong))


class TransformJob(ctypes.Structure):
    """Arguments of `transform`."""

    _fields_ = (("input", Input), ("out", c_void_p), ("next", c_longlong))


class Prepared(NamedTuple):
    """Everything that quantizing one direction needs besides the arrays; the jobs lack addresses.

    rows, columns: of the direction. data, scales: shapes of the buffers. padded: True if scales are written with
    padding. amax: number of maxima, None without a global scale. kept: the tables that the jobs point to.
    """

    rows: int
    columns: int
    data: tuple[int, int]
    scales: tuple[int, int]
    padded: bool
    amax: int | None
    quantize: Any
    search: Any
    quantize_job: QuantizeJob
    search_job: AmaxJob
    kept: Any


def quantize(
    call: Call, x: Any, amax: NDArray[np.float32] | None, random_bits: Any, out: DirectionData | None
) -> DirectionData:
    """Quantize one direction; with `out`, into its buffers. Rules: BLK-8, BLK-9, GLB-1, LAY-5."""
    if call.layout.form.repeated:
        return _into_shared_places(call, x, amax, random_bits, out)
    array = arrays.to_numpy("quantize", x)
    if not array.flags.aligned:
        array = array.copy()
    given = None if out is None else out.mapped(buffer_of)
    ready = ready_for(call, array)
    start = address(array)
    if amax is None and ready.amax is not None:
        amax = _amax(ready, start)
    data = result_in(given and given.data, ready.data)
    scales = result_in(given and given.scales, ready.scales)
    bits = None if random_bits is None else np.ascontiguousarray(arrays.to_numpy("quantize", random_bits))
    _encode(call, ready, start, amax, bits, data, scales)
    return _given_back(DirectionData(data, scales, amax), x, out, given)


def _into_shared_places(call: Call, x: Any, amax: Any, random_bits: Any, out: DirectionData | None) -> DirectionData:
    """Quantize where several scales share a place, in which they must agree. Rules: LAY-46."""
    found = quantize(dataclasses.replace(call, layout=LINEAR), x, amax, random_bits, None)
    made = found.mapped(lambda part: arrays.to_numpy("quantize", part))
    given = None if out is None else out.mapped(buffer_of)
    return _given_back(made._replace(scales=call.layout.from_linear(made.scales)), x, out, given)


def _given_back(made: DirectionData, x: Any, out: DirectionData | None, given: DirectionData | None) -> DirectionData:
    """Return results as arrays of the input's library, or in `out`, the caller's buffers; `given` are its arrays."""
    if out is None or given is None:
        return made.mapped(arrays.restorer(x))
    for buffer, value in zip(given, made, strict=True):
        if value is not None and value is not buffer:
            buffer[...] = value
    return out


def has_strides(array: NDArray[Any]) -> bool:
    """Return True if the rows of an array's matrix need no table, which can be large."""
    return array.ndim <= 2 or array.flags.c_contiguous


def ready_for(call: Call, array: NDArray[Any]) -> Prepared:
    """Return the plan that quantizes arrays of the same kind; it is remembered unless its tables can be large."""
    prepare = _prepared if has_strides(array) else _prepare
    return prepare(call.required, call.layout, call.direction, arrays.dtype_name(array), array.shape, array.strides)


def _encode(
    call: Call,
    ready: Prepared,
    start: int | None,
    amax: NDArray[np.float32] | None,
    bits: NDArray[np.uint8] | None,
    data: NDArray[np.uint8],
    scales: NDArray[np.uint8],
) -> None:
    """Fill the buffers of one direction; `start` is the address of the input."""
    if ready.padded:
        scales[...] = 0
        write_padding(scales, call.layout, ready.rows, -(-ready.columns // call.required.block.columns))
    _start(ready, start, amax, bits, address(data), address(scales))


def _start(
    ready: Prepared,
    start: int | None,
    amax: NDArray[np.float32] | None,
    bits: NDArray[np.uint8] | None,
    data: int | None,
    scales: int | None,
) -> None:
    """Fill buffers at addresses, but for the padding."""
    if ready.rows and ready.columns:
        job = QuantizeJob.from_buffer_copy(ready.quantize_job)
        job.input.x = start
        job.amax, job.random, job.data, job.scales = address(amax), address(bits), data, scales
        threads.run(ready.quantize, job, ready.rows * ready.columns)


def _prepare(
    spec: Spec, form: Layout, direction: DirectionChoice, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Prepared:
    """Work out the jobs for arrays of one shape."""
    spec = of_direction(spec, direction)
    matrix, tables = _input(shape, strides, arrays.INPUT_DTYPES[dtype].itemsize, direction)
    rows, columns = matrix.rows, matrix.columns
    blocks = -(-columns // spec.block.columns)
    scales = form.padded_shape(rows, blocks)
    searched = spec.global_scale is not Granularity.NONE
    by_row = spec.global_scale is Granularity.ROW
    map_ = lowered(form, rows, blocks)
    return Prepared(
        rows,
        columns,
        (rows, packing.width(columns, spec.element.format)),
        scales,
        scales != (rows, blocks),
        (rows if by_row else 1) if searched else None,
        quantizer(text(spec), dtype, strip_of(spec, rows, columns)),
        bounder(text(maximum(spec)), dtype) if searched else None,
        QuantizeJob(matrix, None, None, None, None, map_, 0),
        AmaxJob(_as_searched(matrix, spec), None, 0),
        (tables, map_),
    )


_prepared = lru_cache(maxsize=1024)(_prepare)


def _amax(ready: Prepared, start: int | None) -> NDArray[np.float32]:
    """Return the maximum of the tensor, or of every row. Rules: GLB-1, GLB-5, HAD-4."""
    assert ready.amax is not None
    result = np.zeros(ready.amax, np.float32)
    if ready.rows and ready.columns:
        job = AmaxJob.from_buffer_copy(ready.search_job)
        job.input.x, job.amax = start, address(result)
        threads.run(ready.search, job, ready.rows * ready.columns)
    return result


def _as_searched(matrix: Input, spec: Spec) -> Input:
    """Return the matrix as a search for its maximum walks through it: any order will do, but for maxima of rows."""
    if spec.global_scale is Granularity.ROW or spec.hadamard:
        return matrix
    down, along, rows, columns = matrix.down, matrix.along, matrix.rows, matrix.columns
    if along.stride != 1:
        down, along, rows, columns = along, down, columns, rows
    if not down.offsets and not along.offsets and along.stride == 1 and down.stride == columns:
        return Input(None, InputAxis(0, None), along, 1, rows * columns)  # every row follows the one before it
    return Input(None, down, along, rows, columns)


def _input(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, direction: DirectionChoice
) -> tuple[Input, Any]:
    """Return the [M, K] matrix of a tensor, or its transpose; and what has to stay alive. Rules: NUM-4, BLK-8."""
    *leading, columns = shape
    rows = int(np.prod(leading, dtype=np.int64))
    *steps, last = (stride // itemsize for stride in strides)
    down, table = _flattened(leading, steps)
    along = InputAxis(last, None)
    if direction == "column":
        return Input(None, along, down, columns, rows), table
    return Input(None, down, along, rows, columns), table


def _flattened(shape: list[int], strides: list[int]) -> tuple[InputAxis, Any]:
    """Several axes as one: a stride if they have one, else a table of offsets."""
    axes = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    if not axes or 0 in shape:
        return InputAxis(0, None), None
    if all(outer == size * inner for (_, outer), (size, inner) in pairwise(axes)):
        return InputAxis(axes[-1][1], None), None
    table = np.zeros(1, np.int64)
    for size, stride in axes:
        table = (table[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
    return InputAxis(0, address(table)), table
