"""Several calls as one program: what they did on the device in turn, done again by later ones of their kind.

Nothing but these calls and their caller reads what each of them left, and torch computes nothing in between.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from fp4ref.registry import Call
from fp4ref_cuda import programs, recording
from fp4ref_cuda.buffers import Library
from fp4ref_cuda.kinds import seen_in
from fp4ref_cuda.programs import KEPT, Program, current_library, program_of
from fp4ref_cuda.recording import Recording, Strided, recorded


class Several(NamedTuple):
    """A program of several calls. views: of results by position. note: what the recorded call returned besides."""

    program: Program
    views: tuple[tuple[int, Strided], ...]
    note: Any


_several: dict[Hashable, Several] = {}
_met: dict[int, bool] = {}  # by the hash of a kind, which can be long: True if its next call is to be recorded


def together(
    call: Call, kind: Hashable, inputs: Sequence[Any], act: Callable[[], tuple[Sequence[Any], Any]]
) -> tuple[Sequence[Any], Any]:
    """Call `act` and return its tensors and note; from the third call of a kind on, one program makes the tensors.

    call: is remembered, so that all of a kind share it. kind: all that decides what `act` does on the device besides
    the tensors' types, shapes, strides and addresses. inputs: every tensor that it reads; None for those not given.
    `act` may call this backend's operations and make views; what else it computes with torch, reads from a tensor, or
    draws at random leaves each call to itself. A call whose splits or shapes are new each time is never recorded.
    """
    library = current_library()
    seen = (
        None if library is None or recording.current() is not None else seen_in(inputs, library.ordinal, strided=True)
    )
    if library is None or seen is None:
        return act()
    given, starts, kinds = seen
    key = "together", kind, id(call), library.ordinal, *kinds
    several = _several.get(key)
    if several is not None:
        return several.program.again(given, starts, several.views), several.note
    mark = hash(key)  # of two kinds with one hash, the first one decides when, and whether, both are recorded
    met = _met.get(mark)
    if not met:
        if met is None:
            _room(_met)[mark] = True
        return act()
    _met[mark] = False
    return _recorded(library, key, call, given, starts, act)


def steps(
    call: Call,
    kind: Hashable,
    inputs: Sequence[Any],
    act: Callable[..., tuple[Any, ...]],
    numbers: tuple[int, ...] = (),
) -> tuple[Any, ...]:
    """Return act(*inputs, *numbers), new tensors; from the second call of a kind on, one program makes them.

    kind, inputs: as for `together`. `act` calls this backend's operations and makes views, and torch computes nothing.
    numbers: not negative, below 2^64, of each call; `act` hands them on, or the sum of one and another number.
    """
    return programs.serve(("steps", kind), call, inputs, lambda *words: act(*inputs, *words), (), numbers)


def bind_steps(
    call: Call, kind: Hashable, inputs: Sequence[Any], act: Callable[..., tuple[Any, ...]]
) -> Callable[..., tuple[Any, ...]] | None:
    """Return a function of other inputs of these ones' kinds, and of numbers, that acts on them as `steps` does."""
    bound = programs.bind(("steps", kind), call, inputs)
    if bound is None:
        return None

    def again(*inputs: Any, numbers: tuple[int, ...] = ()) -> tuple[Any, ...]:
        made = bound(*inputs, numbers=numbers)
        return steps(call, kind, inputs, act, numbers) if made is None else made

    return again


def _room(kept: dict[Any, Any]) -> dict[Any, Any]:
    """Return a table, emptied if it is full."""
    if len(kept) >= KEPT:
        kept.clear()
    return kept


def _recorded(
    library: Library,
    key: Hashable,
    call: Call,
    given: Sequence[Any],
    starts: Sequence[int],
    act: Callable[[], tuple[Sequence[Any], Any]],
) -> tuple[Sequence[Any], Any]:
    """Serve a call of several, and keep its program if another call can repeat it."""
    noted = Recording(given, starts)
    with recorded(noted), _watch(noted):
        results, note = act()
    places = [noted.place(each) for each in results]
    if noted.complete:
        program = program_of(library, noted, tuple(slot for slot, _ in places), (call,))
        views = tuple((at, view) for at, (_, view) in enumerate(places) if view is not None)
        _room(_several)[key] = Several(program, views, note)
    return results, note


def _watch(noted: Recording) -> Any:
    """Return a context in which torch's allocations are noted, and whatever else it computes ends the recording."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    allocates = {aten.empty.memory_format, aten.empty_strided.default, aten.new_empty.default}

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func in allocates:
                dtype = str(result.dtype).removeprefix("torch.")
                noted.allocated(result, result.data_ptr(), tuple(result.shape), dtype)
                noted.complete &= result.is_contiguous()
            elif not func.is_view:
                noted.complete = False
            return result

    return Watch()  # type: ignore[no-untyped-call]
