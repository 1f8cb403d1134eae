"""Values of codes of 8 bits whose blocks lie down the columns, where the codes lie row after row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fp4ref import arrays
from fp4ref.registry import Call
from fp4ref_cuda import buffers, programs
from fp4ref_cuda.buffers import pointer
from fp4ref_cuda.launch import launch
from fp4ref_cuda.plan import Plan, compiled_in, layout_number, prelude, remember

OF_BLOCK, EACH = 256 * 8, 8  # elements of a block of threads, and of one thread


def column_values(call: Call, codes: Any, scales: Any, across: bool) -> Any:
    """Return the values [rows, columns] of codes of the same shape in the call's output type.

    scales: those of the transpose [columns, blocks of rows] in the call's layout; across: as a matrix [blocks of rows,
    columns], the transpose of a layout that only pads.

    Errors: DTypeError, ShapeError.

    Rules: DEQ-2, DEQ-3, TEL-8.
    """
    kind = "column_values", across
    return programs.serve(kind, call, (codes, scales), lambda: (_values(call, codes, scales, across),))[0]


def bind_column_values(call: Call, codes: Any, scales: Any, across: bool) -> Callable[[Any, Any], Any] | None:
    """Return a function that decodes other codes of these ones' kind, as the first call did."""
    bound = programs.bind(("column_values", across), call, (codes, scales))
    if bound is None:
        return None

    def again(codes: Any, scales: Any) -> Any:
        values = bound(codes, scales)
        return values[0] if values else column_values(call, codes, scales, across)

    return again


def _values(call: Call, codes: Any, scales: Any, across: bool) -> Any:
    (rows, columns), spec = call.sizes, call.required
    padded = call.layout.padded_shape(columns, -(-rows // spec.block.columns))
    buffers.require_kind("column_values", "codes", codes, "uint8", call.sizes, "TEL-8")
    buffers.require_kind("column_values", "scales", scales, "uint8", padded[::-1] if across else padded, "TEL-8")
    restore = arrays.device_restorer(codes)
    codes, library = buffers.adopt("column_values", codes)
    with library.current():
        codes, scales = buffers.contiguous(codes), buffers.on_device("column_values", scales, library, "uint8")
        out, pitch = library.empty(call.sizes, call.to), int(scales.shape[-1])
        addresses = pointer(codes) | pointer(out) | (pointer(scales) if across else 0)
        whole = not addresses % 16 and not columns % EACH and not (across and pitch % EACH)
        form = call.layout.name if across else compiled_in(call.layout.name)
        text = prelude(spec, out=call.to, scale_layout=form, ACROSS=across, VECTORS=whole)
        units = rows * -(-columns // EACH)
        if units:
            number = -1 if across else layout_number(call.layout.name)
            arguments = (pointer(codes), pointer(scales), rows, columns, number, pitch, pointer(out))
            launch(library, "column_values", text, (-(-units * EACH // OF_BLOCK),), arguments)
    remember(Plan("column_values", ("column_values",)))
    return restore(out)
