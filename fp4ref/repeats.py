"""Calls that repeat an earlier one in everything but the bytes: served at once, with no check made twice.

The kind of an array is everything about it but its address and its bytes. After the first call of a kind, a backend may
return a function that serves every later one; it reads addresses, allocates, and runs. Arrays of other libraries than
NumPy and torch, and arguments without a hash, have no kind: each of their calls is checked.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from fp4ref import registry
from fp4ref.catalogue import PROFILES
from fp4ref.errors import UnknownNameError
from fp4ref.given import NUMBERS
from fp4ref.layout import LAYOUTS
from fp4ref.names import Names
from fp4ref.quantized import Direction, DirectionData, Directions, Quantized
from fp4ref.registry import Backend
from fp4ref.remembered import cached_with_torch as cache
from fp4ref.spec import Spec

KEPT = 4096  # functions, at most
NO_BUFFERS = (None,) * len(DirectionData._fields)


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
_in_vain: set[tuple[Hashable, int]] = set()  # places and numbers of tensors that torch does not compare
_count = itertools.count()


def number_of_kinds(place: Hashable, parts: tuple[Any, ...]) -> int | None:
    """Return the number that stands for the kinds of some arrays, None among them; None if one has no kind.

    place: where they come from, by which those are found that are tried first. Torch compares the types, layouts,
    sizes, strides and devices of all tensors in one call, where reading each takes ten times as long.
    """
    for present, absent, are_like, number in _seen.get(place, ()):
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
    if (place, number) not in _in_vain:
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
        if len(_in_vain) >= KEPT:
            _in_vain.clear()
        _in_vain.add((place, number))
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


def kinds_of_arguments(x: Any, amax: Any, random_bits: Any, out: Any, noop: Any) -> Hashable | None:
    """Return the kinds of what `quantize` is given; None if one has no kind."""
    if amax is None and random_bits is None and out is None and noop is None:
        return kind_of(x)
    parts, forms = [x, noop], list[Hashable]()
    for value in (amax, random_bits):
        if value is None:
            forms.append(None)
            continue
        split = type(value) is Directions
        forms.append(split)
        for part in value if split else (value,):
            a_number = type(part) in NUMBERS
            forms.append(a_number)
            parts.append(None if a_number else part)
            if part is not None and not a_number and not _is_read_there(part):
                return None
    if out is not None:
        if type(out) is not Quantized:
            return None
        parts += [part for data in (out.row, out.column) for part in data or NO_BUFFERS]
        forms += [out.spec, out.shape, out.dtype, out.scale_layout]
    kinds = _kinds_of(("quantize", *forms[:4], *forms[-1:]), parts)
    return None if kinds is None else (kinds, *forms)


def _is_read_there(value: Any) -> bool:
    """Return False for an array with gaps on a device, which is copied there."""
    return type(value) is np.ndarray or getattr(value, "is_cpu", True) or value.is_contiguous()


def _kinds_of(place: Hashable, parts: Sequence[Any]) -> Hashable | None:
    """Return the kinds of some arrays, None among them, or the number that stands for them; None if one has no kind."""
    if type(parts[0]) is not np.ndarray:
        return number_of_kinds(place, tuple(parts))
    kinds = tuple(["nothing" if part is None else kind_of(part) for part in parts])
    return None if None in kinds else kinds


def kinds_of_results(results: Sequence[tuple[Any, Sequence[Direction]]], *others: Any) -> tuple[Hashable, ...] | None:
    """Return the kinds of some results, each with the directions that are read: records, and kinds of their buffers.

    others: further arrays, None among them. Returns None if one of them all has no kind.
    """
    parts: list[Any] = []
    records: list[Hashable] = []
    first: Any = None
    for q, directions in results:
        if q is first and directions == results[0][1]:
            records.append("the first")  # torch compares no tensors of which one comes twice
            continue
        first = first or q
        if type(q) is not Quantized:
            return None
        for name in directions:
            parts += (q.row if name == "row" else q.column) or NO_BUFFERS
        records += [q.spec, q.shape, q.dtype, q.scale_layout, *directions]
    kinds = _kinds_of(tuple(records[1::4]), [*parts, *others])
    return None if kinds is None else (kinds, *records)


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
