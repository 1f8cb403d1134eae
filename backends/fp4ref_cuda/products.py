"""The last steps of a product on the device, after its sums: one pass for all of them."""

from __future__ import annotations

from typing import Any

from fp4ref import arrays
from fp4ref.errors import BackendError, DTypeError, ShapeError
from fp4ref.registry import Call
from fp4ref.specs import NVFP4
from fp4ref_cuda import buffers, programs
from fp4ref_cuda.buffers import pointer
from fp4ref_cuda.launch import launch
from fp4ref_cuda.plan import Plan, prelude, remember

OF_BLOCK, EACH = 256 * 8, 8  # elements of a row that a block of threads finishes, and that one thread does


def finish_product(call: Call, product: Any, factor: Any, bias: Any) -> Any:
    """Multiply a product by a factor, add a bias, and round once: [rows, columns] of the call's output type.

    product: float32 [rows, columns]. factor: one float32, or None. bias: [columns], or None. All on one device, without
    gaps. call: its `to` is bfloat16 or float16, its `source` the type of the bias.

    Errors: BackendError, DTypeError, ShapeError.

    Rules: GEM-5, GEM-8, TEL-32.
    """
    return programs.serve(
        "finish_product", call, (product, factor, bias), lambda: (_finished(call, product, factor, bias),)
    )[0]


def _finished(call: Call, product: Any, factor: Any, bias: Any) -> Any:
    rows, columns = call.sizes
    _require("product", product, "float32", (rows, columns))
    _require("factor", factor, "float32", (1,))
    _require("bias", bias, call.source, (columns,))
    restore = arrays.device_restorer(product)
    product, library = buffers.adopt("finish_product", product)
    with library.current():
        out = library.empty((rows, columns), call.to)
        if rows * columns:
            vectors = not (columns % EACH or (pointer(product) | pointer(out)) % 16)
            steps: dict[str, bool | int] = {"HAS_FACTOR": factor is not None, "HAS_BIAS": bias is not None}
            text = prelude(NVFP4, call.source, "linear", call.to, VECTORS=vectors, **steps)
            strips = -(-columns // OF_BLOCK)
            arguments = (pointer(product), columns, strips, pointer(factor), pointer(bias), pointer(out))
            launch(library, "finish_product", text, (rows * strips,), arguments)
    remember(Plan("finish_product", ("finish_product",)))
    return restore(out)


def _require(name: str, value: Any, dtype: str, shape: tuple[int, ...]) -> None:
    """Require an array without gaps; a factor may have no dimension."""
    if value is None:
        return
    if arrays.dtype_name(value) != dtype:
        raise DTypeError("finish_product", f"{name} of {arrays.dtype_name(value)}", dtype, "GEM-8")
    if tuple(value.shape) != shape and not (shape == (1,) and tuple(value.shape) == ()):
        raise ShapeError("finish_product", f"{name} {list(value.shape)}", f"{list(shape)}", "GEM-8")
    if not buffers.is_contiguous(value):
        raise BackendError("finish_product", f"{name} with gaps", "a contiguous one", "CNF-5")
