"""The operations: arrays in, pointers and strides to the compiled loops, arrays of the caller's kind out.

Inputs are read where they lie, whatever their strides. Copied are: an input that is not aligned; random bits, codes and
scales that are not contiguous; results for an `out` that is not contiguous.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterable
from ctypes import c_longlong, c_ulonglong, c_void_p
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fp4ref_numerics
from fp4ref import arrays, packing
from fp4ref.errors import BackendError, ShapeError
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, Codec
from fp4ref.hadamard import POINTS
from fp4ref.operands import Counters, Epilogue, Operand
from fp4ref.quantized import DirectionChoice, DirectionData
from fp4ref.registry import Call
from fp4ref.spec import Amax, Block, FourOverSix, Granularity, Spec
from fp4ref_cpu import threads
from fp4ref_cpu.build import CACHE, compile_all, functions, missing
from fp4ref_cpu.maps import Map, lowered, write_padding


class InputAxis(ctypes.Structure):
    """How the offset of an element, counted in elements, depends on one index."""

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


class RandomJob(ctypes.Structure):
    """Arguments of `random`."""

    _fields_ = (
        ("out", c_void_p),
        ("rows", c_longlong),
        ("columns", c_longlong),
        ("first_row", c_ulonglong),
        ("first_block", c_ulonglong),
        ("across", c_ulonglong),
        ("seed", c_ulonglong),
        ("upper", c_ulonglong),
        ("next", c_longlong),
    )


def prepare() -> None:
    """Compile or find what needs no specification, so that a missing compiler shows before the first call."""
    _relayout()


def prefetch(calls: Iterable[Call], tell: Callable[[str], None]) -> None:
    """Compile at once what some calls will need, so that they do not compile one after the other.

    tell: is given a line if that takes a while.
    """
    wanted = []
    for call in calls:
        if call.operation == "quantize":
            spec = _of_direction(call.required, call.direction)
            wanted.append(_quantizing(_text(spec), call.source))
            if spec.global_scale is not Granularity.NONE:
                wanted.append(_bounding(_text(_maximum(spec)), call.source))
        else:
            spec = call.required.replace(hadamard=None)
            source = call.source if fp4ref_numerics.narrows(spec) else "float32"
            wanted.append(_dequantizing(_text(_decoding(spec)), source, call.to))
    sources = missing(wanted)
    if sources:
        tell(f"compiling {len(sources)} functions for the cpu backend, once; they are kept in {CACHE.writable()}")
        compile_all(sources)


def quantize(
    call: Call, x: Any, amax: NDArray[np.float32] | None, random_bits: Any, out: DirectionData | None
) -> DirectionData:
    """Quantize one direction; with `out`, into its buffers. Rules: BLK-8, BLK-9, GLB-1, LAY-5."""
    array = arrays.to_numpy("quantize", x)
    if not array.flags.aligned:
        array = array.copy()
    given = None if out is None else DirectionData(*(None if part is None else _buffer(part) for part in out))
    if given is not None:
        _require_apart("quantize", [part for part in given if part is not None], array)
    matrix, kept = _input(array, call.direction)
    rows, columns = matrix.rows, matrix.columns
    spec = _of_direction(call.required, call.direction)
    blocks = -(-columns // spec.block.columns)
    native = _quantizer(_text(spec), array.dtype.name)
    if amax is None and spec.global_scale is not Granularity.NONE:
        amax = _amax(_bounder(_text(_maximum(spec)), array.dtype.name), matrix, spec)
    data = _result(given and given.data, (rows, packing.width(columns, spec.element.format)))
    scales = _result(given and given.scales, call.layout.padded_shape(rows, blocks))
    if scales.shape != (rows, blocks):
        scales[...] = 0
        write_padding(scales, call.layout, rows, blocks)
    bits = None if random_bits is None else np.ascontiguousarray(arrays.to_numpy("quantize", random_bits))
    if rows and columns:
        pointers = (_address(amax), _address(bits), _address(data), _address(scales))
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


def dequantize(call: Call, data: DirectionData, out: Any) -> Any:
    """Compute the values [rows, columns] of one direction; with `out`, contiguous, into it.

    Rules: DEQ-1, DEQ-2, DEQ-3, HAD-6, LAY-6.
    """
    parts = [None if part is None else np.ascontiguousarray(arrays.to_numpy("dequantize", part)) for part in data]
    spec, shape = call.required, call.encoded
    if spec.hadamard and not call.inverse_hadamard:
        spec = _without_hadamard(spec)
    if spec.hadamard and shape[1] % POINTS:
        raise ShapeError("dequantize", f"hadamard of {shape[1]} rows", f"a multiple of {POINTS}", "HAD-5")
    values = np.empty(shape, arrays.output_dtype("dequantize", call.to)) if out is None else _buffer(out, "dequantize")
    if out is not None:
        _require_apart("dequantize", [values], *(part for part in parts if part is not None))
    read = call.source if fp4ref_numerics.narrows(spec) else "float32"
    native = _dequantizer(_text(_decoding(spec)), read, call.to)
    if values.size:
        codes, scales, amax = map(_address, parts)
        order = lowered(call.layout, shape[0], -(-shape[1] // spec.block.columns))
        job = DequantizeJob(codes, scales, amax, *shape, _address(values), order, 0)
        threads.run(native, job, values.size)
    return arrays.restorer(data.data)(values) if out is None else out


def to_layout(call: Call, scales: Any) -> Any:
    """Move scale bytes from one layout to another, padding written as zero. Rules: LAY-5, LAY-6."""
    assert call.target is not None
    rows, columns = call.encoded
    buffer = np.ascontiguousarray(arrays.to_numpy("to_layout", scales))
    padded = call.target.padded_shape(rows, columns)
    out = np.empty(padded, np.uint8) if padded == (rows, columns) else np.zeros(padded, np.uint8)
    write_padding(out, call.target, rows, columns)
    if rows and columns:
        maps = lowered(call.layout, rows, columns), lowered(call.target, rows, columns)
        job = RelayoutJob(_address(buffer), _address(out), rows, columns, *maps, 0)
        threads.run(_relayout(), job, rows * columns)
    return arrays.restorer(scales)(out)


def random_bits(call: Call, counters: Counters, device: Any, out: Any) -> Any:
    """Make random bytes uint8 of a part of a direction's matrix; with `out`, into it. Rules: SR-7, SR-8."""
    buffer = None if out is None else _buffer(out)
    result = _result(buffer, call.encoded)
    if result.size:
        origin, *rest = counters
        job = RandomJob(_address(result), *call.encoded, *origin, *rest, 0)
        threads.run(_randoms(), job, result.size)
    if buffer is None:
        return arrays.on_device("random_bits", result, device)
    if result is not buffer:
        buffer[...] = result
    return out


def gemm_exact(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """The true sums, rounded once. Rules: GEM-2."""
    from fp4ref_cpu import gemm

    return gemm.native("exact", a, b, epilogue)


def gemm_blockwise(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """One block after the other, in float32. Rules: GEM-4."""
    from fp4ref_cpu import gemm

    return gemm.native("blockwise", a, b, epilogue)


def gemm_fast(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Exact operands, multiplied by NumPy's library. Rules: GEM-11."""
    from fp4ref_cpu import gemm

    return gemm.fast(a, b, epilogue)


def _of_direction(spec: Spec, direction: DirectionChoice) -> Spec:
    """The specification without a transform where there is none."""
    return _without_hadamard(spec) if direction == "row" and spec.hadamard else spec


@lru_cache
def _text(spec: Spec) -> str:
    return fp4ref_numerics.lower(spec)


@lru_cache
def _without_hadamard(spec: Spec) -> Spec:
    return spec.replace(hadamard=None)


@lru_cache
def _decoding(spec: Spec) -> Spec:
    """The specification without what only quantizing reads, so that many share one compiled library."""
    search = spec.four_over_six
    return dataclasses.replace(
        spec,
        element=Codec(format=spec.element.format, nan=(0, 0)),
        scale=Codec(format=spec.scale.format, rounding=spec.scale.rounding, nan=(0, 0)),
        block=Block(1, spec.block.columns),
        amax=Amax.IGNORE_NAN,
        four_over_six=search and FourOverSix(scale_max=search.scale_max),
    )


@lru_cache
def _maximum(spec: Spec) -> Spec:
    """The specification without what a maximum does not depend on, so that many share one compiled function."""
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
    return functions(_quantizing(prelude, dtype), "quantize")[0]


@lru_cache
def _bounder(prelude: str, dtype: str) -> Any:
    return functions(_bounding(prelude, dtype), "amax")[0]


@lru_cache
def _dequantizer(prelude: str, source: str, dtype: str) -> Any:
    return functions(_dequantizing(prelude, source, dtype), "dequantize")[0]


@lru_cache
def _relayout() -> Any:
    return functions(exported("", "relayout.h", "Bytes", "relayout"), "relayout")[0]


@lru_cache
def _randoms() -> Any:
    return functions(exported("", "random.h", "Randoms", "random"), "random")[0]


def _quantizing(prelude: str, dtype: str) -> str:
    return exported(prelude, "quantize.h", f"Loops<Specification, fp4ref::{dtype}>", "quantize")


def _bounding(prelude: str, dtype: str) -> str:
    return exported(prelude, "quantize.h", f"Loops<Specification, fp4ref::{dtype}>", "amax")


def _dequantizing(prelude: str, source: str, dtype: str) -> str:
    loops = f"Values<Specification, fp4ref::{source}, fp4ref::{dtype}>"
    return exported(prelude, "dequantize.h", loops, "dequantize")


def exported(prelude: str, header: str, loops: str, *names: str, job: str = "") -> str:
    """A text with functions `fp4ref_NAME_@(job)` around the static functions of a type.

    job: its C++ type, if not named after the function.
    """
    wrappers = "".join(
        f'extern "C" __attribute__((visibility("default"))) '
        f"void fp4ref_{name}_@({job or name.capitalize() + 'Job'}* job)\n"
        f"{{\n    const FloatModes modes;\n    {loops}::{name}(*job);\n}}\n"
        for name in names
    )
    return f'#include "{header}"\nnamespace text_@ {{\nusing namespace fp4ref_cpu;\n{prelude}{wrappers}}}\n'


def _amax(native: Any, matrix: Input, spec: Spec) -> NDArray[np.float32]:
    """The maximum of the tensor, or of every row. Rules: GLB-1, GLB-5, HAD-4."""
    rows, columns = matrix.rows, matrix.columns
    by_row = spec.global_scale is Granularity.ROW
    result = np.zeros(rows if by_row else 1, np.float32)
    if not by_row and not spec.hadamard and matrix.along.stride != 1:  # any order will do
        matrix = Input(matrix.x, matrix.along, matrix.down, columns, rows)
    if rows and columns:
        threads.run(native, AmaxJob(matrix, _address(result), 0), rows * columns)
    return result


def _input(array: NDArray[Any], direction: DirectionChoice) -> tuple[Input, Any]:
    """The [M, K] matrix of a tensor, or its transpose; and what has to stay alive. Rules: NUM-4, BLK-8."""
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
    return InputAxis(0, _address(table)), table


def _buffer(part: Any, operation: str = "quantize") -> NDArray[Any]:
    buffer = arrays.to_numpy(operation, part)
    if not buffer.flags.writeable:
        raise BackendError(operation, "an out buffer that is read-only", "a writable one", "CNF-5")
    return buffer


def _require_apart(operation: str, buffers: list[NDArray[Any]], *inputs: NDArray[Any]) -> None:
    """Refuse buffers that overlap each other or the input, by the bounds of their memory."""
    for i, buffer in enumerate(buffers):
        if any(np.may_share_memory(buffer, other) for other in (*inputs, *buffers[:i])):
            raise BackendError(operation, "an out buffer that overlaps the input or another", "memory of its own")


def _result(buffer: NDArray[Any] | None, shape: tuple[int, int]) -> NDArray[Any]:
    """The caller's buffer if it is contiguous, else a new one."""
    return buffer if buffer is not None and buffer.flags.c_contiguous else np.empty(shape, np.uint8)


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data
