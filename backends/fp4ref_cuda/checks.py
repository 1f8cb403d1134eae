"""The arguments of a call besides its input, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fp4ref import arrays
from fp4ref.arguments import buffer_shapes, require_flag
from fp4ref.errors import BackendError, ShapeError
from fp4ref.layout import Layout
from fp4ref.memory import require_apart
from fp4ref.quantized import Direction, DirectionData
from fp4ref.registry import Call
from fp4ref_cuda import buffers
from fp4ref_cuda.buffers import Library, pointer
from fp4ref_cuda.demands import is_tiled
from fp4ref_cuda.launch import launch


def target(call: Call, library: Library, name: Direction, out: DirectionData | None, x: Any) -> DirectionData:
    """Return the caller's buffers if they can be written to, else new ones."""
    shapes = buffer_shapes(call.required, call.sizes, name, call.layout.name)
    if out is None:
        kinds = DirectionData("uint8", "uint8", "float32")
        return DirectionData(
            *(None if size is None else library.empty(size, kind) for size, kind in zip(shapes, kinds, strict=True))
        )
    for field, buffer, size in zip(DirectionData._fields, out, shapes, strict=True):
        if buffer is not None:
            require_buffer(f"quantize: out.{name}.{field}", buffer, size, library, x)
    return out


def require_buffer(operation: str, buffer: Any, shape: Sequence[int] | None, library: Library, x: Any) -> None:
    """Require an output that is contiguous, of the right shape, on the device of x and apart from x."""
    buffer, other = buffers.adopt(operation, buffer)
    if other.ordinal != library.ordinal:
        raise BackendError(operation, f"a buffer on cuda:{other.ordinal}", f"cuda:{library.ordinal}", "CNF-5")
    if shape is None or tuple(buffer.shape) != tuple(shape):
        raise ShapeError(operation, f"shape {list(buffer.shape)}", f"{list(shape or ())}", "LAY-60")
    if not buffers.is_contiguous(buffer):
        raise BackendError(operation, "a buffer with gaps", "a contiguous one", "CNF-5")
    require_apart(operation, {"a buffer": buffer}, {"the input": x})


def noop_flag(noop: Any, library: Library) -> Any:
    """Return a flag as one 32-bit word on the device, which a byte becomes there; None for None.

    Rules: LAY-56, LAY-57.
    """
    if noop is None:
        return None
    noop, other = buffers.adopt("quantize: noop", noop)
    require_flag("quantize", noop)
    if other.ordinal != library.ordinal:
        raise BackendError("quantize", f"noop on cuda:{other.ordinal}", f"cuda:{library.ordinal}", "CNF-5")
    if arrays.dtype_name(noop) != "uint8":
        return noop
    word = library.empty((1,), "int32")
    launch(library, "flag", "", (1,), (pointer(noop), 1, 0, pointer(word)), block=32)
    return word


def pointer_bits(targets: Mapping[Direction, DirectionData], layout: Layout) -> int:
    """Return the addresses of all codes, and of scales stored in whole tiles, or-ed: their common alignment."""
    together = 0
    for target in targets.values():
        together |= pointer(target.data) | (pointer(target.scales) if is_tiled(layout.name) else 0)
    return together
