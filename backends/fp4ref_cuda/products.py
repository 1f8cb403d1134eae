"""The last steps of a product on the device, after its sums: one pass for all of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from fp4ref import arrays
from fp4ref.errors import BackendError, ShapeError
from fp4ref.registry import Call
from fp4ref_cuda import buffers, programs
from fp4ref_cuda.buffers import Library, pointer
from fp4ref_cuda.launch import launch
from fp4ref_cuda.plan import ANY, Plan, prelude, remember
from fp4ref_cuda.words import float_bits

OF_BLOCK, EACH = 256 * 8, 8  # elements of a row that a block of threads finishes, and that one thread does
MOST_FACTORS = 4
BITS = struct.Struct("d").pack


def finish_product(call: Call, product: Any, factors: Sequence[Any], bias: Any) -> Any:
    """Multiply a product by a factor, add a bias, and round once: [rows, columns] of the call's output type.

    product: float32 [rows, columns]. factors: at most four numbers, Python's or arrays of one float32, that are
    multiplied from the left, in float32; the product is multiplied by the result. bias: [columns], or None. All on one
    device, without gaps. call: its `to` is bfloat16 or float16, its `source` the type of the bias.

    Errors: BackendError, DTypeError, ShapeError.

    Rules: GEM-5, GEM-8, TEL-12, TEL-32.
    """
    numbers, read = split(factors)
    kind = "finish_product", numbers
    return programs.serve(kind, call, (product, bias, *read), lambda: (_finished(call, product, factors, bias),))[0]


def _finished(call: Call, product: Any, factors: Sequence[Any], bias: Any) -> Any:
    rows, columns = call.sizes
    restore = arrays.device_restorer(product)
    product, library = buffers.adopt("finish_product", product)
    require("finish_product", "product", product, "float32", (rows, columns), library)
    require_finishing("finish_product", factors, bias, call, library)
    with library.current():
        out = library.empty((rows, columns), call.to)
        if rows * columns:
            vectors = not (columns % EACH or (pointer(product) | pointer(out)) % 16)
            constants, words = arguments_of(factors)
            steps = {"HAS_BIAS": bias is not None, "VECTORS": vectors}
            text = prelude(ANY, call.source, "linear", call.to, **constants, **steps)
            strips = -(-columns // OF_BLOCK)
            arguments = (pointer(product), columns, strips, *words, pointer(bias), pointer(out))
            launch(library, "finish_product", text, (rows * strips,), arguments)
    remember(Plan("finish_product", ("finish_product",)))
    return restore(out)


def arguments_of(factors: Sequence[Any]) -> tuple[dict[str, int], list[int]]:
    """Return the constants of a kernel that multiplies factors, and its arguments: bits of numbers, and addresses."""
    read = sum((type(each) is not float) << place for place, each in enumerate(factors))
    words = [float_bits(each) if type(each) is float else pointer(each) for each in factors]
    return {"FACTORS": len(factors), "READ": read}, words + [0] * (MOST_FACTORS - len(words))


def split(factors: Sequence[Any]) -> tuple[tuple[bytes | None, ...], list[Any]]:
    """Return factors that are numbers as their bits, and those that are arrays; None in the other ones' places.

    Numbers are arguments of a launch, and so of a program: -0 is another one than 0, and NaN is equal to itself.
    """
    numbers = tuple([BITS(each) if type(each) is float else None for each in factors])
    return numbers, [None if type(each) is float else each for each in factors]


def require_finishing(operation: str, factors: Sequence[Any], bias: Any, call: Call, library: Library) -> None:
    """Require factors and a bias of a call's columns and type, on a library's device."""
    if len(factors) > MOST_FACTORS:
        raise ShapeError(operation, f"{len(factors)} factors", f"at most {MOST_FACTORS}", "GEM-5")
    for factor in factors:
        if type(factor) is not float:
            require(operation, "factor", factor, "float32", (1,), library)
    require(operation, "bias", bias, call.source, (call.sizes[1],), library)


def require(operation: str, name: str, value: Any, dtype: str, shape: tuple[int, ...], library: Library) -> None:
    """Require None, or an array without gaps on a library's device; a factor may have no dimension."""
    if value is None:
        return
    without_dimension = shape == (1,) and not value.shape
    buffers.require_kind(operation, name, value, dtype, () if without_dimension else shape, "GEM-8")
    if not buffers.is_contiguous(value):
        raise BackendError(operation, f"{name} with gaps", "a contiguous one", "CNF-5")
    if arrays.is_lazy_view(value):
        raise BackendError(operation, f"{name} that is negated when it is read", "its values", "CNF-5")
    if buffers.adopt(f"{operation}: {name}", value)[1].ordinal != library.ordinal:
        raise BackendError(operation, f"{name} on another device", f"cuda:{library.ordinal}", "CNF-5")
