"""The public functions: check the arguments once, then call a backend."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, overload

import numpy as np

from fp4ref import arrays, packing, registry
from fp4ref.catalogue import resolve
from fp4ref.errors import DomainError, DTypeError, ShapeError
from fp4ref.hadamard import POINTS
from fp4ref.layout import layout
from fp4ref.memory import by_direction, require_apart
from fp4ref.quantized import (
    DIRECTIONS,
    Column_co,
    Direction,
    DirectionChoice,
    DirectionData,
    Directions,
    LayoutName,
    Quantized,
    Row_co,
    matrix_shape,
)
from fp4ref.registry import Call
from fp4ref.spec import Granularity, Spec


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

    Rules: NUM-3, NUM-4, NUM-6, NUM-7, BLK-1, BLK-8, BLK-9, GLB-4, HAD-5, SR-1, LAY-7, LAY-12.
    """
    spec = resolve(spec)
    x = arrays.imported(x)
    dtype = arrays.require_input("quantize", x)
    shape = tuple(int(size) for size in x.shape)
    if not shape:
        raise ShapeError("quantize", "a tensor without dimensions", "at least one", "NUM-4")
    names = direction_names(directions)
    form = layout(scale_layout)
    empty = Quantized(spec, shape, dtype, scale_layout)
    if out is not None:
        _require_out(out, empty, names)
    skipped, flag = read_flag("quantize", noop, out)
    call = Call(
        "quantize",
        spec,
        dtype,
        directions,
        layout=form,
        device=arrays.device_of(x),
        shape=empty.matrix,
        flag=bool(flag),
        out=out is not None,
    )
    at_once = dataclasses.replace(call, operation="quantize_both")
    together = len(names) == 2 and registry.offers(at_once, backend)
    calls = [at_once] if together else [dataclasses.replace(call, direction=name) for name in names]
    functions = [registry.choose(each, backend) for each in calls]
    amaxes = each_direction(amax, names, spec, "amax")
    given_bits = each_direction(random_bits, names, spec, "random_bits")
    for name in names:
        require_hadamard(spec, name, shape, dtype)
        amaxes[name] = given_amax(amaxes[name], spec, _shape_of(empty, name))
        _require_bits(given_bits[name], spec, _shape_of(empty, name))
    if out is not None:
        taken = {**by_direction("amax", amax), **by_direction("random_bits", random_bits)}
        require_apart("quantize", parts_of(out, names), {"x": x, "noop": noop, **taken})
        if skipped:
            return out
    buffers: dict[Direction, Any] = {name: None if out is None else out.direction(name)[0] for name in names}
    if together:
        each = (Directions(given["row"], given["column"]) for given in (amaxes, given_bits, buffers))
        return dataclasses.replace(empty, **functions[0](at_once, x, *each, **flag)._asdict())
    results = {
        name: function(each, x, amaxes[name], given_bits[name], buffers[name], **flag)
        for name, each, function in zip(names, calls, functions, strict=True)
    }
    return dataclasses.replace(empty, **results)


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

    Rules: DEQ-1, DEQ-2, DEQ-3, DEQ-4, DEQ-5, HAD-6, LAY-6, NUM-6.
    """
    require_quantized("dequantize", q)
    to = arrays.output_dtype("dequantize", dtype)
    direction_names(direction, allow_both=False)
    data, shape = q.direction(direction)
    _require_bytes("dequantize", q, direction)
    if inverse_hadamard and (q.spec.hadamard is None or direction == "row"):
        got = f"inverse_hadamard of the {direction} direction of {q.spec.name}"
        raise DomainError("dequantize", got, "the column direction of a spec with hadamard", "HAD-6")
    call = Call(
        "dequantize",
        q.spec,
        arrays.output_dtype("dequantize", q.dtype).name,
        direction,
        to.name,
        layout=layout(q.scale_layout),
        device=arrays.device_of(data.data),
        shape=q.matrix,
        inverse_hadamard=inverse_hadamard,
        out=out is not None,
    )
    function = registry.choose(call, backend)
    if out is not None:
        arrays.require_array("dequantize: out", out)
        result = tuple(q.shape) if direction == "row" else shape
        if tuple(out.shape) != result or arrays.dtype_name(out) != to.name:
            got = f"out {arrays.dtype_name(out)} {list(out.shape)}"
            raise ShapeError("dequantize", got, f"{to.name} {list(result)}", "DEQ-3")
        require_apart("dequantize", {"out": out}, data._asdict())
        function(call, data, arrays.as_matrix(out, shape))
        return out
    values = function(call, data, None)
    return values.reshape(q.shape) if direction == "row" else values


def to_layout(
    q: Quantized[Row_co, Column_co], scale_layout: LayoutName, backend: str | None = None
) -> Quantized[Row_co, Column_co]:
    """Return the same result with its scales in another layout; codes and amax are shared, padding is written as zero.

    Errors: LayoutError for an unknown layout, ShapeError for scales that do not fit theirs, BackendError.

    Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5, LAY-6, LAY-7.
    """
    require_quantized("to_layout", q)
    target = layout(scale_layout)
    changed: dict[str, Any] = {}
    for name in DIRECTIONS:
        data = q.row if name == "row" else q.column
        if data is None:
            continue
        _require_bytes("to_layout", q, name)
        rows, columns = _shape_of(q, name)
        call = Call(
            "to_layout",
            layout=layout(q.scale_layout),
            device=arrays.device_of(data.scales),
            shape=(rows, -(-columns // q.spec.block.columns)),
            target=target,
        )
        changed[name] = data._replace(scales=registry.choose(call, backend)(call, data.scales))
    return dataclasses.replace(q, scale_layout=scale_layout, **changed)


def require_quantized(operation: str, q: object, name: str = "q") -> None:
    """Raise DTypeError unless q is a result of `quantize`. Rules: NUM-3."""
    if not isinstance(q, Quantized):
        raise DTypeError(operation, f"{name} of type {type(q).__name__}", "a result of quantize", "NUM-3")


def buffer_shapes(spec: Spec, shape: tuple[int, ...], direction: Direction, scale_layout: str) -> DirectionData:
    """Return shapes of data, scales and amax of one direction of a tensor; None where there is no amax."""
    rows, columns = matrix_shape(shape) if direction == "row" else matrix_shape(shape)[::-1]
    counts = {Granularity.NONE: None, Granularity.TENSOR: (1,), Granularity.ROW: (rows,)}
    return DirectionData(
        (rows, packing.width(columns, spec.element.format)),
        layout(scale_layout).padded_shape(rows, -(-columns // spec.block.columns)),
        counts[spec.global_scale],
    )


def read_flag(operation: str, noop: Any, out: Any) -> tuple[bool, dict[str, Any]]:
    """Return True if a flag in the CPU's memory is set, and the backend's argument for a flag on a device.

    Rules: LAY-12.
    """
    if noop is None:
        return False, {}
    if out is None:
        raise DomainError(operation, "noop without out", "the buffers that it protects", "LAY-12")
    arrays.require_array(f"{operation}: noop", noop)
    name = arrays.dtype_name(noop)
    if name not in {"uint8", "int32", "float32"} or tuple(noop.shape) not in {(), (1,)}:
        got = f"noop {name} {list(noop.shape)}"
        raise DTypeError(operation, got, "one uint8, int32 or float32", "LAY-12")
    if arrays.device_of(noop) != "cpu":
        return False, {"noop": noop}
    return any(np.ascontiguousarray(arrays.to_numpy(operation, noop)).tobytes()), {}


def _shape_of(q: Quantized, direction: Direction) -> tuple[int, int]:
    return q.matrix if direction == "row" else (q.matrix[1], q.matrix[0])


def direction_names(directions: str, allow_both: bool = True) -> tuple[Direction, ...]:
    """Return the directions that a word stands for. Rules: BLK-8."""
    if directions == "both" and allow_both:
        return DIRECTIONS
    if directions not in DIRECTIONS:
        needed = "row, column or both" if allow_both else "row or column"
        raise DomainError("quantize" if allow_both else "dequantize", f"direction {directions!r}", needed, "BLK-8")
    return tuple(name for name in DIRECTIONS if name == directions)


def each_direction(value: Any, names: tuple[Direction, ...], spec: Spec, argument: str) -> dict[Direction, Any]:
    """Return an argument per direction. One tensor amax serves both, unless the directions have amaxes of their own."""
    if isinstance(value, Directions):
        surplus = [name for name in DIRECTIONS if name not in names and getattr(value, name) is not None]
        missing = [name for name in names if getattr(value, name) is None and len(names) > 1]
        if surplus or (missing and len(missing) < len(names)):
            got = f"{argument} for {', '.join(n for n in DIRECTIONS if getattr(value, n) is not None)}"
            raise ShapeError("quantize", got, f"one for {' and '.join(names)}", "GLB-4")
        return {name: getattr(value, name) for name in names}
    own = argument == "random_bits" or spec.hadamard is not None or spec.global_scale is Granularity.ROW
    if value is not None and len(names) > 1 and own:
        raise ShapeError(
            "quantize", f"one {argument} for both directions", f"{argument}=Directions(row=..., column=...)", "GLB-4"
        )
    return dict.fromkeys(names, value)


def given_amax(value: Any, spec: Spec, shape: tuple[int, int]) -> Any:
    """Return the caller's amax as float32 [1] or [rows], unread if on a device. Rules: GLB-4, GLB-5, GLB-6."""
    if value is None:
        return None
    if spec.global_scale is Granularity.NONE:
        raise DomainError("quantize", f"amax for {spec.name}", "a spec with a global scale", "GLB-6")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = _number(value)
    else:
        arrays.require_array("quantize: amax", value)
    on_device = arrays.device_of(value) != "cpu"
    array = value if on_device or isinstance(value, np.generic) else arrays.to_numpy("quantize", value)
    dtype = arrays.dtype_name(array)
    if dtype not in ({"float32"} if on_device else arrays.INPUT_DTYPES):
        raise DTypeError("quantize", f"amax of dtype {dtype}", "float32", "GLB-4")
    count = shape[0] if spec.global_scale is Granularity.ROW else 1
    if tuple(array.shape) not in {(count,), (count, 1), () if count == 1 else (count,)}:
        raise ShapeError("quantize", f"amax of shape {list(array.shape)}", f"[{count}]", "GLB-4")
    if on_device:
        return array.reshape(count)
    flat = np.ascontiguousarray(array, np.float32).reshape(count)
    bad = np.isnan(flat) | (flat < 0)
    if bad.any():
        raise DomainError("quantize", f"amax {flat[bad][0]}", ">= 0 and not NaN", "GLB-4")
    return np.abs(flat)  # -0 is 0


def _number(value: float) -> np.float32:
    """Round a number to the float32 amax that it stands for. Rules: GLB-4."""
    if value < 0 or value != value:  # noqa: PLR0124 - NaN; before rounding, which makes a small negative number -0
        raise DomainError("quantize", f"amax {value}", ">= 0 and not NaN", "GLB-4")
    try:
        with np.errstate(over="ignore"):
            rounded = np.float32(value)
    except OverflowError:  # an integer beyond float64
        rounded = np.float32(np.inf)
    if np.isinf(rounded) and value != float("inf"):
        shown = f"{value:g}" if isinstance(value, float) else f"of {value.bit_length()} bits"
        raise DomainError("quantize", f"amax {shown}", "a number that float32 holds, or infinity", "GLB-4")
    return rounded


def _require_bits(bits: Any, spec: Spec, shape: tuple[int, int]) -> None:
    """Require random bits exactly where the spec is stochastic. Rules: SR-1."""
    if spec.stochastic != (bits is not None):
        got = "no random_bits" if spec.stochastic else "random_bits"
        needed = "uint8, one byte per element" if spec.stochastic else "none"
        raise DomainError("quantize", f"{got} for {spec.name}", needed, "SR-1")
    if bits is None:
        return
    arrays.require_array("quantize: random_bits", bits)
    if arrays.dtype_name(bits) != "uint8":
        raise DTypeError("quantize", f"random_bits of dtype {arrays.dtype_name(bits)}", "uint8", "SR-1")
    if tuple(bits.shape) != shape:
        raise ShapeError("quantize", f"random_bits {list(bits.shape)}", f"{list(shape)}", "SR-1")


def require_hadamard(
    spec: Spec, direction: Direction, shape: tuple[int, ...], dtype: str, operation: str = "quantize"
) -> None:
    """Require bfloat16 and whole groups for the transform. Rules: HAD-5."""
    if spec.hadamard is None or direction == "row":
        return
    rows, columns = matrix_shape(shape)
    if dtype != "bfloat16":
        raise DTypeError(operation, f"hadamard of {dtype}", "bfloat16", "HAD-5")
    if rows % POINTS and columns:
        raise ShapeError(operation, f"hadamard of {rows} rows", f"a multiple of {POINTS}", "HAD-5")


def _require_bytes(operation: str, q: Quantized, direction: Direction) -> None:
    """Require buffers whose shapes fit the record. Rules: LAY-7."""
    expected = buffer_shapes(q.spec, q.shape, direction, q.scale_layout)
    data = q.direction(direction)[0]
    for name, value, shape in zip(DirectionData._fields, data, expected, strict=True):
        if (value is None) != (shape is None) or (value is not None and tuple(value.shape) != tuple(shape)):
            got = f"{direction}.{name} {'missing' if value is None else list(value.shape)}"
            needed = f"{'none' if shape is None else list(shape)} for {q.spec.name} {list(q.shape)} {q.scale_layout}"
            raise ShapeError(operation, got, needed, "LAY-7")
        kind = "float32" if name == "amax" else "uint8"
        if value is not None and arrays.dtype_name(value) != kind:
            raise DTypeError(operation, f"{direction}.{name} {arrays.dtype_name(value)}", kind, "LAY-7")


def parts_of(out: Quantized, names: tuple[Direction, ...], prefix: str = "out") -> dict[str, Any]:
    """Name the buffers that a call fills."""
    each = ((name, out.direction(name)[0]._asdict()) for name in names)
    return {f"{prefix}.{name}.{field}": part for name, parts in each for field, part in parts.items()}


def _require_out(out: Quantized, like: Quantized, names: tuple[Direction, ...]) -> None:
    """Require buffers of the same call. Rules: LAY-7."""
    require_quantized("quantize", out, "out")
    for field in ("spec", "shape", "dtype", "scale_layout"):
        if getattr(out, field) != getattr(like, field):
            got, needed = getattr(out, field), getattr(like, field)
            show = [value.name if isinstance(value, Spec) else value for value in (got, needed)]
            raise ShapeError("quantize", f"out with {field} {show[0]}", f"{show[1]}", "LAY-7")
    for name in names:
        _require_bytes("quantize", out, name)
