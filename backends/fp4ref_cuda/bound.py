"""Quantize other tensors of a kind by the programs of the first call, and what was given with them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

from fp4ref import arrays
from fp4ref.quantized import DirectionData, Directions
from fp4ref.registry import Call
from fp4ref_cuda import across, buffers, programs
from fp4ref_cuda.host_numbers import bits_of, is_number, kind_of
from fp4ref_cuda.paths import NOTHING

Result = TypeVar("Result")
NONE = Directions()


def one_direction(
    call: Call,
    x: Any,
    amax: Any,
    random_bits: Any,
    out: DirectionData | None,
    noop: Any,
    otherwise: Callable[..., DirectionData],
) -> Callable[..., DirectionData] | None:
    """Return a function that fills one direction. otherwise: serves calls for which no program was recorded."""
    other = across.turned(call, x)
    if other is not None:
        return _across(one_direction(other, x.t(), amax, random_bits, out, noop, otherwise))
    if _has_gaps(x):
        return _copying(one_direction(call, x.contiguous(), amax, random_bits, out, noop, otherwise))
    bound = programs.bind(operation((amax,)), call, [x, noop, *of_one(_there(x, amax), random_bits, out)])
    if bound is None:
        return None
    of_host = type(amax) is np.ndarray

    def again(
        x: Any, amax: Any = None, random_bits: Any = None, out: DirectionData | None = None, noop: Any = None
    ) -> DirectionData:
        if amax is None and random_bits is None and out is None:
            parts = bound(x)
        elif of_host:
            parts = bound(x, noop, *of_one(_there(x, amax), random_bits, out), numbers=bits_of((amax,)))
        else:
            parts = bound(x, noop, amax, random_bits, *(out or NOTHING))
        return DirectionData(*parts) if parts else otherwise(call, x, amax, random_bits, out, noop)

    return again


def both_directions(
    call: Call,
    x: Any,
    amax: Directions,
    random_bits: Directions,
    out: Directions,
    noop: Any,
    otherwise: Callable[..., Any],
) -> Callable[..., tuple[DirectionData, DirectionData]] | None:
    """Return the same for both directions."""
    other = across.turned(call, x)
    if other is not None:
        maxima, bits, buffers = map(across.swapped, (amax, random_bits, out))
        return _both_across(both_directions(other, x.t(), maxima, bits, buffers, noop, otherwise))
    if _has_gaps(x):
        return _copying(both_directions(call, x.contiguous(), amax, random_bits, out, noop, otherwise))
    bound = programs.bind(operation(amax), call, [x, noop, *of_both(_both_there(x, amax), random_bits, out)])
    if bound is None:
        return None
    of_host = any(type(part) is np.ndarray for part in amax)

    def again(
        x: Any, amax: Directions = NONE, random_bits: Directions = NONE, out: Directions = NONE, noop: Any = None
    ) -> tuple[DirectionData, DirectionData]:
        if amax is NONE and random_bits is NONE and out is NONE:
            parts = bound(x)
        elif of_host:
            parts = bound(x, noop, *of_both(_both_there(x, amax), random_bits, out), numbers=bits_of(amax))
        else:
            row, column = out.row or NOTHING, out.column or NOTHING
            parts = bound(x, noop, amax[0], random_bits[0], *row, amax[1], random_bits[1], *column)
        if parts is None:
            row, column = otherwise(call, x, amax, random_bits, out, noop)
            return row, column
        return DirectionData(*parts[:3]), DirectionData(*parts[3:])

    return again


def operation(maxima: Sequence[Any]) -> Hashable:
    """Return the operation as a kind of call has it: its name, and which maxima are numbers of the host."""
    return ("quantize", kind_of(maxima)) if any(map(is_number, maxima)) else "quantize"


def _has_gaps(x: Any) -> bool:
    return arrays.is_torch(x) and not x.is_contiguous()


def _copying(again: Callable[..., Result] | None) -> Callable[..., Result] | None:
    """Return a function of tensors whose rows do not lie one after the other, by one of their copies."""
    return again and (lambda x, *given, **named: again(x.contiguous(), *given, **named))


def _across(again: Callable[..., DirectionData] | None) -> Callable[..., DirectionData] | None:
    """Return a function of matrices whose columns lie one after the other, by their transposes."""
    return again and (lambda x, *given, **named: again(x.t(), *given, **named))


def _both_across(again: Callable[..., Any] | None) -> Callable[..., tuple[DirectionData, DirectionData]] | None:
    """Return the same for both directions."""

    def across_again(
        x: Any, amax: Directions = NONE, random_bits: Directions = NONE, out: Directions = NONE, noop: Any = None
    ) -> tuple[DirectionData, DirectionData]:
        alone = amax is NONE and random_bits is NONE and out is NONE
        given = () if alone else (*map(across.swapped, (amax, random_bits, out)), noop)
        column, row = again(x.t(), *given)  # type: ignore[misc]
        return row, column

    return again and across_again


def of_one(amax: Any, random_bits: Any, out: DirectionData | None) -> tuple[Any, ...]:
    """Return the arrays that a call may be given for one direction, in the order that programs know."""
    return (amax, random_bits, *(out or NOTHING))


def of_both(amax: Directions, random_bits: Directions, out: Directions) -> tuple[Any, ...]:
    """Return the same of both directions, rows first."""
    return of_one(amax.row, random_bits.row, out.row) + of_one(amax.column, random_bits.column, out.column)


def _there(x: Any, amax: Any) -> Any:
    """Return maxima on the tensor's device, None for numbers of the host; other arrays in its memory are copied."""
    if type(amax) is not np.ndarray:
        return amax
    return None if is_number(amax) else buffers.torch_on(x.get_device()).upload(amax)


def _both_there(x: Any, amax: Directions) -> Directions:
    return Directions(_there(x, amax.row), _there(x, amax.column))
