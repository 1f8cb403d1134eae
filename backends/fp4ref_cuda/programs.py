"""Programs: what one call did on the device, done again by the next call of the same kind.

The paths choose kernels, constants and grids from a call's record, from which arrays are given and from how these are
aligned: a kind of call. The first call of a kind is recorded; every later one allocates and launches, nothing else.
Only contiguous torch tensors on the current device have kinds: all others take the paths each time.
"""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

from fp4ref.registry import Call
from fp4ref_cuda import buffers, recording, spaces
from fp4ref_cuda.buffers import ALIGNMENT, FRESH, Library, itemsize
from fp4ref_cuda.graphs import Graphs
from fp4ref_cuda.kinds import of_addresses, seen_in
from fp4ref_cuda.launch import enter, rehearsing
from fp4ref_cuda.plan import Plan, last_plan, remember
from fp4ref_cuda.recording import Address, Recording, Start, Started, Strided, recorded, this
from fp4ref_cuda.spaces import new_piece
from fp4ref_cuda.words import HEADER, POINTERS, packed

KEPT = 4096  # programs, at most
MET = 1024  # addresses that a kind of call was given, at most


class Program(NamedTuple):
    """The allocations and launches of a kind of call.

    Arrays have numbers: first the inputs that are given, then what is allocated. results: takes those that the call
    returns from a tuple of all, behind which stands None. words: what `packed` makes of the arguments of every start,
    one after the other. addresses: the position of each among these, the number of its array, and its offset in bytes;
    behind the arrays stand the numbers that a call is given, and last the words themselves. steps: what starts a
    launch, and where its words begin, in bytes. records: those of its calls, kept alive because a kind names them by
    their identity. graphs: of the steps, by the addresses of the arrays and the numbers. inner: allocates the last
    array, if that fits into a piece of memory that stands free on the stream, which serves in its place; None where it
    does not. free: addresses of such pieces by stream.
    """

    library: Library
    allocators: tuple[Callable[[], Any], ...]
    words: array[int]
    addresses: tuple[tuple[int, int, int], ...]
    steps: tuple[tuple[Start, int], ...]
    results: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    plan: Plan | None
    records: tuple[Any, ...]
    graphs: Graphs
    inner: Callable[[], Any] | None
    free: defaultdict[int, list[int]]

    def again(
        self,
        inputs: Sequence[Any],
        starts: Sequence[int],
        views: Sequence[tuple[int, Strided]] = (),
        numbers: tuple[int, ...] = (),
    ) -> tuple[Any, ...]:
        """Serve another call of the kind.

        inputs: those given. starts: their addresses. views: of its results. numbers: the words that it is given.
        """
        library, allocators, _, _, _, take, plan, _, graphs, inner, free = self
        enter(library)
        made = [allocate() for allocate in allocators]
        stream, captured = library.stream(), library.captures()
        places = (*starts, *[each.data_ptr() for each in made])
        piece = None
        if inner:
            try:
                piece = None if captured else free[stream].pop()
            except IndexError:
                piece = new_piece(stream)
            temporary: Any = None if piece else inner()  # alive until all is started
            places = (*places, piece or temporary.data_ptr())
        if numbers:
            places += numbers
        try:
            graph = None if captured else graphs.made.get(places)
            if graph is None:
                self._start(places, stream)
            else:
                graph.start(stream)
        finally:
            if piece:
                free[stream].append(piece)
        if plan is not None:
            remember(plan)
        results = take((*inputs, *made, None))
        return _viewed(results, views) if views else results

    def _start(self, places: tuple[int, ...], stream: int) -> None:
        """Start the launches with arrays at given addresses, which have no graph yet, or are captured."""
        graph = self.graphs.new(places, partial(self._launch, places), self.library) if self.steps else None
        if graph is None:
            self._launch(places, stream)
        else:
            graph.start(stream)

    def _launch(self, places: tuple[int, ...], stream: int) -> None:
        words = self.words[:]
        memory = words.buffer_info()[0]
        places = (*places, memory)
        for position, slot, offset in self.addresses:
            words[position] = places[slot] + offset
        for start, at in self.steps:
            start(stream, memory + at)


def _viewed(results: tuple[Any, ...], views: Sequence[tuple[int, Strided]]) -> tuple[Any, ...]:
    changed = list(results)
    for at, view in views:
        changed[at] = changed[at].as_strided(*view)
    return tuple(changed)


_programs: dict[Hashable, Program] = {}


def serve(
    operation: Hashable,
    call: Call,
    inputs: Sequence[Any],
    act: Callable[..., tuple[Any, ...]],
    others: tuple[Any, ...] = (),
    numbers: tuple[int, ...] = (),
) -> tuple[Any, ...]:
    """Return the arrays that `act` returns, by the program of an earlier call of the same kind if there is one.

    operation: its name, and whatever else all calls of a kind share. call, others: records that are remembered, so that
    calls of a kind share them. inputs: every array of the call, in an order of its own, with None for those that are
    not given. numbers: words that calls of a kind do not share, which `act` takes, and only adds to or passes on.
    """
    library = current_library()
    seen = None if library is None or recording.current() is not None else seen_in(inputs, library.ordinal)
    if library is None or seen is None:  # what runs inside of `together` is recorded there
        return act(*numbers)
    given, starts, kinds = seen
    kind = operation, id(call), *map(id, others), library.ordinal, *kinds
    program = _programs.get(kind)
    if program is not None:
        return program.again(given, starts, (), numbers)
    noted = Recording(given, starts, numbers)
    with recorded(noted):
        results = act(*noted.words)
    slots = tuple(map(noted.slot, results))
    if noted.complete:
        if len(_programs) >= KEPT:
            _programs.clear()
        _programs[kind] = program_of(library, noted, slots, (call, *others))
    return results


def program_of(library: Library, noted: Recording, slots: tuple[int | None, ...], records: tuple[Any, ...]) -> Program:
    """Return the program of a recorded call. Memory that it did not return is one array, the last."""
    given = noted.inputs
    places, allocators = {slot: (slot, 0) for slot in range(given)}, list[Callable[[], Any]]()
    inner: dict[int, int] = {}
    for slot, (shape, dtype) in enumerate(noted.allocations, given):
        if slot in slots:
            places[slot] = given + len(allocators), 0
            allocators.append(library.allocator(shape, dtype))
        else:
            inner[slot] = -(-prod(shape) * itemsize(dtype) // FRESH) * FRESH
    offsets, size = _arranged(noted.steps, inner)
    places |= {slot: (given + len(allocators), offset) for slot, offset in offsets.items()}
    arrays = given + len(allocators) + bool(size)
    itself = arrays + len(noted.words)
    places |= {-1 - at: (arrays + at, 0) for at in range(len(noted.words))}
    temporary = library.allocator((size,), "uint8") if size else None
    if temporary is not None and size > spaces.SIZE:
        allocators.append(temporary)
        temporary = None
    words, addresses, steps = array("Q"), list[tuple[int, int, int]](), list[tuple[Start, int]]()
    for step in noted.steps:
        first = len(words)
        addresses += [(first + position, itself, 8 * (first + of)) for position, of in POINTERS]
        for position, value in enumerate(step.arguments, first + HEADER):
            if type(value) is Address:
                slot, offset = places[value.slot]
                addresses.append((position, slot, offset + value.offset))
        words.extend(packed(step.arguments))
        steps.append((step.start, 8 * first))
    take = _taking([-1 if slot is None else places[slot][0] for slot in slots])
    made, done, free = tuple(allocators), tuple(steps), spaces.free_on(library.ordinal)
    return Program(library, made, words, tuple(addresses), done, take, last_plan(), records, Graphs(), temporary, free)


def _taking(slots: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return the function that takes the arrays of these numbers out of all."""
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda arrays: tuple([arrays[slot] for slot in slots])


def _arranged(steps: Sequence[Started], sizes: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Return where in one piece of memory each array goes, and the size of the piece.

    Arrays share bytes if no step from the first use of one to its last reads or writes the other.
    """
    used: dict[int, list[int]] = {slot: [] for slot in sizes}
    for at, step in enumerate(steps):
        for value in step.arguments:
            if type(value) is Address and value.slot in used:
                used[value.slot].append(at)
    offsets, size = dict.fromkeys(sizes, 0), 0
    there: list[tuple[int, int, int, int]] = []  # begin, end, first and last step
    for slot, uses in sorted(used.items(), key=lambda item: item[1][:1]):
        if not uses:
            continue
        begin = 0
        for other, end, first, last in sorted(there):
            if first <= uses[-1] and uses[0] <= last and other < begin + sizes[slot]:
                begin = max(begin, end)
        there.append((begin, begin + sizes[slot], uses[0], uses[-1]))
        offsets[slot], size = begin, max(size, begin + sizes[slot])
    return offsets, size


def bind(operation: Hashable, call: Call, inputs: Sequence[Any]) -> Callable[..., tuple[Any, ...] | None] | None:
    """Return a function that serves calls with other inputs of these ones' kinds; None for inputs without programs.

    The function takes all inputs, or the first one alone if no other is given, and `numbers` as `serve` does. It
    returns None where no program can serve a call: another device is the current one, or no call with such addresses
    was recorded.
    """
    library = current_library()
    if library is None or seen_in(inputs, library.ordinal) is None:
        return None
    ordinal, fixed, device = library.ordinal, (operation, id(call), library.ordinal), buffers.current_device()
    known: dict[tuple[int, ...] | int, Program] = {}
    met: dict[tuple[int, ...], Program] = {}  # by the addresses of all inputs: a loop gives the same ones again
    nones = (None,) * (len(inputs) - 1)

    def again(*inputs: Any, numbers: tuple[int, ...] = ()) -> tuple[Any, ...] | None:
        if this.rehearsal is not None or this.recording is not None or device() != ordinal:
            return None
        if len(inputs) == 1:
            start = inputs[0].data_ptr()
            program = known.get(start % ALIGNMENT) or find((*inputs, *nones), start % ALIGNMENT)
            return program and program.again(inputs, (start,), (), numbers)
        given = [each for each in inputs if each is not None]
        starts = tuple([each.data_ptr() for each in given])
        program = met.get(starts)
        if program is None:
            places = of_addresses(starts)
            program = known.get(places) or find(inputs, places)
            if program is None:
                return None
            if len(met) >= MET:
                met.clear()
            met[starts] = program
        return program.again(given, starts, (), numbers)

    def find(inputs: Sequence[Any], places: tuple[int, ...] | int) -> Program | None:
        seen = seen_in(inputs, ordinal)
        program = None if seen is None else _programs.get((*fixed, *seen[2]))
        if program is not None:
            known[places] = program
        return program

    return again


def current_library() -> Library | None:
    """Return torch on the current device; None where it is not loaded, or nothing is to run."""
    return None if "torch" not in sys.modules or rehearsing() else buffers.torch_on(buffers.current_device()())
