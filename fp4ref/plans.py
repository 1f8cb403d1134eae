"""The calls of backends that serve a public call, worked out once for all calls of the same kind.

A kind is everything but the bytes: specification, layouts, types, shapes, device, and the backends registered then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from fp4ref import registry
from fp4ref.arguments import direction_names, require_hadamard
from fp4ref.errors import DomainError, ShapeError
from fp4ref.layout import Layout
from fp4ref.quantized import Direction, DirectionChoice, matrix_shape
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
        raise ShapeError("quantize", "a tensor without dimensions", "at least one", "NUM-4")
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
    """Return the call of a backend that dequantizes, remembered as those of `quantize` are."""
    if inverse and (spec.hadamard is None or direction == "row"):
        got = f"inverse_hadamard of the {direction} direction of {spec.name}"
        raise DomainError("dequantize", got, "the column direction of a spec with hadamard", "HAD-6")
    matrix = matrix_shape(shape)
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
