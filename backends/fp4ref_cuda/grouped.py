"""Many row ranges of one tensor, each with a global scale of its own, quantized in one launch."""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import Any, TypeAlias

import numpy as np

import fp4ref_numerics
from fp4ref import packing
from fp4ref.arguments import buffer_shapes
from fp4ref.errors import ShapeError
from fp4ref.quantized import Direction, DirectionData, Directions, Group, Quantized
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.spec import Granularity, Spec
from fp4ref_cuda import buffers, maxima, programs
from fp4ref_cuda.buffers import Library, Operands, pointer
from fp4ref_cuda.checks import noop_flag, pointer_bits, require_buffer
from fp4ref_cuda.demands import fused_reason
from fp4ref_cuda.launch import require_reciprocal
from fp4ref_cuda.members import GroupPlan, group
from fp4ref_cuda.paths import fused, general
from fp4ref_cuda.plan import Plan, fused_label, remember

OPERATION = "quantize_grouped"


def quantize_grouped(
    call: Call,
    x: Any,
    amax: Directions = Directions(),  # noqa: B008
    out: Directions | None = None,
    noop: Any = None,
) -> Group:
    """Quantize consecutive row ranges of x; member i is the same as `quantize` of the i-th of the call's splits.

    amax: given maxima of each direction, [members], or those of the members' rows end to end for a row scale.
    out: the memory of a group of the same shapes, which is filled again.

    Rules: LAY-8, LAY-12, LAY-50, GLB-1, GLB-5, BLK-9. Certificates: group-members-*.
    """
    names, splits = call.directions, call.splits
    assert splits is not None
    x, library = buffers.adopt(OPERATION, x)
    same, plan, served = _planned(call)
    with library.current():
        table = _uploaded(library, plan.table.tobytes(), len(splits))
        given = () if out is None else (*_parts(out.row), *_parts(out.column))
        inputs = x, table, noop, *amax, *given
        act = partial(_filled, call, x, amax, out, noop, plan, table)
        parts = programs.serve(OPERATION, same, inputs, act) if served else act()
    if not served:
        served.append(True)
    each = dict(zip(names, (DirectionData(*parts[:3]), DirectionData(*parts[-3:])), strict=False))
    return Group(_members(same, plan, each), Directions(each.get("row"), each.get("column")))


@lru_cache(maxsize=1024)
def _planned(call: Call) -> tuple[Call, GroupPlan, list[bool]]:
    """Return the first of equal calls, its plan, and whether it was served: splits new each time are not recorded."""
    spec, splits = call.required, call.splits
    assert splits is not None
    return call, group(spec, splits, call.sizes[1], call.directions, call.layout.name, call.source), []


def _parts(part: DirectionData | None) -> tuple[Any, ...]:
    return (None, None, None) if part is None else part


def _filled(
    call: Call, x: Any, amax: Directions, out: Directions | None, noop: Any, plan: GroupPlan, table: Any
) -> tuple[Any, ...]:
    """Return the memory of the directions in use, filled."""
    spec, names, (rows, columns), splits = call.required, call.directions, call.sizes, plan.splits
    x, library = buffers.adopt(OPERATION, x)
    if fp4ref_numerics.takes_reciprocal(spec):
        require_reciprocal(library)
    x = buffers.contiguous(x)
    flag_word = noop_flag(noop, library)
    whole = {name: _whole(library, spec, plan, (rows, columns), name) for name in names} if out is None else {}
    if out is not None:
        whole = {name: _required(library, spec, plan, (rows, columns), name, out, x) for name in names}
    ran: tuple[str, ...] = ()
    on = Operands(library, x, whole, amax._asdict(), {}, pointer(flag_word), table, len(splits))
    addresses = pointer(x) | pointer_bits(whole, call.layout)
    reason = "one direction"
    if len(names) == 2:
        reason = fused_reason(spec, call.source, (rows, columns), call.layout.name, addresses, splits)
        if not reason and (amax.row is None) != (amax.column is None):
            reason = "an amax for one direction"
    if not reason:
        ran = fused(call, on)
    elif splits:
        ran = maxima.fill(call, on)
    if reason and plan.total_tiles:
        general(call, on, plan.total_tiles, plan.across)
        ran += ("quantize",)
    remember(Plan(f"grouped: {'tiles' if reason else fused_label(spec)}", ran, reason))
    return tuple(part for name in names for part in whole[name])


@lru_cache(maxsize=256)
def _uploaded(library: Library, table: bytes, count: int) -> Any:
    """Return a table of members on the device, kept: a captured graph may point to it."""
    return library.upload(np.frombuffer(table, np.int64).reshape(count, 6).copy()) if count else None


def _sizes(spec: Spec, plan: GroupPlan, matrix: tuple[int, int], name: Direction) -> tuple[int, int, int | None]:
    """Elements of data, scales and amax of all members of a direction."""
    rows, columns = matrix
    row = name == "row"
    data = rows * packing.width(columns, spec.element.format) if row else plan.column_data[-1]
    scales = plan.row_scales[-1] if row else plan.column_scales[-1]
    count = len(plan.splits)
    numbers = {Granularity.NONE: None, Granularity.TENSOR: count, Granularity.ROW: rows if row else count * columns}
    return int(data), int(scales), numbers[spec.global_scale]


def _whole(library: Library, spec: Spec, plan: GroupPlan, matrix: tuple[int, int], name: Direction) -> DirectionData:
    """Return new memory for all members of a direction."""
    data, scales, amax = _sizes(spec, plan, matrix, name)
    numbers = None if amax is None else library.empty((amax,), "float32")
    return DirectionData(library.empty((data,), "uint8"), library.empty((scales,), "uint8"), numbers)


def _starts(spec: Spec, columns: int, name: Direction, plan: GroupPlan, index: int) -> tuple[int, int, int]:
    """Where data, scales and amax of a member start in the memory of a direction."""
    by_row = spec.global_scale is Granularity.ROW
    if name == "column":
        return plan.column_data[index], plan.column_scales[index], index * columns if by_row else index
    first = sum(plan.splits[:index])
    return first * packing.width(columns, spec.element.format), plan.row_scales[index], first if by_row else index


def _members(call: Call, plan: GroupPlan, whole: dict[Direction, DirectionData]) -> list[Quantized]:
    """Return each member's views of the memory."""
    spec, (_, columns), form = call.required, call.sizes, call.layout.name
    members = []
    for rows, places in zip(plan.splits, _places(Same(call), Same(plan)), strict=True):
        views: dict[str, Any] = {
            name: DirectionData(
                *(place and part[place[0]].view(place[1]) for part, place in zip(part_of, places[name], strict=True))
            )
            for name, part_of in whole.items()
        }
        members.append(Quantized(spec, (rows, columns), call.source, form, **views))
    return members


Place: TypeAlias = tuple[slice, tuple[int, ...]] | None  # elements of a direction's memory, and their shape


@lru_cache(maxsize=1024)
def _places(call: Same, plan: Same) -> list[dict[Direction, list[Place]]]:
    """Return where data, scales and amax of each member's directions lie."""
    spec, (_, columns), form = call.value.required, call.value.sizes, call.value.layout.name
    found = []
    for index, rows in enumerate(plan.value.splits):
        places: dict[Direction, list[Place]] = {}
        for name in call.value.directions:
            shapes = buffer_shapes(spec, (rows, columns), name, form)
            starts = _starts(spec, columns, name, plan.value, index)
            places[name] = [
                None if shape is None else (slice(start, start + prod(shape)), shape)
                for start, shape in zip(starts, shapes, strict=True)
            ]
        found.append(places)
    return found


def _required(
    library: Library,
    spec: Spec,
    plan: GroupPlan,
    matrix: tuple[int, int],
    name: Direction,
    out: Directions,
    x: Any,
) -> DirectionData:
    """Return the caller's memory of a direction, if it can be written to."""
    whole: DirectionData | None = getattr(out, name)
    if whole is None:
        raise ShapeError(OPERATION, f"out without the {name} direction", "the directions of the call", "RES-8")
    sizes = _sizes(spec, plan, matrix, name)
    for field, part, size in zip(DirectionData._fields, whole, sizes, strict=True):
        if (part is None) != (size is None):
            raise ShapeError(OPERATION, f"out.{name}.{field} {'missing' if part is None else 'given'}", rule="RES-8")
        if part is not None and size is not None:
            require_buffer(f"{OPERATION}: out.{name}.{field}", part, (size,), library, x)
    return whole
