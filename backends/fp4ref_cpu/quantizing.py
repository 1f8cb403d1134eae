"""Quantize: any strided input as a matrix for the compiled loops, maxima first.

Inputs are read where they are, whatever their strides. Copied are: an input that is not aligned, random bits that are
not contiguous, and results for an `out` that is not contiguous.
"""

from __future__ import annotations

import ctypes
from ctypes import c_longlong, c_void_p
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays, packing
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3
from fp4ref.quantized import DirectionChoice, DirectionData
from fp4ref.registry import Call
from fp4ref.spec import Block, Granularity, Spec
from fp4ref_cpu import threads
from fp4ref_cpu.build import functions
from fp4ref_cpu.maps import Map, lowered, write_padding
from fp4ref_cpu.native import address, buffer_of, exported, result_in, text, without_hadamard


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


def quantize(
    call: Call, x: Any, amax: NDArray[np.float32] | None, random_bits: Any, out: DirectionData | None
) -> DirectionData:
    """Quantize one direction; with `out`, into its buffers. Rules: BLK-8, BLK-9, GLB-1, LAY-5."""
    array = arrays.to_numpy("quantize", x)
    if not array.flags.aligned:
        array = array.copy()
    given = None if out is None else out.mapped(buffer_of)
    matrix, kept = _input(array, call.direction)
    rows, columns = matrix.rows, matrix.columns
    spec = of_direction(call.required, call.direction)
    blocks = -(-columns // spec.block.columns)
    native = _quantizer(text(spec), array.dtype.name)
    if amax is None and spec.global_scale is not Granularity.NONE:
        amax = _amax(_bounder(text(maximum(spec)), array.dtype.name), matrix, spec)
    data = result_in(given and given.data, (rows, packing.width(columns, spec.element.format)))
    scales = result_in(given and given.scales, call.layout.padded_shape(rows, blocks))
    if scales.shape != (rows, blocks):
        scales[...] = 0
        write_padding(scales, call.layout, rows, blocks)
    bits = None if random_bits is None else np.ascontiguousarray(arrays.to_numpy("quantize", random_bits))
    if rows and columns:
        pointers = (address(amax), address(bits), address(data), address(scales))
        job = QuantizeJob(matrix, *pointers, lowered(call.layout, rows, blocks), 0)
        threads.run(native, job, rows * columns)
    del kept
    if given is None:
        restore = arrays.restorer(x)
        return DirectionData(restore(data), restore(scales), None if amax is None else restore(amax))
    for buffer, value in zip(given, (data, scales, amax), strict=True):
        if value is not None and value is not buffer:
            buffer[...] = value
    assert out is not None
    return out


def of_direction(spec: Spec, direction: DirectionChoice) -> Spec:
    """Return the specification without a transform where there is none."""
    return without_hadamard(spec) if direction == "row" and spec.hadamard else spec


@lru_cache
def maximum(spec: Spec) -> Spec:
    """Return the specification without what a maximum does not depend on, so that many share one compiled function."""
    return Spec(
        name="maximum",
        element=CUDA_E2M1,
        scale=CUDA_E4M3,
        block=Block(1, 16),
        global_scale=spec.global_scale,
        amax=spec.amax,
        subnormals=spec.subnormals,
        hadamard=spec.hadamard,
    )


@lru_cache
def _quantizer(prelude: str, dtype: str) -> Any:
    return functions(quantizing_text(prelude, dtype), "quantize")[0]


@lru_cache
def _bounder(prelude: str, dtype: str) -> Any:
    return functions(bounding_text(prelude, dtype), "amax")[0]


def quantizing_text(prelude: str, dtype: str) -> str:
    """Return the text that exports `quantize` for a lowered specification and an input type."""
    return exported(prelude, "quantize.h", f"Loops<Specification, fp4ref::{dtype}>", "quantize")


def bounding_text(prelude: str, dtype: str) -> str:
    """Return the text that exports `amax` for a lowered specification and an input type."""
    return exported(prelude, "quantize.h", f"Loops<Specification, fp4ref::{dtype}>", "amax")


def _amax(native: Any, matrix: Input, spec: Spec) -> NDArray[np.float32]:
    """Return the maximum of the tensor, or of every row. Rules: GLB-1, GLB-5, HAD-4."""
    rows, columns = matrix.rows, matrix.columns
    by_row = spec.global_scale is Granularity.ROW
    result = np.zeros(rows if by_row else 1, np.float32)
    if not by_row and not spec.hadamard and matrix.along.stride != 1:  # any order will do
        matrix = Input(matrix.x, matrix.along, matrix.down, columns, rows)
    if not by_row and not spec.hadamard and _is_flat(matrix):
        matrix = Input(matrix.x, InputAxis(0, None), matrix.along, 1, rows * columns)
    if rows and columns:
        threads.run(native, AmaxJob(matrix, address(result), 0), rows * columns)
    return result


def _is_flat(matrix: Input) -> bool:
    """Return True if every row follows the one before it in memory."""
    down, along = matrix.down, matrix.along
    return not down.offsets and not along.offsets and along.stride == 1 and down.stride == matrix.columns


def _input(array: NDArray[Any], direction: DirectionChoice) -> tuple[Input, Any]:
    """Return the [M, K] matrix of a tensor, or its transpose; and what has to stay alive. Rules: NUM-4, BLK-8."""
    *leading, columns = array.shape
    rows = int(np.prod(leading, dtype=np.int64))
    *strides, last = (stride // array.itemsize for stride in array.strides)
    down, table = _flattened(leading, strides)
    along = InputAxis(last, None)
    if direction == "column":
        return Input(array.ctypes.data, along, down, columns, rows), table
    return Input(array.ctypes.data, down, along, rows, columns), table


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
