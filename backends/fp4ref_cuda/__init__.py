"""CUDA kernels of the shared numerics header, compiled with NVRTC for the device at hand; loaded lazily."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import fp4ref_numerics
from fp4ref.errors import BackendError
from fp4ref.registry import Backend, Call
from fp4ref.spec import Spec, Subnormals
from fp4ref_numerics.products import too_wide

# Orders of operations (PRO-3) that the header has and the kernels have not, and why.
NOT_IN_KERNELS = dict.fromkeys(
    ("microxcaling-nearest", "microxcaling-even", "microxcaling-floor"),
    "a logarithm for every element does not fit their registers",
)
HEIGHTS, WIDTHS = (1, 2, 4, 8, 16, 32), (16, 32, 64)  # of blocks: the lines of one fit a warp, its columns a tile


def unsupported(call: Call) -> list[str]:
    """Return why the kernels cannot serve a call; nothing if they can."""
    reasons = fp4ref_numerics.unsupported(call)
    if call.multiplies:
        here = [] if sys.platform == "linux" else ["products: NVRTC has integers of 128 bits on Linux only"]
        blocks = [why for spec in call.specs for why in _block_reasons(1, spec.block.columns)]
        return reasons + too_wide(call) + blocks + here
    if call.operation == "quantize_grouped" and call.layout.form.repeated:
        reasons += [f"a group at once in {call.layout.name}, whose scales are compared member by member"]
    return reasons + [reason for spec in call.specs for reason in _reasons(spec)]


def _reasons(spec: Spec) -> list[str]:
    reasons = []
    if spec.arithmetic.name in NOT_IN_KERNELS:
        reasons.append(
            f"arithmetic {spec.arithmetic.name} is not in the kernels: {NOT_IN_KERNELS[spec.arithmetic.name]}"
        )
    if spec.subnormals is Subnormals.FLUSH:
        reasons.append("flushed subnormals: the kernels read inputs as they are (NUM-5)")
    return reasons + _block_reasons(*spec.block)


def _block_reasons(rows: int, columns: int) -> list[str]:
    return [] if rows in HEIGHTS and columns in WIDTHS else [f"a block of {rows}x{columns}"]


def _load() -> ModuleType:
    """Import the operations; what is missing is said in one line. Rules: CNF-5."""
    try:
        operations = import_module("fp4ref_cuda.operations")
        import_module("fp4ref_cuda.compile").compiler_version()
        import_module("fp4ref_cuda.launch").require_device()
    except ImportError as error:
        raise BackendError("cuda", f"{error}", "pip install 'fp4ref[cuda]'", "CNF-5") from None
    except RuntimeError as error:  # what NVIDIA's loaders raise when a shared library is missing
        raise BackendError("cuda", str(error).splitlines()[0], "an NVIDIA driver and NVRTC", "CNF-5") from None
    return operations


BACKEND = Backend(
    name="cuda",
    load=_load,
    operations=(
        "quantize",
        "quantize_both",
        "quantize_grouped",
        "dequantize",
        "to_layout",
        "amax",
        "convert_layout",
        "random_bits",
        "finish_product",
        "multiply",
        "block_codes",
        "block_values",
        "column_values",
        "tensor_scale",
        "tensor_codes",
        "tensor_decode",
        "tensor_given",
        "tensor_quantize",
        "tensor_values",
        "together",
        "steps",
        "turned",
        "written",
        "is_one",
        "next_scales",
        "gemm_exact",
        "gemm_blockwise",
        "gemm_fast",
    ),
    formats=None,  # each lowers to numbers
    layouts=None,  # each lowers to a struct
    irregular=("LAY-19", "LAY-20", "LAY-21"),
    unsupported=unsupported,
    devices=("cuda",),
    speed=20,
    flags=True,
)
