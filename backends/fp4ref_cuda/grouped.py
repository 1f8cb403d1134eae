"""Many row ranges of one tensor, each with a global scale of its own, quantized in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from fp4ref import arrays, packing
from fp4ref.api import buffer_shapes
from fp4ref.catalogue import resolve
from fp4ref.errors import DomainError, DTypeError, ShapeError
from fp4ref.hadamard import POINTS
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData, Directions, Quantized
from fp4ref.spec import Granularity, Spec
from fp4ref_cuda import buffers, maxima
from fp4ref_cuda.buffers import Library, pointer
from fp4ref_cuda.checks import noop_flag, pointer_bits, require_buffer
from fp4ref_cuda.launch import launch
from fp4ref_cuda.paths import directions, fused
from fp4ref_cuda.plan import Group, Plan, fused_label, fused_reason, group, prelude, remember

OPERATION = "quantize_grouped"


@dataclass(frozen=True)
class Grouped:
    """The members of a group, and the memory of each direction that they are views of."""

    members: tuple[Quantized, ...]
    row: DirectionData | None = None
    column: DirectionData | None = None


def quantize_grouped(
    x: Any,
    splits: Sequence[int],
    spec: Any,
    names: Any = "row",
    scale_layout: Any = "linear",
    amax: Directions = Directions(),  # noqa: B008
    out: Grouped | None = None,
    noop: Any = None,
) -> Grouped:
    """Quantize consecutive row ranges of x; member i is what `quantize` makes of splits[i] rows.

    x: [sum(splits), K]. spec, names, scale_layout: one for all, or a sequence with one per member, which must agree.
    amax: given maxima of each direction, [members], or those of the members' rows end to end for a row scale.
    out: the result of an earlier call with the same shapes, whose buffers are filled and returned.

    Errors: DomainError that names the first member that disagrees; ShapeError; BackendError.

    Rules: LAY-8, GLB-1, GLB-5, BLK-9.
    """
    splits = tuple(int(rows) for rows in splits)
    spec = resolve(_agreed("spec", spec, splits))
    chosen = _agreed("directions", names, splits)
    each = DIRECTIONS if chosen == "both" else (chosen,)
    scale_layout = _agreed("scale_layout", scale_layout, splits)
    dtype = arrays.require_input(OPERATION, x)
    rows, columns = _require(x, splits, spec, each, dtype)
    x, library = buffers.adopt(OPERATION, x)
    with library.current():
        x = buffers.contiguous(x)
        flag = pointer(noop_flag(noop, library))
        plan = group(spec, splits, columns, each, scale_layout, dtype)
        table = _uploaded(library, plan.table.tobytes(), len(splits))
        if out is None:
            out = _new(library, spec, plan, (rows, columns), each, dtype, scale_layout)
        else:
            like = [Quantized(spec, (size, columns), dtype, scale_layout) for size in splits]
            _require_out(out, like, each, x, library)
        whole = {name: part for name in each if (part := out.row if name == "row" else out.column) is not None}
        ran: tuple[str, ...] = ()
        addresses = pointer(x) | pointer_bits(whole)
        reason = "one direction"
        if len(each) == 2:
            reason = fused_reason(spec, dtype, (rows, columns), scale_layout, addresses, splits)
            if not reason and (amax.row is None) != (amax.column is None):
                reason = "an amax for one direction"
        if not reason:
            given, members = amax._asdict(), (table, len(splits))
            ran = fused(library, x, dtype, spec, (rows, columns), scale_layout, whole, given, {}, flag, *members)
        elif splits:
            ran = maxima.fill(library, x, dtype, spec, (rows, columns), whole, amax._asdict(), flag, table, len(splits))
        if reason and plan.total_tiles:
            text = prelude(spec, dtype, scale_layout, HAS_ROW="row" in each, HAS_COLUMN="column" in each)
            arguments = (
                pointer(x),
                rows,
                columns,
                plan.across,
                pointer(table),
                len(splits),
                *directions(whole, {}),
                flag,
            )
            launch(library, "quantize", text, (plan.total_tiles,), arguments)
            ran += ("quantize",)
    remember(Plan(f"grouped: {'tiles' if reason else fused_label(spec)}", ran, reason))
    return out


def _agreed(what: str, value: Any, splits: tuple[int, ...]) -> Any:
    """The one value that all members have."""
    if isinstance(value, (str, Spec)):
        return value
    values = list(value)
    if len(values) != len(splits):
        raise ShapeError(OPERATION, f"{len(values)} of {what}", f"one for each of {len(splits)} members", "LAY-8")
    for index, other in enumerate(values):
        if other != values[0]:
            got = f"{what} {getattr(other, 'name', other)} of member {index}"
            raise DomainError(OPERATION, got, f"{getattr(values[0], 'name', values[0])} as member 0 has", "LAY-8")
    return values[0] if values else "row" if what == "directions" else "linear"


def _require(x: Any, splits: tuple[int, ...], spec: Spec, each: Sequence[Direction], dtype: str) -> tuple[int, int]:
    if len(x.shape) != 2 or any(rows < 0 for rows in splits) or sum(splits) != x.shape[0]:
        raise ShapeError(OPERATION, f"splits {list(splits)} of {list(x.shape)}", "[sum of splits, K]", "LAY-8")
    if spec.stochastic:
        raise DomainError(OPERATION, f"{spec.name}, which is stochastic", "nearest rounding", "SR-1")
    if spec.hadamard and "column" in each:
        if dtype != "bfloat16":
            raise DTypeError(OPERATION, f"hadamard of {dtype}", "bfloat16", "HAD-5")
        for index, rows in enumerate(splits):
            if rows % POINTS:
                raise ShapeError(
                    OPERATION, f"hadamard of {rows} rows of member {index}", f"a multiple of {POINTS}", "HAD-5"
                )
    return int(x.shape[0]), int(x.shape[1])


@lru_cache(maxsize=256)
def _uploaded(library: Library, table: bytes, count: int) -> Any:
    """A table of members on the device, kept: a captured graph may point to it."""
    return library.upload(np.frombuffer(table, np.int64).reshape(count, 6).copy()) if count else None


def _whole(library: Library, spec: Spec, plan: Group, matrix: tuple[int, int], name: Direction) -> DirectionData:
    """New memory for all members of a direction."""
    rows, columns = matrix
    row = name == "row"
    data = rows * packing.width(columns, spec.element.format) if row else plan.column_data[-1]
    scales = plan.row_scales[-1] if row else plan.column_scales[-1]
    count = len(plan.splits)
    numbers = {Granularity.NONE: None, Granularity.TENSOR: count, Granularity.ROW: rows if row else count * columns}
    maxima_count = numbers[spec.global_scale]
    amax = None if maxima_count is None else library.empty((maxima_count,), "float32")
    return DirectionData(library.empty((data,), "uint8"), library.empty((scales,), "uint8"), amax)


def _starts(spec: Spec, columns: int, name: Direction, plan: Group, index: int) -> tuple[int, int, int]:
    """Where data, scales and amax of a member start in the memory of a direction."""
    by_row = spec.global_scale is Granularity.ROW
    if name == "column":
        return plan.column_data[index], plan.column_scales[index], index * columns if by_row else index
    first = sum(plan.splits[:index])
    return first * packing.width(columns, spec.element.format), plan.row_scales[index], first if by_row else index


def _new(
    library: Library,
    spec: Spec,
    plan: Group,
    matrix: tuple[int, int],
    each: Sequence[Direction],
    dtype: str,
    scale_layout: str,
) -> Grouped:
    """New memory, and each member's views of it."""
    columns = matrix[1]
    whole = {name: _whole(library, spec, plan, matrix, name) for name in each}
    members = []
    for index, rows in enumerate(plan.splits):
        views: dict[str, Any] = {}
        for name, buffer in whole.items():
            shapes = buffer_shapes(spec, (rows, columns), name, scale_layout)
            starts = _starts(spec, columns, name, plan, index)
            views[name] = DirectionData(*map(_view, buffer, starts, shapes))
        members.append(Quantized(spec, (rows, columns), dtype, scale_layout, **views))
    return Grouped(tuple(members), whole.get("row"), whole.get("column"))


def _view(part: Any, start: int, shape: tuple[int, ...] | None) -> Any:
    return None if shape is None else part[start : start + prod(shape)].reshape(shape)


def _require_out(out: Grouped, like: Sequence[Quantized], each: Sequence[Direction], x: Any, library: Library) -> None:
    """Buffers of the same call, apart from the input."""
    if len(out.members) != len(like):
        raise ShapeError(OPERATION, f"out of {len(out.members)} members", f"{len(like)}", "LAY-8")
    for index, (member, other) in enumerate(zip(out.members, like, strict=True)):
        for field in ("spec", "shape", "dtype", "scale_layout"):
            if getattr(member, field) != getattr(other, field):
                raise ShapeError(OPERATION, f"out with another {field} for member {index}", rule="LAY-8")
    for name in each:
        whole = out.row if name == "row" else out.column
        if whole is None:
            raise ShapeError(OPERATION, f"out without the {name} direction", "the directions of the call", "LAY-8")
        for part in whole:
            if part is not None:
                require_buffer(f"{OPERATION}: out.{name}", part, part.shape, library, x)
