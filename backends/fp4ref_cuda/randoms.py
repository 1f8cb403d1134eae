"""Random bytes, made on the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
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
from fp4ref_cuda.recording import Shape, Start
from fp4ref_cuda.words import start_once

THREADS, BLOCK, EACH = 256, 16, 4  # threads of a block, bytes of a random block, random blocks of a thread
MADE, NOTHING = Plan("random_bits", ("random_bits",)), Plan("random_bits", ())


def random_bits(call: Call, counters: Counters, device: Any, out: Any = None) -> Any:
    """Make random bytes uint8 of a part of a direction's matrix; with `out`, into it.

    counters: their seed may be in the device's memory, int64 [1], to be read when the bytes are made.

    Rules: SR-7, SR-8.
    """
    shape = rows, columns = call.encoded
    (down, right), across, seed, upper = counters
    given = (seed, upper, 0) if isinstance(seed, int) else (0, upper, pointer(seed))
    library = buffers.adopt("random_bits", out)[1] if out is not None else _library(device)
    units = rows * -(-columns // BLOCK)
    words = rows, columns, down * across + right, across, *given
    if out is None and units and library == current_library() and recording.current() is None:
        allocate, start = _prepared(library, shape)
        made = allocate()
        enter(library)
        start_once(start, library.stream(), (made.data_ptr(), *words))
        remember(MADE)
        return made
    with library.current():
        if out is None:
            out = library.empty(shape, "uint8")
        else:
            require_buffer("random_bits: out", out, shape, library, None)
        if units:
            recording.forbid()  # other calls draw other bytes
            launch(library, "random_bits", "", _grid(units), (pointer(out), *words), THREADS)
    remember(MADE if units else NOTHING)
    return out


@lru_cache(maxsize=4096)
def _prepared(library: Library, shape: tuple[int, int]) -> tuple[Callable[[], Any], Start]:
    """Return the functions that allocate bytes of a shape on torch's current device, and that start making them."""
    units = shape[0] * -(-shape[1] // BLOCK)
    kind = Shape(_grid(units), THREADS, 0, early=True)
    return library.allocator(shape, "uint8"), ready(library, "random_bits", "", kind, 8)


def _grid(units: int) -> tuple[int]:
    return (-(-units // (THREADS * EACH)),)


def _library(device: Any) -> Library:
    """torch where it is installed, for its tensors are what the caller named the device by; else CuPy."""
    named = str(device).partition(":")[2]  # a device's own name, or one that the caller wrote
    index = int(named) if named else None
    if not _has_torch():
        return Library("cupy", index or 0)
    import torch

    return torch_on(torch.cuda.current_device() if index is None else index)


@cache
def _has_torch() -> bool:
    return find_spec("torch") is not None
