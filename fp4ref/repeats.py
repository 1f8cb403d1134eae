"""Calls that repeat an earlier one in everything but the bytes: served at once, with no check made twice.

The kind of an array is everything about it but its address and its bytes. After the first call of a kind, a backend may
return a function that serves every later one; it reads addresses, allocates, and runs. Arrays of other libraries than
NumPy and torch, and arguments without a hash, have no kind: each of their calls is checked.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from fp4ref import registry
from fp4ref.catalogue import PROFILES
from fp4ref.errors import UnknownNameError
from fp4ref.given import NUMBERS
from fp4ref.layout import LAYOUTS
from fp4ref.names import Names
from fp4ref.quantized import DIRECTIONS, Direction, DirectionData, Directions, Quantized
from fp4ref.registry import Backend
from fp4ref.spec import Spec

KEPT = 4096  # functions, at most
NOTHING = DirectionData(None, None, None)


class Repeat(NamedTuple):
    """A function that serves calls of one kind, and what was registered when it was made: backends and values.

    changes: of names, when these values were last looked up.
    """

    function: Callable[..., Any]
    backends: dict[str, Backend]
    values: tuple[tuple[Names[Any], str, Any], ...]
    changes: int

    @property
    def current(self) -> bool:
        """True if every name that the call gives still stands for the same value."""
        try:
            for names, name, value in self.values:
                if names[name] is not value:
                    return False
        except UnknownNameError:
            return False
        return True


_repeats: dict[Hashable, Repeat] = {}


def kind_of(x: Any) -> tuple[Hashable, ...] | None:
    """Return the kind of an array of NumPy or torch; None for any other object, and for lazy views (NUM-7)."""
    if type(x) is np.ndarray:
        return x.dtype, x.shape, x.strides
    plain = _plain.get(type(x)) or _plain_now().get(type(x))
    if plain is None or x.layout is not plain.layout or x.is_neg() or x.is_conj() or plain.is_functional(x):
        return None
    return x.dtype, x.shape, x.stride(), x.device


class Plain(NamedTuple):
    """A type of torch without a behaviour of its own: its layout that has strides, and the test for lazy tensors."""

    layout: Any
    is_functional: Callable[[Any], bool]


_plain: dict[type, Plain] = {}


def _plain_now() -> dict[type, Plain]:
    torch = sys.modules.get("torch")
    if torch is not None:
        plain = Plain(torch.strided, torch._is_functional_tensor)
        _plain.update(dict.fromkeys((torch.Tensor, torch.nn.Parameter), plain))
    return _plain


class AlikeTensors(NamedTuple):
    """Tensors of torch whose kinds have been read: where they were among others, and the test for others like them.

    present, absent: places of tensors, and those of None. number: of the kinds.
    """

    present: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    absent: tuple[int, ...]
    are_like: Callable[..., bool]
    number: int


TRIED = 4  # kinds of tensors at one place that are tried before kinds are read
_seen: dict[Hashable, list[AlikeTensors]] = {}
_numbers: dict[tuple[Hashable, ...], int] = {}
_count = itertools.count()


def number_of_kinds(place: Hashable, parts: tuple[Any, ...]) -> int | None:
    """Return the number that stands for the kinds of some arrays, None among them; None if one has no kind.

    place: where they come from, by which those are found that are tried first. Torch compares the types, layouts,
    sizes, strides and devices of all tensors in one call, where reading each takes ten times as long.
    """
    try:
        tried = _seen.get(place, ())
    except TypeError:  # a part of the place without a hash, which the checks refuse
        return None
    for present, absent, are_like, number in tried:
        if are_like(*present(parts)):
            for at in absent:
                if parts[at] is not None:
                    break
            else:
                return number
    kinds: list[Hashable] = []
    for part in parts:
        kind = None if part is None else kind_of(part)
        if kind is None and part is not None:
            return None
        kinds.append(kind)
    of = tuple(kinds)
    if len(_numbers) >= KEPT:
        _numbers.clear()  # a number is never used again
    number = _numbers.setdefault(of, next(_count))
    if type(parts[0]) is not np.ndarray:
        _try_later(place, parts, number)
    return number


def _try_later(place: Hashable, parts: tuple[Any, ...], number: int) -> None:
    """Try tensors like these the next time, before their kinds are read."""
    guards = _guards()
    at = [index for index, part in enumerate(parts) if part is not None]
    if guards is None or len(at) < 2 or any(type(parts[index]) not in _plain for index in at):
        return
    present = itemgetter(*at)
    are_like = guards(*present(parts), dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    if not are_like(*present(parts)):  # one tensor twice
        return
    if len(_seen) >= KEPT:
        _seen.clear()
    absent = tuple(index for index in range(len(parts)) if index not in at)
    _seen[place] = [AlikeTensors(present, absent, are_like, number), *_seen.get(place, ())][:TRIED]


@cache
def _guards() -> Callable[..., Any] | None:
    """Return the type by which torch's compiled graphs compare tensors with earlier ones; None without it."""
    import torch

    return getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)


def kinds_of_arguments(x: Any, amax: Any, random_bits: Any, out: Any, noop: Any) -> tuple[Hashable, ...] | None:
    """Return the kinds of what `quantize` is given; None if one has no kind."""
    if amax is None and random_bits is None and out is None and noop is None:
        return kind_of(x)
    if type(x) is not np.ndarray and type(x) not in _plain and type(x) not in _plain_now():
        return None
    parts: list[Any] = [x, noop]
    facts: list[Hashable] = []
    for value in (amax, random_bits):
        if type(value) is Directions:
            given, which = value, [True]
        else:
            given, which = (value,), [False]  # type: ignore[assignment]
        for part in given:
            if type(part) in NUMBERS:
                which.append(True)
                parts.append(None)
                continue
            if part is not None and _copied(part):
                return None
            parts.append(part)
        facts.append(tuple(which))
    if out is not None:
        if type(out) is not Quantized:
            return None
        facts += _record(out)
        parts += _parts(out, *DIRECTIONS)
    how = tuple(facts)
    number = number_of_kinds((x.shape, how), tuple(parts))
    return None if number is None else (number, how)


def _copied(value: Any) -> bool:
    """Return True for an array with gaps on a device, which is copied there."""
    return type(value) in _plain and not value.is_cpu and not value.is_contiguous()


def kind_of_bytes(q: Any, *directions: Direction) -> tuple[Hashable, ...] | None:
    """Return the kind of a result: its record, and the kinds of its buffers; None if one of them has no kind."""
    return _kinds_of_bytes(q, directions, ())


def kinds_to_read(q: Any, direction: Direction, out: Any) -> tuple[Hashable, ...] | None:
    """Return the kinds of what `dequantize` is given; None if one has no kind."""
    return _kinds_of_bytes(q, (direction,), (out,))


def _kinds_of_bytes(q: Any, directions: Sequence[Direction], others: tuple[Any, ...]) -> tuple[Hashable, ...] | None:
    if type(q) is not Quantized:
        return None
    how = (*_record(q), *directions, len(others))
    number = number_of_kinds(how, (*_parts(q, *directions), *others))
    return None if number is None else (number, how)


def _record(q: Quantized) -> tuple[Hashable, ...]:
    return q.spec, q.shape, q.dtype, q.scale_layout


def _parts(q: Quantized, *directions: Direction) -> list[Any]:
    """Return the buffers of some directions, None for those that there are not."""
    parts: list[Any] = []
    for name in directions:
        parts += (q.row if name == "row" else q.column) or NOTHING
    return parts


def find(key: Hashable) -> Callable[..., Any] | None:
    """Return the function that serves calls of a kind; None before the first one, or if there is no such function."""
    try:
        found = _repeats.get(key)
    except TypeError:  # an argument without a hash, which the checks refuse
        return None
    if found is None:
        return None
    function, backends, _, changes = found
    if backends is not registry.backends():
        return None
    if changes != Names.changes:
        if not found.current:
            return None
        _repeats[key] = found._replace(changes=Names.changes)
    return function


def keep(key: Hashable, function: Callable[..., Any] | None, *layouts: str, spec: Spec | str | None = None) -> None:
    """Serve later calls of a kind by a function; None leaves them to the checks.

    layouts, spec: those that the call names, for as long as they stand for the same values.
    """
    if function is None:
        return
    if len(_repeats) >= KEPT:
        _repeats.clear()
    values: list[tuple[Names[Any], str, Any]] = [(LAYOUTS, name, LAYOUTS[name]) for name in layouts]
    if isinstance(spec, str):
        values.append((PROFILES, spec, PROFILES[spec]))
    _repeats[key] = Repeat(function, registry.backends(), tuple(values), Names.changes)
