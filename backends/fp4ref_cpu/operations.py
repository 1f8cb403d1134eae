"""The operations of the backend, and what a caller compiles before the first call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import fp4ref_numerics
from fp4ref.operands import Epilogue, Operand
from fp4ref.registry import Call
from fp4ref.spec import Granularity
from fp4ref_cpu import gemm
from fp4ref_cpu.blocks import bind_block_codes, bind_block_values, block_codes, block_text, block_values, encoding_text
from fp4ref_cpu.bound import bind_quantize
from fp4ref_cpu.build import CACHE, compile_all, missing
from fp4ref_cpu.columns import bind_column_values, column_text, column_values
from fp4ref_cpu.compiled import bounding_text, maximum, of_direction, quantizing_text, strips, transforming_text
from fp4ref_cpu.native import text, without_hadamard
from fp4ref_cpu.per_tensor import (
    bind_tensor_decode,
    bind_tensor_given,
    bind_tensor_quantize,
    tensor_codes,
    tensor_decode,
    tensor_given,
    tensor_quantize,
    tensor_text,
)
from fp4ref_cpu.quantizing import quantize
from fp4ref_cpu.randoms import bind_random_bits, random_bits, random_text
from fp4ref_cpu.reading import (
    bind_dequantize,
    bind_to_layout,
    decoding,
    dequantize,
    dequantizing_text,
    relayout,
    to_layout,
)
from fp4ref_cpu.turning import bind_turned, turned, turning_text

__all__ = [
    "bind_block_codes",
    "bind_block_values",
    "bind_column_values",
    "bind_dequantize",
    "bind_gemm_blockwise",
    "bind_gemm_exact",
    "bind_gemm_fast",
    "bind_quantize",
    "bind_random_bits",
    "bind_tensor_decode",
    "bind_tensor_given",
    "bind_tensor_quantize",
    "bind_to_layout",
    "bind_turned",
    "block_codes",
    "block_values",
    "column_values",
    "dequantize",
    "gemm_blockwise",
    "gemm_exact",
    "gemm_fast",
    "prefetch",
    "prepare",
    "quantize",
    "random_bits",
    "tensor_codes",
    "tensor_decode",
    "tensor_given",
    "tensor_quantize",
    "to_layout",
    "turned",
]


def prepare() -> None:
    """Compile or find what needs no specification, so that a missing compiler shows before the first call."""
    relayout()


def prefetch(calls: Iterable[Call], tell: Callable[[str], None]) -> None:
    """Compile at once what some calls will need, so that they do not compile one after the other.

    tell: is given a line if that takes a while.
    """
    wanted = [text for call in calls for text in _texts(call)]
    sources = missing(wanted)
    if sources:
        tell(f"compiling {len(sources)} functions for the cpu backend, once; they are kept in {CACHE.writable()}")
        compile_all(sources)


def _texts(call: Call) -> Iterator[str]:
    """Yield the texts that a call needs."""
    if call.operation == "quantize":
        spec = of_direction(call.required, call.direction)
        yield from (quantizing_text(text(spec), call.source, strip) for strip in strips(spec))
        if spec.global_scale is not Granularity.NONE:
            yield bounding_text(text(maximum(spec)), call.source)
        if spec.hadamard is not None:  # for small matrices that come again
            yield transforming_text(text(maximum(spec)))
            yield from _texts(dataclasses.replace(call, spec=without_hadamard(spec)))
    elif call.operation == "dequantize":
        spec = decoding(call.required.replace(hadamard=None))
        source = call.source if fp4ref_numerics.narrows(spec) else "float32"
        yield dequantizing_text(text(spec), source, call.to)
    elif call.multiplies:
        specs = call.required, call.spec_b or call.required
        yield gemm.multiplying_text(*specs)
        if call.operation == "gemm_fast":
            yield from (text for spec in specs for text in _texts(gemm.reading(spec)))
    elif call.operation in {"tensor_quantize", "tensor_given", "tensor_codes", "tensor_decode"}:
        yield tensor_text(text(call.required), call.to if call.operation == "tensor_decode" else call.source)
    elif call.operation == "block_values":
        yield block_text(text(call.required), call.to)
    elif call.operation == "block_codes":
        yield encoding_text(text(call.required), call.source)
    elif call.operation == "column_values":
        yield column_text(text(call.required), call.to)
    elif call.operation == "random_bits":
        yield random_text()
    elif call.operation == "turned":
        yield turning_text()


def gemm_exact(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Return the true sums, rounded once. Rules: GEM-2."""
    return gemm.product("exact", a, b, epilogue)


def gemm_blockwise(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Add one block after the other, in float32. Rules: GEM-4."""
    return gemm.product("blockwise", a, b, epilogue)


def gemm_fast(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Exact operands, multiplied by NumPy's library. Rules: GEM-11."""
    return gemm.product("finish", a, b, epilogue)


def bind_gemm_exact(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Callable[..., Any] | None:
    """Return a function that does for other bytes what `gemm_exact` does for these."""
    return gemm.bind_product("exact", a, b, epilogue)


def bind_gemm_blockwise(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Callable[..., Any] | None:
    """Return a function that does for other bytes what `gemm_blockwise` does for these."""
    return gemm.bind_product("blockwise", a, b, epilogue)


def bind_gemm_fast(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Callable[..., Any] | None:
    """Return a function that does for other bytes what `gemm_fast` does for these."""
    return gemm.bind_product("finish", a, b, epilogue)
