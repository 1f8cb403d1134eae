"""The calls of backends that serve a public call, worked out once for all calls of the same kind.

A kind is everything but the bytes: specification, layouts, types, shapes, device, and the backends registered then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fp4ref import registry
from fp4ref.arguments import direction_names, parts_of, require_hadamard
from fp4ref.errors import DomainError, ShapeError
from fp4ref.hadamard import POINTS
from fp4ref.layout import Layout
from fp4ref.memory import apart, by_direction, require_apart
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


def repeating(
    planned: Planned, x: Any, given: tuple[dict[Direction, Any], ...], backend: str | None, like: Quantized
) -> Callable[..., Quantized] | None:
    """Return a function that repeats a call with other arrays of the same kinds; None if a backend has none.

    given: as for `run`.
    """
    make = like.maker()
    if not any(value is not None for each in given for value in each.values()):
        directions = repeating_directions(planned, x, backend)
        return directions and (lambda x, *_: make(*directions(x)))
    bound = bound_alike(planned, x, given, backend)
    if bound is None:
        return None
    names, together = planned.names, planned.together
    none = [None] * len(names)
    are_apart = apart(_arrays(x, [[each[name] for name in names] for each in given]))

    def again(x: Any, amax: Any, random_bits: Any, out: Quantized | None) -> Quantized:
        parts = [
            none if each is None else [_of_direction(each, name) for name in names] for each in (amax, random_bits, out)
        ]
        if out is not None and not are_apart(_arrays(x, parts)):
            taken = {**by_direction("amax", amax), **by_direction("random_bits", random_bits)}
            require_apart("quantize", parts_of(out, names), {"x": x, **taken})
        if together:
            return make(*bound[0](x, *[Directions(*each) for each in parts]))
        results = [repeat(x, *each) for repeat, each in zip(bound, zip(*parts, strict=True), strict=True)]
        return make(*[results[names.index(name)] if name in names else None for name in DIRECTIONS])

    return again


def _arrays(x: Any, parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Return all arrays of a call: x, and maxima, random bytes and buffers, each with one for every direction."""
    amax, random_bits, buffers = parts
    found = [x, *[part for part in (*amax, *random_bits) if part is not None]]
    return found + [part for data in buffers if data is not None for part in data if part is not None]


def _of_direction(value: Any, name: Direction) -> Any:
    """Return an argument's part for one direction, of a result, or of an argument that may be one for both."""
    return getattr(value, name) if isinstance(value, (Directions, Quantized)) else value


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
