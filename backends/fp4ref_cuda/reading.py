"""From codes back to values, and scales from one layout to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fp4ref import arrays
from fp4ref.errors import ShapeError
from fp4ref.layout import layout
from fp4ref.quantized import DirectionData
from fp4ref.registry import Call
from fp4ref_cuda import buffers, programs
from fp4ref_cuda.buffers import pointer
from fp4ref_cuda.checks import require_buffer
from fp4ref_cuda.demands import decode_reason, is_linear, is_tiled, own_map
from fp4ref_cuda.launch import launch, multiprocessors
from fp4ref_cuda.plan import (
    ANY,
    Plan,
    compiled_in,
    layout_number,
    prelude,
    remember,
)
from fp4ref_numerics.layouts import lower_layout

LARGE = 1 << 26  # bytes of values that no cache of a device holds


def dequantize(call: Call, data: DirectionData, out: Any = None) -> Any:
    """Compute the values [rows, columns] of one direction. Rules: DEQ-1, DEQ-2, DEQ-3, LAY-6."""
    return programs.serve("dequantize", call, (*data, out), lambda: (dequantized(call, data, out),))[0]


def bind_dequantize(call: Call, data: DirectionData, out: Any = None) -> Callable[..., Any] | None:
    """Return a function that dequantizes other buffers of these ones' kinds, into other arrays like `out` if given."""
    bound = programs.bind("dequantize", call, (*data, out))
    if bound is None:
        return None

    def again(data: DirectionData, out: Any = None) -> Any:
        values = bound(*data, out)
        return values[0] if values else dequantize(call, data, out)

    return again


def dequantized(call: Call, data: DirectionData, out: Any) -> Any:
    """Decode without the program of an earlier call; the arguments and the result are those of `dequantize`."""
    spec, shape, scale_layout = call.required, call.encoded, call.layout.name
    codes, library = buffers.adopt("dequantize", data.data)
    with library.current():
        restore = arrays.device_restorer(data.data if out is None else None)
        if out is None:
            out = library.empty(shape, call.to)
        else:
            require_buffer("dequantize: out", out, shape, library, codes)
        rest = [
            None if part is None else buffers.on_device("dequantize", part, library, kind)
            for part, kind in ((data.scales, "uint8"), (data.amax, "float32"))
        ]
        codes = buffers.contiguous(codes)
        ran: tuple[str, ...] = ()
        places = pointer(codes) | pointer(out)
        if is_tiled(scale_layout):  # whose scales are read 16 at a time
            places |= pointer(rest[0])
        reason = own_map(scale_layout) or decode_reason(spec, call.to, shape[1], places, call.inverse_hadamard)
        if shape[0] * shape[1]:
            if reason:
                each = 16 if call.inverse_hadamard else 16 // arrays.output_dtype("dequantize", call.to).itemsize
                units = shape[0] * -(-shape[1] // each)
                text = prelude(spec, call.source, compiled_in(scale_layout), call.to, INVERSE=call.inverse_hadamard)
                order = layout_number(scale_layout)
                run = pointer(codes), *map(pointer, rest), *shape, order, pointer(out)
                launch(library, "dequantize", text, (-(-units // 256),), run)
                ran = ("dequantize",)
            elif spec.element.format.bits == 8 and is_linear(scale_layout) and not shape[1] % spec.block.columns:
                count = shape[0] * shape[1]
                large = out.nbytes >= LARGE
                text = prelude(spec, call.source, scale_layout, call.to, LARGE=large)
                run = pointer(codes), pointer(rest[0]), count, pointer(out)
                launch(library, "decode_run", text, (-(-count // ((32 if large else 16) * 256)),), run)
                ran = ("decode_run",)
            else:
                lines, length = shape
                if is_linear(scale_layout) and not length % spec.block.columns and not lines * length % 256:
                    lines, length = lines * length // 256, 256  # one run: no warp has less than 256 columns
                groups = -(-lines // 128) * 32 if is_tiled(scale_layout) else -(-lines // 4)
                units = groups * -(-length // 256)
                grid = min(-(-units // 8), multiprocessors(library.ordinal) * 128)  # from there on, blocks take turns
                text = prelude(spec, call.source, scale_layout, call.to)
                run = pointer(codes), *map(pointer, rest), lines, length, units, pointer(out)
                launch(library, "decode", text, (grid,), run)
                ran = ("decode",)
    remember(Plan("units" if reason else "lines", ran, reason))
    return restore(out)


def convert_layout(
    scales: Sequence[Any], shapes: Sequence[tuple[int, int]], source: str, target: str, out: Sequence[Any] | None = None
) -> list[Any]:
    """Scale bytes of many tensors in another layout, in one launch; padding is never read, and is written.

    scales: one buffer per tensor, in layout `source`. shapes: rows and columns of each one's scales.

    Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5, LAY-6, LAY-13, LAY-15.
    """
    if not scales:
        return []
    _, library = buffers.adopt("to_layout", scales[0])
    old, new = layout(source), layout(target)
    with library.current():
        made = list(out) if out else [library.empty(new.padded_shape(*size), "uint8") for size in shapes]
        held = [buffers.on_device("to_layout", s, library, "uint8") for s in scales]
        for i, (buffer, result, size) in enumerate(zip(held, made, shapes, strict=True)):
            if tuple(buffer.shape) != old.padded_shape(*size):
                raise ShapeError(
                    f"to_layout: member {i}", f"{list(buffer.shape)}", f"{list(old.padded_shape(*size))}", "LAY-60"
                )
            require_buffer(f"to_layout: out of member {i}", result, new.padded_shape(*size), library, buffer)
        quarters = not own_map(source) and not own_map(target) and (is_tiled(source) or is_tiled(target))
        units = [_units(*new.padded(*size), quarters) for size in shapes]
        base_from, base_to = min(map(pointer, held)), min(map(pointer, made))
        starts = np.cumsum([0, *units])
        table = np.array(
            [
                (*size, pointer(a) - base_from, pointer(b) - base_to, start)
                for a, b, size, start in zip(held, made, shapes, starts[:-1], strict=True)
            ],
            np.int64,
        )
        if starts[-1]:
            text = f"{prelude(ANY, scale_layout=target, QUARTERS=quarters)}\n{lower_layout(old, 'Source')}"
            members = library.upload(table) if len(held) > 1 else None
            arguments = (base_from, base_to, pointer(members), len(held), int(starts[-1]), *shapes[0])
            grid = int(starts[-1]) if quarters else -(-int(starts[-1]) // 256)
            launch(library, "layout", text, (grid,), arguments)
        remember(Plan("layout", ("layout",) if starts[-1] else ()))
    return made


def _units(rows: int, columns: int, quarters: bool) -> int:
    """Return the units of work for padded scales [rows, columns]: four of a row, or 128 rows of 8 tiles."""
    return -(-rows // 128) * -(-columns // 32) if quarters else rows * -(-columns // 4)
