"""The allocations and launches of a call, noted while it is served.

An address among a launch's arguments is noted as the array that it came from, so that the same launches serve a later
call with other arrays. An address of unknown origin, such as that of a copy, ends the recording: it would be stale. So
does an address inside two arrays that begin at different bytes: nobody knows which one it came from.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

Start: TypeAlias = Callable[[int, int], None]  # of a stream, and of the address of what `words.packed` made


class Address(int):
    """An address of a call that is recorded: `offset` bytes into its array number `slot`.

    Or a word of the call, which is `offset` more than the word that it was given as number -1 - `slot`.
    """

    slot: int
    offset: int

    @classmethod
    def of(cls, value: int, slot: int, offset: int = 0) -> Address:
        """Return an address with its origin."""
        made = cls(value)
        made.slot, made.offset = slot, offset
        return made

    def __add__(self, other: int) -> Address:
        return Address.of(int(self) + int(other), self.slot, self.offset + int(other))


class LoadedKernel(NamedTuple):
    """A kernel on its device, and the code that it belongs to."""

    code: Any
    function: Any


class Shape(NamedTuple):
    """Blocks of a launch, threads of a block, bytes of shared memory, and whether it may start before others end."""

    grid: tuple[int, ...]
    block: int
    shared: int
    early: bool


class Launch(NamedTuple):
    """A kernel, how it is launched, and its arguments."""

    name: str
    kernel: LoadedKernel
    shape: Shape
    arguments: tuple[int, ...]


class Started(NamedTuple):
    """Something that ran on a device, and its arguments; the addresses among these are those of the first call.

    start: starts it on a stream with other arguments of their kind.
    """

    start: Start
    arguments: tuple[int, ...]


class Strided(NamedTuple):
    """A result that is another view of an array's memory: its sizes, strides and offset, in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Recording:
    """The arrays of one call by number, its inputs first, and the launches in their order.

    The first one of inputs that start at one byte stands for all of them: a kind of call says which do. Arrays
    that the call allocates are not kept alive: a later one, with another number, may have the memory of an earlier one.

    inputs: how many there are. words: numbers of 64 bits that this call was given, as those that it passes on: other
    calls of the kind are given others. complete: False once something happened that another call could not repeat.
    """

    def __init__(self, inputs: Sequence[Any], addresses: Sequence[int], words: Sequence[int] = ()) -> None:
        self.inputs = len(inputs)
        self.words = tuple([Address.of(word, -1 - at) for at, word in enumerate(words)])
        self.allocations: list[tuple[tuple[int, ...], str]] = []
        self.steps: list[Started] = []
        self.complete = True
        self._arrays = [_itself(each) for each in inputs]
        self._freed = [_never] * self.inputs
        self._sizes = [0 if each is None else each.nbytes for each in inputs]
        self._slots: dict[int, int] = {}
        for slot, address in enumerate(addresses):
            if address:
                self._slots.setdefault(address, slot)

    def allocated(self, array: Any, address: int, shape: Sequence[int], dtype: str) -> None:
        """Note new memory, a tensor's, once."""
        from torch.multiprocessing.reductions import StorageWeakRef

        if self._slot(array) is not None:
            return
        self._slots[address] = len(self._arrays)
        self._arrays.append(weakref.ref(array))
        memory = StorageWeakRef(array.untyped_storage())  # type: ignore[no-untyped-call]
        self._freed.append(memory.expired)
        self._sizes.append(array.nbytes)
        self.allocations.append((tuple(shape), dtype))

    def address(self, value: int) -> int:
        """Return an address, of an array's first byte or of one inside it, with its origin."""
        if not value:
            return 0
        found = [(slot, value - start) for start, slot in self._slots.items() if self._holds(slot, value - start)]
        if len(found) != 1:
            self.complete = False
            return value
        return Address.of(value, *found[0])

    def _holds(self, slot: int, offset: int) -> bool:
        return (not offset or 0 < offset < self._sizes[slot]) and not self._freed[slot]()

    def _slot(self, array: Any) -> int | None:
        return next((slot for slot, each in enumerate(self._arrays) if each() is array), None)

    def slot(self, result: Any) -> int | None:
        """Return the number of an array; None for None."""
        if result is None:
            return None
        found = self._slot(result)
        self.complete &= found is not None
        return found

    def place(self, result: Any) -> tuple[int | None, Strided | None]:
        """Return the number of the array that a tensor is, or is a view of with the array's type; and that view."""
        slot = None if result is None else self._slot(result)
        if result is None or slot is not None:
            return slot, None
        address = self.address(result.data_ptr())
        if isinstance(address, Address) and address.slot >= self.inputs:
            _, dtype = self.allocations[address.slot - self.inputs]
            if dtype == str(result.dtype).removeprefix("torch."):
                return address.slot, Strided(tuple(result.shape), result.stride(), result.storage_offset())
        self.complete = False
        return None, None


def _itself(value: Any) -> Callable[[], Any]:
    return lambda: value


def _never() -> bool:
    return False


class OfThread(threading.local):
    """The recording of a thread's call, and the kernels that its rehearsal notes, if there is one."""

    recording: Recording | None = None
    rehearsal: dict[tuple[str, str, str], None] | None = None


this = OfThread()


def current() -> Recording | None:
    """Return the recording of this thread's call, if there is one."""
    return this.recording


def forbid() -> None:
    """Say that what follows is of this call alone, so that its recording serves no other."""
    recorder = current()
    if recorder is not None:
        recorder.complete = False


@contextmanager
def recorded(recording: Recording) -> Iterator[None]:
    """Note what this thread does on the device."""
    this.recording = recording
    try:
        yield
    finally:
        this.recording = None
