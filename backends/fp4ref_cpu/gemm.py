"""GEMM: operands as pointers to the compiled loops, and the fast path through NumPy's library.

Copied are buffers that are not contiguous.
"""

from __future__ import annotations

import ctypes
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
from fp4ref_cpu import threads
from fp4ref_cpu.build import functions
from fp4ref_cpu.maps import Map, lowered
from fp4ref_cpu.native import address, exported
from fp4ref_cpu.reading import dequantize
from fp4ref_numerics.products import of_operand

FUNCTIONS = ("exact", "blockwise", "finish")
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


def native(mode: str, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """exact or blockwise, in compiled loops. Rules: GEM-2, GEM-4."""
    return _run(mode, a, b, epilogue, None)


def fast(a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Values code * scale, multiplied by NumPy's library in float32. Rules: GEM-11."""
    with np.errstate(all="ignore"):
        return _run("finish", a, b, epilogue, _values(a) @ _values(b).T)


def _values(operand: Operand) -> NDArray[np.float32]:
    codes, scales, _ = operand.data
    data = DirectionData(arrays.to_numpy("gemm", codes), arrays.to_numpy("gemm", scales), None)
    call = reading(operand.spec, layout=operand.scale_layout, shape=operand.shape)
    result: NDArray[np.float32] = dequantize(call, data, None)
    return result


def reading(spec: Spec, **details: Any) -> Call:
    """Return the call that reads an operand of the fast path."""
    return Call("dequantize", of_operand(spec, Granularity.NONE), **details)


def _run(function: str, a: Operand, b: Operand, epilogue: Epilogue, sums: NDArray[np.float32] | None) -> Any:
    kept: list[Any] = [sums]

    def pointer(part: Any, dtype: Any) -> int | None:
        if part is None:
            return None
        kept.append(np.ascontiguousarray(arrays.to_numpy("gemm", part), dtype))
        return address(kept[-1])

    def side(operand: Operand) -> Side:
        codes, scales, amax = operand.data
        pointers = (pointer(codes, np.uint8), pointer(scales, np.uint8), pointer(amax, np.float32))
        rows, columns = operand.shape
        blocks = -(-columns // operand.spec.block.columns)
        return Side(*pointers, rows, lowered(operand.scale_layout, rows, blocks))

    rows, columns, depth = a.shape[0], b.shape[0], a.shape[1]
    out = np.empty((rows, columns), epilogue.dtype)
    factor = alpha_factor(a.spec, b.spec)
    added = pointer(epilogue.bias, np.float32), pointer(epilogue.accumulate, epilogue.dtype)
    division = epilogue.alpha_rule is AlphaRule.DIVISION
    type_ = RESULT_TYPES.index(out.dtype.name)
    numbers = depth, epilogue.alpha, 0 if factor is None else factor, division, type_
    job = GemmJob(side(a), side(b), *numbers, *added, address(sums), address(out), 0)
    if out.size:
        loops = _loops(of_operand(a.spec, a.spec.global_scale), of_operand(b.spec, b.spec.global_scale))
        steps = max(depth, 1) if sums is None else 1  # of each element
        threads.run(loops[function], job, out.size * steps)
    return arrays.restorer(a.data.data)(out)


@lru_cache
def _loops(a: Spec, b: Spec) -> dict[str, Any]:
    return dict(zip(FUNCTIONS, functions(_text(a, b), *FUNCTIONS), strict=True))


def multiplying_text(a: Spec, b: Spec) -> str:
    """Return the text that exports the products of two specifications."""
    return _text(of_operand(a, a.global_scale), of_operand(b, b.global_scale))


def _text(a: Spec, b: Spec) -> str:
    prelude = fp4ref_numerics.lower(a, "A") + fp4ref_numerics.lower(b, "B")
    return exported(prelude, "gemm.h", "Gemm<A, B>", *FUNCTIONS, job="GemmJob")
