"""Quantizing consecutive row ranges of one tensor, each with a global scale of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fp4ref import arrays, registry, repeats
from fp4ref.api import quantize
from fp4ref.arguments import direction_names, each_direction, given_amax, parts_of, read_flag, require_hadamard
from fp4ref.catalogue import resolve
from fp4ref.errors import DomainError, ShapeError
from fp4ref.layout import layout
from fp4ref.memory import by_direction, require_apart
from fp4ref.quantized import Direction, DirectionChoice, Directions, Group, LayoutName, Quantized
from fp4ref.spec import Granularity, Spec

OPERATION = "quantize_grouped"


def quantize_grouped(
    x: Any,
    splits: Sequence[int],
    spec: Spec | str | Sequence[Spec | str],
    directions: DirectionChoice | Sequence[DirectionChoice] = "row",
    scale_layout: LayoutName | Sequence[LayoutName] = "linear",
    amax: Any = None,
    random_bits: Any = None,
    backend: str | None = None,
    out: Group | None = None,
    noop: Any = None,
) -> Group:
    """Quantize consecutive row ranges of a tensor; member i is what `quantize` makes of the next splits[i] rows.

    x: [sum of splits, K], as `quantize` takes it; a split may be 0.
    spec, directions, scale_layout: one for all, or a sequence with one per member, which must agree.
    amax: given maxima [members], or those of the members one after the other for a row scale; `Directions` of them
    where the two directions differ. random_bits: for a stochastic spec, a sequence with those of every member.
    out: the group that an earlier call of the same backend with the same arguments returned; it is filled.
    noop: as `quantize` takes it, for all members.

    A backend with the operation runs it at once, in one launch on a GPU; any other quantizes one member after another.

    Errors: DomainError that names the first member that disagrees, ShapeError, DTypeError, LayoutError, BackendError.

    >>> import numpy as np, fp4ref
    >>> x = np.float32([[1, 2] * 8, [4, -6] * 8, [0, 3] * 8])
    >>> group = fp4ref.quantize_grouped(x, [1, 0, 2], fp4ref.NVFP4)
    >>> [(q.shape, float(q.row.amax[0])) for q in group]
    [((1, 16), 2.0), ((0, 16), 0.0), ((2, 16), 6.0)]

    Rules: LAY-8, LAY-12, LAY-11, LAY-50, NUM-6, GLB-1, GLB-4, BLK-9. Certificates: group-members-*.
    """
    alone = amax is None and random_bits is None and out is None and noop is None
    key = _kind(x, splits, spec, directions, scale_layout, backend) if alone else None
    again = repeats.find(key) if key else None
    if again is not None:
        repeated: Group = again(x)
        return repeated
    splits, named = _sizes(splits), spec
    spec = resolve(_agreed("spec", spec, splits))
    names = direction_names(_agreed("directions", directions, splits))
    x = arrays.imported(x)
    form: str = _agreed("scale_layout", scale_layout, splits)
    stored = layout(form)
    like = _members(x, splits, spec, names, form)
    if out is not None:
        _require_out(out, like, names)
        written = {key: part for i, q in enumerate(out) for key, part in parts_of(q, names, f"out[{i}]").items()}
        drawn = {f"random_bits[{i}]": part for i, part in enumerate(random_bits or ())}
        require_apart(OPERATION, written, {"x": x, "noop": noop, **by_direction("amax", amax), **drawn})
    skipped, flag = read_flag(OPERATION, noop, out)
    amaxes = _amaxes(amax, like, spec, names)
    call = registry.Call(
        OPERATION,
        spec,
        arrays.dtype_name(x),
        "both" if len(names) == 2 else names[0],
        layout=stored,
        device=arrays.device_of(x),
        shape=(int(x.shape[0]), int(x.shape[1])),
        splits=splits,
        flag=bool(flag),
        out=out is not None,
    )
    at_once = not spec.stochastic and registry.offers(call, backend)
    if skipped and isinstance(out, Group):
        return out
    if at_once and (out is None or out.memory is not None):
        function = registry.choose(call, backend)
        whole = Directions(**{name: value for name, (value, _) in amaxes.items()})
        members: Group = function(call, x, whole, None if out is None else out.memory, **flag)
        bind = registry.binder(call, backend) if key else None
        if bind:
            repeats.keep(key, bind(call, x), form, spec=named)  # type: ignore[arg-type]
        return members
    made, start = [], 0
    for index, rows in enumerate(splits):
        own = {name: parts[index] for name, (_, parts) in amaxes.items()}
        bits = None if random_bits is None else random_bits[index]
        into = None if out is None else out[index]
        part = x[start : start + rows]
        made.append(quantize(part, spec, call.direction, form, Directions(**own), bits, backend, into, noop))
        start += rows
    if key:
        repeats.keep(key, _repeating(splits, spec, call.direction, form, backend), form, spec=named)  # type: ignore[arg-type]
    return Group(made)


def _kind(x: Any, splits: Any, *how: Any) -> tuple[Hashable, ...] | None:
    """Return all that decides, but for bytes, about a call without further arguments; None if something else does.

    how: specification, directions, layout and backend, one for all members.
    """
    spec, directions, scale_layout, backend = how
    plain = isinstance(spec, (str, Spec)) and type(directions) is type(scale_layout) is str
    if not plain or type(splits) not in {list, tuple} or not all(type(rows) is int for rows in splits):
        return None
    kind = repeats.kind_of(x)
    name = getattr(spec, "name", spec)
    return None if kind is None else (OPERATION, kind, tuple(splits), spec, name, directions, scale_layout, backend)


def _repeating(
    splits: tuple[int, ...], spec: Spec, directions: DirectionChoice, form: str, backend: str | None
) -> Callable[[Any], Group]:
    """Return the function that quantizes members of other tensors of a kind, with no check of all together."""
    ends = list(accumulate(splits))
    bounds = list(zip([0, *ends], ends, strict=False))

    def again(x: Any) -> Group:
        return Group([quantize(x[start:end], spec, directions, form, backend=backend) for start, end in bounds])

    return again


def _sizes(splits: Any) -> tuple[int, ...]:
    """Return the rows of each member as Python integers. Rules: LAY-8."""
    try:
        return tuple(operator.index(rows) for rows in splits)
    except TypeError:
        raise ShapeError(OPERATION, f"splits {splits!r}", "a sequence of integers", "LAY-8") from None


def _agreed(what: str, value: Any, splits: tuple[int, ...]) -> Any:
    """Return the one value that all members have. Rules: LAY-11."""
    if isinstance(value, (str, Spec)):
        return value
    values = list(value)
    if not values or len(values) != len(splits):
        raise ShapeError(OPERATION, f"{len(values)} of {what}", f"one for each of {len(splits)} members", "LAY-11")
    for index, other in enumerate(values):
        if other != values[0]:
            got = f"{what} {getattr(other, 'name', other)} of member {index}"
            raise DomainError(OPERATION, got, f"{getattr(values[0], 'name', values[0])} as member 0 has", "LAY-11")
    return values[0]


def _members(
    x: Any, splits: tuple[int, ...], spec: Spec, names: tuple[Direction, ...], scale_layout: str
) -> list[Quantized]:
    """Return the records of all members, still without bytes."""
    dtype = arrays.require_input(OPERATION, x)
    if len(x.shape) != 2 or any(rows < 0 for rows in splits) or sum(splits) != x.shape[0]:
        raise ShapeError(OPERATION, f"splits {list(splits)} of {list(x.shape)}", "[sum of splits, K]", "LAY-8")
    like = [Quantized(spec, (rows, int(x.shape[1])), dtype, scale_layout) for rows in splits]
    for index, member in enumerate(like):
        for name in names:
            require_hadamard(spec, name, member.shape, dtype, f"{OPERATION}: member {index}")
    return like


def _require_out(out: Group, like: list[Quantized], names: tuple[Direction, ...]) -> None:
    """Require the group of an earlier call. Rules: RES-8."""
    if not isinstance(out, Group) or len(out) != len(like):
        raise ShapeError(OPERATION, f"out of {len(out)} members", f"the group of {len(like)} that it returned", "RES-8")
    for index, (member, other) in enumerate(zip(out, like, strict=True)):
        for field in ("spec", "shape", "dtype", "scale_layout"):
            if getattr(member, field) != getattr(other, field):
                raise DomainError(OPERATION, f"out with another {field} for member {index}", rule="RES-8")
        for name in names:
            member.direction(name)


def _amaxes(
    amax: Any, like: list[Quantized], spec: Spec, names: tuple[Direction, ...]
) -> dict[Direction, tuple[Any, list[Any]]]:
    """Return checked maxima per direction: of all members, and of each. Rules: GLB-4."""
    result: dict[Direction, tuple[Any, list[Any]]] = {}
    for name, value in each_direction(amax, names, spec, "amax").items():
        shapes = [q.matrix if name == "row" else q.matrix[::-1] for q in like]
        counts = [rows if spec.global_scale is Granularity.ROW else 1 for rows, _ in shapes]
        if value is None:
            result[name] = None, [None] * len(like)
            continue
        arrays.require_array(f"{OPERATION}: amax", value)
        if tuple(value.shape) != (sum(counts),):
            raise ShapeError(OPERATION, f"amax of shape {list(value.shape)}", f"[{sum(counts)}]", "GLB-4")
        ends = np.cumsum([0, *counts]).tolist()
        parts = [
            given_amax(value[first:last], spec, shape)
            for first, last, shape in zip(ends, ends[1:], shapes, strict=False)
        ]
        on_device = arrays.device_of(value) != "cpu"
        result[name] = value if on_device else np.concatenate([np.zeros(0, np.float32), *parts]), parts
    return result
