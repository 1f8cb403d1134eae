"""Histories of maxima, and the scales that are computed from them between the steps."""

from __future__ import annotations

from typing import Any

from fp4ref.memory import require_apart
from fp4ref.registry import Call
from fp4ref_cuda import buffers, programs
from fp4ref_cuda.buffers import pointer
from fp4ref_cuda.checks import require_buffer
from fp4ref_cuda.launch import launch
from fp4ref_cuda.plan import Plan, remember
from fp4ref_cuda.words import float_bits


def next_scales(call: Call, history: Any, current: Any, scale: Any, numerator: float, *, latest: bool) -> None:
    """Move histories on by one step, in place, and replace the scales for which there is an amax.

    call: its shape is that of the history, float32 [length, operands]. current: float32 [operands], the maxima of this
    step, 0 where row 0 of the history counts; or that row itself. scale: float32 [operands]. numerator: divided by the
    amax. latest: the new maximum is the amax, instead of the largest one.

    Errors: DTypeError, ShapeError, BackendError.

    Rules: TEL-45, TEL-46, TEL-65, TEL-67, TEL-93.
    """
    inputs = history, current, scale
    kind = "next_scales", float_bits(numerator), latest
    programs.serve(kind, call, inputs, lambda: _moved(call, *inputs, float_bits(numerator), latest=latest))


def _moved(call: Call, history: Any, current: Any, scale: Any, numerator: int, *, latest: bool) -> tuple[()]:
    length, operands = call.sizes
    for name, each, shape in (
        ("the history", history, (length, operands)),
        ("the maxima", current, (operands,)),
        ("the scales", scale, (operands,)),
    ):
        buffers.require_kind("next_scales", name, each, "float32", shape, "TEL-65")
    _, library = buffers.adopt("next_scales", current)
    require_buffer("next_scales", scale, (operands,), library, current)
    require_buffer("next_scales", history, (length, operands), library, scale)
    if current.data_ptr() != history.data_ptr():
        require_apart("next_scales", {"the history": history}, {"the maxima": current})
    given = pointer(history), pointer(buffers.contiguous(current)), pointer(scale), length, operands, numerator
    with library.current():
        if length and operands:
            launch(library, "histories", f"constexpr bool LATEST = {str(latest).lower()};\n", (operands,), given)
    remember(Plan("next_scales", ("histories",)))
    return ()
