"""Random bytes, made on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from fp4ref.operands import Counters
from fp4ref.registry import Call
from fp4ref_cuda import buffers, recording
from fp4ref_cuda.buffers import Library, pointer, torch_on
from fp4ref_cuda.checks import require_buffer
from fp4ref_cuda.launch import enter, launch, ready
from fp4ref_cuda.plan import Plan, remember
from fp4ref_cuda.programs import current_library
from fp4ref_cuda.recording import Address, Shape
from fp4ref_cuda.words import HEADER, packed, start_packed

THREADS, BLOCK, EACH = 256, 16, 4  # threads of a block, bytes of a random block, random blocks of a thread
NO_PART = (0,) * 6  # the words of a part that there is not
PARTS, UPPER = (HEADER, HEADER + len(NO_PART)), len(NO_PART) - 1  # where the words of both parts begin; one in a part
MADE, NOTHING = Plan("random_bits", ("random_bits",)), Plan("random_bits", ())


def random_bits(call: Call, counters: Counters, device: Any, out: Any = None) -> Any:
    """Make random bytes uint8 of a part of a direction's matrix; with `out`, into it.

    counters: their seed may be in the device's memory, int64 [1], to be read when the bytes are made.

    Rules: SR-7, SR-8.
    """
    shape = call.encoded
    library, units = buffers.adopt("random_bits", out)[1] if out is not None else _library(device), _units(shape)
    with library.current():
        if out is None:
            out = library.empty(shape, "uint8")
        else:
            require_buffer("random_bits: out", out, shape, library, None)
        if units:
            if not _are_words([counters]):
                recording.forbid()  # other calls draw other bytes
            words = pointer(out), *_part(shape, counters), *NO_PART, *_seed(counters.seed)
            launch(library, "random_bits", "", _grid(units, 1), words, THREADS)
    remember(MADE if units else NOTHING)
    return out


def bind_random_bits(
    calls: Sequence[Call], counters: Sequence[Counters], device: Any
) -> Callable[[Any, int], tuple[Any, ...]] | None:
    """Return a function that makes the bytes of one or two calls in one launch, from a seed and an upper word of keys.

    counters: of each call, for word 0. The function serves torch where that device is the current one, and leaves other
    calls to `random_bits`.
    """
    shapes = [call.encoded for call in calls]
    if ":" not in str(device) or not all(map(_units, shapes)) or not _has_torch():
        return None
    library, grid = _library(device), _grid(max(map(_units, shapes)), len(calls))
    parts = [(0, *_part(shape, each)) for shape, each in zip(shapes, counters, strict=True)]
    same = packed([word for part in (*parts, NO_PART)[:2] for word in part] + [0, 0])  # in every call
    prepared: list[Any] = []

    def again(seed: Any, upper: int) -> tuple[Any, ...]:
        if current_library() is not library or recording.current() is not None:
            now = [each._replace(seed=seed, upper=upper + each.upper) for each in counters]
            if _are_words(now):
                return _drawn(library, shapes, now)
            return tuple(random_bits(call, each, device) for call, each in zip(calls, now, strict=True))
        if not prepared:
            start = ready(library, "random_bits", "", Shape(grid, THREADS, 0, early=True), len(same) - HEADER)
            prepared[:] = start, [library.allocator(shape, "uint8") for shape in shapes]
        start, allocators = prepared
        made, words = tuple([allocate() for allocate in allocators]), same[:]
        for at, bits in zip(PARTS, made, strict=False):
            words[at] = bits.data_ptr()
            words[at + UPPER] += upper
        words[-2], words[-1] = _seed(seed)
        enter(library)
        start_packed(start, library.stream(), words)
        remember(MADE)
        return made

    return again


def _are_words(counters: Sequence[Counters]) -> bool:
    """Return True if what is drawn is decided by words of a call that is recorded, so that others draw by theirs."""
    return all(type(word) is Address for each in counters for word in (each.seed, each.upper))


def _drawn(library: Library, shapes: Sequence[tuple[int, int]], counters: Sequence[Counters]) -> tuple[Any, ...]:
    """Make the bytes of one or two parts in one launch."""
    made = tuple([library.empty(shape, "uint8") for shape in shapes])
    parts = [(pointer(bits), *_part(shape, of)) for bits, shape, of in zip(made, shapes, counters, strict=True)]
    words = *[word for part in (*parts, NO_PART)[:2] for word in part], *_seed(counters[0].seed)
    launch(library, "random_bits", "", _grid(max(map(_units, shapes)), len(shapes)), words, THREADS)
    remember(MADE)
    return made


def _part(shape: tuple[int, int], counters: Counters) -> tuple[int, ...]:
    """Return the sizes of a part, its first block in the whole, the blocks of a whole row, and the key's upper word."""
    (down, right), across, _, upper = counters
    return *shape, down * across + right, across, upper


def _seed(seed: Any) -> tuple[int, int]:
    return (seed, 0) if isinstance(seed, int) else (0, pointer(seed))


def _units(shape: tuple[int, int]) -> int:
    """Return the random blocks of a part."""
    return shape[0] * -(-shape[1] // BLOCK)


def _grid(units: int, parts: int) -> tuple[int, int]:
    return -(-units // (THREADS * EACH)), parts


def _library(device: Any) -> Library:
    """Return torch where it is installed, for its tensors are what the caller named the device by; else CuPy."""
    named = str(device).partition(":")[2]  # a device's own name, or one that the caller wrote
    index = int(named) if named else None
    if not _has_torch():
        return Library("cupy", index or 0)
    import torch

    return torch_on(torch.cuda.current_device() if index is None else index)


@cache
def _has_torch() -> bool:
    return find_spec("torch") is not None
