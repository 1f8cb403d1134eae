"""The public functions: check the arguments once, then call a backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, Literal, overload

from fp4ref import arrays, plans, registry, repeats
from fp4ref.arguments import (
    direction_names,
    each_direction,
    given_amax,
    parts_of,
    read_flag,
    require_bits,
    require_bytes,
    require_out,
    require_quantized,
)
from fp4ref.catalogue import resolve
from fp4ref.errors import ShapeError
from fp4ref.given import NOTHING, Arguments
from fp4ref.layout import layout
from fp4ref.memory import by_direction, require_apart
from fp4ref.moves import Move, moving, results_moved
from fp4ref.quantized import (
    DIRECTIONS,
    Column_co,
    Direction,
    DirectionChoice,
    DirectionData,
    LayoutName,
    Parts,
    Quantized,
    Row_co,
    matrix_shape,
)
from fp4ref.spec import Spec


@overload
def quantize(
    x: Any,
    spec: Spec | str,
    directions: Literal["row"] = "row",
    scale_layout: LayoutName = "linear",
    amax: Any = None,
    random_bits: Any = None,
    backend: str | None = None,
    out: Quantized | None = None,
    noop: Any = None,
) -> Quantized[DirectionData, None]: ...
@overload
def quantize(
    x: Any,
    spec: Spec | str,
    directions: Literal["column"],
    scale_layout: LayoutName = "linear",
    amax: Any = None,
    random_bits: Any = None,
    backend: str | None = None,
    out: Quantized | None = None,
    noop: Any = None,
) -> Quantized[None, DirectionData]: ...
@overload
def quantize(
    x: Any,
    spec: Spec | str,
    directions: Literal["both"],
    scale_layout: LayoutName = "linear",
    amax: Any = None,
    random_bits: Any = None,
    backend: str | None = None,
    out: Quantized | None = None,
    noop: Any = None,
) -> Quantized[DirectionData, DirectionData]: ...
@overload
def quantize(
    x: Any,
    spec: Spec | str,
    directions: DirectionChoice,
    scale_layout: LayoutName = "linear",
    amax: Any = None,
    random_bits: Any = None,
    backend: str | None = None,
    out: Quantized | None = None,
    noop: Any = None,
) -> Quantized: ...
def quantize(
    x: Any,
    spec: Spec | str,
    directions: DirectionChoice = "row",
    scale_layout: LayoutName = "linear",
    amax: Any = None,
    random_bits: Any = None,
    backend: str | None = None,
    out: Quantized | None = None,
    noop: Any = None,
) -> Quantized:
    """Quantize a tensor to block-scaled codes, in one or both directions.

    x: [..., K] of at least one dimension, float32, bfloat16 or float16, NumPy, torch or DLPack, any strides, NaN and
    infinities included; the leading dimensions are flattened to [M, K]. The column direction is that of x^T, [K, M].
    directions: "row", "column" or "both". scale_layout: a name of `fp4ref.LAYOUTS`.
    amax: the caller's global amax, >= 0 and not NaN (not checked on a device): one number, or [rows] for a row scale;
    `Directions(row=..., column=...)` where the two differ.
    random_bits: uint8 [rows, columns] of the direction, a byte per element, for a stochastic spec.
    `Directions` serve both directions.
    out: a result of the same call, whose buffers are filled and returned.
    noop: one uint8, int32 or float32, set unless all its bits are zero; if it is set, the buffers of `out`, which it
    needs, stay as they are. On a device it is read there, by the kernels, in the order of the stream.

    Errors: DTypeError, ShapeError, DomainError, LayoutError, BackendError.

    >>> import numpy as np, fp4ref
    >>> q = fp4ref.quantize(np.float32([[1, -6, 0.3, 0] * 4]), fp4ref.NVFP4)
    >>> bytes(q.row.data[0, :2]).hex(), q.row.scales, q.row.amax
    ('f201', array([[126]], dtype=uint8), array([6.], dtype=float32))

    Rules: NUM-3, NUM-4, NUM-6, NUM-7, NUM-12, BLK-1, BLK-8, BLK-9, GLB-4, HAD-5, SR-1, LAY-7, LAY-12, RES-8.
    """
    kinds = repeats.kinds_of_arguments(x, amax, random_bits, out, noop)
    key = _kind_of_quantize(kinds, spec, directions, scale_layout, backend)
    again = repeats.find(key) if kinds else None
    if again:
        repeated: Quantized = again(x, amax, random_bits, out, noop)
        return repeated
    given, spec = spec, resolve(spec)
    x = arrays.imported(x)
    dtype = arrays.require_input("quantize", x)
    shape = tuple(map(int, x.shape))
    form = layout(scale_layout)
    direction_names(directions)
    skipped, flag = read_flag("quantize", noop, out)
    asked = spec, dtype, shape, directions, form, arrays.device_of(x), backend, bool(flag), out is not None
    planned = plans.to_quantize(*asked, registry.registered())
    names = planned.names
    if out is not None:
        require_out(out, Quantized(spec, shape, dtype, scale_layout), names)
    amaxes = each_direction(amax, names, spec, "amax")
    given_bits = each_direction(random_bits, names, spec, "random_bits")
    matrix = matrix_shape(shape)
    for name in names:
        encoded = matrix if name == "row" else matrix[::-1]
        amaxes[name] = given_amax(amaxes[name], spec, encoded)
        require_bits(given_bits[name], spec, encoded)
    if out is not None:
        taken = {**by_direction("amax", amax), **by_direction("random_bits", random_bits)}
        require_apart("quantize", parts_of(out, names), {"x": x, "noop": noop, **taken})
        if skipped:
            return out
    buffers: dict[Direction, Any] = {name: None if out is None else out.direction(name)[0] for name in names}
    beside = amaxes, given_bits, buffers
    result = Quantized(spec, shape, dtype, scale_layout, **plans.run(planned, x, beside, flag))
    if kinds:
        parts = plans.repeating(planned, x, Arguments(amax, random_bits, out, noop), beside, backend)
        repeats.keep(key, parts and _with_record(parts, result), scale_layout, spec=given)
    return result


def _with_record(repeat: Callable[..., Parts | None], like: Quantized) -> Callable[..., Quantized]:
    """Return a function that returns what another one fills as a result."""
    make = like.maker()

    def again(x: Any, amax: Any, random_bits: Any, out: Any, noop: Any) -> Any:
        parts = repeat(x, amax, random_bits, out, noop)
        return out if parts is None else make(*parts)

    return again


def quantize_again(
    x: Any, spec: Spec, directions: DirectionChoice, scale_layout: LayoutName, given: Arguments = NOTHING
) -> Callable[..., Any] | None:
    """Return the function that returns what `quantize` fills of other arrays of this one's kind, rows and columns.

    x, given: what `quantize` was just given, but for maxima. The function takes the same; it returns None where a flag
    keeps the buffers as they are. It decides nothing again, and so holds as long as the layouts and backends that are
    registered. Returns None if no backend has one.
    """
    if repeats.kinds_of_arguments(x, *given) is None:
        return None
    flag = given.noop is not None and arrays.device_of(given.noop) != "cpu"
    how = directions, layout(scale_layout), arrays.device_of(x), None, flag, given.out is not None
    planned = plans.to_quantize(spec, arrays.dtype_name(x), tuple(x.shape), *how, registry.registered())
    if given is NOTHING:
        return plans.repeating_directions(planned, x, None)
    bits = each_direction(given.random_bits, planned.names, spec, "random_bits")
    buffers = {name: None if given.out is None else given.out.direction(name)[0] for name in planned.names}
    return plans.repeating(planned, x, given, (dict.fromkeys(planned.names), bits, buffers), None)


def _kind_of_quantize(kinds: Hashable, spec: Spec | str, *options: Hashable) -> tuple[Hashable, ...]:
    """Return the key of calls of `quantize`. kinds: of the arrays. options: directions, layout and backend."""
    return "quantize", kinds, spec, getattr(spec, "name", spec), *options  # a result shows its specification's name


def dequantize(
    q: Quantized,
    dtype: Any = "float32",
    direction: Direction = "row",
    inverse_hadamard: bool = False,
    backend: str | None = None,
    out: Any = None,
) -> Any:
    """Compute the values that quantized bytes stand for, rounded once to `dtype`.

    dtype: "float32", "bfloat16" or "float16". The row direction returns the shape of the tensor, the column direction
    [K, M]. inverse_hadamard: undo the transform of the column direction. Padding bytes of the scales are never read.
    out: a contiguous array of the result's shape and dtype, of the library and on the device of the bytes, that is
    filled and returned.

    Errors: DTypeError, ShapeError, DomainError, LayoutError, BackendError.

    Rules: DEQ-1, DEQ-2, DEQ-3, DEQ-4, DEQ-5, DEQ-7, HAD-6, LAY-6, NUM-6, NUM-13.
    """
    kinds = repeats.kinds_of_results([(q, (direction,))], out)
    key = "dequantize", kinds, direction, dtype, inverse_hadamard, backend
    again = repeats.find(key) if kinds else None
    if again:
        return again(q, out)
    require_quantized("dequantize", q)
    to = arrays.output_dtype("dequantize", dtype)
    source = arrays.output_dtype("dequantize", q.dtype)
    direction_names(direction, allow_both=False)
    data, shape = q.direction(direction)
    form = layout(q.scale_layout)
    require_bytes("dequantize", q, direction)
    asked = q.spec, source.name, q.shape, direction, form, arrays.device_of(data.data), backend, to.name
    call, function = plans.to_dequantize(*asked, inverse_hadamard, out is not None, registry.registered())
    if out is not None:
        arrays.require_array("dequantize: out", out)
        result = tuple(q.shape) if direction == "row" else shape
        if tuple(out.shape) != result or arrays.dtype_name(out) != to.name:
            got = f"out {arrays.dtype_name(out)} {list(out.shape)}"
            raise ShapeError("dequantize", got, f"{to.name} {list(result)}", "DEQ-3")
        require_apart("dequantize", {"out": out}, data._asdict())
    values = function(call, data, None if out is None else arrays.as_matrix(out, shape))
    if kinds:
        repeats.keep(key, plans.reading(call, q, out, backend), q.scale_layout)
    if out is not None:
        return out
    return values if direction == "column" or tuple(q.shape) == shape else values.reshape(q.shape)


def to_layout(
    q: Quantized[Row_co, Column_co], scale_layout: LayoutName, backend: str | None = None
) -> Quantized[Row_co, Column_co]:
    """Return the same result with its scales in another layout; codes and amax are shared, padding is written as zero.

    Errors: LayoutError for an unknown layout, ShapeError for scales that do not fit theirs, BackendError.

    Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5, LAY-6, LAY-60.
    """
    kinds = repeats.kinds_of_results([(q, DIRECTIONS)])
    key = "to_layout", kinds, kinds and q.spec.name, scale_layout, backend
    again = repeats.find(key) if kinds else None
    if again:
        repeated: Quantized[Row_co, Column_co] = again(q)
        return repeated
    require_quantized("to_layout", q)
    target = layout(scale_layout)
    changed: dict[Direction, Any] = {}
    moves: dict[Direction, Move] = {}
    for name in DIRECTIONS:
        data = q.row if name == "row" else q.column
        if data is None:
            continue
        require_bytes("to_layout", q, name)
        rows, columns = q.direction(name)[1]
        shape = rows, -(-columns // q.spec.block.columns)
        asked = layout(q.scale_layout), target, shape, arrays.device_of(data.scales), backend
        call, function = plans.to_move(*asked, registry.registered())
        changed[name] = data._replace(scales=function(call, data.scales))
        moves[name] = Move(call, function, data.scales)
    moved = dataclasses.replace(q, scale_layout=scale_layout, **changed)
    move = moving(moves, backend) if kinds else None
    if move:
        repeats.keep(key, results_moved(move, moved), q.scale_layout, scale_layout)
    return moved
