"""Checks of the public functions' arguments, made once, before a backend is called."""

from __future__ import annotations

import numbers
from functools import lru_cache
from typing import Any

import numpy as np

from fp4ref import arrays, packing
from fp4ref.errors import DomainError, DTypeError, ShapeError
from fp4ref.formats import is_number, nearest_float32
from fp4ref.hadamard import POINTS
from fp4ref.layout import Layout, layout
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData, Directions, Quantized, matrix_shape
from fp4ref.spec import Granularity, Spec

FLAGS = {"uint8": 1, "int32": 1, "float32": 0x3F800000}  # the types of a flag, and the bits of its number 1


def require_quantized(operation: str, q: object, name: str = "q") -> None:
    """Raise DTypeError unless q is a result of `quantize`. Rules: NUM-3."""
    if not isinstance(q, Quantized):
        raise DTypeError(operation, f"{name} of type {type(q).__name__}", "a result of quantize", "NUM-3")


def buffer_shapes(spec: Spec, shape: tuple[int, ...], direction: Direction, scale_layout: str) -> DirectionData:
    """Return shapes of data, scales and amax of one direction of a tensor; None where there is no amax.

    Rules: RES-1.
    """
    return _buffer_shapes(spec, tuple(shape), direction, layout(scale_layout))


@lru_cache(maxsize=4096)
def _buffer_shapes(spec: Spec, shape: tuple[int, ...], direction: Direction, form: Layout) -> DirectionData:
    rows, columns = matrix_shape(shape) if direction == "row" else matrix_shape(shape)[::-1]
    counts = {Granularity.NONE: None, Granularity.TENSOR: (1,), Granularity.ROW: (rows,)}
    return DirectionData(
        (rows, packing.width(columns, spec.element.format)),
        form.padded_shape(rows, -(-columns // spec.block.columns)),
        counts[spec.global_scale],
    )


def read_flag(operation: str, noop: Any, out: Any) -> tuple[bool, dict[str, Any]]:
    """Return True if a flag in the CPU's memory is set, and the backend's argument for a flag on a device.

    Rules: LAY-12, LAY-56, LAY-57. Certificates: flags.
    """
    if noop is None:
        return False, {}
    if out is None:
        raise DomainError(operation, "noop without out", "the buffers that it protects", "LAY-56")
    arrays.require_array(f"{operation}: noop", noop)
    require_flag(operation, noop)
    if arrays.device_of(noop) != "cpu":
        return False, {"noop": noop}
    return any(np.ascontiguousarray(arrays.to_numpy(operation, noop)).tobytes()), {}


def require_flag(operation: str, noop: Any) -> None:
    """Require one number of a type that flags have. Rules: LAY-56."""
    name = arrays.dtype_name(noop)
    if name not in FLAGS or tuple(noop.shape) not in {(), (1,)}:
        got, (*most, last) = f"noop {name} {list(noop.shape)}", FLAGS
        raise DTypeError(operation, got, f"one {', '.join(most)} or {last}", "LAY-56")


def direction_names(directions: str, allow_both: bool = True) -> tuple[Direction, ...]:
    """Return the directions that a word stands for. Rules: BLK-15."""
    if directions == "both" and allow_both:
        return DIRECTIONS
    if directions not in DIRECTIONS:
        needed = "row, column or both" if allow_both else "row or column"
        raise DomainError("quantize" if allow_both else "dequantize", f"direction {directions!r}", needed, "BLK-15")
    return tuple(name for name in DIRECTIONS if name == directions)


def each_direction(value: Any, names: tuple[Direction, ...], spec: Spec, argument: str) -> dict[Direction, Any]:
    """Return an argument per direction. One tensor amax serves both, unless the directions have amaxes of their own.

    Rules: GLB-4, SR-1.
    """
    rule = "SR-1" if argument == "random_bits" else "GLB-4"
    if isinstance(value, Directions):
        surplus = [name for name in DIRECTIONS if name not in names and getattr(value, name) is not None]
        missing = [name for name in names if getattr(value, name) is None and len(names) > 1]
        if surplus or (missing and len(missing) < len(names)):
            got = f"{argument} for {', '.join(n for n in DIRECTIONS if getattr(value, n) is not None)}"
            raise ShapeError("quantize", got, f"one for {' and '.join(names)}", rule)
        return {name: getattr(value, name) for name in names}
    own = argument == "random_bits" or spec.hadamard is not None or spec.global_scale is Granularity.ROW
    if value is not None and len(names) > 1 and own:
        raise ShapeError(
            "quantize", f"one {argument} for both directions", f"{argument}=Directions(row=..., column=...)", rule
        )
    return dict.fromkeys(names, value)


def given_amax(value: Any, spec: Spec, shape: tuple[int, int]) -> Any:
    """Return the caller's amax as float32 [1] or [rows], unread if on a device.

    Rules: GLB-4, GLB-5, GLB-6, GLB-8. Certificates: given-amax, no-global-scale.
    """
    if value is None:
        return None
    if spec.global_scale is Granularity.NONE:
        raise DomainError("quantize", f"amax for {spec.name}", "a spec with a global scale", "GLB-6")
    if is_number(value):
        value = _number(value)
    elif not hasattr(value, "shape") and not hasattr(value, "__dlpack__"):
        raise DTypeError("quantize", f"amax of type {type(value).__name__}", "a number or an array", "GLB-4")
    else:
        arrays.require_array("quantize: amax", value)
    on_device = arrays.device_of(value) != "cpu"
    array = value if on_device or isinstance(value, np.generic) else arrays.to_numpy("quantize", value)
    dtype = arrays.dtype_name(array)
    if dtype not in ({"float32"} if on_device else arrays.INPUT_DTYPES):
        taken = "float32" if on_device else "float32, bfloat16 or float16"
        raise DTypeError("quantize", f"amax of dtype {dtype}", taken, "GLB-4")
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


def _number(value: Any) -> np.float32:
    """Round a number to the float32 amax that it stands for. Rules: GLB-4, GLB-8."""
    if value < 0 or value != value:  # noqa: PLR0124 - NaN; before rounding, which makes a small negative number -0
        raise DomainError("quantize", f"amax {value}", ">= 0 and not NaN", "GLB-4")
    rounded = nearest_float32(value)
    if np.isinf(rounded) and value != float("inf"):
        shown = f"of {int(value).bit_length()} bits" if isinstance(value, numbers.Integral) else f"{value:g}"
        raise DomainError("quantize", f"amax {shown}", "a number that float32 holds, or infinity", "GLB-4")
    return rounded


def require_bits(bits: Any, spec: Spec, shape: tuple[int, int]) -> None:
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
    """Require bfloat16 and whole groups for the transform, unless there is no column.

    Rules: HAD-5, RES-2. Certificates: transformed-shapes.
    """
    if spec.hadamard is None or direction == "row":
        return
    rows, columns = matrix_shape(shape)
    if dtype != "bfloat16":
        raise DTypeError(operation, f"hadamard of {dtype}", "bfloat16", "HAD-5")
    if rows % POINTS and columns:
        raise ShapeError(operation, f"hadamard of {rows} rows", f"a multiple of {POINTS}", "HAD-5")


def require_bytes(operation: str, q: Quantized, direction: Direction) -> None:
    """Require buffers whose types and shapes fit the record. Rules: RES-7, LAY-60."""
    expected = buffer_shapes(q.spec, q.shape, direction, q.scale_layout)
    data = q.direction(direction)[0]
    for name, value, shape in zip(DirectionData._fields, data, expected, strict=True):
        if (value is None) != (shape is None) or (value is not None and tuple(value.shape) != tuple(shape)):
            got = f"{direction}.{name} {'missing' if value is None else list(value.shape)}"
            needed = f"{'none' if shape is None else list(shape)} for {q.spec.name} {list(q.shape)} {q.scale_layout}"
            rule = "LAY-60" if name == "scales" and value is not None else "RES-7"
            raise ShapeError(operation, got, needed, rule)
        kind = "float32" if name == "amax" else "uint8"
        if value is not None and arrays.dtype_name(value) != kind:
            raise DTypeError(operation, f"{direction}.{name} {arrays.dtype_name(value)}", kind, "RES-7")


def parts_of(out: Quantized, names: tuple[Direction, ...], prefix: str = "out") -> dict[str, Any]:
    """Name the buffers that a call fills."""
    each = ((name, out.direction(name)[0]._asdict()) for name in names)
    return {f"{prefix}.{name}.{field}": part for name, parts in each for field, part in parts.items()}


def require_out(out: Quantized, like: Quantized, names: tuple[Direction, ...]) -> None:
    """Require buffers of a result of the same call. Rules: RES-8."""
    require_quantized("quantize", out, "out")
    for field in ("spec", "shape", "dtype", "scale_layout"):
        if getattr(out, field) != getattr(like, field):
            got, needed = getattr(out, field), getattr(like, field)
            show = [value.name if isinstance(value, Spec) else value for value in (got, needed)]
            raise ShapeError("quantize", f"out with {field} {show[0]}", f"{show[1]}", "RES-8")
    for name in names:
        require_bytes("quantize", out, name)
