"""Many row ranges of one tensor, each with a global scale of its own, quantized in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

import fp4ref_numerics
from fp4ref import arrays, packing
from fp4ref.arguments import buffer_shapes
from fp4ref.errors import ShapeError
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData, Directions, Group, Quantized
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.spec import Granularity, Spec
from fp4ref_cuda import buffers, maxima, programs
from fp4ref_cuda.buffers import Library, Operands, pointer
from fp4ref_cuda.checks import noop_flag, pointer_bits, require_buffer
from fp4ref_cuda.demands import fused_reason
from fp4ref_cuda.launch import require_reciprocal
from fp4ref_cuda.members import GroupPlan, group
from fp4ref_cuda.paths import NOTHING, fused, general
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
    x, library = buffers.adopt(OPERATION, x)
    same, plan, served = _planned(call, call.required.name)
    with library.current():
        table = _table(library, plan)
        given = () if out is None else (*(out.row or NOTHING), *(out.column or NOTHING))
        inputs = x, table, noop, *amax, *given
        act = partial(_filled, call, x, amax, out, noop, plan, table)
        parts = programs.serve(OPERATION, same, inputs, act) if served else act()
    if not served:
        served.append(True)
    return _divider(Same(same), Same(plan))(parts)


def bind_quantize_grouped(call: Call, x: Any) -> Callable[[Any], Group] | None:
    """Return a function that quantizes other tensors of this one's kind, given nothing else, as the first call did."""
    same, plan, _ = _planned(call, call.required.name)
    _, library = buffers.adopt(OPERATION, x)
    with library.current():
        table = _table(library, plan)
    nothing = (None,) * 3
    bound = programs.bind(OPERATION, same, (x, table, *nothing))
    if bound is None:
        return None
    divided = _divider(Same(same), Same(plan))

    def again(x: Any) -> Group:
        parts = bound(x, table, *nothing)
        return quantize_grouped(call, x) if parts is None else divided(parts)

    return again


@lru_cache(maxsize=1024)
def _planned(call: Call, name: str) -> tuple[Call, GroupPlan, list[bool]]:
    """Return the first of equal calls, its plan, and whether it was served: splits new each time are not recorded.

    name: of the specification, by which equal settings may differ.
    """
    spec, splits = call.required, call.splits
    assert splits is not None
    return call, group(spec, splits, call.sizes[1], call.directions, call.layout.name, call.source), []


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


def _table(library: Library, plan: GroupPlan) -> Any:
    return _uploaded(library, plan.table.tobytes(), len(plan.splits))


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


View: TypeAlias = Callable[[Sequence[Any]], Any]  # takes a member's part of one buffer of those of a call


@lru_cache(maxsize=1024)
def _divider(call: Same, plan: Same) -> Callable[[Sequence[Any]], Group]:
    """Return the function that makes a group of a call's buffers: those of rows, then those of columns."""
    of, places = call.value, plan.value
    members = [_member(of, places, index) for index in range(len(places.splits))]
    first = of.directions[0] == "row"

    def divided(parts: Sequence[Any]) -> Group:
        each = [DirectionData(*parts[at : at + 3]) for at in range(0, len(parts), 3)]
        memory = Directions(*each) if first else Directions(None, *each)
        return Group([make(*[data and data(parts) for data in views]) for make, views in members], memory)

    return divided


def _member(
    call: Call, plan: GroupPlan, index: int
) -> tuple[Callable[..., Quantized], list[Callable[[Sequence[Any]], DirectionData] | None]]:
    """Return the functions that make a member's record, and its rows and columns of a call's buffers."""
    spec, shape = call.required, (plan.splits[index], call.sizes[1])
    made: list[Callable[[Sequence[Any]], DirectionData] | None] = []
    for name in DIRECTIONS:
        if name not in call.directions:
            made.append(None)
            continue
        shapes = buffer_shapes(spec, shape, name, call.layout.name)
        starts, at = _starts(spec, shape[1], name, plan, index), 3 * call.directions.index(name)
        views = [_view(at + i, start, size) for i, (start, size) in enumerate(zip(starts, shapes, strict=True))]
        made.append(lambda parts, views=views: DirectionData(*[view(parts) for view in views]))  # type: ignore[misc]
    return Quantized(spec, shape, call.source, call.layout.name).maker(), made


def _view(at: int, start: int, shape: tuple[int, ...] | None) -> View:
    """Return the function that takes a part of this shape out of buffer `at`, from an element on."""
    if shape is None:
        return lambda parts: None
    view, strides = arrays.viewer(), buffers.strides(shape)
    return lambda parts: view(parts[at], shape, strides, start)


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
