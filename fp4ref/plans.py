"""The calls of backends that serve a public call, worked out once for all calls of the same kind.

A kind is everything but the bytes: specification, layouts, types, shapes, device, and the backends registered then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from fp4ref import registry
from fp4ref.arguments import direction_names, require_hadamard
from fp4ref.arrays import as_matrix, device_of, dtype_name
from fp4ref.errors import DomainError, ShapeError
from fp4ref.given import Arguments, is_set, maxima_reader
from fp4ref.hadamard import POINTS
from fp4ref.layout import Layout
from fp4ref.memory import apart, by_direction, named_buffers, require_apart
from fp4ref.quantized import (
    DIRECTIONS,
    Direction,
    DirectionChoice,
    Directions,
    Parts,
    Quantized,
    matrix_shape,
)
from fp4ref.registry import Call
from fp4ref.remembered import Same
from fp4ref.spec import Spec

NO_FLAG: dict[str, Any] = {}


class Planned(NamedTuple):
    """The calls of backends that make up one call of `quantize`: one for each direction, or one for both together."""

    names: tuple[Direction, ...]
    steps: tuple[tuple[Call, Callable[..., Any]], ...]
    together: bool


@lru_cache(maxsize=4096)
def to_quantize(
    spec: Spec,
    dtype: str,
    shape: tuple[int, ...],
    directions: DirectionChoice,
    form: Layout,
    device: str,
    backend: str | None,
    flag: bool,
    out: bool,
    registered: Same,
) -> Planned:
    """Check what does not depend on bytes, and choose the backends; remembered for the next call of the same kind."""
    if not shape:
        raise ShapeError("quantize", "a tensor without dimensions", "at least one", "NUM-12")
    names = direction_names(directions)
    matrix = matrix_shape(shape)
    call = Call("quantize", spec, dtype, directions, layout=form, device=device, shape=matrix, flag=flag, out=out)
    at_once = dataclasses.replace(call, operation="quantize_both")
    together = len(names) == 2 and registry.offers(at_once, backend)
    calls = [at_once] if together else [dataclasses.replace(call, direction=name) for name in names]
    steps = tuple((each, registry.choose(each, backend)) for each in calls)
    for name in names:
        require_hadamard(spec, name, shape, dtype)
    return Planned(names, steps, together)


@lru_cache(maxsize=4096)
def to_dequantize(
    spec: Spec,
    source: str,
    shape: tuple[int, ...],
    direction: Direction,
    form: Layout,
    device: str,
    backend: str | None,
    to: str,
    inverse: bool,
    out: bool,
    registered: Same,
) -> tuple[Call, Callable[..., Any]]:
    """Return the call of a backend that dequantizes, remembered as those of `quantize` are. Rules: HAD-9."""
    if inverse and (spec.hadamard is None or direction == "row"):
        got = f"inverse_hadamard of the {direction} direction of {spec.name}"
        raise DomainError("dequantize", got, "the column direction of a spec with hadamard", "HAD-9")
    matrix = matrix_shape(shape)
    if inverse and matrix[0] % POINTS:
        raise ShapeError("dequantize", f"inverse_hadamard of {matrix[0]} rows", f"a multiple of {POINTS}", "HAD-9")
    call = Call(
        "dequantize",
        spec,
        source,
        direction,
        to,
        layout=form,
        device=device,
        shape=matrix,
        inverse_hadamard=inverse,
        out=out,
    )
    return call, registry.choose(call, backend)


@lru_cache(maxsize=4096)
def to_move(
    source: Layout, target: Layout, shape: tuple[int, int], device: str, backend: str | None, registered: Same
) -> tuple[Call, Callable[..., Any]]:
    """Return the call of a backend that moves scales, remembered as those of `quantize` are."""
    call = Call("to_layout", layout=source, device=device, shape=shape, target=target)
    return call, registry.choose(call, backend)


def bound_alike(
    planned: Planned, x: Any, given: tuple[dict[Direction, Any], ...], backend: str | None
) -> list[Callable[..., Any]] | None:
    """Return functions that repeat the steps with other arrays of the same kinds; None if a backend has none.

    given: as for `run`.
    """
    bound = []
    for call, _ in planned.steps:
        bind = registry.binder(call, backend)
        repeat = bind(call, x, *_given_to(call, given)) if bind else None
        if repeat is None:
            return None
        bound.append(repeat)
    return bound


def repeating_directions(planned: Planned, x: Any, backend: str | None) -> Callable[[Any], Parts] | None:
    """Return a function that returns both directions of other arrays of this one's kind, None for one not asked for."""
    nothing: tuple[dict[Direction, Any], ...] = (dict.fromkeys(planned.names),) * 3
    bound = bound_alike(planned, x, nothing, backend)
    if bound is None:
        return None
    if planned.together:
        return bound[0]
    row, column = (dict(zip(planned.names, bound, strict=True)).get(name) for name in DIRECTIONS)
    if column is None:
        return lambda x: (row and row(x), None)
    return lambda x: (row and row(x), column(x))


def filling(
    x: Any, spec: Spec, directions: DirectionChoice, form: Layout, out: Parts, bits: Any = (None, None)
) -> Callable[..., Any] | None:
    """Return the function that fills other buffers of these ones' kinds with what `quantize` makes, and checks nothing.

    out, bits: the buffers and the random bytes of row and column, as the function takes them after an array. It reads
    addresses alone: of arrays without gaps, aligned, and apart from each other.
    """
    how = dtype_name(x), tuple(x.shape), directions, form, device_of(x), None, False, True
    planned = to_quantize(spec, *how, registry.registered())
    given_bits, buffers = (dict(zip(DIRECTIONS, parts, strict=True)) for parts in (bits, out))
    bound = bound_alike(planned, x, (dict.fromkeys(DIRECTIONS), given_bits, buffers), None)
    if bound is None:
        return None
    if planned.together:
        none = Directions(None, None)
        return lambda x, buffers, bits=none: bound[0](x, none, Directions(*bits), Directions(*buffers))
    row, column = (dict(zip(planned.names, bound, strict=True)).get(name) for name in DIRECTIONS)

    def fill(x: Any, buffers: Sequence[Any], bits: Sequence[Any] = (None, None)) -> None:
        if row:
            row(x, None, bits[0], buffers[0])
        if column:
            column(x, None, bits[1], buffers[1])

    return fill


def repeating(
    planned: Planned, x: Any, first: Arguments, given: tuple[dict[Direction, Any], ...], backend: str | None
) -> Callable[..., Parts | None] | None:
    """Return a function that repeats a call with other arrays of the same kinds; None if a backend has none.

    first: of the first call. given: the same, as for `run`. The function takes what `quantize` does, and returns both
    directions, None for one not asked for; it returns None where a flag keeps the buffers as they are.
    """
    if all(value is None for value in first):
        directions = repeating_directions(planned, x, backend)
        return directions and (lambda x, *_: directions(x))
    bound = bound_alike(planned, x, given, backend)
    if bound is None:
        return None
    names, together, call = planned.names, planned.together, planned.steps[0][0]
    nothing = Directions()
    none, takes = (None,) * len(names), [attrgetter(name) for name in names]
    read_maxima = maxima_reader(first.amax, dataclasses.replace(call, direction="both") if len(names) == 2 else call)
    split, on_device = isinstance(first.random_bits, Directions), first.noop is not None and call.flag
    every = first.arrays_of(names)
    are_apart = None if first.out is None else apart(every(x, *first))

    read_buffers = attrgetter(*names) if len(names) > 1 else lambda out: (takes[0](out),)

    def again(x: Any, amax: Any = None, random_bits: Any = None, out: Any = None, noop: Any = None) -> Parts | None:
        maxima = none if amax is None else read_maxima(amax)
        bits = [take(random_bits) for take in takes] if split else none if random_bits is None else [random_bits]
        buffers = none if out is None else read_buffers(out)
        if are_apart:
            if not are_apart(every(x, amax, random_bits, out, noop)):
                taken = {**by_direction("amax", amax), **by_direction("random_bits", random_bits)}
                require_apart("quantize", named_buffers(out, names), {"x": x, "noop": noop, **taken})
            if noop is not None and not on_device and is_set(noop):
                return None
        flag = {"noop": noop} if on_device else NO_FLAG
        if together:
            given = [nothing if of is none else Directions(*of) for of in (maxima, bits, buffers)]
            parts: Parts = bound[0](x, *given, **flag)
            return parts
        made = bound[0](x, maxima[0], bits[0], buffers[0], **flag)
        if len(bound) == 2:
            return made, bound[1](x, maxima[1], bits[1], buffers[1], **flag)
        return (made, None) if names[0] == "row" else (None, made)

    return again


def reading(call: Call, q: Quantized, out: Any, backend: str | None) -> Callable[[Quantized, Any], Any] | None:
    """Return a function that dequantizes other results of this one's kind; None if a backend has none.

    call: of the first one. out: the array that it filled, None for a new one.
    """
    name, bind = call.directions[0], registry.binder(call, backend)
    data, shape = q.direction(name)
    flat = name == "column" or tuple(q.shape) == shape
    if out is None:
        bound = bind(call, data) if bind else None
        if bound is None:
            return None
        if name == "column":
            return lambda q, _: bound(q.column)
        return (lambda q, _: bound(q.row)) if flat else (lambda q, _: bound(q.row).reshape(q.shape))
    fill = bind(call, data, as_matrix(out, shape)) if bind else None
    if fill is None:
        return None
    are_apart = apart([out, *[part for part in data if part is not None]])

    def into(q: Quantized, out: Any) -> Any:
        data: Any = q.row if name == "row" else q.column
        if not are_apart([out, *[part for part in data if part is not None]]):
            require_apart("dequantize", {"out": out}, data._asdict())
        fill(data, out if flat else out.reshape(shape))
        return out

    return into


def _given_to(call: Call, given: Sequence[dict[Direction, Any]]) -> list[Any]:
    """Return maxima, random bytes and buffers as a backend's function takes them: of one direction, or `Directions`."""
    if call.direction == "both":
        return [Directions(each["row"], each["column"]) for each in given]
    return [each[call.direction] for each in given]


def run(
    planned: Planned, x: Any, given: tuple[dict[Direction, Any], ...], flag: dict[str, Any]
) -> dict[Direction, Any]:
    """Call the backends that were planned. given: maxima, random bytes and buffers by direction."""
    each = [function(call, x, *_given_to(call, given), **flag) for call, function in planned.steps]
    return dict(zip(planned.names, each[0] if planned.together else each, strict=True))
