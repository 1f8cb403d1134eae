"""Products of operands as they are stored: codes become bfloat16 matrices, and cuBLASLt multiplies these."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from fp4ref.arguments import require_bytes
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.registry import Call
from fp4ref.stored import Stored
from fp4ref_cuda import buffers, cublas, programs
from fp4ref_cuda.block_codes import block_values
from fp4ref_cuda.buffers import ALIGNMENT, FRESH, Library, pointer
from fp4ref_cuda.launch import launch, run
from fp4ref_cuda.per_tensor import values_of
from fp4ref_cuda.plan import ANY, Plan, prelude, remember
from fp4ref_cuda.products import arguments_of, require, require_finishing, split
from fp4ref_cuda.reading import dequantized


def multiply(call: Call, left: Stored, right: Stored, factors: Sequence[Any], bias: Any, out: Any = None) -> Any:
    """Return left [rows, K] times the transpose of right [columns, K], times a factor, plus a bias, rounded once.

    Sums are float32, in an order of the library's own; the result is bfloat16 [rows, columns]. factors: at most four
    numbers, Python's or arrays of one float32, multiplied from the left, in float32. bias: bfloat16 [columns], or None.
    out: is filled and returned, or None. All on one device, of torch, without gaps. Returns None where the library has
    no such product.

    Errors: BackendError, DTypeError, ShapeError.

    Rules: TEL-12, TEL-31, TEL-32.
    """
    numbers, read = split(factors)
    of_left, of_right = left.arrays, right.arrays
    ways = *left[2:], *right[2:]
    kind: Hashable = ("multiply", numbers, ways, len(of_left))
    inputs = (*of_left, *of_right, bias, out, *read)
    decoded = left.decode, right.decode
    return programs.serve(kind, call, inputs, lambda: (_product(call, left, right, factors, bias, out),), decoded)[0]


def _product(call: Call, left: Stored, right: Stored, factors: Sequence[Any], bias: Any, out: Any) -> Any:
    rows, columns = call.sizes
    _, library = buffers.adopt("multiply", left.arrays[0])
    require_finishing("multiply", factors, bias, call, library)
    require("multiply", "out", out, "bfloat16", (rows, columns), library)
    plain = [of.arrays[0] for of in (left, right) if of.decode is None]
    if any(pointer(each) % ALIGNMENT for each in (*plain, bias, out)):
        return None
    with library.current():
        a, b = _matrix(left), _matrix(right)
        depth = a.shape[0] if left.transposed else a.shape[1]
        for name, of, matrix, size in (("left", left, a, (rows, depth)), ("right", right, b, (columns, depth))):
            require("multiply", name, matrix, "bfloat16", size[::-1] if of.transposed else size, library)
        found = cublas.product(
            library,
            (rows, columns, depth),
            (left.transposed, right.transposed),
            (_alignment(left), _alignment(right), FRESH if out is None else ALIGNMENT),
            has_bias=bias is not None,
            has_factor=bool(factors),
        )
        if found is None:
            return None
        if out is None:
            out = library.empty((rows, columns), "bfloat16")
        factor = _factor(library, factors) if factors else None
        space = library.empty((found.workspace,), "uint8") if found.workspace else None
        run(library, found.start, tuple(map(pointer, (a, b, out, factor, bias, space))))
    remember(Plan("multiply", ("multiply",)))
    return out


def _matrix(of: Stored) -> Any:
    """Return the bfloat16 matrix of an operand, as it lies."""
    if of.decode is None:
        return of.arrays[0]
    if of.decode.operation == "dequantize":
        data, call = DirectionData(*of.arrays), of.decode
        require_bytes("multiply", Quantized(call.required, call.encoded, "float32", call.layout.name, row=data), "row")
        return dequantized(call, data, None)
    if of.decode.operation == "block_values":
        codes, scales = of.arrays
        return block_values(of.decode, codes, scales, of.squares)
    return values_of(of.decode, of.arrays[0])


def _alignment(of: Stored) -> int:
    """Return the number of bytes that the start of an operand's matrix is a multiple of."""
    return ALIGNMENT if of.decode is None else FRESH


def _factor(library: Library, factors: Sequence[Any]) -> Any:
    """Return the product of numbers, and 0, float32 [2]."""
    out = library.empty((2,), "float32")
    constants, words = arguments_of(factors)
    text = prelude(ANY, "float32", "linear", "float32", **constants)
    launch(library, "product_factor", text, (1,), (*words, pointer(out)), block=1)
    return out
