"""The native CPU backend: loops around the shared numerics header, compiled at first use, called through ctypes."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import fp4ref_numerics
from fp4ref.registry import Backend, Call

STRIP = 512  # elements of a strip, where a block is not wider
LONGEST_SUM = 126  # bits of the sum of a block's products
LARGEST_STRIPS = 1 << 17  # elements of the strips of one row of blocks; they are on a thread's stack


def unsupported(call: Call) -> list[str]:
    """Return why the loops cannot serve a call; nothing if they can."""
    reasons = fp4ref_numerics.unsupported(call) + (_too_wide(call) if call.multiplies else [])
    for rows, columns in () if call.multiplies else [spec.block for spec in call.specs]:
        if rows * max(4 * columns, STRIP) > LARGEST_STRIPS:
            reasons.append(f"blocks of {rows}x{columns}")
    return reasons


def _too_wide(call: Call) -> list[str]:
    """Return the formats for which the sum of a block's products, in smallest steps, leaves 128 bits."""
    elements, scales = zip(*((spec.element.format, spec.scale.format) for spec in call.specs), strict=True)
    bits = sum(form.span for form in (*elements, *(form for form in scales if not form.powers_of_two)))
    if bits + max(spec.block.columns for spec in call.specs).bit_length() <= LONGEST_SUM:
        return []
    return [f"formats {' and '.join(form.name for form in elements)}: their products span {bits} bits"]


def load() -> ModuleType:
    """Return the operations, once it is certain that a compiler works; BackendError names the reason if none does."""
    operations = import_module("fp4ref_cpu.operations")
    operations.prepare()
    return operations


BACKEND = Backend(
    name="cpu",
    load=load,
    operations=("quantize", "dequantize", "to_layout", "random_bits", "gemm_exact", "gemm_blockwise", "gemm_fast"),
    formats=None,  # each lowers to numbers
    layouts=None,  # each lowers to strides and radices
    irregular=("LAY-19", "LAY-20", "LAY-21"),
    unsupported=unsupported,
    speed=10,
)
