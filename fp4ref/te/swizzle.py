"""Scales on their way to the matrix product: the compact layout, the GEMM layout, and which shapes get it when.

A flag of a tensor is true if its scales are swizzled. A second swizzle of the same tensor does nothing.
"""

from __future__ import annotations

from typing import Any

from fp4ref import api
from fp4ref.layout import LINEAR_PADDED, TILED_128X4
from fp4ref.te import debug
from fp4ref.te.capability import get_device_compute_capability

# Certificates: scale-flags.
COMPACT = LINEAR_PADDED.name
GEMM = TILED_128X4.name


def role_of(tensor: Any) -> str:
    """Return the role that the quantizer of a tensor names."""
    quantizer = tensor._quantizer
    return "tensor" if quantizer is None else str(quantizer.role)


def swizzle_in_place(tensor: Any, role: str, *, new: bool = False) -> None:
    """Move the scales of every direction to the GEMM layout, in their buffers; nothing if they are there already.

    new: nobody else has the tensor yet, so that it gets other buffers instead.

    Rules: TEL-5, TEL-7, TEL-29.
    """
    if tensor._with_gemm_swizzled_scales:
        return
    for direction in tensor.directions():
        moved = api.to_layout(tensor.record(direction), GEMM).row
        assert moved is not None
        buffer = tensor.scales_buffer(direction)
        if new:
            tensor.set_scales_buffer(direction, moved.scales.view(buffer.shape))
        else:
            buffer.view(-1).copy_(moved.scales.reshape(-1))
        debug.count("swizzle_standalone", role)
    tensor._with_gemm_swizzled_scales = True


def swizzle_scales_for_gemm_(tensor: Any) -> Any:
    """Move a tensor's scales to the GEMM layout, in their buffers; per-tensor FP8 has none to move. Returns the tensor.

    Rules: TEL-5, TEL-29.
    """
    if hasattr(tensor, "_with_gemm_swizzled_scales"):
        swizzle_in_place(tensor, role_of(tensor))
    return tensor


def emulated_sm() -> int:
    """Return the emulated device as one number: 100 for compute capability 10.0."""
    major, minor = get_device_compute_capability()
    return 10 * major + minor


def hadamard_fusion_eligible(rows: int, columns: int) -> bool:
    """Return True if one kernel casts both directions, transforms the columns and tiles all scales. Rules: TEL-28."""
    return rows % 64 == 0 and columns % 128 == 0 and 100 <= emulated_sm() <= 110


def tiles_fusion_eligible(rows: int, columns: int) -> bool:
    """Return True if the kernel of 16x16 tiles writes its scales in the GEMM layout. Rules: TEL-28."""
    return rows % 128 == 0 and columns % 128 == 0 and 100 <= emulated_sm() <= 110
