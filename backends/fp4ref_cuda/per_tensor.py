"""8-bit floats under one scale of the whole tensor: that scale, codes, and what codes mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fp4ref import arrays
from fp4ref.registry import Call
from fp4ref_cuda import buffers, maxima, programs
from fp4ref_cuda.buffers import pointer
from fp4ref_cuda.checks import require_buffer
from fp4ref_cuda.launch import launch
from fp4ref_cuda.plan import ANY, Plan, prelude, remember
from fp4ref_cuda.words import LARGEST, float_bits

OF_BLOCK = 256  # threads
EACH = 16  # elements of a thread


def tensor_quantize(call: Call, x: Any, least: float, power_of_two: bool) -> tuple[Any, Any]:
    """Return the codes of a tensor, uint8 of its matrix, and 1 over its scale, float32 [1]: three steps at once.

    call: its specification's element is that of the codes. x: contiguous, with elements. least, power_of_two: as for
    `tensor_scale`, which follows the search for the largest magnitude; `tensor_codes` comes last.

    Errors: DTypeError, ShapeError.

    Rules: TEL-21.
    """
    kind = "tensor_quantize", least, power_of_two
    codes, inverse = programs.serve(kind, call, (x,), lambda: _quantized(call, x, least, power_of_two))
    return codes, inverse


def bind_tensor_quantize(
    call: Call, x: Any, least: float, power_of_two: bool
) -> Callable[[Any], tuple[Any, Any]] | None:
    """Return a function that makes codes of other tensors of this one's kind, as the first call did."""
    bound = programs.bind(("tensor_quantize", least, power_of_two), call, (x,))
    if bound is None:
        return None

    def again(x: Any) -> tuple[Any, Any]:
        made = bound(x)
        return (made[0], made[1]) if made else tensor_quantize(call, x, least, power_of_two)

    return again


def _quantized(call: Call, x: Any, least: float, power_of_two: bool) -> tuple[Any, Any]:
    buffers.require_kind("tensor_quantize", "x", x, call.source, call.sizes, "TEL-21")
    amax = maxima.searched(Call("amax", ANY, call.source, device="cuda", shape=call.sizes), x, None, None)
    scale, inverse = _scale(call, amax, least, power_of_two)
    codes = _codes(call, x, scale)
    remember(Plan("tensor_quantize", ("amax", "amax_finish", "tensor_scale", "tensor_codes")))
    return codes, inverse


def tensor_given(call: Call, x: Any, scale: Any, amax: Any, word: Any = None) -> tuple[Any, Any]:
    """Return codes of a tensor by a given scale, and 1 over that, float32 [1]; raise `amax` to its largest magnitude.

    call: its specification's element is that of the codes. x: contiguous, with elements. scale, amax: float32 [1].
    word: int32 [1]; unless it is 0, the amax stays as it is.

    Errors: DTypeError, ShapeError, BackendError.

    Rules: TEL-44.
    """
    inputs = x, scale, amax, word
    codes, inverse = programs.serve("tensor_given", call, inputs, lambda: _given(call, x, scale, amax, word))
    return codes, inverse


def bind_tensor_given(call: Call, x: Any, scale: Any, amax: Any) -> Callable[[Any, Any, Any], tuple[Any, Any]] | None:
    """Return a function that does the same for other tensors of these ones' kinds, without a flag."""
    bound = programs.bind("tensor_given", call, (x, scale, amax, None))
    if bound is None:
        return None

    def again(x: Any, scale: Any, amax: Any) -> tuple[Any, Any]:
        made = bound(x, scale, amax, None)
        return (made[0], made[1]) if made else tensor_given(call, x, scale.reshape(1), amax.reshape(1))

    return again


def _given(call: Call, x: Any, scale: Any, amax: Any, word: Any) -> tuple[Any, Any]:
    buffers.require_kind("tensor_given", "x", x, call.source, call.sizes, "TEL-44")
    for name, one in (("scale", scale), ("amax", amax)):
        buffers.require_kind("tensor_given", name, one, "float32", (1,), "TEL-44")
    if word is not None:
        buffers.require_kind("tensor_given", "a flag's word", word, "int32", (1,), "LAY-12")
    found = maxima.searched(Call("amax", ANY, call.source, device="cuda", shape=call.sizes), x, None, None)
    restore = arrays.device_restorer(scale)
    found, library = buffers.adopt("tensor_given", found)
    require_buffer("tensor_given", amax, (1,), library, x)
    with library.current():
        inverse = library.empty((1,), "float32")
        given = pointer(found), pointer(scale), pointer(amax), pointer(word), pointer(inverse)
        launch(library, "tensor_raise", "", (1,), given, block=1)
    codes = _codes(call, x, scale)
    remember(Plan("tensor_given", ("amax", "amax_finish", "tensor_raise", "tensor_codes")))
    return codes, restore(inverse)


def tensor_scale(call: Call, amax: Any, least: float, power_of_two: bool) -> tuple[Any, Any]:
    """Return the scale of a tensor and 1 over it, float32 [1] each, from its largest magnitude, float32 [1], not NaN.

    call: its specification's element and the type of the tensor. least: the least amax. power_of_two: drop the scale's
    mantissa.

    Errors: DTypeError, ShapeError.

    Rules: TEL-21.
    """
    kind = "tensor_scale", least, power_of_two
    scale, inverse = programs.serve(kind, call, (amax,), lambda: _scale(call, amax, least, power_of_two))
    return scale, inverse


def _scale(call: Call, amax: Any, least: float, power_of_two: bool) -> tuple[Any, Any]:
    buffers.require_kind("tensor_scale", "amax", amax, "float32", (1,), "TEL-21")
    restore = arrays.device_restorer(amax)
    amax, library = buffers.adopt("tensor_scale", amax)
    with library.current():
        out = library.empty((1,), "float32"), library.empty((1,), "float32")
        numbers = float_bits(least), LARGEST[call.source]
        text = prelude(call.required, call.source, POWER_OF_TWO=power_of_two)
        launch(library, "tensor_scale", text, (1,), (pointer(amax), *numbers, *map(pointer, out)), block=1)
    remember(Plan("tensor_scale", ("tensor_scale",)))
    return restore(out[0]), restore(out[1])


def tensor_codes(call: Call, x: Any, scale: Any) -> Any:
    """Return the codes of x * scale, computed in float32 and saturating: uint8 of x's matrix [rows, columns].

    call: its specification's element is that of the codes. x: contiguous. scale: float32 [1].

    Errors: DTypeError, ShapeError.

    Rules: TEL-21, E4M3-2, E4M3-3, E4M3-5, E5M2-2, E5M2-3, E5M2-5.
    """
    return programs.serve("tensor_codes", call, (x, scale), lambda: (_codes(call, x, scale),))[0]


def _codes(call: Call, x: Any, scale: Any) -> Any:
    buffers.require_kind("tensor_codes", "x", x, call.source, call.sizes, "TEL-21")
    buffers.require_kind("tensor_codes", "scale", scale, "float32", (1,), "TEL-21")
    restore = arrays.device_restorer(x)
    x, library = buffers.adopt("tensor_codes", x)
    with library.current():
        x, scale = buffers.contiguous(x), buffers.on_device("tensor_codes", scale, library, "float32")
        out, count = library.empty(call.sizes, "uint8"), call.sizes[0] * call.sizes[1]
        if count:
            text = prelude(call.required, call.source, VECTORS=not (pointer(x) | pointer(out)) % 16)
            grid = (-(-count // (OF_BLOCK * EACH)),)
            launch(library, "tensor_codes", text, grid, (pointer(x), count, pointer(scale), pointer(out)))
    remember(Plan("tensor_codes", ("tensor_codes",)))
    return restore(out)


def tensor_values(call: Call, codes: Any) -> Any:
    """Return the values of codes without a scale, in the call's output type, of 16 bits: [rows, columns].

    Errors: DTypeError, ShapeError.

    Rules: E4M3-1, E5M2-1.
    """
    return programs.serve("tensor_values", call, (codes,), lambda: (values_of(call, codes),))[0]


def tensor_decode(call: Call, codes: Any, scale: Any) -> Any:
    """Return the values of codes times a scale, computed in float32, rounded to the call's output type.

    Shape: [rows, columns]. scale: float32 [1].

    Errors: DTypeError, ShapeError, BackendError.

    Rules: TEL-8, DEQ-2, DEQ-3.
    """
    return programs.serve("tensor_decode", call, (codes, scale), lambda: (values_of(call, codes, scale),))[0]


def bind_tensor_decode(call: Call, codes: Any, scale: Any) -> Callable[[Any, Any], Any] | None:
    """Return a function that decodes other codes of these ones' kind, as the first call did."""
    bound = programs.bind("tensor_decode", call, (codes, scale))
    if bound is None:
        return None

    def again(codes: Any, scale: Any) -> Any:
        values = bound(codes, scale)
        return values[0] if values else tensor_decode(call, codes, scale)

    return again


def values_of(call: Call, codes: Any, scale: Any = None) -> Any:
    """Decode without the program of an earlier call; with a scale as `tensor_decode` does, else as `tensor_values`."""
    operation = "tensor_values" if scale is None else "tensor_decode"
    buffers.require_kind(operation, "codes", codes, "uint8", call.sizes, "TEL-8")
    if scale is not None:
        buffers.require_kind(operation, "scale", scale, "float32", (1,), "TEL-8")
    restore = arrays.device_restorer(codes)
    codes, library = buffers.adopt(operation, codes)
    with library.current():
        codes = buffers.contiguous(codes)
        scale = None if scale is None else buffers.on_device(operation, scale, library, "float32")
        out, count = library.empty(call.sizes, call.to), call.sizes[0] * call.sizes[1]
        if count:
            vectors, scaled = not (pointer(codes) | pointer(out)) % 16, scale is not None
            text = prelude(call.required, out=call.to, SCALED=scaled, VECTORS=vectors)
            grid = (-(-count // (OF_BLOCK * EACH)),)
            launch(library, "tensor_values", text, grid, (pointer(codes), count, pointer(scale), pointer(out)))
    remember(Plan(operation, ("tensor_values",)))
    return restore(out)
