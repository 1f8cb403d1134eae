"""The memory of a call's arrays: a buffer that is written shares no byte with any other array of the call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.errors import BackendError
from fp4ref.quantized import Directions

KNOWN = 1024  # places of a call's arrays that are known to be apart, at most
WORD = np.dtype(np.uint16)
SEARCHED = 100_000  # candidates that NumPy tries before two arrays with gaps are taken to overlap


class Memory(NamedTuple):
    """An array's place in memory, on whatever device: address and shape, bytes from one element to the next."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def bounds(self) -> tuple[int, int]:
        """Addresses of the first byte and of the one after the last."""
        ways = [(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]
        lowest = self.address + sum(way for way in ways if way < 0)
        return lowest, self.address + sum(way for way in ways if way > 0) + self.itemsize

    def as_array(self) -> np.ndarray[Any, Any]:
        """Return an array over these addresses, which nobody reads."""
        described = {
            "version": 3,
            "typestr": f"|V{self.itemsize}",
            "data": (self.address, True),
            "shape": self.shape,
            "strides": self.strides,
        }
        return np.asarray(SimpleNamespace(__array_interface__=described))


def memory_of(x: Any) -> Memory | None:
    """Return the memory of an array of NumPy, torch or CuPy; None for no array, an empty one, or another library's."""
    if arrays.is_torch(x):
        size = x.element_size()
        found = Memory(x.data_ptr(), tuple(x.shape), tuple(stride * size for stride in x.stride()), size)
    elif isinstance(x, np.ndarray) or hasattr(x, "__cuda_array_interface__"):
        described = x.__array_interface__ if isinstance(x, np.ndarray) else x.__cuda_array_interface__
        found = Memory(described["data"][0], tuple(x.shape), tuple(x.strides), x.dtype.itemsize)
    else:
        return None
    return found if all(found.shape) else None


def span_of(x: Any) -> tuple[int, int] | None:
    """Return the bounds of an array's memory, as `Memory.bounds` does; None where `memory_of` returns None."""
    if type(x) is np.ndarray and x.flags.c_contiguous:
        start = x.__array_interface__["data"][0]
        return (start, start + x.nbytes) if x.nbytes else None
    if arrays.is_torch(x) and x.is_contiguous():
        start = x.data_ptr()
        return (start, start + x.nbytes) if x.nbytes else None
    found = memory_of(x)
    return found and found.bounds


def overlap(one: Memory, other: Memory) -> bool:
    """Return True if two arrays have a byte in common, or if that is too hard to decide."""
    (first, last), (start, stop) = one.bounds, other.bounds
    if last <= start or stop <= first:
        return False
    try:
        work: Any = SEARCHED  # NumPy's types know only the two words for "all" and "bounds only"
        return np.shares_memory(one.as_array(), other.as_array(), max_work=work)
    except np.exceptions.TooHardError:
        return True


def require_apart(operation: str, written: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    """Refuse a call whose buffers overlap each other or what it reads, or are lazy views. Rules: NUM-6, NUM-13."""
    for name, value in written.items():
        if arrays.is_lazy_view(value):
            raise BackendError(operation, f"{name} that negates or conjugates when it is read", "a tensor", "NUM-13")
    spans = sorted(filter(None, map(span_of, (*read.values(), *written.values()))))
    if all(stop <= start for (_, stop), (start, _) in pairwise(spans)):
        return
    found = [(name, memory_of(value), name in written) for name, value in {**read, **written}.items()]
    placed = sorted(((place, name, out) for name, place, out in found if place), key=lambda entry: entry[0].bounds)
    reaching: list[tuple[Memory, str, bool]] = []  # those that do not end before the next one starts
    for place, name, out in placed:
        reaching = [entry for entry in reaching if entry[0].bounds[1] > place.bounds[0]]
        for other, other_name, other_out in reaching:
            if (out or other_out) and overlap(place, other):
                first, second = (name, other_name) if out else (other_name, name)
                raise BackendError(operation, f"{first} that overlaps {second}", "memory of its own", "NUM-6")
        reaching.append((place, name, out))


def apart(like: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
    """Return a function that is True only if arrays of these ones' kinds share no byte, which it reads off addresses.

    It is False for arrays with gaps, and for those of other libraries than NumPy and torch: `require_apart` decides
    there.
    """
    readers = [reader for reader in map(_start_reader, like) if reader]
    if len(readers) < len(like):
        return lambda others: False
    sizes, known = [x.nbytes for x in like], set[tuple[int, ...]]()
    of_torch = all(map(arrays.is_torch, like))

    def are_apart(others: Sequence[Any]) -> bool:
        if of_torch:
            starts = tuple([x.data_ptr() for x in others])
        else:
            starts = tuple([reader(x) for reader, x in zip(readers, others, strict=True)])
        if starts in known:
            return True
        end = 0
        for start, size in sorted(zip(starts, sizes, strict=True)):
            if start < end:
                return False
            end = start + size
        if len(known) >= KNOWN:
            known.clear()
        known.add(starts)
        return True

    return are_apart


def _start_reader(x: Any) -> Callable[[Any], int] | None:
    """Return the function that reads where an array without gaps starts, for all of its kind; None for others."""
    if type(x) is np.ndarray:
        return numpy_start(x) if x.flags.c_contiguous else None
    return type(x).data_ptr if arrays.is_torch(x) and x.is_contiguous() else None


def numpy_start(like: NDArray[Any]) -> Callable[[NDArray[Any]], int]:
    """Return the function that reads where an array of a kind starts, faster than its interface tells."""
    if not like.flags.c_contiguous or not like.size:
        return _described_start
    if like.dtype.isbuiltin == 1:
        return _buffer_start
    if like.dtype.itemsize == WORD.itemsize:  # bfloat16, of which NumPy shows no memory
        return lambda x: _buffer_start(x.view(WORD))
    return _described_start


_of_buffer, _address_of = ctypes.c_char.from_buffer, ctypes.addressof


def _buffer_start(x: Any) -> int:
    try:
        return _address_of(_of_buffer(x))
    except (TypeError, ValueError, BufferError):  # read-only
        return _described_start(x)


def _described_start(x: NDArray[Any]) -> int:
    start: int = x.__array_interface__["data"][0]
    return start


def by_direction(argument: str, value: Any) -> dict[str, Any]:
    """Name the arrays of an argument that may be one for each direction."""
    if isinstance(value, Directions):
        return {f"{argument}.{name}": part for name, part in value._asdict().items()}
    return {argument: value}


def named_buffers(out: Any, names: Sequence[str]) -> dict[str, Any]:
    """Name the buffers that a call fills, of some directions."""
    each = ((name, getattr(out, name)._asdict()) for name in names)
    return {f"out.{name}.{field}": part for name, parts in each for field, part in parts.items()}
