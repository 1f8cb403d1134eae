"""GEMM: operands as pointers to the compiled loops, and the fast path through NumPy's library.

Copied are buffers that are not contiguous.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int, c_longlong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fp4ref_numerics
from fp4ref import arrays
from fp4ref.operands import AlphaRule, Epilogue, Operand, alpha_factor
from fp4ref.quantized import DirectionData
from fp4ref.registry import Call
from fp4ref.spec import Granularity, Spec
from fp4ref_cpu import jobs
from fp4ref_cpu.build import functions
from fp4ref_cpu.maps import Map, lowered
from fp4ref_cpu.native import address, exported, starts
from fp4ref_cpu.reading import decoder
from fp4ref_numerics.products import of_operand

FUNCTIONS = ("exact", "blockwise", "finish")
KINDS = (np.uint8, np.uint8, np.float32)  # of codes, scales and maxima
RESULT_TYPES = ("float32", "bfloat16", "float16")  # as `ResultType` counts them


class Side(ctypes.Structure):
    """One operand."""

    _fields_ = (
        ("data", c_void_p),
        ("scales", c_void_p),
        ("amax", c_void_p),
        ("rows", c_longlong),
        ("map", Map),
    )


class GemmJob(ctypes.Structure):
    """Arguments of a product; `next` counts the tiles that threads have taken."""

    _fields_ = (
        ("a", Side),
        ("b", Side),
        ("columns", c_longlong),
        ("alpha", c_float),
        ("factor", c_float),
        ("division", c_int),
        ("type", c_int),
        ("bias", c_void_p),
        ("accumulate", c_void_p),
        ("sums", c_void_p),
        ("out", c_void_p),
        ("next", c_longlong),
    )


SIDES = tuple(
    jobs.place(GemmJob, side) + jobs.place(Side, part) for side in "ab" for part in ("data", "scales", "amax")
)
ALPHA, BIAS, ADDED, SUMS, OUT = (jobs.place(GemmJob, name) for name in ("alpha", "bias", "accumulate", "sums", "out"))


def product(function: str, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Return a product by compiled loops: "exact", "blockwise", or "finish" behind NumPy's library.

    Rules: GEM-2, GEM-4, GEM-11.
    """
    kept: list[Any] = []

    def pointer(part: Any, dtype: Any) -> int:
        if part is None:
            return 0
        array = np.ascontiguousarray(arrays.to_numpy("gemm", part), dtype)
        kept.append(array if array.flags.aligned else array.copy())
        return address(kept[-1]) or 0

    operands = [pointer(part, np.dtype(kind)) for each in (a, b) for part, kind in zip(each.data, KINDS, strict=True)]
    added = pointer(epilogue.bias, np.float32), pointer(epilogue.accumulate, epilogue.dtype)
    out = np.empty((a.shape[0], b.shape[0]), epilogue.dtype)
    _multiplying(function, a, b, epilogue)(operands, epilogue.alpha, *added, address(out) or 0)
    return arrays.restorer(a.data.data)(out)


def bind_product(function: str, a: Operand, b: Operand, epilogue: Epilogue) -> Callable[..., Any] | None:
    """Return a function that multiplies other bytes of these ones' kinds; None for those that are copied."""
    parts = (*a.data, *b.data)
    if not all(part is None or arrays.to_numpy("gemm", part).flags.c_contiguous for part in parts):
        return None
    multiply, make = _multiplying(function, a, b, epilogue), jobs.maker(a.data.data, _result(a, b), epilogue.dtype.name)
    starts_of = [None if part is None else starts(part) for part in parts]
    at = starts(make())
    readers = _reader(epilogue.bias, np.dtype(np.float32)), _reader(epilogue.accumulate, epilogue.dtype)

    def again(left: DirectionData, right: DirectionData, end: Epilogue) -> Any:
        operands = [start(part) if start else 0 for start, part in zip(starts_of, (*left, *right), strict=True)]
        (bias, _kept), (added, _too) = (read(part) for read, part in zip(readers, end[1:3], strict=True))
        out = make()
        multiply(operands, end.alpha, bias, added, at(out))
        return out

    return again


def _reader(like: Any, dtype: np.dtype[Any]) -> Callable[[Any], tuple[int, Any]]:
    """Return a function of arrays like one: an address at which a product reads its values, and what has to stay alive.

    Copied are arrays of another type, and those with gaps.
    """
    if like is None:
        return lambda part: (0, None)
    array, copy = arrays.to_numpy("gemm", like), _copier(like, dtype)
    if array.dtype != dtype or not array.flags.c_contiguous:
        return copy
    start_of, unit = starts(like), dtype.itemsize

    def there(part: Any) -> tuple[int, Any]:
        start = start_of(part)
        return copy(part) if start % unit else (start, part)

    return there


def _copier(like: Any, dtype: np.dtype[Any]) -> Callable[[Any], tuple[int, Any]]:
    """Return a function that copies arrays of a library to another type, without gaps: addresses, and the copies."""
    if not arrays.is_torch(like):

        def of_numpy(part: Any) -> tuple[int, Any]:
            values = arrays.to_numpy("gemm", part).astype(dtype, order="C")
            return address(values) or 0, values

        return of_numpy
    import torch

    kind = getattr(torch, dtype.name)

    def of_torch(part: Any) -> tuple[int, Any]:
        made = torch.empty(part.shape, dtype=kind).copy_(part.detach())
        return made.data_ptr(), made

    return of_torch


def _result(a: Operand, b: Operand) -> tuple[int, int]:
    return a.shape[0], b.shape[0]


def _multiplying(
    function: str, a: Operand, b: Operand, epilogue: Epilogue
) -> Callable[[Sequence[int], Any, int, int, int], None]:
    """Return a function of the addresses of both operands' buffers, alpha, and those of bias, addend and result."""
    (rows, columns), depth = _result(a, b), a.shape[1]
    if not rows * columns:
        return lambda *_: None
    maps = [lowered(each.scale_layout, each.shape[0], -(-depth // each.spec.block.columns)) for each in (a, b)]
    factor, division = alpha_factor(a.spec, b.spec), epilogue.alpha_rule is AlphaRule.DIVISION
    sides = (Side(None, None, None, each.shape[0], form) for each, form in zip((a, b), maps, strict=True))
    usual, type_ = epilogue.alpha, RESULT_TYPES.index(epilogue.dtype.name)
    ready = jobs.ready(GemmJob(*sides, depth, usual, 0 if factor is None else factor, division, type_), maps)
    loops = _loops(of_operand(a.spec, a.spec.global_scale), of_operand(b.spec, b.spec.global_scale))
    summed = _summed(a, b) if function == "finish" else None
    run = jobs.runner(loops[function], rows * columns * (1 if summed else max(depth, 1)))

    def multiply(operands: Sequence[int], alpha: Any, bias: int, added: int, out: int) -> None:
        words = ready.words[:]
        for word, start in zip(SIDES, operands, strict=True):
            words[word] = start
        words[BIAS], words[ADDED], words[OUT] = bias, added, out
        if alpha is not usual:
            GemmJob.from_buffer(words).alpha = alpha
        if summed:
            sums = summed(operands)
            words[SUMS] = address(sums) or 0
        run(words)

    return multiply


def _summed(a: Operand, b: Operand) -> Callable[[Sequence[int]], NDArray[np.float32]]:
    """Return a function of addresses whose result are sums by NumPy's library: of values code * scale, in float32."""
    shapes = a.shape, b.shape
    first, second = (decoder(reading(each.spec, layout=each.scale_layout, shape=each.shape)) for each in (a, b))

    def summed(operands: Sequence[int]) -> NDArray[np.float32]:
        left, right = (np.empty(shape, np.float32) for shape in shapes)
        first(operands[0], operands[1], 0, address(left) or 0)
        second(operands[3], operands[4], 0, address(right) or 0)
        with np.errstate(all="ignore"):
            result: NDArray[np.float32] = left @ right.T
        return result

    return summed


def reading(spec: Spec, **details: Any) -> Call:
    """Return the call that reads an operand of the fast path."""
    return Call("dequantize", of_operand(spec, Granularity.NONE), **details)


@lru_cache
def _loops(a: Spec, b: Spec) -> dict[str, Any]:
    return dict(zip(FUNCTIONS, functions(_text(a, b), *FUNCTIONS), strict=True))


def multiplying_text(a: Spec, b: Spec) -> str:
    """Return the text that exports the products of two specifications."""
    return _text(of_operand(a, a.global_scale), of_operand(b, b.global_scale))


def _text(a: Spec, b: Spec) -> str:
    prelude = fp4ref_numerics.lower(a, "A") + fp4ref_numerics.lower(b, "B")
    return exported(prelude, "gemm.h", "Gemm<A, B>", *FUNCTIONS, job="GemmJob")
