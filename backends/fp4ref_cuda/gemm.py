"""Products of quantized tensors, as the public `gemm` computes them.

One kernel makes exact and block-wise sums of integers. The fast mode lets cuBLASLt multiply matrices of bfloat16 where
it has a product and there is enough to do; the block-wise sums are within its bound too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import fp4ref_numerics
from fp4ref import arrays
from fp4ref.layout import Layout
from fp4ref.operands import AlphaRule, Epilogue, Operand, alpha_factor
from fp4ref.quantized import DirectionData
from fp4ref.registry import Call
from fp4ref.spec import Granularity, Spec
from fp4ref_cuda import buffers, cublas, programs
from fp4ref_cuda.buffers import FRESH, Library, pointer
from fp4ref_cuda.launch import launch, rehearsing, run
from fp4ref_cuda.plan import Plan, remember
from fp4ref_cuda.reading import dequantized
from fp4ref_cuda.words import float_bits
from fp4ref_numerics.layouts import lower_layout
from fp4ref_numerics.products import of_operand, span_of_sums

TILE = 32  # rows and columns of the results that a block of threads makes
FEW = 1 << 24  # products that one kernel makes sooner than the library's four


def gemm_exact(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Return the true sums, rounded once. Rules: GEM-2, GEM-3."""
    return _served(call, a, b, epilogue)


def gemm_blockwise(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Add one block after the other, in float32. Rules: GEM-3, GEM-4."""
    return _served(call, a, b, epilogue)


def gemm_fast(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Add products of exact operands in float32. Rules: GEM-11."""
    return _served(call, a, b, epilogue)


def bind(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Callable[..., Any] | None:
    """Return a function that multiplies other operands of these ones' kinds, given their bytes and what follows."""
    bound = programs.bind(_kind(a, epilogue), call, (*a.data, *b.data, epilogue.bias, epilogue.accumulate))
    if bound is None:
        return None
    alpha = epilogue.alpha.tobytes()
    of_a, of_b = (operand._replace(data=DirectionData(None, None, None)) for operand in (a, b))  # holds no bytes

    def again(left: DirectionData, right: DirectionData, end: Epilogue) -> Any:
        if end.alpha.tobytes() == alpha:
            made = bound(*left, *right, end.bias, end.accumulate)
            if made:
                return made[0]
        return _served(call, of_a._replace(data=left), of_b._replace(data=right), end)

    return again


bind_gemm_exact = bind_gemm_blockwise = bind_gemm_fast = bind


def _kind(a: Operand, epilogue: Epilogue) -> tuple[Hashable, ...]:
    """Return the parts of a kind of product that the record of its call does not have: K, and numbers of arguments."""
    return "gemm", a.shape[1], epilogue.alpha.tobytes(), epilogue.alpha_rule


def _served(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Multiply by the program of an earlier call of the kind."""
    inputs = (*a.data, *b.data, epilogue.bias, epilogue.accumulate)
    return programs.serve(_kind(a, epilogue), call, inputs, lambda: (_product(call, a, b, epilogue),))[0]


def _product(call: Call, a: Operand, b: Operand, epilogue: Epilogue) -> Any:
    """Choose and launch the kernels. Rules: GEM-12. Certificates: product-groups."""
    restore = arrays.device_restorer(a.data.data)
    _, library = buffers.adopt("gemm", a.data.data)
    (rows, depth), columns = a.shape, b.shape[0]
    ran: tuple[str, ...] = ()
    with library.current():
        operands = _there(library, a), _there(library, b)
        numbers, added = _numbers(a, b, epilogue), _added(library, epilogue)
        out = library.empty((rows, columns), call.to)
        if rows * columns:
            many = call.operation == "gemm_fast" and rows * columns * depth > FEW
            sums = _by_library(library, *operands) if many else None
            source = "float32" if epilogue.bias is None else arrays.dtype_name(epilogue.bias)
            types = f"using In = fp4ref::{source}; using Out = fp4ref::{call.to};"
            amaxes = [pointer(each.data.amax) for each in operands]
            rest = (*numbers, *map(pointer, added), pointer(out))
            if sums is None:
                sides = ((each.spec, each.scale_layout) for each in (a, b))
                text = _text(*sides, types, depth, call.operation == "gemm_exact")
                first, second = ((*map(pointer, each.data[:2]), at) for each, at in zip(operands, amaxes, strict=True))
                grid = -(-rows // TILE) * -(-columns // TILE)
                launch(library, "gemm", text, (grid,), (*first, *second, rows, columns, depth, *rest))
                ran = ("gemm",)
            else:
                count = rows * columns
                text = _specifications(a.spec, b.spec) + types
                sizes = pointer(sums), *amaxes, columns, count
                launch(library, "gemm_finish", text, (-(-count // 256),), (*sizes, *rest))
                ran = ("decode", "decode", "cublasLt", "gemm_finish")
    remember(Plan("gemm", ran))
    return restore(out)


def _there(library: Library, operand: Operand) -> Operand:
    """Return an operand whose arrays lie on the device without gaps."""
    parts = zip(operand.data, ("uint8", "uint8", "float32"), strict=True)
    held = [None if part is None else buffers.on_device("gemm", part, library, kind) for part, kind in parts]
    return operand._replace(data=DirectionData(*held))


def _added(library: Library, epilogue: Epilogue) -> list[Any]:
    """Return the bias and C on the device, or None for each."""
    both = epilogue.bias, epilogue.accumulate
    return [
        None if part is None else buffers.on_device("gemm", part, library, arrays.dtype_name(part)) for part in both
    ]


def _numbers(a: Operand, b: Operand, epilogue: Epilogue) -> tuple[int, int, int]:
    """Return alpha and the factor as bits, and whether is divided by it. Rules: GEM-5, GEM-6."""
    factor = alpha_factor(a.spec, b.spec)
    division = epilogue.alpha_rule is AlphaRule.DIVISION
    return float_bits(float(epilogue.alpha)), float_bits(1.0 if factor is None else float(factor)), int(division)


def _by_library(library: Library, a: Operand, b: Operand) -> Any:
    """Return float32 sums of operands as bfloat16 matrices; None where the library has no such product."""
    if rehearsing():
        return None
    (rows, depth), columns = a.shape, b.shape[0]
    found = cublas.product(
        library,
        (rows, columns, depth),
        (False, False),
        (FRESH, FRESH, FRESH),
        has_bias=False,
        has_factor=False,
        sums=True,
    )
    if found is None:
        return None
    left, right = (dequantized(_reading(o.spec, o.scale_layout, o.shape), o.data, None) for o in (a, b))
    out = library.empty((rows, columns), "float32")
    space = library.empty((found.workspace,), "uint8") if found.workspace else None
    run(library, found.start, (*map(pointer, (left, right, out)), 0, 0, pointer(space)))
    return out


@lru_cache(maxsize=4096)
def _reading(spec: Spec, form: Layout, shape: tuple[int, int]) -> Call:
    """Return the call that reads code * scale of an operand."""
    own = of_operand(spec, Granularity.NONE)
    return Call("dequantize", own, to="bfloat16", layout=form, device="cuda", shape=shape)


@lru_cache(maxsize=4096)
def _text(of_a: tuple[Spec, Layout], of_b: tuple[Spec, Layout], types: str, depth: int, exact: bool) -> str:
    """Return the types and constants that the kernel is compiled for. Certificates: gemm-limit."""
    specs = of_a[0], of_b[0]
    blocks = -(-depth // specs[0].block.columns)
    narrow = not specs[0].scale.format.powers_of_two and span_of_sums(specs) + blocks.bit_length() <= 63
    lines = [
        _specifications(*specs) + types,
        lower_layout(of_a[1], "Layout_A"),
        lower_layout(of_b[1], "Layout_B"),
        f"constexpr bool EXACT = {str(exact).lower()}, WIDE = {str(exact and not narrow).lower()};",
    ]
    return "\n".join(lines)


def _specifications(a: Spec, b: Spec) -> str:
    return "".join(
        fp4ref_numerics.lower(of_operand(spec, spec.global_scale), name) for spec, name in ((a, "A"), (b, "B"))
    )
