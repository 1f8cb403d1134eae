"""The native CPU backend: loops around the shared numerics header, compiled at first use, called through ctypes."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import fp4ref_numerics
from fp4ref.registry import Backend, Call
from fp4ref_numerics.products import too_wide

STRIP = 512  # elements of a strip, where a block is not wider
LARGEST_STRIPS = 1 << 17  # elements of the strips of one row of blocks; they are on a thread's stack


def unsupported(call: Call) -> list[str]:
    """Return why the loops cannot serve a call; nothing if they can."""
    reasons = fp4ref_numerics.unsupported(call) + (too_wide(call) if call.multiplies else [])
    for rows, columns in () if call.multiplies else [spec.block for spec in call.specs]:
        if rows * max(4 * columns, STRIP) > LARGEST_STRIPS:
            reasons.append(f"blocks of {rows}x{columns}")
    return reasons


def load() -> ModuleType:
    """Return the operations, once it is certain that a compiler works; BackendError names the reason if none does."""
    operations = import_module("fp4ref_cpu.operations")
    operations.prepare()
    return operations


BACKEND = Backend(
    name="cpu",
    load=load,
    operations=(
        *("quantize", "dequantize", "to_layout", "random_bits", "gemm_exact", "gemm_blockwise", "gemm_fast"),
        *("tensor_quantize", "tensor_given", "tensor_codes", "tensor_decode", "block_codes", "block_values"),
        *("column_values", "turned"),
    ),
    formats=None,  # each lowers to numbers
    layouts=None,  # each lowers to strides and radices
    irregular=("LAY-19", "LAY-20", "LAY-21"),
    unsupported=unsupported,
    speed=10,
)
