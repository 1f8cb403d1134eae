"""Random bytes by the counter map."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_longlong, c_ulonglong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np

from fp4ref import arrays
from fp4ref.operands import Counters
from fp4ref.registry import Call
from fp4ref_cpu import jobs, threads
from fp4ref_cpu.build import functions
from fp4ref_cpu.native import address, buffer_of, exported, result_in, starts

BLOCK = 16  # bytes of a counter
SEED_MASK = 2**64 - 1


class RandomJob(ctypes.Structure):
    """Arguments of `random`."""

    _fields_ = (
        ("out", c_void_p),
        ("rows", c_longlong),
        ("columns", c_longlong),
        ("first_row", c_ulonglong),
        ("first_block", c_ulonglong),
        ("across", c_ulonglong),
        ("seed", c_ulonglong),
        ("upper", c_ulonglong),
        ("next", c_longlong),
    )


OUT, SEED, UPPER = (jobs.place(RandomJob, name) for name in ("out", "seed", "upper"))


def random_bits(call: Call, counters: Counters, device: Any, out: Any) -> Any:
    """Make random bytes uint8 of a part of a direction's matrix; with `out`, into it. Rules: SR-7, SR-8."""
    buffer = None if out is None else buffer_of(out)
    result = result_in(buffer, call.encoded)
    if result.size:
        threads.run(_randoms(), _job(call.encoded, counters, address(result)), result.size)
    if buffer is None:
        return arrays.on_device("random_bits", result, device)
    if result is not buffer:
        buffer[...] = result
    return out


def bind_random_bits(
    calls: Sequence[Call], counters: Sequence[Counters], device: Any
) -> Callable[[Any, int], tuple[Any, ...]]:
    """Return a function that makes the bytes of some calls from a seed and a key's upper word. counters: for word 0.

    seed: an integer, or an array of one.
    """
    each = [_binding(call.encoded, part, device) for call, part in zip(calls, counters, strict=True)]
    return lambda seed, upper: tuple([make(seed, upper) for make in each])


def _binding(shape: tuple[int, int], counters: Counters, device: Any) -> Callable[[Any, int], Any]:
    """Return a function that makes the bytes of one part from a seed and what is added to the upper word."""
    make = jobs.maker(arrays.on_device("random_bits", np.empty(0, np.uint8), device), shape, "uint8")
    at, size = starts(make()), shape[0] * shape[1]
    ready, own = jobs.ready(_job(shape, counters, None), None), counters.upper
    run = jobs.runner(_randoms(), size)

    def again(seed: Any, upper: int) -> Any:
        made = make()
        if size:
            words = ready.words[:]
            words[OUT], words[SEED], words[UPPER] = at(made), int(seed) & SEED_MASK, upper + own
            run(words)
        return made

    return again


def _job(shape: tuple[int, int], counters: Counters, start: int | None) -> RandomJob:
    """Return the job of a part; rows whose blocks follow each other are one long row, which takes whole vectors."""
    (rows, columns), (origin, across, seed, upper) = shape, counters
    if columns == across * BLOCK:
        rows, columns = min(rows, 1), rows * columns
        origin, across = (0, origin[0] * across + origin[1]), 0
    return RandomJob(start, rows, columns, *origin, across, seed, upper, 0)


@lru_cache
def _randoms() -> Any:
    return functions(random_text(), "random")[0]


def random_text() -> str:
    """Return the text that exports `random`."""
    return exported("", "random.h", "Randoms", "random")
